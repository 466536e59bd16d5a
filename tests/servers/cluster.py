"""Three Kafka brokers, each a controller too: any one of them may be killed, and the others go on."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from saga.testing.servers.kafka import STARTS_FAST, KafkaServer
from saga.testing.servers.server import free_ports

NODES = (1, 2, 3)
JVM = (*STARTS_FAST[:-1], "-Xmx256m")
EXTRA = """
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{controller}
offsets.topic.replication.factor=3
default.replication.factor=3
min.insync.replicas=2
broker.session.timeout.ms=3000
"""


class KafkaCluster:
    """Brokers by their ids, which are those of `NODES`."""

    def __init__(self, folder: Path) -> None:
        found = free_ports(2 * len(NODES))
        ports, controllers = found[: len(NODES)], found[len(NODES) :]
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in zip(NODES, controllers, strict=True))
        self.nodes = {
            node: KafkaServer(
                folder / f"{node}",
                port,
                jvm=JVM,
                extra=EXTRA.format(node=node, voters=voters, controller=controller),
                users=None,
                node=node,
            )
            for node, port, controller in zip(NODES, ports, controllers, strict=True)
        }
        self.addresses = tuple(server.address for server in self.nodes.values())

    def start(self, nodes: Iterable[int] = NODES) -> None:
        """Return when all of these answer: at once, for one alone waits for another."""
        with ThreadPoolExecutor(len(NODES)) as pool:
            for started in [pool.submit(self.nodes[node].restart) for node in nodes]:
                started.result()

    def kill(self, *nodes: int) -> None:
        """Kill them, as a power failure of their processes would."""
        for node in nodes or NODES:
            self.nodes[node].kill()


@contextmanager
def kafka_cluster(folder: Path) -> Iterator[KafkaCluster]:
    """One that runs and is empty; it ends with the block."""
    cluster = KafkaCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
