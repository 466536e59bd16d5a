"""Generate random scenarios with small services and short logs. A seed gives the same scenario on every version of
Python."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from saga.messages import Message
from saga.messaging.message_ids import id_in
from saga.progress.overflow import BOUNDS
from saga.testing.fault_plans import Chance
from verification.building_blocks import FAILURE, OUTCOMES
from verification.handlers import Reacts
from verification.page_scenarios import TINY
from verification.scenario import Scenario
from verification.services import Explored, ages_at, message, time_after

T = TypeVar("T")

FEATURES = (
    "reads and branches",
    "old inbox",
    "no start",
    "several results",
    "two sources",
    "a later release",
    "bad for one",
    "pages",
    "others say it",
    "looks",
    "parks",
)
"""Optional features of a generated scenario, each of which can be excluded."""
LEFT_OUT: tuple[str, ...] = ()
"""Features that are excluded because a violation is already known for them."""
FOREIGN = ("O", "N", "Q")
UNDOES = {"step": "step", "take": "give", "take or open": "give or open"}


def scenario_of(seed: int, without: Sequence[str] = LEFT_OUT) -> Scenario:
    """Return the scenario for a seed. `without`: features to exclude."""
    return Made(seed, without).scenario()


class Made:
    """Builder of one scenario. All its choices depend only on the seed."""

    def __init__(self, seed: int, without: Sequence[str]) -> None:
        self._seed, self._without = seed, without
        self._chance, self._draws = Chance(seed), 0
        self._may_die = False
        self._stocked = False

    def below(self, count: int) -> int:
        """Draw a number from 0 to `count - 1`."""
        self._draws += 1
        return int(self._chance.draw(str(self._draws)) * count)

    def happens(self, chance: float) -> bool:
        return self.below(1000) < chance * 1000

    def one_of(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def some_of(self, options: Sequence[T], count: int) -> list[T]:
        """Draw `count` different options, or all if there are fewer."""
        left = list(options)
        return [left.pop(self.below(len(left))) for _ in range(min(count, len(left)))]

    def has(self, feature: str, chance: float) -> bool:
        return self.happens(chance) and feature not in self._without

    # ---------------------------------------------------------------- the service

    def scenario(self) -> Scenario:
        ages = self.has("old inbox", 0.2)
        handlers = self._handlers()
        added: tuple[Reacts, ...] = ()
        if len(handlers) > 2 and self.has("a later release", 0.2):
            added, handlers = handlers[-1:], handlers[:-1]
        attempts_max = 1 if self.happens(0.1) else 9
        self._may_die |= attempts_max == 1
        service = Explored(
            handlers=tuple(self.some_of(handlers, len(handlers))),
            outcomes=OUTCOMES,
            failures=FAILURE,
            starts=frozenset({"O"}) if self.happens(0.2) else frozenset(),
            attempts_max=attempts_max,
            added=added,
            sent_by_others=self._choose_external_events(handlers) if self.has("others say it", 0.15) else frozenset(),
            tight=ages or self.happens(0.2),
            bounds=TINY if self.has("pages", 0.2) else BOUNDS,
            parks=self.has("parks", 0.3),
        )
        a, b = self._logs((*handlers, *added), service.sent_by_others, ages)
        faults: dict[str, Any] = dict.fromkeys(
            self.some_of(("crash", "move", "fail", "lost", "evict"), 1 + self.happens(0.6)), 1
        )
        faults |= {"ahead": 1} if self.happens(0.07) else {}
        if self._stocked:
            faults |= dict.fromkeys(self.some_of(("prune", "other", "batch"), self.below(3)), 1)
        made = Scenario(
            name=f"seed {self._seed}",
            service=service,
            a=a,
            b=b,
            stock=self.below(3) if self._stocked else None,
            owner=(0, 1) if self.happens(0.3) else (0, 0),
            may_die=self._may_die,
            age=2 if ages else 0,
        )
        return replace(made, **faults)

    def _choose_external_events(self, handlers: Sequence[Reacts]) -> frozenset[str]:
        """Draw a self-consumed event that other senders may publish, too."""
        emitted = {t for h in handlers for t in h.types}
        taken = sorted(emitted & {t for h in handlers for ts in h.to for t in ts})
        return frozenset({self.one_of(taken)} if taken else ())

    def _handlers(self) -> tuple[Reacts, ...]:
        handlers: list[Reacts] = []
        for number in range(2 + self.below(3)):
            own = [e.split(" ")[0] for h in handlers for e in h.emits if e not in OUTCOMES]
            alone = {t for h in handlers if len(h.to) == 1 for t in h.to[0]}
            to = self._to(own, alone)
            if to is not None:
                handlers.append(self._handler("abcd"[number], to, [h.name for h in handlers]))
        return tuple(handlers)

    def _to(self, own: Sequence[str], alone: set[str]) -> tuple[tuple[str, ...], ...] | None:
        """Draw the event parameters of a handler. Self-consumed events are those of earlier handlers, so there is no
        cycle."""
        count = self.one_of((1, 1, 1, 2, 2, 3))
        pool = [t for t in dict.fromkeys((*FOREIGN, *own, *own)) if count > 1 or t not in alone]
        chosen = self.some_of(pool, count)
        if not chosen:
            return None
        to: list[tuple[str, ...]] = [(t,) for t in chosen]
        spare = [t for t in pool if t not in chosen and (len(to) > 1 or t not in alone)]
        if spare and self.happens(0.15):
            to[0] = (*to[0], self.one_of(spare))
        return tuple(to)

    def _handler(self, name: str, to: tuple[tuple[str, ...], ...], before: Sequence[str]) -> Reacts:
        several = self.has("several results", 0.35)
        many = self.happens(0.6 if several else 0.35)
        acts = self._acts([*before, name])
        decides = self.happens(0.15)
        emits: tuple[str, ...] = (self.one_of(("Confirmed", "X", "X")),) if decides else (f"P{name}",)
        if several and not decides:
            emits += (self.one_of((f"P{name}", f"R{name}", f"R{name} if left")),)
        if self.happens(0.1):
            emits = ()
        undo = None
        if (
            emits
            and not decides
            and self.happens(0.8 if several else 0.5)
            and all(act.split(" ")[0] != "give" for act in acts)
        ):
            undo = tuple(UNDOES.get(act.partition(" if ")[0].partition(" unless ")[0], "nothing") for act in acts)
        return Reacts(name=name, to=to, does=acts, emits=emits, undo=undo, many=many)

    def _acts(self, names: Sequence[str]) -> tuple[str, ...]:
        branches = self.has("reads and branches", 0.4)
        looks = ("look", "look") if self.has("looks", 0.3) else ()  # they may also fail before anything has begun
        acts: list[str] = []
        if branches and self.happens(0.4):  # it may look before it begins anything
            acts.append(f"read {self.one_of(('if', 'unless'))} {self.one_of(names)}")
            self._stocked = True
        for _ in range(self.one_of((0, 1, 1, 2, 2, 3))):
            act = self.one_of(("step", "step", "take", "give", "take or open", "read", *looks))
            if branches and self.happens(0.5):
                word = self.one_of(("if", "unless"))
                act += f" {word} {self.one_of((*names, 'left') if 'read' in acts else names)}"
            self._stocked |= not act.startswith(("step", "look"))
            acts.append(act)
        return tuple(acts)

    # ---------------------------------------------------------------- the logs

    def _logs(
        self, handlers: Sequence[Reacts], others: frozenset[str], ages: bool
    ) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        emitted = {t for h in handlers for t in h.types} - others
        wanted = [t for h in handlers for ts in h.to for t in ts if t not in emitted]
        types = list(dict.fromkeys(wanted)) or ["O"]
        many = sorted({t for h in handlers if h.many for t in h.to[0]} & set(types))
        undone = any(h.undo is not None for h in handlers)
        logs: tuple[list[Message], list[Message]] = ([], [])
        messages: list[Message] = []
        for number in range(2 + self.below(4 if many else 3)):
            type_ = types[number] if number < len(types) else self.one_of((*types, *many, *many))
            made = self._message(f"m{number}", type_, handlers, messages, repeats=type_ in many)
            after = max((self.below(3) if ages else 0), *(ages_at(m.time) for m in messages), 0)
            messages.append(made if made in messages else msgspec.structs.replace(made, time=time_after(after)))
        if undone and self.happens(0.8) and "X" not in emitted:
            started = not self.has("no start", 0.3)
            messages.insert(self.below(len(messages) + 1), message("x1", "X", started=started))
        for m in messages:
            self.one_of(logs).append(m)
        return tuple(logs[0]), tuple(logs[1])

    def _message(
        self, id_: str, type_: str, handlers: Sequence[Reacts], messages: Sequence[Message], *, repeats: bool
    ) -> Message:
        earlier = [m for m in messages if m.type == type_]
        if earlier and self.happens(0.25):
            return self.one_of(earlier)  # a duplicate
        others = [m for m in earlier if m.source == "others"]
        if others and self.has("two sources", 0.15):
            same = id_in(self.one_of(others).id)
            return message(same, type_, f"{same} of another", source="somebody else")
        content = id_
        if earlier and not repeats and self.happens(0.6):
            content = id_in(self.one_of(earlier).id)
        bad: bool | Sequence[str] = False
        if self.happens(0.06):
            bad = True
        elif self.has("bad for one", 0.15):
            takers = [h.name for h in handlers if any(type_ in types for types in h.to)]
            bad = takers[:1]
        version = 2 if self.happens(0.15) else 1
        return message(id_, type_, content, bad=bad, version=version, started=not self.has("no start", 0.1))
