"""Messages that nobody can handle, made of one that everybody can."""

from saga.messages import Outgoing
from saga.testing.simulation.plan import Planned

NEWER = b"\xc3\x01" + bytes(range(8))
"""The head of a single object whose schema is in no contracts folder."""


def spoiled(message: Outgoing, planned: Planned, drawn: float) -> Outgoing:
    """Another message of the same saga and type: of a schema that is not known yet, or of bytes that are none."""
    value = message.value or b""
    headers = [(name, text) for name, text in message.headers if name != "ce_id"]
    headers.append(("ce_id", f"spoiled-{planned.process}-{planned.number}".encode()))
    if planned.kind == "newer schema":
        named = [(n, t + b"9" if t and n == "ce_dataschema" else t) for n, t in headers]
        return Outgoing(message.topic, message.key, NEWER + value[10:], tuple(named))
    bad = (b"", value[: len(value) // 2], b"\x00" * len(value), b"not avro at all")[int(drawn * 4)]
    return Outgoing(message.topic, message.key, bad, tuple(headers))
