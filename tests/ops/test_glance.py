"""A glance reads of a progress what a list shows, and says of what it cannot read why."""

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga.errors import SagaError
from saga.ops.histories import decode_summary, decode_transition_summary
from saga.progress import journal
from saga.progress.document import FORMAT, encode
from saga.progress.journal import TransitionDetails
from tests.progress.pieces import START, a_hand, a_message, a_role, an_intent, blank, kept, roles_of

A = a_message("A")
ROLE = a_role("take", "A")


def test_a_summary_shows_the_content_of_a_progress() -> None:
    p = replace(
        blank(),
        queue=(kept("take", A, dead="letter"),),
        intents=(an_intent("take", A),),
        outcome="Ended",
    )
    p = journal.append_transition(
        p, a_hand(A, roles=roles_of(ROLE)), "queued", "take", TransitionDetails(message=A)
    ).snapshot
    seen = decode_summary(encode(p))
    assert (seen.service, seen.saga, seen.started, seen.outcome) == ("svc", "s", START, "Ended")
    assert [(k.handler, k.dead) for k in seen.queue] == [("take", "letter")]
    assert [(intent.handler, intent.kind) for intent in seen.intents] == [("take", "do")]
    assert [decode_transition_summary(raw).outcome for raw in seen.transitions] == ["queued"]


def test_a_progress_without_transitions_is_one() -> None:
    assert decode_summary(encode(blank())).transitions == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"service": "svc"}', b'{"service": "svc", "saga": 7}', b"\xff", b"[" * 100_000],
    ids=["nothing", "cut off", "a list", "half", "a number", "no text", "deep"],
)
def test_a_document_that_is_no_progress_is_reported(content: bytes) -> None:
    with pytest.raises(SagaError, match=r"^it cannot be read: "):
        decode_summary(content)


def test_a_progress_with_an_invalid_last_transition_is_reported() -> None:
    with pytest.raises(SagaError, match=r"^it cannot be read: "):
        decode_summary(encode(replace(blank(), transitions=(Raw(b'{"time": 7}'),))))


def test_a_progress_of_a_newer_version_is_reported_with_a_remedy() -> None:
    with pytest.raises(SagaError, match=rf"format {FORMAT + 1}, and this version reads up to {FORMAT}: use the newer"):
        decode_summary(encode(replace(blank(), format=FORMAT + 1)))
