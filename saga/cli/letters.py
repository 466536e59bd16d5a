"""List for `saga list --dead`: letters that services left on their topics, and messages that block in their stores."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass

from saga.administration.dead import Letter, letters_of
from saga.cli.listing import Listed, Wanted, as_json_of, listed
from saga.cli.stores import NoStore, Source, Unreadable, document_of, seen_of, snapshot_of, sources_of, warn
from saga.cli.telling import tell, tell_json
from saga.clock import Clock
from saga.config import Settings
from saga.progress.document import UNREADABLE, Snapshot, decode_entry
from saga.progress.glance import Glance

WIDTHS = (24, 14, 12, 24, 20, 16, 14)
HEADING = ("TIME", "SERVICE", "WHAT", "SAGA", "MESSAGE", "HANDLER", "NOW", "WHY")


@dataclass(frozen=True, slots=True)
class Told:
    """A letter, and how what it is about stands now."""

    letter: Letter
    now: str
    """`blocks` the saga; `dropped`; `goes on` or `over`, of a compensation that fails; `-`: it blocks nothing."""


async def tell_dead(wanted: Wanted, settings: Settings, clock: Clock, as_json: bool) -> None:
    """Print all of it, newest first."""
    async with AsyncExitStack() as stack:
        try:
            sources = await stack.enter_async_context(sources_of(wanted.addresses, clock))
        except NoStore:
            if not wanted.services:
                raise
            sources = []
        told, sagas, more = await _all(wanted, sources, settings, clock)
    if as_json:
        letters = [{**asdict(each.letter), "now": each.now} for each in told]
        tell_json({"letters": letters, "sagas": list(map(as_json_of, sagas)), "more": more})
        return
    tell(*([_row(HEADING), *map(_row, map(_cells, told))] if told else ["nothing needs a person"]))
    if more:
        tell("and more: --limit shows them")


async def _all(
    wanted: Wanted, sources: Sequence[Source], settings: Settings, clock: Clock
) -> tuple[list[Told], list[Listed], bool]:
    """Letters to tell, the sagas that are blocked, and whether there is more."""
    names = {source.service for source in sources if not wanted.services or source.service in wanted.services}
    found = await letters_of(sorted(names | set(wanted.services)), settings, clock)
    if found.trouble:
        warn(f"not all that was said on the topics <service>.dead can be shown: {found.trouble}")
    blocking = list[Letter]()
    sagas, more = list[Listed](), False
    if sources:
        async for each in listed(wanted, clock):
            if each is None:
                more = True
                break
            sagas.append(each)
            blocking += await _blocking(each, sources)
    said = {letter.id for letter in found.letters}
    letters = [*found.letters, *(letter for letter in blocking if letter.id not in said)]
    letters = [letter for letter in letters if (letter.saga or "").startswith(wanted.prefix)]
    dropped = {letter.ends for letter in letters}
    blocked = {letter.id for letter in blocking}
    letters.sort(key=lambda letter: letter.time, reverse=True)
    told = [Told(letter, await _now(letter, sources, blocked, dropped)) for letter in letters[: wanted.limit]]
    return told, sagas, more or len(letters) > wanted.limit


async def _blocking(each: Listed, sources: Sequence[Source]) -> list[Letter]:
    """The dead letters of a saga that its progresses know, whether the log has them or not."""
    found = []
    for source in sources:
        try:
            document = await document_of(source, each.saga)
            if document is None:
                continue
            p = snapshot_of(source, each.saga, document)
            found += [_letter(p, kept.dead, kept.handler) for kept in (*p.queue, *p.compensating) if kept.dead]
        except Unreadable as why:
            warn(why)
        except UNREADABLE as why:
            warn(f"saga {each.saga} in {source.service}: a transition cannot be read: {why}")
    return found


def _letter(p: Snapshot, id_: str, handler: str) -> Letter:
    """A dead letter as the transition has it that wrote it, if that is still in the progress."""
    kept = next(k for k in (*p.queue, *p.compensating) if k.dead == id_)
    for entry in map(decode_entry, reversed(p.transitions)):
        for dead in entry.letters:
            if dead.id == id_:
                return Letter(
                    service=p.service,
                    id=id_,
                    what=dead.what,
                    time=entry.time,
                    reason=dead.reason,
                    remedy=dead.remedy,
                    saga=p.saga,
                    type=dead.message.type,
                    message=dead.message.id,
                    handler=dead.handler,
                    attempts=dead.attempts,
                    where=dead.where,
                    calls=dead.calls,
                )
    return Letter(
        service=p.service,
        id=id_,
        what="dead letter",
        time="",
        reason=f"`saga show {p.saga}` tells: it is an older one",
        remedy="",
        saga=p.saga,
        type=kept.message.type,
        message=kept.message.id,
        handler=handler,
    )


async def _now(letter: Letter, sources: Sequence[Source], blocked: set[str], dropped: set[str | None]) -> str:
    if letter.id in dropped:
        return "dropped"
    if letter.id in blocked:
        return "blocks"
    if letter.saga is None or (letter.undoes is None and letter.handler is None):
        return "-"
    p = await _glanced(letter, sources)
    if letter.undoes is not None and p is not None:
        return "goes on" if any(result.event.id == letter.undoes for result in p.results) else "over"
    if p is not None and any(kept.dead == letter.id for kept in (*p.queue, *p.compensating)):
        return "blocks"
    return "-"


async def _glanced(letter: Letter, sources: Sequence[Source]) -> Glance | None:
    source = next((source for source in sources if source.service == letter.service), None)
    if source is None or not letter.saga:
        return None
    seen = await seen_of(source, letter.saga)
    return seen.progress if seen is not None else None  # damaged: a list of sagas tells so


def _cells(each: Told) -> Sequence[str]:
    letter = each.letter
    return (
        letter.time or "-",
        letter.service,
        letter.what,
        letter.saga or "-",
        letter.type or letter.whole or "-",
        letter.handler or "-",
        each.now,
        letter.reason,
    )


def _row(cells: Sequence[str]) -> str:
    return "  ".join([*(f"{cell:<{width}}" for cell, width in zip(cells, WIDTHS, strict=False)), cells[-1]])
