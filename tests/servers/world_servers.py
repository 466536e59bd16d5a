"""Servers for worlds of processes: new ones for each, with a proxy between each of them and the workers.

`pytest --saga-world=servers --saga-servers=tests.servers.world_servers:servers`
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from saga.testing.processes.servers import ServerAddresses, ServerFault
from tests.servers.couchbase import BUCKET, CouchbaseMock
from tests.servers.kafka import KafkaServer
from tests.servers.proxy import Proxy
from tests.servers.server import free_ports

MOMENT, SHORT_S, LONG_S = (0.0, 0.0), (0.5, 2.0), (3.0, 5.0)
"""`LONG_S`: longer than the 2.5 s that an operation of the store may take."""
SLOW_S = 0.1
REFUSED = 30
"""Operations in a row that the store refuses."""
LISTENERS = """
listeners=PLAINTEXT://127.0.0.1:{{port}},ASIDE://127.0.0.1:{aside},CONTROLLER://127.0.0.1:{{controller}}
advertised.listeners=PLAINTEXT://127.0.0.1:{proxy},ASIDE://127.0.0.1:{aside}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,ASIDE:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=ASIDE
"""
"""Each client is told the address that it came by."""


@dataclass(frozen=True, slots=True)
class Given:
    """One Kafka and one CouchbaseMock. The mock forgets everything when it is killed, so it is frozen at most."""

    place: ServerAddresses
    aside: ServerAddresses
    troubles: Mapping[str, Sequence[ServerFault]]


@contextmanager
def servers(folder: Path) -> Iterator[Given]:
    """Both, running and empty; they end with the block."""
    with ExitStack() as stack:
        to_kafka, aside, to_store = free_ports(3)
        kafka = KafkaServer.start(folder / "kafka", extra=LISTENERS.format(proxy=to_kafka, aside=aside))
        stack.callback(kafka.kill)
        mock = CouchbaseMock.start(folder / "couchbase")
        stack.callback(mock.stop)
        port = int(mock.address.rpartition(":")[2])
        broker = stack.enter_context(Proxy(to_kafka, kafka.port))
        store = stack.enter_context(Proxy(to_store, port, instead=_instead(port, to_store)))
        yield Given(
            place=ServerAddresses(
                kafka=f"127.0.0.1:{to_kafka}", couchbase=f"couchbase://127.0.0.1:{to_store}", bucket=BUCKET
            ),
            aside=ServerAddresses(kafka=f"127.0.0.1:{aside}", couchbase=mock.address, bucket=BUCKET),
            troubles=_troubles(kafka, mock, broker, store),
        )


def _instead(port: int, proxy: int) -> Mapping[bytes, bytes]:
    """The SDK connects to where the server says it is, in each of these three words. Both ports have five digits."""
    said = (b'"kv":%d', b'"direct":%d', b"$HOST:%d")
    return {each % port: each % proxy for each in said}


def _troubles(
    kafka: KafkaServer, mock: CouchbaseMock, broker: Proxy, store: Proxy
) -> Mapping[str, Sequence[ServerFault]]:
    """By kind. Nothing is killed but the broker, which keeps its log on the disk."""

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
    """It is over by itself."""
