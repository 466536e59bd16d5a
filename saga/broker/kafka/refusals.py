"""Reasons why a server did not let us in, each with what to do about it."""

import socket
import ssl

from aiokafka.errors import KafkaConnectionError, KafkaError

from saga.broker.kafka.errors import translated
from saga.broker.kafka.settings import KafkaSettings
from saga.errors import BrokerError, BrokerUnavailable

OF_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA")
"""Words of TLS alerts about the certificate that we show, or do not show."""


def refusal(why: OSError | KafkaError, server: str, settings: KafkaSettings) -> BrokerError:
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
    return translated(why, doing)


def _certificate(settings: KafkaSettings) -> str:
    """Advice about our certificate."""
    if settings.cert_file is None:
        return "give SAGA_KAFKA_CERT_FILE and SAGA_KAFKA_KEY_FILE"
    return (
        f"give in SAGA_KAFKA_CERT_FILE, in the place of {settings.cert_file}, one that has not expired and is of an "
        "authority that the brokers trust"
    )
