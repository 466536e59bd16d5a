"""Reduce a scenario with a violation to a small one with the same violation, and print it as code."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from saga.messages import Message
from saga.messaging.message_ids import id_in
from saga.messaging.operator_commands import OperatorCommand
from saga.progress.overflow import BOUNDS
from verification.explore import Report
from verification.handlers import Reacts
from verification.scenario import Scenario
from verification.services import Explored, ages_at, message

TRIES_MAX = 400
FAULTS = ("crash", "move", "fail", "lost", "evict", "prune", "other", "batch", "age", "ahead", "early", "fast")
VERSIONS = ("migrates", "improves", "renamed")


def shrunk(scenario: Scenario, report: Report, search: Callable[[Scenario], Report]) -> tuple[Scenario, Report]:
    """Return the smallest scenario found that has a violation of the same kind, and its report. `search`: function that
    explores a scenario."""
    tries, smaller = 0, True
    while smaller:
        smaller = False
        for less in smaller_than(scenario):
            tries += 1
            if tries > TRIES_MAX:
                return scenario, report
            found = search(less)
            if found.loss is not None and kind_of(found.loss) == kind_of(report.loss or ""):
                scenario, report, smaller = less, found, True
                break
    return scenario, report


def kind_of(loss: str) -> str:
    """Return the kind of a violation: the words in capitals at its beginning.

    >>> kind_of("LOST EVENT ['P-17']")
    'LOST EVENT'
    """
    words = loss.replace(":", " ").split()
    count = next((i for i, word in enumerate(words) if not (word.isalpha() and word.isupper())), len(words))
    return " ".join(words[: min(count, 3)])


def smaller_than(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios that are smaller by one element each."""
    for a, b in _shorter(scenario.a, scenario.b):
        yield replace(scenario, a=a, b=b)
    for service in _simpler(scenario.service):
        yield replace(scenario, service=service)
    for fault in FAULTS:
        if getattr(scenario, fault):
            less: dict[str, Any] = {fault: getattr(scenario, fault) - 1}
            yield replace(scenario, **less)
    for plain in (
        replace(scenario, owner=(0, 0)),
        replace(scenario, wakes_at=0),
        replace(scenario, grows=False),
        replace(scenario, books=()),
        replace(scenario, books=scenario.books[1:]),
    ):
        if plain != scenario:
            yield plain


Log = tuple[Message, ...]


def _shorter(a: Log, b: Log) -> Iterator[tuple[Log, Log]]:
    for i in range(len(a)):
        yield (*a[:i], *a[i + 1 :]), b
    for i in range(len(b)):
        yield a, (*b[:i], *b[i + 1 :])
    if b:  # commands stay at the end: no worker takes a message behind one that cannot be given yet
        yield tuple(sorted((*a, *b), key=lambda m: isinstance(m, OperatorCommand))), ()
    for i, m in enumerate((*a, *b)):
        if isinstance(m, OperatorCommand):
            continue
        plain = message(id_in(m.id), m.type, source=m.source)
        if plain != m:
            both = [*a, *b]
            both[i] = plain
            yield tuple(both[: len(a)]), tuple(both[len(a) :])


def _simpler(service: Explored) -> Iterator[Explored]:
    for i, h in enumerate(service.handlers):
        if len(service.handlers) > 1:
            yield _consistent(replace(service, handlers=(*service.handlers[:i], *service.handlers[i + 1 :])))
        for less in _less(h):
            yield replace(service, handlers=(*service.handlers[:i], less, *service.handlers[i + 1 :]))
    for i, h in enumerate(service.added):
        yield _consistent(replace(service, added=(*service.added[:i], *service.added[i + 1 :])))
        for less in _less(h):
            yield replace(service, added=(*service.added[:i], less, *service.added[i + 1 :]))
    for plain in (
        replace(service, tight=False),
        replace(service, bounds=BOUNDS),
        replace(service, sent_by_others=frozenset()),
        replace(service, starts=frozenset()),
        replace(service, attempts_max=9),
        replace(service, parks=False),
        replace(service, migrates=False),
        replace(service, improves=False),
        replace(service, renamed=False),
    ):
        if plain != service:
            yield plain


def _less(h: Reacts) -> Iterator[Reacts]:
    """Yield descriptions of the handler that are smaller by one element each."""
    if h.many:
        yield replace(h, many=False)
    for i in range(len(h.to)):
        if len(h.to) > 1:
            yield replace(h, to=(*h.to[:i], *h.to[i + 1 :]))
        if len(h.to[i]) > 1:
            yield replace(h, to=(*h.to[:i], h.to[i][:1], *h.to[i + 1 :]))
    if h.undo is not None:
        yield replace(h, undo=None)
    for plain in (
        replace(h, within=0, unless=()),
        replace(h, unless=()),
        replace(h, turns=0, until=(), says=()),
        replace(h, until=(), turns=max(1, h.turns)) if h.until else h,
        replace(h, turns=h.turns - 1),
        replace(h, says=() if h.undo is None else h.says),
        replace(h, takes_back=False),
    ):
        if plain != h and plain.turns >= 0:
            yield plain
    for i, act in enumerate(h.does):
        undo = None if h.undo is None else (*h.undo[:i], *h.undo[i + 1 :])
        yield replace(h, does=(*h.does[:i], *h.does[i + 1 :]), undo=undo)
        if " " in act and act.split(" ")[1] in ("if", "unless"):
            yield replace(h, does=(*h.does[:i], act.split(" ")[0], *h.does[i + 1 :]))
    for i in range(len(h.emits)):
        if len(h.emits) > 1 or h.undo is None:
            yield replace(h, emits=(*h.emits[:i], *h.emits[i + 1 :]))


def _consistent(service: Explored) -> Explored:
    """Return the service without conditions that refer to removed handlers."""
    known = {"left", "new", *[h.name for h in (*service.handlers, *service.added)]}

    def mended(h: Reacts) -> Reacts:
        does = tuple(_unconditional(act) if act.split(" ")[-1] not in known else act for act in h.does)
        return replace(h, does=does)

    return replace(service, handlers=tuple(map(mended, service.handlers)), added=tuple(map(mended, service.added)))


def _unconditional(act: str) -> str:
    return act.partition(" if ")[0].partition(" unless ")[0]


# ---------------------------------------------------------------- as people write it down


def as_code(scenario: Scenario) -> str:
    """Return code that creates the scenario, with the values that differ from the defaults. Of the control logs, it
    gives only the number."""
    service = scenario.service
    given = [*map(_handler, service.handlers)]
    for name in ("attempts_max", "parks", "added", "tight", "starts", "sent_by_others", "bounds", *VERSIONS):
        value = getattr(service, name)
        if value != next(f.default for f in fields(Explored) if f.name == name):
            given.append(f"{name}={_shown(name, value)}")
    lines = [f"Scenario(name={scenario.name!r},", f"  service=of({', '.join(given)}),"]
    lines += [f"  {name}=({''.join(f'{_message(m)}, ' for m in getattr(scenario, name))})," for name in ("a", "b")]
    chosen = {
        f.name: getattr(scenario, f.name)
        for f in fields(Scenario)
        if f.name not in ("name", "service", "a", "b", "at_the_end", "books") and getattr(scenario, f.name) != f.default
    }
    controls = [f"  # {len(scenario.books)} control logs: see the scenario's `books`"] if scenario.books else []
    return "\n".join([*lines, *controls, f"  {', '.join(f'{name}={value!r}' for name, value in chosen.items())})"])


def _shown(name: str, value: object) -> str:
    if name == "bounds":
        return "TINY"  # the only other bounds that generated scenarios use
    if isinstance(value, frozenset):
        return f"frozenset({sorted(value)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_handler, value))},)"
    return repr(value)


def _handler(h: Reacts) -> str:
    chosen = {f.name: getattr(h, f.name) for f in fields(Reacts) if f.name in ("name", "to")}
    chosen |= {f.name: getattr(h, f.name) for f in fields(Reacts) if getattr(h, f.name) != f.default}
    return f"Reacts({', '.join(f'{name}={value!r}' for name, value in chosen.items())})"


def _message(m: Message) -> str:
    if isinstance(m, OperatorCommand):
        return _command(m)
    content = m.value.decode()
    started = "" if m.started else ", started=False"
    source = "" if m.source == "others" else f", source={m.source!r}"
    version = "" if m.schema.endswith(".v1") else f", version={m.schema[-1]}"
    after = f", after={ages_at(m.time)}" if ages_at(m.time) else ""
    return f"message({id_in(m.id)!r}, {m.type!r}, {content!r}{version}{source}{started}{after})"


def _command(m: OperatorCommand) -> str:
    """Return the code of a command. `names` is the id of the dead letter, or of the wait of a parked run."""
    answers = f", answers={m.answered.number}" if m.answered else ""
    return f"command({m.wanted!r}, '', ORD, names={m.dead!r}, who={m.who!r}{answers})"
