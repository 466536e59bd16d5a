"""Apache Kafka: one node, the real broker, on free ports of this machine. Several of them are in `cluster`."""

import hashlib
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.servers.jars import FOLDER, jars, locked
from tests.servers.server import Server, ServerFailed, free_ports

CLUSTER = "c2FnYS10ZXN0LXNlcnZlcg"
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
broker.heartbeat.interval.ms=300
broker.session.timeout.ms=1500
initial.broker.registration.timeout.ms=30000
auto.create.topics.enable=false
log.cleaner.enable=false
log.index.size.max.bytes=1048576
"""
API_VERSIONS = 18
STARTS_FAST = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
RUNS_FAST = ("-XX:+UseG1GC", "-Xmx1g")
ARCHIVED_WITHIN_S = 60.0


class KafkaServer:
    """One broker with its data; `start` gives a running one."""

    def __init__(
        self,
        folder: Path,
        port: int,
        *,
        jvm: tuple[str, ...],
        extra: str,
        users: Mapping[str, str] | None,
        node: int = 1,
        archives: Path | None = None,
    ) -> None:
        """Prepare as `start` does, but nothing runs yet. `node`: its id, where there are several. `archives`: file to
        which it writes its classes when it stops."""
        self.port = port
        self.address = f"127.0.0.1:{port}"
        folder.mkdir(parents=True, exist_ok=True)
        self.properties = folder / "server.properties"
        """Properties that `restart` reads again."""
        self.data = data = folder / "data"
        """Folder in which it has its logs: a folder for each partition."""
        (controller,) = free_ports(1)
        self.properties.write_text((PROPERTIES + extra).format(port=port, controller=controller, data=data))
        if not data.exists() and users:
            _format(self.properties, users)
        elif not data.exists():
            shutil.copytree(_formatted(), data)
            _name(data, node)
        classes = f"-XX:ArchiveClassesAtExit={archives}" if archives else f"-XX:SharedArchiveFile={archived()}"
        command = ["java", *jvm, classes, "-Xlog:disable", "-cp", _classpath(), "kafka.Kafka", str(self.properties)]
        ports = _listening(self.properties.read_text())
        self.server = Server(
            "kafka", command, folder, is_ready=lambda: kafka_answers(self.address) and all(map(_is_open, ports))
        )

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        port: int = 0,
        while_locked: Path | None = None,
        jvm: tuple[str, ...] = STARTS_FAST,
        extra: str = "",
        users: Mapping[str, str] | None = None,
    ) -> "KafkaServer":
        """A running one with its data in `folder`. `extra`: lines of its properties, which win, with `{port}` and
        `{controller}` where these ports are meant. `users`: who has which password, for SCRAM."""
        kafka = cls(folder, port or free_ports(1)[0], jvm=jvm, extra=extra, users=users)
        kafka.server.start(while_locked=while_locked)
        return kafka

    @property
    def pid(self) -> int:
        return self.server.pid

    def stop(self) -> None:
        """Let it close its files."""
        self.server.stop()

    def kill(self) -> None:
        """Kill it, as a power failure of the process would."""
        self.server.kill()

    def restart(self) -> None:
        """Start it again after `kill` or `stop`, with the same data and port; return once it answers."""
        self.server.start()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()


def kafka_answers(address: str) -> bool:
    """True if it says which requests it knows."""
    host, _, port = address.rpartition(":")
    request = struct.pack(">hhih", API_VERSIONS, 0, 1, -1)
    try:
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.settimeout(2)
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.recv(10)
    except OSError:
        return False
    return len(answer) == 10 and answer[8:] == b"\0\0"


def _listening(properties: str) -> list[int]:
    """The ports of all its listeners: it opens one after another."""
    *_, wins = re.findall(r"^listeners=(.*)$", properties.replace("\\\n", ""), re.MULTILINE)
    return [int(port) for port in re.findall(r":(\d+)", wins)]


def _is_open(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def _classpath() -> str:
    return ":".join(
        str(jar) for jar in sorted(jars().resolve().glob("*.jar")) if not jar.name.startswith("CouchbaseMock")
    )


def _formatted() -> Path:
    """An empty data folder, made once: formatting takes a JVM of its own."""
    template = FOLDER / "kafka-formatted"
    with locked("kafka-formatted"):
        if template.exists():
            return template
        making = FOLDER / "kafka-formatting"
        shutil.rmtree(making, ignore_errors=True)
        properties = FOLDER / "kafka-formatting.properties"
        properties.write_text(PROPERTIES.format(port=1, controller=2, data=making))
        _format(properties, {})
        making.rename(template)
    return template


def archived() -> Path:
    """Archive of the classes that Kafka loads, made once for this Java and these jars: with it a start takes half the
    time of a core.

    Empty where Java cannot make one; then servers start without.
    """
    java = Path(shutil.which("java") or "java").resolve()
    meant_for = hashlib.sha256(f"{java} {java.stat().st_mtime_ns} {_classpath()}".encode()).hexdigest()[:16]
    archive = jars().resolve() / f"kafka-{meant_for}.jsa"
    with locked("kafka-archiving"):
        if not archive.exists():
            folder, making = FOLDER / "kafka-archiving", archive.with_suffix(".new")
            shutil.rmtree(folder, ignore_errors=True)
            for others in archive.parent.glob("kafka-*.jsa"):
                others.unlink()
            making.touch()
            kafka = KafkaServer(folder, free_ports(1)[0], jvm=STARTS_FAST, extra="", users=None, archives=making)
            kafka.server.start()
            kafka.server.stop(ARCHIVED_WITHIN_S)
            making.rename(archive)
    return archive


def _name(data: Path, node: int) -> None:
    """Have the data folder be that of this node."""
    if node == 1:
        return
    path = data / "meta.properties"
    told = re.sub("(?m)^node.id=.*$", f"node.id={node}", path.read_text())
    path.write_text(re.sub("(?m)^(directory.id=.)(.)", lambda of: of[1] + _another(of[2], node), told))


def _another(character: str, node: int) -> str:
    """Character of a directory's id that no other node has: node 1 keeps the one that is there."""
    return [each for each in "ABCDEFGH" if each != character][node - 2]


def _format(properties: Path, users: Mapping[str, str]) -> None:
    """Make the data folder. Raises `ServerFailed`."""
    command = ["java", *STARTS_FAST, "-cp", _classpath(), "kafka.tools.StorageTool", "format", "-t", CLUSTER]
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        for name, password in users.items():
            command += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
    made = subprocess.run([*command, "-c", str(properties)], timeout=60, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise ServerFailed(f"Kafka could not format its data folder: {made.stdout}{made.stderr}")
