"""Calls with which a run can be taken back that never comes to its end, as it said with `undo_with`."""

from msgspec import Raw, Struct


class TakeBack(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A call that takes back what its run did before it said so."""

    call: str
    """`resource.method`, or `module:function`: another process finds it by that."""
    args: tuple[Raw, ...] = ()
    named: dict[str, Raw] = {}
    """Arguments that were given by name."""
    saga: tuple[str, ...] = ()
    """Places and names of the arguments that are the saga itself."""
    after: int = 0
    """Calls of its turn that were answered before; 0 for one of an earlier turn."""


def covers(said: tuple[TakeBack, ...], number: int) -> bool:
    """Return whether one of these takes back the call of that number, of the same turn; the first one is 0."""
    return any(number < each.after for each in said)
