"""Start Kafka and CouchbaseMock as processes of this machine, with a proxy between each of them and the workers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from saga.testing.processes.servers import ServerAddresses, ServerFault
from saga.testing.servers.couchbase import BUCKET, CouchbaseMock
from saga.testing.servers.kafka import KafkaServer
from saga.testing.servers.proxy import Proxy
from saga.testing.servers.server import free_ports

MOMENT, SHORT_S, LONG_S = (0.0, 0.0), (0.5, 2.0), (3.0, 5.0)
"""Minimum and maximum durations of faults in seconds. A fault of `LONG_S` outlasts the 2.5 s limit for an operation of
the store.
"""
SLOW_S = 0.1
REFUSED = 30
"""Maximum number of consecutive operations that the store refuses during a fault."""
LISTENERS = """
listeners=PLAINTEXT://127.0.0.1:{{port}},ASIDE://127.0.0.1:{aside},CONTROLLER://127.0.0.1:{{controller}}
advertised.listeners=PLAINTEXT://127.0.0.1:{proxy},ASIDE://127.0.0.1:{aside}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,ASIDE:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=ASIDE
"""
"""Properties of Kafka with two addresses: through the proxy and direct. Each client keeps using the address at which it
first connected.
"""


@dataclass(frozen=True, slots=True)
class LocalServers:
    """A Kafka and a CouchbaseMock with their possible faults. No fault kills the mock, because it would lose all its
    data.
    """

    place: ServerAddresses
    aside: ServerAddresses
    troubles: Mapping[str, Sequence[ServerFault]]


@contextmanager
def start_servers(folder: Path) -> Iterator[LocalServers]:
    """Start a new, empty Kafka and CouchbaseMock for the duration of the block. Raises `ServersMissing` if the jars
    cannot be fetched, and `ServerFailed` if a server does not start.
    """
    with ExitStack() as stack:
        to_kafka, aside, to_store = free_ports(3)
        kafka = KafkaServer.start(folder / "kafka", extra=LISTENERS.format(proxy=to_kafka, aside=aside))
        stack.callback(kafka.kill)
        mock = CouchbaseMock.start(folder / "couchbase")
        stack.callback(mock.stop)
        port = int(mock.address.rpartition(":")[2])
        broker = stack.enter_context(Proxy(to_kafka, kafka.port))
        store = stack.enter_context(Proxy(to_store, port, instead=_instead(port, to_store)))
        yield LocalServers(
            place=ServerAddresses(
                kafka=f"127.0.0.1:{to_kafka}", couchbase=f"couchbase://127.0.0.1:{to_store}", bucket=BUCKET
            ),
            aside=ServerAddresses(kafka=f"127.0.0.1:{aside}", couchbase=mock.address, bucket=BUCKET),
            troubles=_troubles(kafka, mock, broker, store),
        )


def _instead(port: int, proxy: int) -> Mapping[bytes, bytes]:
    """Return the strings that the proxy replaces in the mock's answers. They contain the port to which the SDK
    connects. Both ports have five digits, so the lengths stay the same.
    """
    texts = (b'"kv":%d', b'"direct":%d', b"$HOST:%d")
    return {each % port: each % proxy for each in texts}


def _troubles(
    kafka: KafkaServer, mock: CouchbaseMock, broker: Proxy, store: Proxy
) -> Mapping[str, Sequence[ServerFault]]:
    """Return the possible faults by kind. Only the broker is killed: its log is on disk, while the mock would lose its
    data.
    """

    def refuse(count: int) -> None:
        mock.opfail(count=count)

    return {
        "partition": [
            ServerFault("workers cut off from the broker", LONG_S, broker.hold, broker.let_go),
            ServerFault("workers cut off from the store", LONG_S, store.hold, store.let_go),
            ServerFault("the broker killed, and away", SHORT_S, kafka.kill, kafka.restart),
        ],
        "lost answer": [
            ServerFault("all connections to the store broken", MOMENT, store.cut, _nothing),
            ServerFault("all connections to the broker broken", MOMENT, broker.cut, _nothing),
        ],
        "late answer": [ServerFault("the store frozen", LONG_S, mock.pause, mock.resume)],
        "delay": [ServerFault("the broker slow", LONG_S, lambda: broker.slow(SLOW_S), lambda: broker.slow(0))],
        "slow store": [ServerFault("the store slow", LONG_S, lambda: store.slow(SLOW_S), lambda: store.slow(0))],
        "throttle": [ServerFault("the store refusing operations", SHORT_S, lambda: refuse(REFUSED), lambda: refuse(0))],
    }


def _nothing() -> None:
    """Do nothing: the fault is over at once."""
