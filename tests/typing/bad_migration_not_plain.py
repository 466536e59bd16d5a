"""A migration that is async, and one that gives no dataclass. Rejected by: mypy, basedpyright."""

from dataclasses import dataclass

from saga import Service


@dataclass(frozen=True)
class Notes:
    cents: int = 0


@dataclass(frozen=True)
class NotesV1:
    total: str = ""


order = Service("order", state=Notes)


@order.migrate(1)  # bad
async def later(old: NotesV1) -> Notes:
    return Notes()


@order.migrate(1)  # bad
def bare(old: NotesV1) -> int:
    return 0
