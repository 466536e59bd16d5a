"""Generate random scenarios with small services and short logs. A seed gives the same scenario on every version of
Python."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from saga.messages import Message
from saga.messaging.controls import ControlLog
from saga.messaging.message_ids import id_in
from saga.messaging.operator_commands import OperatorCommand, Wanted
from saga.progress import ids
from saga.progress.overflow import BOUNDS
from saga.testing.fault_plans import Chance
from verification.answer_scenarios import answers_stay
from verification.building_blocks import FAILURE, OUTCOMES
from verification.control_scenarios import books, end_route, pause, resume, route
from verification.handlers import SAGA, SERVICE, Reacts
from verification.operator_scenarios import command
from verification.page_scenarios import TINY
from verification.release_scenarios import release
from verification.scenario import Scenario, nothing_more
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
    "deadlines",
    "later",
    "abort actions",
    "operators",
    "controls",
    "versions",
)
"""Optional features of a generated scenario, each of which can be excluded."""
LEFT_OUT: tuple[str, ...] = ()
"""Features that are excluded because a violation is already known for them."""
FOREIGN = ("O", "N", "Q")
TICKS_MAX, WAKES_MAX = 8, 40
"""Bounds for scenarios in which several things wait for a time."""
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
        self._improves = False

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
        operated = self.has("operators", 0.3)
        version = self.one_of(("migrates", "improves", "renamed")) if self.has("versions", 0.15) else ""
        self._improves = version == "improves"
        handlers = self._handlers()
        added: tuple[Reacts, ...] = ()
        if len(handlers) > 2 and not version and self.has("a later release", 0.2):
            added, handlers = handlers[-1:], handlers[:-1]
        attempts_max = 1 if self.happens(0.8 if operated or any(h.takes_back for h in handlers) else 0.1) else 9
        self._may_die |= attempts_max == 1 or operated
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
            parks=self.has("parks", 0.3) or self._improves,
        )
        later: dict[str, Any] = {version: True} if version else {}
        service = replace(service, **later)
        controls = self._controls(service) if not service.tight and self.has("controls", 0.15) else ()
        a, b = self._logs((*handlers, *added), service.sent_by_others, ages)
        if operated:
            a, b = self._with_commands(service, a, b)
        made = Scenario(
            name=f"seed {self._seed}",
            service=service,
            a=a,
            b=b,
            stock=self.below(3) if self._stocked else None,
            books=controls,
            owner=(0, 1) if self.happens(0.3) else (0, 0),
            may_die=self._may_die,
            age=2 if ages else 0,
            at_the_end=answers_stay if operated and not any(h.many for h in handlers) else nothing_more,
        )
        made = replace(made, **self._faults(operated=operated))
        waits = operated or version or controls or any(h.within or h.goes_on for h in (*handlers, *added))
        return replace(made, **self._time(handlers, grows=not (ages or made.ahead))) if waits else made

    def _faults(self, *, operated: bool) -> dict[str, Any]:
        """Draw how many faults of each kind may happen."""
        faults = dict.fromkeys(self.some_of(("crash", "move", "fail", "lost", "evict"), 1 + self.happens(0.6)), 1)
        faults |= {"ahead": 1} if self.happens(0.07) else {}
        faults |= {"fail": 1 + self.happens(0.3)} if operated else {}
        if self._stocked:
            faults |= dict.fromkeys(self.some_of(("prune", "other", "batch"), self.below(3)), 1)
        return faults

    def _time(self, handlers: Sequence[Reacts], *, grows: bool) -> dict[str, Any]:
        """Draw how time passes in a scenario in which something may wait for a time. `grows`: the logs may grow."""
        chosen: dict[str, Any] = {"ticks_max": TICKS_MAX, "wakes_max": WAKES_MAX, "wakes_at": self.below(2)}
        if grows and any(h.within for h in handlers) and self.happens(0.4):
            chosen["grows"] = True
        else:
            chosen |= dict.fromkeys(self.some_of(("early", "fast"), self.below(2)), 1)
        return chosen

    def _choose_external_events(self, handlers: Sequence[Reacts]) -> frozenset[str]:
        """Draw a self-consumed event that other senders may publish, too."""
        emitted = {t for h in handlers for t in h.types}
        taken = sorted(emitted & {t for h in handlers for ts in h.to for t in ts})
        return frozenset({self.one_of(taken)} if taken else ())

    def _handlers(self) -> tuple[Reacts, ...]:
        handlers: list[Reacts] = []
        count = 2 + self.below(3)
        deadline = self.below(count) if self.has("deadlines", 0.3) else -1
        for number in range(count):
            own = [e.split(" ")[0] for h in handlers for e in h.emits if e not in OUTCOMES]
            alone = {t for h in handlers if len(h.to) == 1 and not h.within for t in h.to[0]}
            names = [h.name for h in handlers]
            to = self._to(own, alone)
            if number == deadline:
                handlers.append(self._deadline("abcd"[number], (*FOREIGN, *own), names))
            elif to is not None:
                handlers.append(self._handler("abcd"[number], to, names, (*FOREIGN, *own)))
        return tuple(handlers)

    def _deadline(self, name: str, pool: Sequence[str], before: Sequence[str]) -> Reacts:
        """Draw a deadline. `pool`: types of events from which its time may count, and which may cancel it."""
        opens = self.one_of(pool)
        closing = [t for t in (*pool, "S") if t != opens]
        return Reacts(
            name=name,
            to=((opens,),),
            does=self._acts([*before, name]),
            emits=(self.one_of(("Cancelled", "X", f"P{name}")),),
            within=1 + self.below(2),
            unless=(self.one_of(closing),) if self.happens(0.4) else (),
        )

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

    def _handler(
        self, name: str, to: tuple[tuple[str, ...], ...], before: Sequence[str], pool: Sequence[str]
    ) -> Reacts:
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
        made = Reacts(name=name, to=to, does=acts, emits=emits, undo=undo, many=many)
        if self.has("later", 0.2):
            made = self._with_turns(made, pool)
        return replace(made, takes_back=undo is not None and self.has("abort actions", 0.3))

    def _with_turns(self, h: Reacts, pool: Sequence[str]) -> Reacts:
        """Draw the turns of a handler. `pool`: types of events for which a turn may wait."""
        awaited = [t for t in pool if all(t not in types for types in h.to)]
        until = (self.one_of(awaited),) if awaited and not h.many and self.happens(0.5) else ()
        # One result covers all turns only if each of their acts is undone.
        silent = h.undo is None or (not h.many and len(h.emits) == 1 and all(act == "step" for act in h.does))
        return replace(
            h,
            turns=self.below(3) if until else 1 + self.below(2),
            until=until,
            after=1 + self.below(2) if until else self.below(2),
            says=() if silent and self.happens(0.5) else (f"t{h.name}",),
        )

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
            elif self._improves and self.happens(0.5):
                act += " if new"
            self._stocked |= not act.startswith(("step", "look"))
            acts.append(act)
        return tuple(acts)

    # ---------------------------------------------------------------- the logs

    def _logs(
        self, handlers: Sequence[Reacts], others: frozenset[str], ages: bool
    ) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        emitted = {t for h in handlers for t in h.types} - others
        wanted = [t for h in handlers for ts in (*h.to, h.until, h.unless) for t in ts if t not in emitted]
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

    # ---------------------------------------------------------------- what operators do

    def _with_commands(
        self, service: Explored, a: tuple[Message, ...], b: tuple[Message, ...]
    ) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """Return the logs with commands about work that may become a dead letter, or may be parked.

        They are at the end, because a worker takes nothing behind a command that no operator could give yet.
        """
        logs = ([*a], [*b])
        work = list(_work(service, (*a, *b)))
        for number in range((1 + self.below(2)) if work else 0):
            handler, about = self.one_of(work)
            self.one_of(logs).append(self._command(handler, about, f"p{number}"))
        return tuple(logs[0]), tuple(logs[1])

    def _command(self, handler: str, about: Message, who: str) -> OperatorCommand:
        wanted: Wanted = self.one_of(("replay", "replay", "discard", "discard", "resolve", "release"))
        if wanted == "release":
            return release(handler, about, who)
        answers = 1 + self.below(2) if wanted == "resolve" else 0
        return command(wanted, handler, about, who=who, replays=self.one_of((0, 0, 0, 1)), answers=answers)

    def _controls(self, service: Explored) -> tuple[ControlLog, ...]:
        """Draw the controls that operators set."""
        names = [name for h in service.handlers for name in (h.name, *((f"undo_{h.name}",) if h.undo else ()))]
        name, begun = self.one_of(names), self.below(2)
        if self.happens(0.3):
            self._may_die = True
            return books(route(name), end_route(name), begun=begun)
        whole = self.happens(0.3)
        paused = None if whole else name
        return books(pause(paused), *((resume(paused),) if self.happens(0.5) else ()), begun=begun)


def _work(service: Explored, messages: Sequence[Message]) -> Iterator[tuple[str, Message]]:
    """Yield each handler and compensation with each message that it takes. The messages include self-consumed events
    that handlers of a single message emit."""
    emitted = [
        msgspec.structs.replace(m, id=ids.event_id(h.emits[0], SERVICE, SAGA, h.name, m.id, 0), type=h.emits[0])
        for h in service.handlers
        for m in messages
        if h.emits and len(h.to) == 1 and m.type in h.to[0]
    ]
    for h in (*service.handlers, *service.added):
        yield from ((h.name, m) for m in (*messages, *emitted) if any(m.type in types for types in (*h.to, h.until)))
        yield from ((f"undo_{h.name}", m) for m in (*messages, *emitted) if h.undo and m.type in service.failures)
