"""Run Apache Kafka: one node on free ports of this machine, started from the jars."""

import hashlib
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from saga.testing.servers.jars import hold_lock, jars
from saga.testing.servers.server import Server, ServerFailed, free_ports

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
ARCHIVES_CLASSES = "-XX:ArchiveClassesAtExit="
"""Java option that writes an archive of the loaded classes to this file when the broker stops."""


class KafkaServer:
    """A Kafka broker with its data; `start` returns a running one."""

    def __init__(
        self,
        folder: Path,
        port: int,
        *,
        jvm: tuple[str, ...],
        extra: str,
        users: Mapping[str, str] | None,
        node: int = 1,
    ) -> None:
        """Prepare a broker without starting it. `node`: its id in a cluster. The other arguments are those of
        `start`.
        """
        self.port = port
        self.address = f"127.0.0.1:{port}"
        folder.mkdir(parents=True, exist_ok=True)
        self.properties = folder / "server.properties"
        """The broker's properties file. `restart` reads it again."""
        self.data = data = folder / "data"
        """The folder with the broker's logs, one folder per partition."""
        (controller,) = free_ports(1)
        self.properties.write_text((PROPERTIES + extra).format(port=port, controller=controller, data=data))
        if not data.exists() and users:
            _format(self.properties, users)
        elif not data.exists():
            shutil.copytree(_make_formatted_folder(), data)
            assign_node(data, node)
        makes_archive = any(option.startswith(ARCHIVES_CLASSES) for option in jvm)
        classes = () if makes_archive else (f"-XX:SharedArchiveFile={make_class_archive()}",)
        command = ["java", *jvm, *classes, "-Xlog:disable", "-cp", _classpath(), "kafka.Kafka", str(self.properties)]
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
        """Start a broker with its data in `folder`, and return when it answers.

        Args:
            port: its port; 0 selects a free one.
            while_locked: see `Server.start`.
            extra: lines of properties that override the defaults; `{port}` and `{controller}` stand for the ports.
            users: passwords by user name, for SCRAM.
        """
        kafka = cls(folder, port or free_ports(1)[0], jvm=jvm, extra=extra, users=users)
        kafka.server.start(while_locked=while_locked)
        return kafka

    @property
    def pid(self) -> int:
        return self.server.pid

    def stop(self) -> None:
        """Stop the broker gracefully, so that it closes its files."""
        self.server.stop()

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        self.server.kill()

    def restart(self) -> None:
        """Start the broker again after `kill` or `stop`, with the same data and port. Return when it answers."""
        self.server.start()

    def pause(self) -> None:
        """Freeze the broker."""
        self.server.pause()

    def resume(self) -> None:
        """Let a frozen broker continue."""
        self.server.resume()


def kafka_answers(address: str) -> bool:
    """Return True if a broker at this address answers a request for its API versions."""
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
    """Return the ports of all listeners. The broker opens them one after another, so each must be checked."""
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


def _make_formatted_folder() -> Path:
    """Return a formatted data folder without data, which is copied for each broker. It is made only once, because
    formatting starts a JVM.
    """
    template = jars() / "kafka-formatted"
    with hold_lock("kafka-formatted"):
        if template.exists():
            return template
        making = jars() / "kafka-formatting"
        shutil.rmtree(making, ignore_errors=True)
        properties = jars() / "kafka-formatting.properties"
        properties.write_text(PROPERTIES.format(port=1, controller=2, data=making))
        _format(properties, {})
        making.rename(template)
    return template


def make_class_archive() -> Path:
    """Return an archive of the classes that Kafka loads. It halves the CPU time of a start. It is made once for each
    Java version and set of jars.

    The file is empty if Java cannot make an archive. Servers then start without it.
    """
    java = Path(shutil.which("java") or "java").resolve()
    meant_for = hashlib.sha256(f"{java} {java.stat().st_mtime_ns} {_classpath()}".encode()).hexdigest()[:16]
    archive = jars().resolve() / f"kafka-{meant_for}.jsa"
    with hold_lock("kafka-archiving"):
        if not archive.exists():
            folder, making = jars() / "kafka-archiving", archive.with_suffix(".new")
            shutil.rmtree(folder, ignore_errors=True)
            for others in archive.parent.glob("kafka-*.jsa"):
                others.unlink()
            making.touch()
            kafka = KafkaServer(
                folder, free_ports(1)[0], jvm=(*STARTS_FAST, f"{ARCHIVES_CLASSES}{making}"), extra="", users=None
            )
            kafka.server.start()
            kafka.server.stop(ARCHIVED_WITHIN_S)
            making.rename(archive)
    return archive


def assign_node(data: Path, node: int) -> None:
    """Assign a copied data folder to this node: change its node id and its directory id."""
    if node == 1:
        return
    path = data / "meta.properties"
    changed = re.sub("(?m)^node.id=.*$", f"node.id={node}", path.read_text())
    path.write_text(re.sub("(?m)^(directory.id=.)(.)", lambda of: of[1] + _other_character(of[2], node), changed))


def _other_character(character: str, node: int) -> str:
    """Return a character for the directory id that no other node has. Node 1 keeps the original one."""
    return [each for each in "ABCDEFGH" if each != character][node - 2]


def _format(properties: Path, users: Mapping[str, str]) -> None:
    """Format the data folder of the broker. Raises `ServerFailed`."""
    command = ["java", *STARTS_FAST, "-cp", _classpath(), "kafka.tools.StorageTool", "format", "-t", CLUSTER]
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        for name, password in users.items():
            command += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
    made = subprocess.run([*command, "-c", str(properties)], timeout=60, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise ServerFailed(f"Kafka could not format its data folder: {made.stdout}{made.stderr}")
