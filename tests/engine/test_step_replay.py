"""The order of answers in a rerun: operators' answers stand where the run asks for them."""

from typing import Any

import pytest

from saga.engine.execution.step_replay import StepReplay, combine_answers
from saga.messages import Message
from saga.progress.document import Intent, StepRecord


def call(name: str, by: str | None = None) -> StepRecord:
    return StepRecord(kind="step", name=name, number=1, input="", by=by)


LOOK, HOLD, PAY, RING = call("look"), call("hold", by="ada"), call("pay"), call("ring")
MESSAGE = Message(id="m", type="t", schema="t.v1", saga="s", source="o", time="", value=b"")


def replay_of(*recorded: StepRecord, carried: tuple[StepRecord, ...] = ()) -> StepReplay:
    replay = StepReplay(Any, 1, lambda one, other: one == other)  # type: ignore[arg-type]
    replay.load(
        Intent(handler="h", kind="do", cause="m", message=MESSAGE, parts=(MESSAGE,), state={}, time="", calls=recorded),
        carried,
    )
    return replay


@pytest.mark.parametrize(
    ("recorded", "asked", "answers"),
    [
        ((LOOK, HOLD, PAY), (), (LOOK, HOLD, PAY)),
        ((LOOK, HOLD, PAY), (LOOK,), (LOOK, HOLD, PAY)),
        ((LOOK, HOLD, PAY), (LOOK, HOLD), (LOOK, HOLD, PAY)),
        ((LOOK, HOLD, PAY), (LOOK, PAY), (LOOK, PAY, HOLD)),
        ((LOOK, HOLD, PAY), (LOOK, PAY, HOLD), (LOOK, PAY, HOLD)),
        ((LOOK, PAY, HOLD), (LOOK, HOLD), (LOOK, HOLD, PAY)),  # as earlier releases recorded them
        ((HOLD, call("book", by="bob"), PAY), (call("book"), HOLD), (call("book", by="bob"), HOLD, PAY)),
        ((HOLD, call("book", by="bob"), PAY), (call("book"),), (call("book", by="bob"), HOLD, PAY)),
    ],
)
def test_answers_stand_where_the_run_asked_for_them_and_the_others_where_they_were(
    recorded: tuple[StepRecord, ...], asked: tuple[StepRecord, ...], answers: tuple[StepRecord, ...]
) -> None:
    replay = replay_of(*recorded)
    for number, each in enumerate(asked):
        assert replay.position == number
        assert replay.answer_of(call(each.name), "") is not None
    assert replay.position == len(asked)
    assert replay.answers == answers
    assert {each.name for each in replay.answers[: replay.position]} == {each.name for each in asked}


def test_a_call_that_is_begun_stands_before_an_answer_that_was_passed_over() -> None:
    replay = replay_of(LOOK, HOLD)
    assert replay.answer_of(LOOK, "") == LOOK
    assert replay.answer_of(RING, "") is None
    assert list(replay.answers) == [LOOK, HOLD], "it is not answered yet"
    replay.calls.append(RING)
    assert list(replay.answers) == [LOOK, RING, HOLD]
    assert replay.position == 2


@pytest.mark.parametrize(
    ("recorded", "carried", "combined"),
    [
        ((LOOK,), (), (LOOK,)),
        ((LOOK,), (LOOK, PAY), (LOOK, PAY)),
        ((LOOK,), (RING, PAY), (LOOK,)),
        ((LOOK, PAY), (LOOK,), (LOOK, PAY)),
        ((LOOK, HOLD), (LOOK, HOLD, PAY), (LOOK, HOLD, PAY)),
        ((LOOK, HOLD), (LOOK, PAY, HOLD), (LOOK, PAY, HOLD)),
        ((LOOK, HOLD), (LOOK, PAY), (LOOK, PAY, HOLD)),
        ((LOOK, HOLD), (LOOK, call("hold"), PAY), (LOOK, HOLD)),
        ((LOOK, HOLD), (LOOK, call("hold", by="bob"), PAY), (LOOK, HOLD)),
        ((LOOK,), (LOOK, HOLD, PAY), (LOOK,)),
    ],
)
def test_carried_answers_continue_the_recorded_ones_and_give_way_to_those_of_operators(
    recorded: tuple[StepRecord, ...], carried: tuple[StepRecord, ...], combined: tuple[StepRecord, ...]
) -> None:
    assert combine_answers(recorded, carried) == combined
    assert replay_of(*recorded, carried=carried).recorded == len([each for each in recorded if each.by is None])
