"""Access to Kafka: a client's current credentials, and the reasons why servers refused its connections."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError, KafkaError

from saga.broker.adapter import ClientOptions
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.errors import GUESS, translate_error
from saga.errors import BrokerError, BrokerUnavailable, ConfigurationError
from saga.support.settings import load_certificate, read_secret


class ClientId(str):
    """Client id with a reference to its `KafkaAccess`. aiokafka passes the client id on to each connection."""

    access: "KafkaAccess"


class KafkaAccess(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Current credentials for Kafka. Passwords, tokens and certificates may change while the process runs."""

    def __init__(self, settings: KafkaSettings) -> None:
        """Read the certificates. Raises `ConfigurationError` for one that cannot be used."""
        self.trouble = ""
        """Reason why the password or the token could not be read the last time; empty if it could be read."""
        self.settings = settings
        self._refusals: dict[str, str] = {}
        """Reason why the last connection to a server failed, by server. A server has no entry if its last connection
        succeeded."""
        self._context = _context(settings) if settings.tls else None
        self._read_at: tuple[int, ...] = ()
        self.renew()

    @property
    def options(self) -> ClientOptions:
        """Return the options for a new client. Raises `KafkaConnectionError` if the password cannot be read."""
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
        """Return the current password. Raises `KafkaConnectionError`."""
        return None if self.settings.password is None else self._get_secret("password", self.settings.password)

    def record_refusal(self, server: str, reason: str) -> None:
        """Record why the last connection to a server failed. An empty `reason` means that it succeeded."""
        self._refusals.pop(server, None)
        if reason:
            self._refusals[server] = reason

    def explain(self, trouble: BrokerError) -> BrokerError:
        """Return the error of an outage with the reasons why the last connections failed, because aiokafka only reports
        that there is no connection.

        A known reason replaces advice that was only a guess.
        """
        known = [self.trouble] if self.trouble else list(self._refusals.values())
        reasons = [reason for reason in known if reason not in str(trouble)]
        if not reasons or not isinstance(trouble, BrokerUnavailable):
            return trouble
        text = str(trouble).replace(f"; {GUESS}", "").replace(f": {GUESS}", "")
        return BrokerUnavailable("; ".join([text, *reasons]))

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Add the reasons for failed connections to an outage that is raised inside the block."""
        try:
            yield
        except BrokerUnavailable as why:
            if (explained := self.explain(why)) is why:
                raise
            raise explained from why

    async def token(self) -> str:
        """Return the current token, for aiokafka. Raises `KafkaConnectionError`."""
        assert self.settings.token is not None, "only called with a token function"
        return await asyncio.to_thread(self._get_secret, "token", self.settings.token)

    def extensions(self) -> Mapping[str, str]:
        """Return the extensions of the token, for aiokafka."""
        return self.settings.extensions

    def _get_secret(self, what: str, secret: Callable[[], str]) -> str:
        """Return the result of the function that returns a secret.

        Any exception of the function is converted to an outage of the broker, after which aiokafka connects again.
        Any other exception would end aiokafka's background tasks for good.
        """
        try:
            value = read_secret(secret)
        except ValueError as why:
            self.trouble = f"the {what} for Kafka cannot be had: its function raised {why}"
            raise KafkaConnectionError(self.trouble) from why
        self.trouble = ""
        return value

    def renew(self) -> None:
        """Read certificates again if their files have changed. New connections use the new certificates."""
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
        except (OSError, ValueError) as why:  # an SSLError is an OSError, too
            raise ConfigurationError(
                "the certificates for Kafka cannot be used:", [f"{', '.join(map(str, files))}: {why}"]
            ) from why
        self._read_at = read_at


def _context(settings: KafkaSettings) -> ssl.SSLContext:
    """Make a TLS context.

    If certificate authorities are configured, the system's authorities are not trusted, because any of them could sign
    a certificate for a broker's host name.
    """
    return ssl.create_default_context() if settings.ca_file is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


# ---------------------------------------------------------------- refused connections


OF_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA")
"""Words in TLS alerts that mean a problem with this process's certificate, or that the certificate is missing."""


def explain_refusal(why: OSError | KafkaError, server: str, settings: KafkaSettings) -> BrokerError:
    """Make the error for a connection that could not be opened."""
    doing = f"Kafka at {server}"
    if isinstance(why, ssl.SSLCertVerificationError):
        return BrokerError(
            f"{doing}: its certificate is not trusted ({why.verify_message}): give the ca_file of who signed it, and "
            "the host's name as it is in the certificate"
        )
    cause = why if isinstance(why, ssl.SSLError) else why.__cause__  # TLS 1.3 reports it after the handshake
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
    """Return advice about this process's own certificate."""
    if settings.cert_file is None:
        return "give SAGA_KAFKA_CERT_FILE and SAGA_KAFKA_KEY_FILE"
    return (
        f"give in SAGA_KAFKA_CERT_FILE, in the place of {settings.cert_file}, one that has not expired and is of an "
        "authority that the brokers trust"
    )
