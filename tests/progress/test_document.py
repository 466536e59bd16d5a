"""The progress as a document: where it lies, and what is not read rather than read wrongly."""

import pytest
from msgspec.structs import replace

from saga.errors import SagaError
from saga.progress.document import FORMAT, StepRecord, decode_progress, encode, progress_key
from tests.progress.pieces import a_message, an_intent, blank, kept


def test_the_key_of_a_progress_has_not_changed() -> None:
    assert progress_key("payment", "order-1") == "payment::order-1"


def test_a_progress_is_read_as_it_was_written() -> None:
    message = a_message(id="m", value=b"\x00\xff\xc3")
    p = replace(
        blank(),
        state={"ü": [1, None, 0.5]},
        queue=(kept("one", message, 3, dead="d"),),
        intents=(an_intent("two", message, a_message("B")),),
        n=4,
    )
    assert decode_progress(encode(p)) == p


def test_a_progress_in_a_newer_format_is_refused() -> None:
    newer = encode(replace(blank(), format=FORMAT + 1))
    with pytest.raises(
        SagaError, match=rf"saga 's' has format {FORMAT + 1}, this version reads up to {FORMAT}: run the newer"
    ):
        decode_progress(newer)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"service":7,"saga":"s"}', b'{"service":"\xff","saga":"s"}'])
def test_a_document_that_is_no_progress_is_refused(content: bytes) -> None:
    with pytest.raises(SagaError, match=r"a progress document cannot be read: .*; restore it, or read it with the"):
        decode_progress(content)


def test_a_call_is_read_with_its_arguments_where_they_are_recorded() -> None:
    call = StepRecord(kind="step", name="charge", number=1, input="d", arguments='"order-17", 7')
    assert call.description == 'step charge("order-17", 7)'
    assert replace(call, arguments="").description == "step charge"


def test_an_answer_of_an_operator_names_who_gave_it() -> None:
    made = StepRecord(kind="step", name="charge", number=1, input="d")
    assert made.attribution == ""
    assert replace(made, by="ada").attribution == ", as ada says"
