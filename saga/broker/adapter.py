"""Description of a kind of broker: addresses, settings, opening, and what tools may look at."""

from collections.abc import Sequence
from pathlib import Path
from ssl import SSLContext
from typing import NamedTuple, Protocol, TypedDict, runtime_checkable

from saga.broker.administration import Administration
from saga.broker.port import Broker
from saga.support.adapter_description import Adapter, Chosen
from saga.support.clock import Clock


class Copies(NamedTuple):
    """Copies of each record that topics are to have, on different servers."""

    replication: int = 3
    in_sync: int = 2
    """Copies with fewer than which nothing counts as written."""


class BrokerAdapter(Adapter, Protocol):
    """Kind of broker. Nothing of this opens or makes one, and a driver is loaded by `at` and `administration`."""

    @property
    def makes_topics(self) -> bool:
        """True if services make the topics that they miss, as `Broker.makes_topics` of `saga.broker.port` says."""

    def at(self, settings: Chosen, clock: Clock) -> Broker:
        """Make the broker, not yet open. Raises `ConfigurationError` for a driver that is not installed."""

    def administration(self, settings: Chosen, clock: Clock) -> Administration:
        """Make the same broker for tools, not yet open. Raises `ConfigurationError` for a driver that is not
        installed."""

    def unmade(self, settings: Chosen) -> Path | None:
        """File that the first service will make, and looking must not; `None` if there is nothing to be made."""

    def copies(self, settings: Chosen) -> Copies:
        """Copies that the settings demand of each topic."""


class TokenProvider(Protocol):
    """Giver of tokens, as aiokafka asks for them."""

    async def token(self) -> str:
        """Token as it is now."""


class ClientOptions(TypedDict):
    """Options that every client of aiokafka takes."""

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
    """Ability of brokers to which other libraries connect by themselves."""

    def client_options(self, settings: Chosen) -> ClientOptions:
        """Options with which a client of aiokafka connects now. Raises `ConfigurationError`, `BrokerUnavailable`."""


@runtime_checkable
class AsksWho(Protocol):
    """Ability of brokers that ask who one is, and do what each user was allowed: people give rights there, with tools
    that need to know the servers."""

    def servers(self, address: str) -> Sequence[str]:
        """Servers to ask first, each as host and port. Raises `ValueError` as `check`."""
