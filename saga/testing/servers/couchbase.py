"""Run CouchbaseMock, Couchbase's own test server. It speaks the real protocol, keeps everything in memory, and fails on
request.
"""

import json
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path

from saga.testing.servers.jars import jars
from saga.testing.servers.server import Server, free_ports

BUCKET = "saga"
VBUCKETS = 64
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
TEMPORARY_FAILURE = 0x86
ANSWER_S = 10


class CouchbaseMock:
    """One CouchbaseMock node with one or more buckets. It accepts every user and password."""

    def __init__(self, http: str, address: str, server: Server | None) -> None:
        self.http = http
        self.address = address
        """Address for the SDK: `couchbase://127.0.0.1:PORT`."""
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
        """Start a mock with its log in `folder`, and return when it answers. `while_locked`: see `Server.start`."""
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
        """Process id of the mock."""
        return self._own.pid

    @property
    def _own(self) -> Server:
        assert self._server is not None, "this mock is shared: start one of your own to stop or freeze it"
        return self._server

    def stop(self) -> None:
        """Stop the mock. All its data is lost."""
        self._own.kill()

    def pause(self) -> None:
        """Freeze the mock. Writes that are in progress become ambiguous."""
        self._own.pause()

    def resume(self) -> None:
        """Let a frozen mock continue."""
        self._own.resume()

    # ---------------------------------------------------------------- faults

    def opfail(self, code: int = TEMPORARY_FAILURE, count: int = 1, bucket: str = BUCKET) -> None:
        """Make the next `count` operations fail with the status `code`, without any effect."""
        self._ask("opfail", code=code, count=count, servers="[0]", bucket=bucket)

    def time_travel(self, seconds: int) -> None:
        """Move the mock's clock forward, so that documents expire."""
        self._ask("time_travel", Offset=seconds)

    def failover(self, bucket: str = BUCKET) -> None:
        """Remove the node from the cluster, until `respawn`."""
        with suppress(ValueError):  # it answers with a stack trace, but does what it should
            self._ask("failover", idx=0, bucket=bucket)

    def respawn(self, bucket: str = BUCKET) -> None:
        """Add the node to the cluster again."""
        self._ask("respawn", idx=0, bucket=bucket)

    def start_log(self, bucket: str = BUCKET) -> None:
        """Start recording the operations that `operations` returns."""
        self._ask("start_cmdlog", idx=0, bucket=bucket)

    def operations(self, bucket: str = BUCKET) -> object:
        """Return the operations since `start_log`, as reported by the mock."""
        return self._ask("get_cmdlog", idx=0, bucket=bucket)

    def _ask(self, command: str, **parameters: str | int) -> object:
        return _ask(self.http, command, **parameters)


def _ask(http: str, command: str, **parameters: str | int) -> object:
    url = f"{http}/mock/{command}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
        body = answer.read()
    answered = json.loads(body)
    if answered.get("status") != "ok":
        raise ValueError(f"{url}: {answered}")
    return answered.get("payload")


def _address(http: str, bucket: str) -> str:
    ports = _ask(http, "get_mcports", bucket=bucket)
    assert isinstance(ports, list)
    return f"couchbase://127.0.0.1:{ports[0]}"


def mock_answers(http: str, bucket: str = BUCKET) -> bool:
    """Return True if the mock at this HTTP address answers with the port of its data."""
    try:
        _address(http, bucket)
    except (OSError, ValueError):
        return False
    return True
