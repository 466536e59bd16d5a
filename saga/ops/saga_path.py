"""The path of a saga: the events that have happened, and those that are still to come, in causal order.
Pure functions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from saga.choreography.manifest import DeclaredReaction
from saga.ops.obstacles import Obstacle
from saga.ops.saga_situation import Happening, SagaSituation, list_outcomes, list_undone

Mark: TypeAlias = Literal["done", "compensated", "missing", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEvent:
    """An event on the path of a saga, which has happened or is still to come."""

    type: str
    """Event type. Empty for a handler that still has to run and emits no event."""
    mark: Mark
    service: str
    """The service that emitted the event or will emit it. If the event was published from outside, the client's
    name."""
    handler: str
    causes: tuple[str, ...]
    """Types of the events on the path that trigger the handler."""
    time: str | None


def draw_path(situation: SagaSituation, obstacles: Sequence[Obstacle]) -> list[PathEvent]:
    """Return the events that have happened, then those that are still to come. Each event comes after its causes."""
    path = [*_list_happened(situation).values()]
    coming = _ComingEvents(situation)
    for type_ in () if situation.outcome is not None else list_outcomes(situation, "success"):
        coming.add(type_)
    if not obstacles:
        return path
    main = obstacles[0]
    if main.awaited and not any(type_ in coming.events for type_ in main.awaited):
        coming.add(main.awaited[0])
    if not main.awaited and main.handler:
        coming.events[""] = PathEvent(
            type="", mark="missing", service=main.service, handler=main.handler, causes=(main.type,), time=None
        )
    return path + [_mark_missing(situation, main, each) for each in coming.events.values()]


def _mark_missing(situation: SagaSituation, main: Obstacle, each: PathEvent) -> PathEvent:
    """Mark an event as missing if the obstacle waits for it. If the obstacle's handler can emit the event, that handler
    is shown as its emitter."""
    if each.type not in main.awaited:
        return each
    reaction = situation.get_reaction(main.service, main.handler)
    if reaction is None or each.type not in reaction.emits:
        return replace(each, mark="missing")
    causes = tuple(_list_causes(situation, main.service, main.handler)) or each.causes
    return replace(each, mark="missing", service=main.service, handler=main.handler, causes=causes)


def _list_happened(situation: SagaSituation) -> dict[str, PathEvent]:
    """Return the events that have happened, sorted by time. Because clocks differ, an event is moved behind its causes
    if necessary."""
    found: dict[str, PathEvent] = {}
    undone = {type_ for _, type_ in list_undone(situation)}
    left = {each.type: each for each in sorted(situation.happened.values(), key=lambda each: each.time)}

    def add(each: Happening) -> None:
        causes = tuple(_list_causes(situation, each.service, each.handler))
        for cause in causes:
            if cause in left:
                add(left.pop(cause))
        mark: Mark = "compensated" if each.type in undone else "done"
        found[each.type] = PathEvent(
            type=each.type, mark=mark, service=each.service, handler=each.handler, causes=causes, time=each.time
        )

    while left:
        add(left.pop(next(iter(left))))
    return found


def _list_causes(situation: SagaSituation, service: str, handler: str) -> Iterator[str]:
    """Yield the types of the events that have happened and triggered this handler."""
    reaction = situation.get_reaction(service, handler) if handler else None
    for part in () if reaction is None else (*reaction.takes, *reaction.took):
        known = [situation.happened[type_] for type_ in part if type_ in situation.happened]
        if known:
            yield min(known, key=lambda each: each.time).type


class _ComingEvents:
    """Events that have not happened yet. Each one comes after the events that trigger its handler."""

    def __init__(self, situation: SagaSituation) -> None:
        self._situation = situation
        self.events: dict[str, PathEvent] = {}
        self._open: set[str] = set()

    def add(self, type_: str) -> None:
        """Add an event, preceded by the events that lead to it."""
        if type_ in self._situation.happened or type_ in self.events or type_ in self._open:
            return
        self._open.add(type_)
        service, reaction = self._find_emitter(type_)
        causes = []
        for part in () if reaction is None else (*reaction.takes, *reaction.took):
            chosen = next((t for t in part if t in self._situation.happened), part[0])
            self.add(chosen)
            causes.append(chosen)
        self.events[type_] = PathEvent(
            type=type_,
            mark="open",
            service=service,
            handler="" if reaction is None else reaction.name,
            causes=tuple(causes),
            time=None,
        )

    def _find_emitter(self, type_: str) -> tuple[str, DeclaredReaction | None]:
        """Return a handler that emits the event, and its service. A deadline is chosen only if nothing else emits the
        event. If nothing does, the service is empty and the handler is `None`."""
        found = [
            (service, reaction)
            for service, manifest in self._situation.manifests.items()
            for reaction in manifest.reactions
            if type_ in reaction.emits
        ]
        return min(found, key=lambda each: each[1].kind == "deadline", default=("", None))


MARKS: Final[Mapping[Mark, str]] = {"done": "+", "compensated": "-", "missing": "!", "open": "."}
"""Character that stands for each mark in text."""


def format_path(path: Sequence[PathEvent]) -> list[str]:
    """Format a path as text, one event per line: its mark, its type, who emits it, after which events, and when."""
    if not path:
        return []
    labels = [each.type or "(no event)" for each in path]
    width = max(map(len, labels))
    lines = []
    for each, label in zip(path, labels, strict=True):
        sign = "  <-- missing" if each.mark == "missing" else ""
        lines.append(f"  {MARKS[each.mark]} {label:<{width}}  {describe_emitter(each)}{sign}")
    return lines


def describe_emitter(each: PathEvent) -> str:
    """Describe who emits an event, after which events, and when it was emitted."""
    emitter = f"{each.service}.{each.handler}" if each.handler else each.service or "from outside"
    after = f" after {' and '.join(each.causes)}" if each.causes else ""
    when = f" at {each.time}" if each.time else ""
    return f"{emitter}{after}{when}"
