"""Operator commands as records: they are decoded as they were encoded, and malformed ones are bad input."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from saga.errors import BadInput
from saga.messages import Message, Outgoing, Record
from saga.messaging import operator_commands
from saga.messaging.operator_commands import CommandValue, OperatorCommand, StepAnswer, command_to_record, parse_command

NOW_MS = 1_795_270_000_000
ORIGINAL = Message(
    id="shop|17", type="OrderPlaced", schema="", saga="order-17", source="shop", time="2026-11-21T14:06:40.000Z",
    value=b"\x00bytes", foreign=(("x", None), ("y", b"\xff")),
)  # fmt: skip


def command_record(**changes: Any) -> Outgoing:
    given = {"wanted": "replay", "dead": "dead-1", "who": "ada", "why": "the bank is back", "now_ms": NOW_MS, **changes}
    wanted, now_ms = given.pop("wanted"), given.pop("now_ms")
    return command_to_record("payment", "order-17", wanted, CommandValue(**given), now_ms)


def lies(outgoing: Outgoing, **changes: Any) -> Record:
    topic, key, value, headers, _ = outgoing
    record = Record(topic, 0, 7, key, value, headers, NOW_MS)
    return record._replace(**changes)


def with_header(outgoing: Outgoing, name: str, value: bytes) -> tuple[tuple[str, bytes | None], ...]:
    return (*((n, v) for n, v in outgoing.headers if n != name), (name, value))


def test_what_is_encoded_comes_back() -> None:
    record = command_record()
    assert (record.topic, record.key) == ("payment.commands", b"order-17")
    command = parse_command(lies(record))
    assert command == OperatorCommand(
        id=command.id,
        type="saga.replay",
        schema="",
        saga="order-17",
        source="operator",
        time="2026-11-21T14:06:40.000Z",
        value=b"",
        wanted="replay",
        dead="dead-1",
        who="ada",
        why="the bank is back",
    )
    assert command.id.startswith("operator|replay-")


def test_commands_with_equal_content_have_one_id_and_others_differ() -> None:
    ids = [
        parse_command(lies(record)).id
        for record in (command_record(), command_record(), command_record(who="bob"), command_record(now_ms=NOW_MS + 1))
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("name", ["dead", "who", "why"])
def test_an_empty_or_too_long_text_is_refused_when_encoding_and_when_parsing(name: str) -> None:
    for text in ("", " ", "x" * (operator_commands.TEXT_MAX + 1)):
        with pytest.raises(BadInput, match=name):
            command_record(**{name: text})
    honest = b'{"dead":"dead-1","who":"ada","why":"w"}'
    for long in (b'""', b'"' + b"x" * (operator_commands.TEXT_MAX + 1) + b'"'):
        value = honest.replace({"dead": b'"dead-1"', "who": b'"ada"', "why": b'"w"'}[name], long)
        with pytest.raises(BadInput, match=name):
            parse_command(lies(command_record(), value=value))


@pytest.mark.parametrize(
    "value", [b"{}", b"[]", b"{", b"\xff", b'{"dead":1,"who":"a","why":"b"}', b"[" * 100_000, b"null"]
)
def test_a_value_that_is_no_command_is_bad_input(value: bytes) -> None:
    with pytest.raises(BadInput, match="it is no command: its value"):
        parse_command(lies(command_record(), value=value))


@pytest.mark.parametrize("type_", [b"", b"replay", b"saga.pause", b"OrderPlaced", b"\xff"])
def test_a_type_that_is_no_command_is_bad_input(type_: bytes) -> None:
    record = command_record()
    with pytest.raises(
        BadInput, match=r"its ce_type is none of saga\.discard, saga\.release, saga\.replay, saga\.resolve"
    ):
        parse_command(lies(record, headers=with_header(record, "ce_type", type_)))


def test_a_command_without_a_key_or_for_another_saga_is_bad_input() -> None:
    with pytest.raises(BadInput, match="key"):
        parse_command(lies(command_record(), key=None))
    with pytest.raises(BadInput, match="is not its subject"):
        parse_command(lies(command_record(), key=b"order-18"))


@pytest.mark.parametrize(
    "forged",
    [
        {"id": ""},
        {"id": "x" * 10_000},
        {"source": ""},
        {"source": "x" * 513},
        {"type": ""},
        {"schema": "x" * 513},
        {"time": "yesterday"},
        {"started": "yesterday"},
        {"trace": "x"},
        {"principal": "x" * 257},
        {"foreign": (("x", b"y" * (1 << 16)),)},
    ],
    ids=lambda forged: next(iter(forged)),
)
def test_a_command_with_a_forged_original_message_is_bad_input(forged: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="the "):
        command_record(original=replace(ORIGINAL, **forged))


def test_a_command_carries_the_message_that_the_progress_does_not_keep() -> None:
    command = parse_command(lies(command_record(original=ORIGINAL)))
    assert command.original == ORIGINAL


@pytest.mark.parametrize(
    "changes",
    [
        {"wanted": "discard"},
        {"original": replace(ORIGINAL, saga="order-18")},
        {"original": replace(ORIGINAL, value=b"")},
    ],
)
def test_a_message_of_another_saga_or_without_bytes_is_bad_input(changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="that is none of saga 'order-17', or that cannot be replayed"):
        command_record(**{"original": ORIGINAL, **changes})


def test_a_resolution_is_decoded_as_it_was_encoded() -> None:
    answered = StepAnswer(step="charge", number=2, value='"ch-1"')
    command = parse_command(lies(command_record(wanted="resolve", answered=answered)))
    assert (command.type, command.answered) == ("saga.resolve", answered)
    assert parse_command(lies(command_record(wanted="resolve"))).answered is None


@pytest.mark.parametrize(
    ("wanted", "answered", "message"),
    [
        ("replay", StepAnswer(step="charge"), "only `resolve` does"),
        ("resolve", StepAnswer(step=" "), "names no step"),
        ("resolve", StepAnswer(step="x" * 501), "names no step"),
        ("resolve", StepAnswer(step="charge", number=0), "names no step"),
        ("resolve", StepAnswer(step="charge", value="ch-1"), "is no JSON"),
        ("resolve", StepAnswer(step="charge", value="[" * 60_000), "is no JSON"),
        (
            "resolve",
            StepAnswer(step="charge", value='"' + "x" * operator_commands.ANSWER_BYTES_MAX + '"'),
            "may have 65536",
        ),
        ("resolve", StepAnswer(step="charge", value='"no"', raised="Declined"), "no list of arguments"),
    ],
)
def test_an_invalid_resolution_is_bad_input(wanted: str, answered: StepAnswer, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        command_record(wanted=wanted, answered=answered)
    value = msgspec.json.encode({"dead": "dead-1", "who": "ada", "why": "w", "answered": answered})
    record = command_to_record("payment", "order-17", wanted, CommandValue(dead="d", who="a", why="b"), NOW_MS)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=message):
        parse_command(lies(record, value=value))
