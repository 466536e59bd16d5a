"""Bytes as they are handed to SQLite."""


def as_blob(value: bytes | None) -> bytearray | None:
    """A copy that is bound as it is. For `bytes` the driver looks for an adapter first, each time, which takes longer
    than to write a short value."""
    return None if value is None else bytearray(value)
