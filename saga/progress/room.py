"""Room that every run of a handler leaves in a progress, so that its dead letter can still be written. Pure."""

from saga.errors import TooLarge
from saga.progress.document import Snapshot, encode
from saga.progress.record import Written

FREE = 4
"""One part in so many of what the store takes is left free by runs: for dead letters, and what queues behind them."""
_GROWING = ("state", "inbox", "results", "own", "intents", "queue", "waiting", "compensating", "later", "transitions")


def check_room(written: Written, p: Snapshot, content_bytes: int, bytes_max: int) -> None:
    """Raises `TooLarge` for a run that would leave no room, naming what takes it. `p`: as it would be written, in
    `content_bytes`; `bytes_max`: what the store takes."""
    if content_bytes <= bytes_max - bytes_max // FREE or not _is_of_a_run(written):
        return
    raise TooLarge(
        f"the progress of saga {p.saga!r} in {p.service!r} would have {content_bytes} bytes, and the store takes "
        f"{bytes_max}, of which one part in {FREE} stays free: {_largest(p)}"
    )


def _is_of_a_run(written: Written) -> bool:
    """True if a handler adds this: its intent, or its end. A compensation may use what is left."""
    if written.entry is None:
        return bool(written.snapshot.intents) and written.snapshot.intents[-1].kind == "do"
    return written.entry.outcome in ("handled", "later")


def _largest(p: Snapshot) -> str:
    """Fields that take the room, for people."""
    sizes = sorted(((len(encode(getattr(p, name))), name) for name in _GROWING), reverse=True)
    return ", ".join(f"{name} {size} bytes" for size, name in sizes[:3])
