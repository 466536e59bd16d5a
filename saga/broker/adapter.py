"""Description of a broker adapter: its addresses and settings, and functions that create the broker."""

from collections.abc import Sequence
from pathlib import Path
from ssl import SSLContext
from typing import NamedTuple, Protocol, TypedDict, runtime_checkable

from saga.broker.administration import Administration
from saga.broker.port import Broker
from saga.support.clock import Clock
from saga.support.settings import Adapter, ChosenSettings


class Copies(NamedTuple):
    """Number of replicas that each topic must have."""

    replication: int = 3
    in_sync: int = 2
    """Smallest number of in-sync replicas with which a write is accepted."""


class BrokerAdapter(Adapter, Protocol):
    """Description of a kind of broker. Nothing here connects; only `create_broker` and `create_administration` load a
    driver."""

    @property
    def creates_topics(self) -> bool:
        """Return whether services create missing topics: see `saga.broker.port.Broker`."""

    def create_broker(self, settings: ChosenSettings, clock: Clock) -> Broker:
        """Create the broker without opening it. Raises `ConfigurationError` if the driver is not installed."""

    def create_administration(self, settings: ChosenSettings, clock: Clock) -> Administration:
        """Create the broker with the interface for tools, without opening it. Raises `ConfigurationError` if the driver
        is not installed."""

    def missing_file(self, settings: ChosenSettings) -> Path | None:
        """Return the path of the broker's file if it is missing, else `None`. The first service creates the file; a
        tool must not create it."""

    def required_replicas(self, settings: ChosenSettings) -> Copies:
        """Return the replicas that the settings require for each topic."""


class TokenProvider(Protocol):
    """Source of access tokens, in the form that aiokafka expects."""

    async def token(self) -> str:
        """Return the current token."""


class ClientOptions(TypedDict):
    """Options of every aiokafka client."""

    bootstrap_servers: list[str]
    client_id: str
    security_protocol: str
    ssl_context: SSLContext | None
    sasl_mechanism: str
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    sasl_oauth_token_provider: TokenProvider | None


@runtime_checkable
class TakesClients(Protocol):
    """Part of the description of a broker to which aiokafka clients of other programs can connect directly."""

    def client_options(self, settings: ChosenSettings) -> ClientOptions:
        """Return the current options for an aiokafka client. Raises `ConfigurationError`, `BrokerUnavailable`."""


@runtime_checkable
class HasBrokerUsers(Protocol):
    """Part of the description of a broker that authenticates users and checks their rights: what tools need to grant
    rights."""

    def servers(self, address: str) -> Sequence[str]:
        """Return the bootstrap servers, each as host and port. Raises `ValueError`, as `check` does."""
