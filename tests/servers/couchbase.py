"""CouchbaseMock: Couchbase's own test server, which speaks the real protocol, forgets all when it ends, and fails on
request."""

import json
import os
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests import waiting
from tests.servers.jars import jars
from tests.servers.server import Server, free_ports

BUCKET = "saga"
VBUCKETS = 64
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
TEMPORARY_FAILURE = 0x86
ANSWER_S = 10
LOOK_S = 0.002
LISTENS = "0A"
"""State of a socket in Linux's tables of TCP (`proc_net_tcp`)."""


class CouchbaseMock:
    """One node with one bucket; any user and password will do."""

    def __init__(self, http: str, address: str, server: Server | None) -> None:
        self.http = http
        self.address = address
        """`couchbase://127.0.0.1:PORT`, for the SDK."""
        self._server = server

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        while_locked: Path | None = None,
        buckets: tuple[str, ...] = (BUCKET,),
        jvm: tuple[str, ...] = JVM,
    ) -> "CouchbaseMock":
        """A running one; its log is in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        http = f"http://127.0.0.1:{port}"
        (jar,) = jars().glob("CouchbaseMock-*.jar")
        options = ["--port", str(port), "--nodes", "1", "--replicas", "0", "--vbuckets", str(VBUCKETS), "--cccp"]
        named = ",".join(f"{bucket}::" for bucket in buckets)
        command = ["java", *jvm, "-jar", str(jar), *options, "--buckets", named]
        server = Server("couchbase", command, folder, is_ready=lambda: mock_answers(http, buckets[0]))
        server.start(while_locked=while_locked)
        return cls(http, _address(http, buckets[0]), server)

    @property
    def pid(self) -> int:
        return self._own.pid

    @property
    def _own(self) -> Server:
        assert self._server is not None, "the mock that all tests share is nobody's to stop: start one of your own"
        return self._server

    def stop(self) -> None:
        """End it. It forgets everything, as it does when it is killed."""
        self._own.kill()

    def pause(self) -> None:
        """Freeze it: writes under way become ambiguous."""
        self._own.pause()

    def resume(self) -> None:
        self._own.resume()

    def connections(self) -> int:
        """How many it has open, and so may still read requests from, though their clients are gone: it closes one once
        it has handled all that came by it."""
        proc = Path(f"/proc/{self.pid}")
        others = [_inodes(proc / "net/unix", 6)]
        others += [_inodes(proc / "net" / table, 9, lambda row: row[3] == LISTENS) for table in ("tcp", "tcp6")]
        return len(_sockets(proc / "fd").difference(*others))

    def wait_until_left(self, within_s: float) -> None:
        """Return when nothing that a client sent can change it any more, whether that client still waits or not."""
        waiting.until(
            lambda: not self.connections(),
            within_s,
            lambda: f"the mock still has {self.connections()} connections: somebody left a store open",
            pause_s=LOOK_S,
        )

    # ---------------------------------------------------------------- faults

    def opfail(self, code: int = TEMPORARY_FAILURE, count: int = 1, bucket: str = BUCKET) -> None:
        """Answer the next `count` operations with that status, and do not carry them out."""
        self._ask("opfail", code=code, count=count, servers="[0]", bucket=bucket)

    def time_travel(self, seconds: int) -> None:
        """Let that much time pass, for what expires."""
        self._ask("time_travel", Offset=seconds)

    def failover(self, bucket: str = BUCKET) -> None:
        """The node is gone; until `respawn`."""
        with suppress(ValueError):  # it answers with a stack trace, and does it
            self._ask("failover", idx=0, bucket=bucket)

    def respawn(self, bucket: str = BUCKET) -> None:
        self._ask("respawn", idx=0, bucket=bucket)

    def start_log(self, bucket: str = BUCKET) -> None:
        """Remember which operations come, for `operations`."""
        self._ask("start_cmdlog", idx=0, bucket=bucket)

    def operations(self, bucket: str = BUCKET) -> object:
        """Operations that have come since `start_log`, as the mock tells them."""
        return self._ask("get_cmdlog", idx=0, bucket=bucket)

    def _ask(self, command: str, **parameters: str | int) -> object:
        return _ask(self.http, command, **parameters)


def _sockets(fds: Path) -> set[str]:
    """Inodes of the sockets among the files that a process has open."""
    found: set[str] = set()
    for fd in fds.iterdir():
        with suppress(FileNotFoundError):  # closed just now
            kind, _, inode = os.readlink(fd).partition(":")
            if kind == "socket":
                found.add(inode.strip("[]"))
    return found


def _inodes(table: Path, column: int, wanted: Callable[[list[str]], bool] = lambda _: True) -> set[str]:
    """Inodes of the sockets in one of the system's tables, which has them in that column."""
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    return {row[column] for row in rows if wanted(row)}


def _ask(http: str, command: str, **parameters: str | int) -> object:
    url = f"{http}/mock/{command}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
        body = answer.read()
    told = json.loads(body)
    if told.get("status") != "ok":
        raise ValueError(f"{url}: {told}")
    return told.get("payload")


def _address(http: str, bucket: str) -> str:
    ports = _ask(http, "get_mcports", bucket=bucket)
    assert isinstance(ports, list)
    return f"couchbase://127.0.0.1:{ports[0]}"


def mock_answers(http: str, bucket: str = BUCKET) -> bool:
    """True if it says where its data is."""
    try:
        _address(http, bucket)
    except (OSError, ValueError):
        return False
    return True
