"""Settings of Kafka: servers, credentials and timeouts; and why a server refused a connection."""

import asyncio
import socket
import ssl
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError, KafkaError

from saga.broker.adapter import ClientOptions
from saga.broker.kafka.errors import GUESS, translate_error
from saga.broker.port import RECORD_BYTES_MAX
from saga.errors import BrokerError, BrokerUnavailable, ConfigurationError
from saga.support.settings import load_certificate, read_secret

Sasl = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
Compression = Literal["gzip", "snappy", "lz4", "zstd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Settings of a `KafkaBroker`. That those which people give go together, `saga.broker.kafka.adapter` has looked."""

    servers: tuple[str, ...]
    """Addresses, as `host:port`, of some of the cluster's brokers; they tell of the others."""
    client_id: str = "saga"
    tls: bool = False
    ca_file: Path | None = None
    """Authorities that signed the brokers' certificates: no others are trusted. Without it those of the system."""
    cert_file: Path | None = None
    key_file: Path | None = None
    """Files of our certificate and its key, where the brokers want one. Read again when they change."""
    key_password: Callable[[], str] | None = None
    """Function that gives the password of the key, where it is encrypted."""
    sasl: Sasl | None = None
    username: str = ""
    password: Callable[[], str] | None = None
    """Function that gives the password, asked again and again, so that a new one is used for the next connection."""
    token: Callable[[], str] | None = None
    """Function that gives a token for OAUTHBEARER; asked for each connection, in a thread of its own."""
    extensions: Mapping[str, str] = field(default_factory=dict)
    """Extensions that go with the token: names of whom or what it is for, as the brokers want them."""

    instance: str = ""
    """Id of this process among those of the same services, also after a restart: its members keep their partitions
    while it is away for less than `session_s`. Two processes must never have the same; without one, whoever stops
    leaves."""

    replication_factor: int = 3
    min_insync_replicas: int = 2
    """Copies, and the fewest in sync, of topics that `ensure` creates. One broker alone can only do 1 and 1, which has
    to be said."""

    session_s: float = 10
    """Silence after which a member is taken for dead."""
    heartbeat_s: float = 0.5
    """Pause between two signs of life of a member, by which it also learns that partitions are to move."""
    rebalance_s: float = 30
    """Longest wait of the group for its members when partitions are to move."""
    publish_s: float = 20
    """Time after which a publication that was not acknowledged is given up."""
    commit_s: float = 10
    connect_s: float = 12
    """Longest time of connecting: less than whoever waits for it allows, who cannot tell why it failed."""
    fetch_wait_s: float = 0.1
    """Longest wait of brokers for something to come before they answer that nothing has."""
    linger_s: float = 0
    """Time to wait for more to publish at once. What comes while something is on its way is sent at once anyway."""
    compression: Compression | None = None
    metadata_s: float = 10
    """Longest time until a client asks again which partitions there are, and where."""
    record_bytes_max: int = RECORD_BYTES_MAX
    """Largest record: see `Broker.record_bytes_max`. Topics that others made may take less: see their
    `max.message.bytes`."""

    def instance_for(self, topics: Collection[str]) -> str | None:
        """Id, in its group, of a member that reads these topics. With other topics it is another member: to one that
        they know brokers give what it had before, and nothing of a topic that it has begun to read since."""
        return f"{self.instance}-{zlib.crc32(','.join(sorted(topics)).encode()):08x}" if self.instance else None

    @property
    def request_s(self) -> float:
        """Longest time of one request. That to join a group is answered only when all members are back."""
        return self.rebalance_s + 5


class ClientId(str):
    """Name of a client for the brokers, which aiokafka hands on to each connection, and we with it whose it is."""

    access: "KafkaAccess"


class KafkaAccess(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Current credentials for Kafka. Secrets and certificates may change while the process runs."""

    def __init__(self, settings: KafkaSettings) -> None:
        """Read the certificates. Raises `ConfigurationError` for one that cannot be used."""
        self.trouble = ""
        """Reason why the password or the token could not be had the last time; empty if it could."""
        self.settings = settings
        self._refusals: dict[str, str] = {}
        """Reason why the last connection to a server failed, by server; none for those that let us in."""
        self._context = _context(settings) if settings.tls else None
        self._read_at: tuple[int, ...] = ()
        self.renew()

    @property
    def options(self) -> ClientOptions:
        """Options for a client that is made now. Raises `KafkaConnectionError` if the password cannot be had."""
        settings, client_id = self.settings, ClientId(self.settings.client_id)
        client_id.access = self
        security = ("SASL_" if settings.sasl else "") + ("SSL" if settings.tls else "PLAINTEXT")
        return ClientOptions(
            bootstrap_servers=list(settings.servers),
            client_id=client_id,
            security_protocol=security if settings.sasl or settings.tls else "PLAINTEXT",
            ssl_context=self._context,
            sasl_mechanism=settings.sasl or "PLAIN",
            sasl_plain_username=settings.username or None,
            sasl_plain_password=self.password,
            sasl_oauth_token_provider=None if settings.token is None else self,
        )

    @property
    def password(self) -> str | None:
        """Password as it is now. Raises `KafkaConnectionError`."""
        return None if self.settings.password is None else self._get_secret("password", self.settings.password)

    def record_refusal(self, server: str, reason: str) -> None:
        """Note why the last connection to a server failed; empty: it did not."""
        self._refusals.pop(server, None)
        if reason:
            self._refusals[server] = reason

    def explain(self, trouble: BrokerError) -> BrokerError:
        """Explain an outage by why the last connections failed: aiokafka only tells that there is none. What is known
        takes the place of advice that is a guess."""
        known = [self.trouble] if self.trouble else list(self._refusals.values())
        reasons = [reason for reason in known if reason not in str(trouble)]
        if not reasons or not isinstance(trouble, BrokerUnavailable):
            return trouble
        said = str(trouble).replace(f"; {GUESS}", "").replace(f": {GUESS}", "")
        return BrokerUnavailable("; ".join([said, *reasons]))

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Explain an outage that comes out of the block."""
        try:
            yield
        except BrokerUnavailable as why:
            if (explained := self.explain(why)) is why:
                raise
            raise explained from why

    async def token(self) -> str:
        """Token as it is now, for aiokafka. Raises `KafkaConnectionError`."""
        assert self.settings.token is not None, "asked for only with one"
        return await asyncio.to_thread(self._get_secret, "token", self.settings.token)

    def extensions(self) -> Mapping[str, str]:
        """Extensions that go with the token, for aiokafka."""
        return self.settings.extensions

    def _get_secret(self, what: str, secret: Callable[[], str]) -> str:
        """Ask for a secret. Whatever the function raises is an outage: as of a broker, which aiokafka tries to reach
        again. Anything else would end its background tasks for good."""
        try:
            given = read_secret(secret)
        except ValueError as why:
            self.trouble = f"the {what} for Kafka cannot be had: its function raised {why}"
            raise KafkaConnectionError(self.trouble) from why
        self.trouble = ""
        return given

    def renew(self) -> None:
        """Read certificates again that have changed; connections made from now on use them."""
        settings = self.settings
        if self._context is None:
            return
        files = [file for file in (settings.ca_file, settings.cert_file, settings.key_file) if file is not None]
        try:
            read_at = tuple(file.stat().st_mtime_ns for file in files)
            if read_at == self._read_at:
                return
            if settings.ca_file is not None:
                self._context.load_verify_locations(settings.ca_file)
            if settings.cert_file is not None:
                names = settings.cert_file, settings.key_file, settings.key_password
                load_certificate(self._context, *names, "SAGA_KAFKA_KEY_PASSWORD_FILE")
        except (OSError, ValueError) as why:  # an SSLError is an OSError
            raise ConfigurationError(
                "the certificates for Kafka cannot be used:", [f"{', '.join(map(str, files))}: {why}"]
            ) from why
        self._read_at = read_at


def _context(settings: KafkaSettings) -> ssl.SSLContext:
    """Make a context for TLS. With an authority of one's own those that the system trusts are not trusted: any of them
    could sign for a host of the brokers' names."""
    return ssl.create_default_context() if settings.ca_file is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


# ---------------------------------------------------------------- refused connections


OF_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA")
"""Words of TLS alerts about the certificate that we show, or do not show."""


def explain_refusal(why: OSError | KafkaError, server: str, settings: KafkaSettings) -> BrokerError:
    """Make the error to tell about a connection that did not come about."""
    doing = f"Kafka at {server}"
    if isinstance(why, ssl.SSLCertVerificationError):
        return BrokerError(
            f"{doing}: its certificate is not trusted ({why.verify_message}): give the ca_file of who signed it, and "
            "the host's name as it is in the certificate"
        )
    cause = why if isinstance(why, ssl.SSLError) else why.__cause__  # TLS 1.3 tells it after the handshake
    if isinstance(cause, ssl.SSLError):
        reason = cause.reason or str(cause)
        if any(word in reason for word in OF_CERTIFICATES):
            whose = "our certificate is not taken" if settings.cert_file else "it asks for a certificate of ours"
            return BrokerError(f"{doing}: {whose} ({reason}): {_certificate(settings)}")
        return BrokerError(
            f"{doing}: TLS failed ({reason}): check that this port speaks TLS; if it asks for a certificate of ours, "
            + _certificate(settings)
        )
    if isinstance(why, socket.gaierror):
        return BrokerUnavailable(f"{doing}: no such host: check the name")
    if isinstance(why, TimeoutError):
        return BrokerUnavailable(
            f"{doing}: no answer: check address and port, that it runs, and firewalls between; "
            + ("" if settings.tls else "a port that wants TLS does not answer either: then use tls")
        )
    if isinstance(why, KafkaConnectionError | ConnectionResetError | ConnectionAbortedError):
        wanted = [word for word, is_so in (("TLS", settings.tls), (f"SASL {settings.sasl}", settings.sasl)) if is_so]
        return BrokerUnavailable(
            f"{doing}: it does not talk to us: check that this port is Kafka's, and wants "
            + (" and ".join(wanted) or "neither TLS nor a password")
            + (", and whether the token is good" if settings.token else "")
            + (f"; if it asks for a certificate of ours, {_certificate(settings)}" if settings.tls else "")
        )
    if isinstance(why, OSError):
        return BrokerUnavailable(f"{doing}: {why.strerror or why}: check address and port, and that it runs")
    return translate_error(why, doing)


def _certificate(settings: KafkaSettings) -> str:
    """Advice about our certificate."""
    if settings.cert_file is None:
        return "give SAGA_KAFKA_CERT_FILE and SAGA_KAFKA_KEY_FILE"
    return (
        f"give in SAGA_KAFKA_CERT_FILE, in the place of {settings.cert_file}, one that has not expired and is of an "
        "authority that the brokers trust"
    )
