"""The names under which fields are stored: files of earlier versions are read only while these stay as they are."""

import pytest
from msgspec import Struct

from saga.progress.document import (
    CompensableResult,
    DeadLetterRecord,
    Intent,
    OverflowSegment,
    PendingMessage,
    SagaProgress,
    SelfConsumedEvent,
    SuspendedRun,
    Transition,
)
from saga.progress.overflow import SegmentDocument

STORED: dict[type[Struct], str] = {
    SagaProgress: "service saga format started principal state version outcome inbox ran closed failed results own "
    "heard intents queue waiting compensating deadlines later pages wake replays n published told hash first "
    "transitions",
    Transition: "n previous time outcome handler message type source cause position log_id reason attempt failures "
    "delta version changes events calls shown letters wake trace",
    PendingMessage: "handler message n dead bad attempts under due_ms delay_ms put_off decides disputed",
    SuspendedRun: "handler parts n turn handler_version first_ms seen_ms due_ms delay_ms until by attempts under calls "
    "undo_with",
    CompensableResult: "handler cause event took own n",
    SelfConsumedEvent: "event n only",
    Intent: "handler kind name cause message parts state version handler_version time begins calls undo_with left "
    "maybe",
    OverflowSegment: "of name count newest until bound had first last handlers types level",
    DeadLetterRecord: "id what handler reason remedy message attempts where stack blame state calls",
    SegmentDocument: "service saga of newest until entries kept results own pages below",
}


@pytest.mark.parametrize("kind", STORED)
def test_fields_are_stored_under_the_names_of_earlier_versions(kind: type[Struct]) -> None:
    assert " ".join(kind.__struct_encode_fields__) == STORED[kind]
