"""Pages as a progress lists them: what each holds, for whom, and until when."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

PageOf = Literal["inbox", "queue", "waiting", "results", "own"]


class Page(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A page of what has no room: a document of its own, which never changes. See `saga.progress.spill`."""

    of: PageOf
    name: str
    count: int
    newest: int
    """Time at which its newest entry was made, in seconds since 1970."""
    until: int = 0
    """Time from which on it may have expired, in seconds since 1970; 0: it never does."""
    bound: str = ""
    """Sum of the digests of its items, as `count` with those of the pages below it: see `saga.progress.binding`."""
    had: str = ""
    """Sum that takes the place of `bound` once nobody will ever handle what is kept in it, and it counts as had."""
    first: int = 0
    last: int = 0
    """The transitions that kept its first and its last message."""
    handlers: tuple[str, ...] = ()
    """Handlers for which messages are kept in it, sorted; of results the one whose they are, of own events those that
    have not had them."""
    types: tuple[str, ...] = ()
    """Types of the messages in it, sorted, where their handlers do not say which: of own events, and of events that a
    handler does not need."""
    level: int = 0
    """More than 0 for a shelf, which lists pages of a level less: see `saga.progress.shelves`."""

    def closed(self, now_s: int, until: int) -> "Page":
        """The same as a page of the inbox: what is kept in it will never be handled. One that never expires says so
        still, until the next write puts one in its place that does."""
        until = min(self.until, until)
        none = ()
        return replace(
            self, of="inbox", bound=self.had, had="", handlers=none, types=none, level=0, newest=now_s, until=until
        )

    def is_forgotten(self, now_s: int) -> bool:
        """True if nothing in it is young enough to be asked for."""
        return self.of == "inbox" and 0 < self.until < now_s
