"""Messages that yield in simulated worlds: with workers that die and partitions that move their saga's order stays, and
none is lost."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

import pytest

from saga.engine.consumer import flow_control
from saga.engine.consumer.flow_control import LowPriorityBuffer
from saga.engine.consumer.keyed_executor import WorkItem
from tests.mutants.party_services import hall
from tests.mutants.runtime_mutants import Plant, rewrite_source
from tests.mutants.scenarios import SCENARIOS, first_failing

SEEDS, FOUND_WITHIN = 12, 60
SCENARIO = SCENARIOS["parties, restless"]
"""Its notes come many times in a saga, and two handlers write down in which order."""
YIELD = ("note", "place")


@pytest.fixture(autouse=True)
def _notes_may_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hall is now and then saturated, whatever it has in flight."""
    reactions = hall.declared.reactions
    before, moods = list(reactions), cycle([True, True, False, True, False, False, True])
    reactions[:] = [replace(each, low_priority=each.name in YIELD) for each in before]
    monkeypatch.setattr(flow_control, "is_saturated", lambda *asked, is_behind: next(moods))
    yield
    reactions[:] = before


@pytest.mark.parametrize("seed", range(SEEDS))
def test_parties_whose_notes_may_wait_end_as_all_others(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    yielded, add = list[str](), LowPriorityBuffer.add

    def added(self: LowPriorityBuffer, item: WorkItem) -> None:
        before = self.count
        add(self, item)
        yielded.extend([item.message.type] * (self.count - before))

    monkeypatch.setattr(LowPriorityBuffer, "add", added)
    SCENARIO.run(seed)
    assert set(yielded) == {"NoteLeft"}


def overtaken(patch: pytest.MonkeyPatch) -> None:
    """A later message of the saga goes in front of those that yield."""
    add = LowPriorityBuffer.add

    def added(self: LowPriorityBuffer, item: WorkItem) -> None:
        if self.is_saturated():
            add(self, item)
        else:
            self.executor.add(item)

    patch.setattr(LowPriorityBuffer, "add", added)


def turned_round(patch: pytest.MonkeyPatch) -> None:
    """The last of a saga that yields goes first."""
    rewrite_source(patch, LowPriorityBuffer, "add", "waiting.append(", "waiting.appendleft(")


def forgotten(patch: pytest.MonkeyPatch) -> None:
    """What has yielded is taken for finished."""
    rewrite_source(
        patch, LowPriorityBuffer, "_release", "self.executor.add(item)", "item.tracker.finish(item.position.offset)"
    )


@pytest.mark.parametrize("mutant", [overtaken, turned_round, forgotten], ids=lambda mutant: mutant.__name__)
def test_a_bug_in_it_is_found(mutant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        mutant(patch)
        assert first_failing(SCENARIO, FOUND_WITHIN) is not None
