"""`Later`: the value that a handler returns to continue at another time."""

from datetime import timedelta
from typing import Generic, overload

from typing_extensions import TypeVar

from saga.messages import Event

E_co = TypeVar("E_co", bound=Event | None, default=None, covariant=True)
_NOW = timedelta(0)


class Later(Generic[E_co]):
    """A handler's result that means: save what I did, and run me again for this event later.

    Return it alone (`Later`), with events (`tuple[Reminded, Later]`), or to wait for an event:
    `Later[AddressCorrected]`, in a handler that also has a parameter `corrected: AddressCorrected | None`. State,
    events and the wait are saved in one transition. The event waits in the progress and blocks no other; then the same
    handler runs again with the same event and the state of that time. Use it for long jobs (with the state as cursor),
    reminders, polling and missing data. A compensation of the handler ends the wait. Compensations and deadlines cannot
    return it.
    """

    __slots__ = ("after", "until")

    @overload
    def __init__(self: "Later[None]", *, after: timedelta = ...) -> None: ...
    @overload
    def __init__(self, *, until: type[E_co], within: timedelta) -> None: ...
    def __init__(
        self, *, after: timedelta | None = None, until: type[E_co] | None = None, within: timedelta | None = None
    ) -> None:
        """Create a wait for a time, or for an event.

        `Later(after=timedelta(days=7))` runs again not before that time; without `after` at once, in a turn of its own.

        `Later(until=E, within=timedelta(days=3))` runs again as soon as there is an E that no earlier turn has seen
        (the parameter `E | None` holds it), or when `within` has passed (the parameter is `None`, and `saga.elapsed`
        has grown by `within` or more).

        Raises:
            ValueError: A negative time, or `until` without `within`. If all waits of a run together are longer than the
                service's retention, the run fails permanently.
        """
        if (until is None) != (within is None) or (until is not None and after is not None):
            raise ValueError("Later(after=...) waits for a time, Later(until=..., within=...) for an event: give these")
        if until is not None and not (isinstance(until, type) and issubclass(until, Event)):
            raise ValueError(f"Later(until={until!r}): give the class of the event that it waits for")
        wait = within if within is not None else _NOW if after is None else after
        if not isinstance(wait, timedelta) or wait < _NOW:
            name = "after" if within is None else "within"
            raise ValueError(f"Later({name}={wait!r}): give a timedelta, zero or more")
        self.until: type[E_co] | None = until
        self.after: timedelta = wait

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Later) and (self.until, self.after) == (other.until, other.after)

    def __hash__(self) -> int:
        return hash((self.until, self.after))

    def __repr__(self) -> str:
        """Return the call that creates this value.

        >>> Later(after=timedelta(days=7)), Later()
        (Later(after=datetime.timedelta(days=7)), Later())
        """
        if self.until is not None:
            return f"Later(until={self.until.__name__}, within={self.after!r})"
        return f"Later(after={self.after!r})" if self.after else "Later()"
