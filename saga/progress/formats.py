"""Formats of a progress: each says which toolkit may decide on it. Pure."""

from collections.abc import Sequence
from typing import Protocol

FORMAT = 8
"""The newest that this version reads."""
PLAIN, PAGED, TIMED, CONTINUED, STACKED, VERSIONED, CLAIMED, RELEASED = 1, 2, 3, 4, 5, 6, 7, 8
"""Formats: plain; with pages, deadlines, runs that go on later, results in pages; with a state of a later version than
the first; with a run that has begun and whose answers lie in claims; with a run that a later version of its handler
than the first has begun, or a call in the place of another; with results that keep what their handler took, or with
pages of own events, of events that a handler does not need, or shelves. No older version decides on them."""


class _Page(Protocol):
    @property
    def of(self) -> str: ...

    @property
    def types(self) -> tuple[str, ...]: ...

    @property
    def level(self) -> int: ...


def format_of(pages: Sequence[_Page], deadlines: Sequence[object], later: Sequence[object], version: int) -> int:
    """Format of a progress with these, and with a state of this version."""
    if pages and any(page.types or page.level for page in pages):
        return RELEASED
    if version > 1:
        return VERSIONED
    stacked = any(page.of == "results" for page in pages)
    return STACKED if stacked else CONTINUED if later else TIMED if deadlines else PAGED if pages else PLAIN
