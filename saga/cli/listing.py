"""Finding sagas to list: the newest first, each as all services see it, one at a time."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from saga.cli.stores import Seen, Source, newest_first, seen_of, sources_of, warn
from saga.clock import Clock, iso
from saga.progress.timeline import Standing, standing

OPEN = ("queue", "waiting", "intents", "compensating", "dead")
QUIET_MS = 3_600_000
"""After a saga has ended and nothing was written for so long, nobody is left who could send what a part waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Choice of what is listed."""

    addresses: Sequence[str]
    prefix: str = ""
    services: Sequence[str] = ()
    """Empty: all."""
    limit: int
    only_open: bool = False
    only_dead: bool = False


@dataclass(frozen=True, slots=True)
class Listed:
    """One saga, as the services that know it see it."""

    saga: str
    standings: tuple[Standing, ...]
    damaged: tuple[Seen, ...] = ()
    """Progresses of it that cannot be read."""
    now_ms: int = 0

    @property
    def outcome(self) -> str | None:
        return next((s.outcome for s in self.standings if s.outcome), None)

    @property
    def started(self) -> str | None:
        return min((s.started for s in self.standings if s.started), default=None)

    @property
    def changed(self) -> str:
        return max((s.changed for s in self.standings), default="")

    @property
    def open(self) -> dict[str, int]:
        """What is kept and to which something can still happen, of each sort, over all services."""
        counts = {sort: sum(getattr(s, sort) for s in self.standings) for sort in OPEN}
        counts["waiting"] -= self._left_over(any(counts[sort] for sort in OPEN if sort != "waiting"))
        return {sort: count for sort, count in counts.items() if count}

    @property
    def left(self) -> int:
        """Parts of fan-ins to which nothing can happen any more: they are forgotten with the memory."""
        return sum(s.left + s.waiting for s in self.standings) - self.open.get("waiting", 0)

    def _left_over(self, others: bool) -> int:
        """Of the parts that wait, those of a saga that is over. What waits to hear when its saga began is none."""
        if self.outcome is None or others or self.changed > iso(self.now_ms - QUIET_MS):
            return 0
        return sum(s.waiting for s in self.standings if s.started is not None)


async def listed(wanted: Wanted, clock: Clock) -> AsyncIterator[Listed | None]:
    """The sagas that are wanted, newest first, no more than `limit`; then `None` if others were not looked at."""
    async with AsyncExitStack() as stack:
        sources = await stack.enter_async_context(sources_of(wanted.addresses, clock))
        mine = [source for source in sources if not wanted.services or source.service in wanted.services]
        shown = set[str]()
        async for seen in newest_first(mine, wanted.prefix, kept=wanted.only_dead):
            if seen.saga in shown or not _may_be_wanted(wanted, seen):
                continue
            if len(shown) == wanted.limit:
                yield None
                return
            found = await _whole(seen, mine, clock)
            if (wanted.only_open and not found.open) or (wanted.only_dead and "dead" not in found.open):
                continue
            shown.add(seen.saga)
            yield found


def _may_be_wanted(wanted: Wanted, seen: Seen) -> bool:
    """True if it is worth while to ask the other services. What is damaged may be anything."""
    if seen.progress is None:
        return not wanted.only_dead
    stands = standing(seen.progress) if wanted.only_open or wanted.only_dead else None
    return stands is None or (bool(stands.dead) if wanted.only_dead else stands.is_open)


async def _whole(seen: Seen, sources: Sequence[Source], clock: Clock) -> Listed:
    """The saga with what every service keeps of it; what cannot be read is told."""
    every = []
    for source in sources:
        if source is seen.source:
            every.append(seen)
            continue
        found = await seen_of(source, seen.saga)
        if found is not None:
            every.append(found)
    damaged = tuple(each for each in every if each.progress is None)
    for each in damaged:
        warn(f"saga {each.saga} in {each.source.service} (document {each.key}): {each.damage}")
    standings = tuple(standing(each.progress) for each in every if each.progress is not None)
    return Listed(seen.saga, standings, damaged, clock.now_ms())


def as_json_of(each: Listed) -> dict[str, object]:
    """A saga for programs."""
    return {
        "saga": each.saga,
        "outcome": each.outcome,
        "started": each.started,
        "changed": each.changed,
        "open": each.open,
        "left": each.left,
        "services": {
            s.service: {
                "state": s.state,
                "outcome": s.outcome,
                "changed": s.changed,
                "left": s.left,
                **{sort: getattr(s, sort) for sort in OPEN},
            }
            for s in each.standings
        }
        | {d.source.service: {"state": "damaged", "key": d.key, "what": d.damage} for d in each.damaged},
    }
