"""Bytes as they are handed to SQLite."""

from collections.abc import Iterable, Sequence
from typing import Any

as_blob = bytearray
"""A copy that is bound as it is. For `bytes` the driver looks for an adapter first, each time, which takes longer than
to write a short value."""


def as_blobs(values: Sequence[Any]) -> Iterable[bytearray | None]:
    """Such copies of a column's values, of which some may be null."""
    return [None if value is None else as_blob(value) for value in values] if None in values else map(as_blob, values)
