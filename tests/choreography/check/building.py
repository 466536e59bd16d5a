"""Build manifests of small services in a few words, by hand or at random."""

from collections.abc import Iterable, Mapping, Sequence
from random import Random  # noqa: TID251 - seeds are given: the same seed makes the same choreography

from saga.choreography.manifest import ConsumedContract, DeclaredReaction, EmittedContract, Manifest

KIND = "order_id"
START = "Placed"


class Choreo:
    """Manifests of one kind of saga, service by service: `Choreo().service("order", handler(...))`."""

    def __init__(
        self,
        *,
        success: Sequence[str] = ("Confirmed",),
        failure: Sequence[str] = ("Cancelled",),
        starts: Sequence[str] = (START,),
        external: Sequence[str] = (),
        to_outside: Sequence[str] = (),
        changes: Mapping[str, str] | None = None,
    ) -> None:
        """`changes`: names under which services take changes of documents, with the collection of each.

        An outcome that comes from outside is in the topic of an outcome that the deciding service emits.
        """
        self.decided = next((name for name in (*failure, *success) if name not in external), "outside")
        self.outcomes = {**dict.fromkeys(success, "success"), **dict.fromkeys(failure, "failure")}
        self.starts, self.external, self.to_outside = {*starts}, {*starts, *external}, {*to_outside}
        self.changes = {} if changes is None else changes
        self.manifests: list[Manifest] = []

    def contract(self, name: str) -> EmittedContract:
        return EmittedContract(
            contract=name,
            version=1,
            topic=f"topic-of-{self.decided if name in self.outcomes and name in self.external else name}",
            key=KIND,
            outcome=self.outcomes.get(name),  # type: ignore[arg-type] # success or failure
            starts=name in self.starts,
            produced_externally=name in self.external,
            consumed_externally=name in self.to_outside,
        )

    def service(self, name: str, *reactions: DeclaredReaction) -> "Choreo":
        heard = {each for reaction in reactions for each in reaction.hears}
        consumed = sorted(heard - self.changes.keys())
        emitted = sorted({each for reaction in reactions for each in reaction.emits})
        given = {each: self.contract(each) for each in {*consumed, *emitted}}
        self.manifests.append(
            Manifest(
                format=2,
                service=name,
                kind=KIND,
                retention_s=1e6,
                consumes=tuple(
                    ConsumedContract(
                        contract=each,
                        version=1,
                        topic=given[each].topic,
                        key=KIND,
                        outcome=given[each].outcome,
                        starts=given[each].starts,
                        produced_externally=given[each].produced_externally,
                        consumed_externally=given[each].consumed_externally,
                        fields=(KIND,),
                    )
                    for each in consumed
                ),
                emits=tuple(given[each] for each in emitted),
                reactions=tuple(sorted(reactions, key=lambda reaction: reaction.name)),
                changes={name: self.changes[name] for name in sorted(heard & self.changes.keys())},
            )
        )
        return self


def alternatives(text: str) -> tuple[tuple[str, ...], ...]:
    """Read `A | B C | -` as A, or B and C, or nothing."""
    return tuple(tuple(part.split()) if part.strip() != "-" else () for part in text.split("|"))


def handler(  # one parameter for each option of a declaration
    name: str,
    takes: str,
    returns: str = "-",
    *,
    effects: bool = False,
    irreversible: bool = False,
    repeats: str = "",
    maybe: str = "",
) -> DeclaredReaction:
    """A handler: `handler("reserve", "Placed", "Reserved | Declined", effects=True)`. `A + B` is a fan-in, `A / B` a
    parameter that takes either. `maybe`: events for which it may wait with `@later`."""
    found = alternatives(returns)
    parameters = tuple(tuple(part.replace("/", " ").split()) for part in takes.split("+"))
    return DeclaredReaction(
        name=name,
        kind="handler",
        ids=name,
        takes=parameters,
        emits=tuple(dict.fromkeys(each.rstrip("*") for part in found for each in part if each != "@later")),
        returns=found,
        later=any("@later" in part for part in found),
        steps=("do",) if effects else (),
        irreversible=irreversible,
        repeats=tuple(repeats.split()),
        optional=tuple(maybe.split()),
        until=tuple(maybe.split()),
    )


def compensation(name: str, undoes: str, takes: str, returns: str = "-", *, took: str = "") -> DeclaredReaction:
    """A compensation: `compensation("release", "reserve", "Cancelled + Reserved")`. `took`: an event that its handler
    took."""
    made = handler(name, takes, returns)
    taken = (tuple(took.split()),) if took else ()
    return _changed(made, kind="compensation", undoes=undoes, steps=("undo",), took=taken)


def deadline(name: str, takes: str, returns: str, *, unless: str = "", within_s: float = 900) -> DeclaredReaction:
    return _changed(handler(name, takes, returns), kind="deadline", within_s=within_s, unless=tuple(unless.split()))


def _changed(reaction: DeclaredReaction, **changes: object) -> DeclaredReaction:
    fields = {name: getattr(reaction, name) for name in reaction.__struct_fields__}
    return DeclaredReaction(**{**fields, **changes})


def usual(count: int, *, is_chained: bool = False) -> Choreo:
    """A choreography in the usual style: each of `count` services answers or declines, one more decides.

    `is_chained`: most services wait for the answer of an earlier one, and say what they finished and undid, which a
    last service notes: five events for each service.
    """
    names = [f"s{number}" for number in range(count)]
    made = Choreo(to_outside=[f"{what}{name}" for name in names for what in ("Finished", "Undone", "Noted")])
    for number, name in enumerate(names):
        earlier = f" + Done{names[number // 3]}" if is_chained and number > 2 else ""
        made.service(
            name,
            handler("work", f"{START}{earlier}", f"Done{name} | Declined{name}", effects=True),
            compensation("undo", "work", f"Cancelled + Done{name}", f"Undone{name}" if is_chained else "-"),
            handler("finish", f"Confirmed + Done{name}", f"Finished{name}", effects=True),
        )
    made.service(
        "decider",
        handler("confirm", " + ".join(f"Done{name}" for name in names), "Confirmed"),
        handler("cancel", " / ".join(f"Declined{name}" for name in names), "Cancelled"),
        deadline("expire", START, "Cancelled"),
    )
    if is_chained:
        made.service("notes", *(handler(f"note_{name}", f"Finished{name}", f"Noted{name}") for name in names))
    return made


# -------------------------------------------------------------------- random


def random_choreography(seed: int, services: int = 3) -> Choreo:
    """A choreography near the usual style, with a few random departures from it."""
    return _Random(seed, services).make()


class _Random:
    def __init__(self, seed: int, services: int) -> None:
        self.random = Random(seed)
        self.names = [f"s{number}" for number in range(services - 1)]
        self.failures = ["Cancelled"] if self.chance(0.7) else ["Cancelled", "Expired"]
        self.withdrawn = ["Withdrawn"] if seed % 8 == 3 and services < 4 else []
        self.events = [START]
        self.made = Choreo(
            failure=[*self.failures, *self.withdrawn],
            external=[*(["Asked"] if self.chance(0.15) else []), *self.withdrawn],
            to_outside=[
                *("Confirmed", *self.failures),
                *(
                    f"{what}{n}"
                    for n in self.names
                    for what in ("Done", "Declined", "Noted", "Finished", "Ticked", "Echo")
                ),
            ],
        )
        if "Asked" in self.made.external:
            self.events.append("Asked")

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def make(self) -> Choreo:
        for name in self.names:
            self.made.service(name, *self.make_worker(name))
        self.made.service("decider", *self.make_decider())
        return self.made

    def make_worker(self, name: str) -> Iterable[DeclaredReaction]:
        other = self.random.choice(self.events)
        takes = self.random.choice([START, START, other, f"{START} + {other}" if other != START else START])
        done, declined = f"Done{name}", f"Declined{name}"
        returns = [f"{done} | {declined}"] * 4 + [done, f"{done} | -", f"{done} | {declined} | @later"]
        has_effects = self.chance(0.8)
        yield handler("work", takes, self.random.choice(returns), effects=has_effects)
        self.events.append(done)
        if has_effects and self.chance(0.85):
            failures = [*self.failures, *self.withdrawn]
            on = " / ".join(failures if self.chance(0.8) else failures[:1])
            yield compensation("undo", "work", f"{on} + {done}")
        elif has_effects and self.chance(0.5):
            yield handler(
                "send", self.random.choice([f"{START} + {done}", f"Confirmed + {START}"]), "-", irreversible=True
            )
        if self.chance(0.7):
            beside = self.random.choice([f" + {self.random.choice(self.events)}", "", f" + {done}"])
            yield handler("finish", f"Confirmed{beside}", f"Finished{name}", effects=self.chance(0.6))
        if self.chance(0.15):
            yield handler("note", self.random.choice(self.failures), f"Noted{name} | -", effects=self.chance(0.5))
        if self.chance(0.15):
            yield handler("tick", done, f"Ticked{name}*")
            yield handler("echo", f"Ticked{name}", f"Echo{name}", repeats=f"Ticked{name}")

    def make_decider(self) -> Iterable[DeclaredReaction]:
        done = [f"Done{name}" for name in self.names]
        needed = done if self.chance(0.7) else self.random.sample(done, max(1, len(done) - 1))
        yield handler("confirm", " + ".join(needed), "Confirmed" if self.chance(0.95) else "Confirmed | -")
        declined = " / ".join(f"Declined{name}" for name in self.names)
        yield handler("cancel", declined, "Cancelled" if self.chance(0.9) else "Cancelled | -")
        if self.withdrawn:
            yield handler("see", "Withdrawn", "-")
        if self.chance(0.75):
            opener = self.random.choice([START, START, START, done[0]])
            unless = done[0] if opener == START and self.chance(0.12) else ""
            yield deadline("expire", opener, self.failures[-1], unless=unless)


__all__ = ["Choreo", "compensation", "deadline", "handler", "random_choreography", "usual"]
