"""`saga list`: the sagas that services know, from their stores."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappush, heappushpop

import click
import msgspec

from saga.cli.stores import Source, Unreadable, by_saga, snapshot_of, sources_of, store_option, warn
from saga.cli.telling import tell, tell_json
from saga.clock import Clock, SystemClock
from saga.progress.timeline import Standing, standing
from saga.store.port import Document

LIMIT = 50
LIMIT_MAX = 100_000
OPEN = ("queue", "waiting", "intents", "compensating", "dead")


@dataclass(frozen=True, slots=True)
class Listed:
    """One saga, as the services that know it see it."""

    saga: str
    standings: tuple[Standing, ...]

    @property
    def outcome(self) -> str | None:
        return next((s.outcome for s in self.standings if s.outcome), None)

    @property
    def started(self) -> str | None:
        return min((s.started for s in self.standings if s.started), default=None)

    @property
    def changed(self) -> str:
        return max(s.changed for s in self.standings)

    @property
    def open(self) -> dict[str, int]:
        """What is kept and has not come to its end, of each sort, over all services."""
        counts = {sort: sum(getattr(s, sort) for s in self.standings) for sort in OPEN}
        return {sort: count for sort, count in counts.items() if count}


@click.command("list")
@store_option
@click.option("--open", "only_open", is_flag=True, help="Only sagas with something that has not come to its end.")
@click.option("--dead", "only_dead", is_flag=True, help="Only sagas that a dead letter blocks.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=LIMIT, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def list_sagas(addresses: tuple[str, ...], only_open: bool, only_dead: bool, limit: int, as_json: bool) -> None:
    """List the sagas that the services know, newest change first.

    For each saga: the event with which it ended, if it has; when it started and last changed; what is still open over
    all services; and its state in each service that knows it, in a word:

    \b
    handled, ignored, waiting, queued, compensated  what became of the last message
    begun         a handler is at it
    quarantined   a dead letter blocks it

    \b
    Exit code 0: listed, even if there is none.
    Exit code 2: no store, or one that cannot be read.
    """
    found, more = asyncio.run(newest(addresses, SystemClock(), limit, only_open=only_open, only_dead=only_dead))
    if as_json:
        tell_json({"sagas": [_as_json(each) for each in found], "more": more})
        return
    tell(*_table(found) if found else ["no sagas"])
    if more:
        tell(f"and {more} more: --limit shows them")


async def newest(
    addresses: Sequence[str], clock: Clock, limit: int, *, only_open: bool = False, only_dead: bool = False
) -> tuple[list[Listed], int]:
    """The sagas that changed last, newest first, and how many more there are. Memory grows with `limit` only."""
    kept: list[tuple[str, str, Listed]] = []
    count = 0
    async with sources_of(addresses, clock) as sources:
        async for saga, documents in by_saga(sources):
            listed = _listed(saga, documents)
            if listed is None or (only_open and not listed.open) or (only_dead and "dead" not in listed.open):
                continue
            count += 1
            entry = (listed.changed, saga, listed)
            if len(kept) < limit:
                heappush(kept, entry)
            else:
                heappushpop(kept, entry)
    return [listed for _, _, listed in sorted(kept, reverse=True)], count - len(kept)


def _listed(saga: str, documents: Sequence[tuple[Source, Document]]) -> Listed | None:
    """A saga as the services see it whose documents can be read; the others are warned about."""
    standings = []
    for source, document in documents:
        try:
            standings.append(standing(snapshot_of(source, saga, document)))
        except Unreadable as why:
            warn(why)
        except msgspec.DecodeError as why:
            warn(f"saga {saga} in {source.service}: its last transition cannot be read: {why}")
    return Listed(saga, tuple(standings)) if standings else None


def _as_json(listed: Listed) -> dict[str, object]:
    return {
        "saga": listed.saga,
        "outcome": listed.outcome,
        "started": listed.started,
        "changed": listed.changed,
        "open": listed.open,
        "services": {
            s.service: {
                "state": s.state,
                "outcome": s.outcome,
                "changed": s.changed,
                **{sort: getattr(s, sort) for sort in OPEN},
            }
            for s in listed.standings
        },
    }


def _table(found: Sequence[Listed]) -> list[str]:
    rows = [("SAGA", "OUTCOME", "STARTED", "CHANGED", "OPEN", "SERVICES")]
    for each in found:
        still_open = " ".join(f"{sort}:{count}" for sort, count in each.open.items())
        services = " ".join(f"{s.service}:{s.state}" for s in each.standings)
        rows.append(
            (each.saga, each.outcome or "-", each.started or "-", each.changed or "-", still_open or "-", services)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return ["  ".join([*(f"{row[i]:<{width}}" for i, width in enumerate(widths)), row[5]]) for row in rows]
