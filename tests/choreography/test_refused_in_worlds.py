"""Effects of a refused release on open sagas, in a simulated world: they justify the refusals of `saga manifest
--check`."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from saga import Event, Service
from saga.choreography.manifest import make_manifest
from saga.choreography.releases import compare_releases
from saga.progress.document import decode_transition
from saga.telemetry.events import Stuck
from saga.testing.simulation.network import TraceNote
from saga.testing.simulation.simulated_world import SimulatedWorld
from tests.contracts.folders import field, generated, schema, write

ROLLED_OUT = timedelta(minutes=2)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Events of sagas that begin with `Began`; clients publish all of them."""
    folder: Path = tmp_path_factory.mktemp("worlds")
    began = schema("Began", starts=True, produced_by="external")
    others = [schema(name, field("n", "int", default=0), produced_by="external") for name in ("Asked", "Answered")]
    write(folder, began, *others)
    return generated(folder, "Began", "Asked", "Answered")


def release(events: ModuleType, name: str, *takes: Any, many: bool = False, fails: bool = False) -> Service[None]:
    """Release of the service whose handler `name` takes these, each as a parameter."""
    watcher = Service("watcher")

    async def begin(began: Event) -> None: ...

    begin.__annotations__["began"] = events.Began
    watcher.handler(begin)

    async def react(first: Event, second: Event) -> None:
        if fails:
            raise RuntimeError("not yet")

    async def react_to_one(first: Event) -> None:
        if fails:
            raise RuntimeError("not yet")

    function: Callable[..., Any] = react if len(takes) == 2 else react_to_one
    function.__name__ = name
    function.__annotations__.update(zip(("first", "second"), takes, strict=False))
    watcher.handler(repeats=takes[0] if many else None)(function)
    return watcher


def run_both_releases(
    events: ModuleType, old: Service[None], new: Service[None], first: list[Event], then: list[Event]
) -> Any:
    """Run a saga under one release, then under the other: its progress, its transitions, and why a lane stands still.
    The second release is one that is refused."""
    found = compare_releases(make_manifest(old.declared), make_manifest(new.declared), [])
    assert [each.verdict for each in found][:1] == ["refused"]
    with SimulatedWorld(0, guarded=False) as world:
        world.start(old)
        world.publish(events.Began(order_id="o-1"), *first)
        world.run_for(timedelta(seconds=30))
        world.deploy(new)
        world.run_for(ROLLED_OUT)
        if then:
            world.publish(*then)
            world.run_for(ROLLED_OUT)
        p = world.progress("watcher", "o-1")
        assert p is not None
        moments = [line.moment for line in world.trace.lines if isinstance(line, TraceNote)]
        return p, [decode_transition(raw) for raw in p.transitions], [m.error for m in moments if isinstance(m, Stuck)]


def test_runs_parked_by_a_renamed_handler_strand(events: ModuleType) -> None:
    old, new = release(events, "react", events.Asked, fails=True), release(events, "answer", events.Asked)
    p, _, stuck = run_both_releases(events, old, new, [events.Asked(order_id="o-1")], [events.Answered(order_id="o-1")])
    assert [queued.handler for queued in p.queue] == ["react"]
    assert any("does not declare: handler react" in why for why in stuck)


def test_a_part_that_waits_for_a_renamed_handler_stays_there(events: ModuleType) -> None:
    old = release(events, "react", events.Asked, events.Answered)
    new = release(events, "answer", events.Asked, events.Answered)
    p, _, _ = run_both_releases(events, old, new, [events.Asked(order_id="o-1")], [events.Answered(order_id="o-1")])
    assert sorted((each.handler, each.message.type) for each in p.waiting) == [
        ("answer", "Answered"),
        ("react", "Asked"),
    ]


def test_an_event_that_is_taken_no_more_stays_where_it_is_parked(events: ModuleType) -> None:
    old = release(events, "react", events.Asked | events.Answered, fails=True)
    new = release(events, "react", events.Answered)
    p, entries, _ = run_both_releases(
        events, old, new, [events.Asked(order_id="o-1")], [events.Answered(order_id="o-1")]
    )
    assert [(each.handler, each.message.type) for each in p.waiting] == [("react", "Asked")]
    assert [entry.type for entry in entries if entry.handler == "react" and entry.outcome == "handled"] == ["Answered"]


def test_without_many_one_more_is_handled_and_the_next_is_a_dead_letter(events: ModuleType) -> None:
    old, new = release(events, "react", events.Asked, many=True), release(events, "react", events.Asked)
    first, *then = (events.Asked(order_id="o-1", n=n) for n in range(4))
    _, entries, _ = run_both_releases(events, old, new, [first], then)
    assert [entry.outcome for entry in entries if entry.handler == "react"] == ["handled", "handled", "dead", "dead"]
