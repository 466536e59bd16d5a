"""Rules about results that are in pages: take one away, and the exploration finds something that is not undone once."""

from typing import Any

import pytest
from msgspec.structs import replace

from saga.engine.persistence.overflow_store import OverflowStore
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.engine.processing_state import ProcessingState
from saga.progress import compensation, journal, overflow
from saga.progress.document import CompensableResult, OverflowSegment, SagaProgress
from saga.progress.journal import Commit
from saga.progress.overflow import SegmentDocument
from tests.exploration.without_a_rule import Take, check_loss


def results_in_segments_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compensation, "_has_more_results", lambda p, role: any(r.handler == role.name for r in p.results))


def the_segment_below_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    restore = overflow.restore

    def alone(p: SagaProgress, segment: OverflowSegment, document: SegmentDocument, *rest: Any) -> SagaProgress:
        return restore(p, segment, replace(document, below=None), *rest)

    patch.setattr(overflow, "restore", alone)


def the_newest_result_moves_to_a_segment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overflow.Results, "find_older", lambda kind, mine, bounds: mine)
    patch.setattr(overflow.Results, "get_group", lambda kind, result: id(result))


def results_are_restored_behind_those_of_other_handlers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overflow, "_sort_items", tuple)


def segments_of_results_are_removed_before_the_progress_is_written(patch: pytest.MonkeyPatch) -> None:
    within = OverflowStore.move_overflow

    async def hasty(repository: OverflowStore, turn: ProcessingState, p: SagaProgress) -> Any:
        p, emptied = await within(repository, turn, p)
        await repository.remove_segments(emptied)
        return p, ()

    patch.setattr(OverflowStore, "move_overflow", hasty)


def segments_are_written_after_the_progress_that_lists_them(patch: pytest.MonkeyPatch) -> None:
    inserted, save, late = OverflowStore._insert_segment, ProgressRepository.write_progress, list[tuple[Any, ...]]()

    async def put_off(*asked: Any) -> None:
        late.append(asked)

    async def then(repository: ProgressRepository, turn: ProcessingState, written: Commit) -> ProcessingState:
        late.clear()
        turn = await save(repository, turn, written)
        for asked in [*late]:
            await inserted(*asked)
        return turn

    patch.setattr(OverflowStore, "_insert_segment", put_off)
    patch.setattr(ProgressRepository, "write_progress", then)


def all_results_of_a_handler_share_their_consumed_events(patch: pytest.MonkeyPatch) -> None:
    with_results = journal.add_results

    def alike(*of: Any) -> tuple[CompensableResult, ...]:
        results = with_results(*of)
        return tuple([replace(result, consumed=results[0].consumed) for result in results])

    patch.setattr(journal, "add_results", alike)


RULES: dict[Take, str] = {
    all_results_of_a_handler_share_their_consumed_events: "undone with what it took: several results",
    results_in_segments_are_forgotten: "results pages: undone, crash",
    the_segment_below_is_forgotten: "results pages: undone, crash",
    the_newest_result_moves_to_a_segment: "results pages: undone, crash",
    results_are_restored_behind_those_of_other_handlers: "results pages: of two handlers",
    segments_of_results_are_removed_before_the_progress_is_written: "results pages: undone, crash",
    segments_are_written_after_the_progress_that_lists_them: "results pages: undone, crash",
}


@pytest.mark.parametrize("take_away", RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_there_is_a_loss(take_away: Take) -> None:
    check_loss(take_away, RULES[take_away])
