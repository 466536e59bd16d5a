"""Rules about own events that are in pages, and about shelves: take one away, and the exploration finds a loss."""

from typing import Any

import pytest
from msgspec.structs import replace

from saga.progress import overflow
from saga.progress.document import OverflowSegment, SagaProgress, SelfConsumedEvent
from saga.progress.overflow import NewSegment, SegmentDocument, SelfConsumedEvents
from tests.exploration.without_a_rule import Take, check_loss


def self_consumed_events_are_not_restored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SelfConsumedEvents, "find_first", lambda *args: None)


def self_consumed_events_are_restored_behind_later_ones(patch: pytest.MonkeyPatch) -> None:
    put_back = SelfConsumedEvents.put_back

    def behind(kind: SelfConsumedEvents, p: SagaProgress, *items: Any) -> SagaProgress:
        back = put_back(kind, p, *items)
        return replace(
            back, self_consumed=(*p.self_consumed, *(o for o in back.self_consumed if o not in p.self_consumed))
        )

    patch.setattr(SelfConsumedEvents, "put_back", behind)


def the_first_self_consumed_event_moves_to_a_segment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overflow._Head, "is_full", lambda *args: True)


def withdrawn_events_stay_in_their_segment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SelfConsumedEvents, "find_withdrawn", lambda *args: None)


def self_consumed_events_are_restored_for_all_handlers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SelfConsumedEvent, "is_for", lambda self, handler: True)


def index_segments_do_not_list_their_messages(patch: pytest.MonkeyPatch) -> None:
    shelved = overflow.index_segments

    def silent(p: SagaProgress, pages: tuple[OverflowSegment, ...], entries: object) -> tuple[SagaProgress, NewSegment]:
        return shelved(p, pages, ())

    patch.setattr(overflow, "index_segments", silent)


def segments_of_an_index_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    opened = overflow.open_index

    def partly(p: SagaProgress, shelf: OverflowSegment, leaf: SegmentDocument) -> SagaProgress:
        return opened(p, shelf, replace(leaf, segments=leaf.segments[1:]))

    patch.setattr(overflow, "open_index", partly)


RULES: dict[Take, str] = {
    self_consumed_events_are_not_restored: "own pages: the other part comes, crash",
    self_consumed_events_are_restored_behind_later_ones: "own pages: between the first and what came since",
    the_first_self_consumed_event_moves_to_a_segment: "own pages: the other part comes, crash",
    withdrawn_events_stay_in_their_segment: "own pages: withdrawn, crash",
    self_consumed_events_are_restored_for_all_handlers: "own pages: two handlers, and an inbox in pages",
    index_segments_do_not_list_their_messages: "shelves: of a queue",
    segments_of_an_index_are_forgotten: "shelves: of a queue",
}


@pytest.mark.parametrize("take_away", RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_there_is_a_loss(take_away: Take) -> None:
    check_loss(take_away, RULES[take_away])
