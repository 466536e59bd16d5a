"""One node of a pretended Couchbase Server, for what CouchbaseMock cannot show: collections, durable writes, keeping an
expiry, roles, passwords, and any status on demand. It speaks as much of the real protocol as the SDK asks for.

It shows that the SDK sends what we mean, and what becomes of each answer; not that a real server answers so.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from saga.support.clock import SystemClock


class Op(IntEnum):
    GET = 0x00
    INSERT = 0x02
    REPLACE = 0x03
    REMOVE = 0x04
    NOOP = 0x0A
    HELLO = 0x1F
    MECHANISMS = 0x20
    LOGIN = 0x21
    LOGIN_STEP = 0x22
    SELECT_BUCKET = 0x89
    CONFIG = 0xB5
    COLLECTION_ID = 0xBB
    LOOK_UP = 0xD0
    SCAN = 0xDA
    SCAN_ON = 0xDB
    ERROR_MAP = 0xFE


class Status(IntEnum):
    OK = 0x00
    NOT_FOUND = 0x01
    EXISTS = 0x02
    TOO_LARGE = 0x03
    LOCKED = 0x09
    REFUSED = 0x20
    GO_ON = 0x21
    NO_ACCESS = 0x24
    UNKNOWN_COMMAND = 0x81
    TEMPORARY_FAILURE = 0x86
    UNKNOWN_COLLECTION = 0x88
    DURABILITY_INVALID = 0xA0
    DURABILITY_IMPOSSIBLE = 0xA1
    WRITE_IN_PROGRESS = 0xA2
    WRITE_AMBIGUOUS = 0xA3
    SCANNED = 0xA7


JSON_FORM = 0x02_00_00_00
DOCUMENTS = (Op.GET, Op.INSERT, Op.REPLACE, Op.REMOVE, Op.LOOK_UP)
WRITES = (Op.INSERT, Op.REPLACE, Op.REMOVE)
HEADER = struct.Struct(">BBHBBHIIQ")
FLEXIBLE = 0x08
FEATURES = frozenset({0x06, 0x07, 0x08, 0x0B, 0x0E, 0x10, 0x11, 0x12, 0x14})
"""Among them frames in requests, durability, collections, and keeping an expiry."""
VBUCKETS = 16
RELATIVE_S_MAX = 30 * 86_400
HASH, SALT, ROUNDS = "sha512", b"salt", 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An operation on a document, as it came."""

    op: Op
    collection: str
    key: str
    content: bytes
    cas: int
    expiry: int
    durability: int | None
    durability_ms: int | None
    keeps_expiry: bool


@dataclass
class Node:
    """A node: its documents, the requests that it got, and how it is to answer."""

    collections: list[str] = field(default_factory=lambda: ["_default._default"])
    password: str = "secret"
    answers: dict[Op, Status] = field(default_factory=dict)
    """Each time that an operation comes, on any document: this, and it is not carried out."""
    durable_answer: Status | None = None
    """The same, for durable writes only."""
    asked: list[Asked] = field(default_factory=list)
    documents: dict[tuple[str, str], tuple[bytes, int]] = field(default_factory=dict)
    forms: dict[tuple[str, str], int] = field(default_factory=dict)
    """In which form another program declares a document; JSON, if it declares none."""
    expiries: dict[tuple[str, str], int] = field(default_factory=dict)
    """Expiry of documents, in seconds since 1970."""
    max_ttl_s: int = 0
    """Longest time to expiry in the bucket; 0 for none."""
    ahead_s: int = 0
    """Seconds that its clock is ahead of this machine's."""
    eviction: str | None = None
    """Eviction of the bucket, as its management reports it; without it no client may ask."""
    tls: ssl.SSLContext | None = None
    asked_of_management: list[bytes] = field(default_factory=list)
    """Heads of the requests to its management, over HTTP."""
    port: int = 0
    logins: int = 0
    """How often a client signed in with a password."""
    subjects: set[str] = field(default_factory=set)
    """Subjects of certificates that were shown."""
    _cas: int = 1000
    _management: int = 1
    _scans: dict[bytes, bytes] = field(default_factory=dict)
    _connections: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Node"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        management = await asyncio.start_server(self._manage, "127.0.0.1", 0, ssl=self.tls)
        self._management = management.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            management.close()
            self.hang_up()
            if self._connections:
                await asyncio.wait(list(self._connections))

    def now_s(self) -> int:
        return SystemClock().now_ms() // 1000 + self.ahead_s

    def hang_up(self) -> None:
        """Close all connections."""
        for writer in self._connections.values():
            writer.close()

    def of_documents(self, *ops: Op) -> list[Asked]:
        """Requests about documents that are not probes."""
        return [asked for asked in self.asked if asked.op in ops and "saga-probe::" not in asked.key]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        login: list[bytes] = []
        task = asyncio.current_task()
        assert task is not None, "the server makes a task for each connection"
        self._connections[task] = writer
        for part in (writer.get_extra_info("peercert") or {}).get("subject", ()):
            self.subjects.update(name for kind, name in part if kind == "commonName")
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = HEADER.unpack(await reader.readexactly(HEADER.size))
                body = await reader.readexactly(head[6])
                status, extras, value, cas = self._answer(head, body, login)
                answer = HEADER.pack(0x81, head[1], 0, len(extras), 0, status, len(extras) + len(value), head[7], cas)
                writer.write(answer + extras + value)
                await writer.drain()
        writer.close()
        del self._connections[task]

    def _answer(self, head: tuple[int, ...], body: bytes, login: list[bytes]) -> tuple[Status, bytes, bytes, int]:
        magic, op, lengths, extras_length, _, _, _, _, cas = head
        frames_length, key_length = divmod(lengths, 256) if magic == FLEXIBLE else (0, lengths)
        frames, rest = body[:frames_length], body[frames_length:]
        extras, rest = rest[:extras_length], rest[extras_length:]
        key, value = rest[:key_length], rest[key_length:]
        if op in DOCUMENTS:
            return self._document(_asked(Op(op), frames, extras, key, value, cas, self._names()))
        if op in (Op.LOGIN, Op.LOGIN_STEP):
            return *self._login(key, value, login), 0
        if op == Op.SCAN:
            return *self._scan(head[5], json.loads(value)), 0
        if op == Op.SCAN_ON:
            return Status.SCANNED, b"\0\0\0\0", self._scans.pop(extras[:16]), 0
        return *self._other(op, key, value), 0

    def _other(self, op: int, key: bytes, value: bytes) -> tuple[Status, bytes, bytes]:
        if op == Op.HELLO:
            wanted = struct.unpack(f">{len(value) // 2}H", value)
            granted = [feature for feature in wanted if feature in FEATURES]
            return Status.OK, b"", struct.pack(f">{len(granted)}H", *granted)
        if op == Op.MECHANISMS:
            return Status.OK, b"", b"SCRAM-SHA512 PLAIN"
        if op == Op.ERROR_MAP:
            return Status.OK, b"", b'{"version":1,"revision":1,"errors":{}}'
        if op == Op.CONFIG:
            return Status.OK, b"", json.dumps(self._config()).encode()
        if op == Op.COLLECTION_ID:
            name = (value or key).decode()
            number = next((number for number, known in self._names().items() if known == name), None)
            if number is None:
                return Status.UNKNOWN_COLLECTION, b"", b""
            return Status.OK, struct.pack(">QI", 1, number), b""
        return (Status.OK if op in (Op.SELECT_BUCKET, Op.NOOP) else Status.UNKNOWN_COMMAND), b"", b""

    def _scan(self, vbucket: int, asked: dict[str, Any]) -> tuple[Status, bytes, bytes]:
        """Scan of keys only. All documents are listed for the first vBucket; the SDK asks each, and does not mind."""
        if vbucket:
            return Status.NOT_FOUND, b"", b""
        first = base64.b64decode(asked["range"]["start"])
        beyond = base64.b64decode(asked["range"].get("excl_end") or asked["range"]["end"])
        named = self._names()[int(asked.get("collection", "0"), 16)]
        keys = [key.encode() for collection, key in self.documents if collection == named]
        scan = len(self.asked).to_bytes(16, "big")
        self._scans[scan] = b"".join(_leb128(len(key)) + key for key in keys if first <= key < beyond)
        return Status.OK, b"", scan

    def _names(self) -> dict[int, str]:
        """The collections by their numbers: the default one is 0, others begin at 8."""
        return {index + 7 if index else 0: name for index, name in enumerate(self.collections)}

    def _config(self) -> dict[str, object]:
        suffix = "" if self.tls is None else "SSL"
        services = {f"kv{suffix}": self.port, f"mgmt{suffix}": self._management}
        return {
            "rev": 1,
            "revEpoch": 1,
            "name": "shop",
            "uuid": "0123456789abcdef0123456789abcdef",
            "nodeLocator": "vbucket",
            "nodesExt": [
                {
                    "services": services,
                    "thisNode": True,
                    "hostname": "127.0.0.1",
                    "nodeUUID": "0123456789abcdef",
                    "appTelemetryPath": "/_appTelemetry",
                }
            ],
            "bucketCapabilities": ["collections", "durableWrite", "xattr", "rangeScan"],
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": 0,
                "serverList": [f"127.0.0.1:{self.port}"],
                "vBucketMap": [[0]] * VBUCKETS,
            },
        }

    def _login(self, mechanism: bytes, value: bytes, login: list[bytes]) -> tuple[Status, bytes, bytes]:
        """PLAIN, over TLS; else SCRAM, as in RFC 5802: the password itself does not come over the wire."""
        if mechanism == b"PLAIN":
            self.logins += 1
            right = value.rpartition(b"\0")[2] == self.password.encode()
            return (Status.OK if right else Status.REFUSED), b"", b""
        if not login:
            self.logins += 1
            first = value.removeprefix(b"n,,")
            nonce = dict(part.split(b"=", 1) for part in first.split(b","))[b"r"]
            challenge = b"r=%bserver,s=%b,i=%d" % (nonce, base64.b64encode(SALT), ROUNDS)
            login += [first, challenge]
            return Status.GO_ON, b"", challenge
        without_proof, _, proof = value.rpartition(b",p=")
        message = b",".join([*login, without_proof])
        salted = hashlib.pbkdf2_hmac(HASH, self.password.encode(), SALT, ROUNDS)
        client = hmac.digest(salted, b"Client Key", HASH)
        signature = hmac.digest(hashlib.new(HASH, client).digest(), message, HASH)
        if base64.b64decode(proof) != bytes(a ^ b for a, b in zip(client, signature, strict=True)):
            return Status.REFUSED, b"", b""
        server = hmac.digest(hmac.digest(salted, b"Server Key", HASH), message, HASH)
        return Status.OK, b"", b"v=" + base64.b64encode(server)

    def _document(self, asked: Asked) -> tuple[Status, bytes, bytes, int]:
        self.asked.append(asked)
        if (answer := self.answers.get(asked.op)) is not None:
            return answer, b"", b"", 0
        if asked.durability is not None and self.durable_answer is not None:
            return self.durable_answer, b"", b"", 0
        place = (asked.collection, asked.key)
        self._drop_expired()
        there = self.documents.get(place)
        if asked.op is Op.LOOK_UP:  # of one thing only: when the document expires
            if there is None:
                return Status.NOT_FOUND, b"", b"", 0
            expires = str(self.expiries[place]).encode()
            return Status.OK, b"", struct.pack(">HI", Status.OK, len(expires)) + expires, there[1]
        if asked.op is Op.GET:
            if there is None:
                return Status.NOT_FOUND, b"", b"", 0
            return Status.OK, struct.pack(">I", self.forms.get(place, JSON_FORM)), *there
        if (there is None) != (asked.op is Op.INSERT):
            return (Status.NOT_FOUND if there is None else Status.EXISTS), b"", b"", 0
        if there is not None and asked.cas not in (0, there[1]):
            return Status.EXISTS, b"", b"", 0
        self._cas = max(self._cas + 1, self.now_s() * 1_000_000_000)
        self.documents[place] = asked.content, self._cas
        if asked.op is Op.REMOVE:
            del self.documents[place]
            del self.expiries[place]
        elif not asked.keeps_expiry:
            self.expiries[place] = self._expires_s(asked.expiry)
        return Status.OK, b"", b"", self._cas

    def _expires_s(self, asked_s: int) -> int:
        """Expiry as the server takes it: up to 30 days a length, else a point in time; with a maxTTL never later than
        that."""
        now_s = self.now_s()
        at_s = asked_s if asked_s > RELATIVE_S_MAX or not asked_s else now_s + asked_s
        if not self.max_ttl_s:
            return at_s
        return min(at_s or 2**32, now_s + self.max_ttl_s)

    def _drop_expired(self) -> None:
        for place, at_s in list(self.expiries.items()):
            if at_s and at_s <= self.now_s():
                del self.expiries[place], self.documents[place]

    async def _manage(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The bucket's settings, over HTTP, one question a connection."""
        self.asked_of_management.append(await reader.readuntil(b"\r\n\r\n"))
        bucket: dict[str, object] = {
            "name": "shop",
            "uuid": "0" * 32,
            "bucketType": "ephemeral",
            "evictionPolicy": self.eviction,
            "quota": {"ram": 1, "rawRAM": 1},
            "maxTTL": self.max_ttl_s,
            "controllers": {},
            "replicaNumber": 0,
            "nodes": [],
            "storageBackend": "undefined",
            "compressionMode": "off",
            "replicaIndex": False,
            "conflictResolutionType": "seqno",
            "durabilityMinLevel": "none",
        }
        status, body = ("401 Unauthorized", b"") if self.eviction is None else ("200 OK", json.dumps(bucket).encode())
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status.encode(), len(body)))
        writer.write(body)
        await writer.drain()
        writer.close()


def _leb128(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + _leb128(number // 128)


def _asked(  # the parts of a request on the wire
    op: Op, frames: bytes, extras: bytes, key: bytes, value: bytes, cas: int, names: dict[int, str]
) -> Asked:
    durability = durability_ms = None
    keeps = False
    while frames:
        kind, length = divmod(frames[0], 16)
        content, frames = frames[1 : 1 + length], frames[1 + length :]
        if kind == 1:
            durability = content[0]
            durability_ms = struct.unpack(">H", content[1:])[0] if length == 3 else None
        keeps |= kind == 5
    expiry = struct.unpack(">II", extras)[1] if len(extras) == 8 else 0
    return Asked(op=op, collection=names[key[0]], key=key[1:].decode(), content=value, cas=cas, expiry=expiry,
                 durability=durability, durability_ms=durability_ms, keeps_expiry=keeps)  # fmt: skip
