"""Commands as records: what is said comes back, and what no honest tool says is bad input."""

from typing import Any

import pytest

from saga import commands
from saga.commands import Command, command_in, to_record
from saga.errors import BadInput
from saga.messages import Outgoing, Record

NOW_MS = 1_795_270_000_000


def said(**changes: Any) -> Outgoing:
    given = {"wanted": "replay", "dead": "dead-1", "who": "ada", "why": "the bank is back", "now_ms": NOW_MS}
    return to_record("payment", "order-17", **{**given, **changes})


def lies(outgoing: Outgoing, **changes: Any) -> Record:
    topic, key, value, headers = outgoing
    record = Record(topic, 0, 7, key, value, headers, NOW_MS)
    return record._replace(**changes)


def with_header(outgoing: Outgoing, name: str, value: bytes) -> tuple[tuple[str, bytes | None], ...]:
    return (*((n, v) for n, v in outgoing.headers if n != name), (name, value))


def test_what_is_said_comes_back() -> None:
    record = said()
    assert (record.topic, record.key) == ("payment.commands", b"order-17")
    command = command_in(lies(record))
    assert command == Command(
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


def test_each_is_another_command_and_the_same_one_is_not() -> None:
    ids = [command_in(lies(record)).id for record in (said(), said(), said(who="bob"), said(now_ms=NOW_MS + 1))]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("name", ["dead", "who", "why"])
def test_a_text_that_is_empty_or_too_long_is_refused_by_who_says_it_and_by_who_hears_it(name: str) -> None:
    for text in ("", " ", "x" * (commands.TEXT_MAX + 1)):
        with pytest.raises(BadInput, match=name):
            said(**{name: text})
    honest = b'{"dead":"dead-1","who":"ada","why":"w"}'
    for long in (b'""', b'"' + b"x" * (commands.TEXT_MAX + 1) + b'"'):
        value = honest.replace({"dead": b'"dead-1"', "who": b'"ada"', "why": b'"w"'}[name], long)
        with pytest.raises(BadInput, match=name):
            command_in(lies(said(), value=value))


@pytest.mark.parametrize(
    "value", [b"{}", b"[]", b"{", b"\xff", b'{"dead":1,"who":"a","why":"b"}', b"[" * 100_000, b"null"]
)
def test_a_value_that_is_no_command_is_bad_input(value: bytes) -> None:
    with pytest.raises(BadInput, match="it is no command: its value"):
        command_in(lies(said(), value=value))


@pytest.mark.parametrize("type_", [b"", b"replay", b"saga.pause", b"OrderPlaced", b"\xff"])
def test_a_type_that_is_no_command_is_bad_input(type_: bytes) -> None:
    record = said()
    with pytest.raises(BadInput, match=r"its ce_type is none of saga\.discard, saga\.replay"):
        command_in(lies(record, headers=with_header(record, "ce_type", type_)))


def test_a_command_without_a_key_or_for_another_saga_is_bad_input() -> None:
    with pytest.raises(BadInput, match="key"):
        command_in(lies(said(), key=None))
    with pytest.raises(BadInput, match="is not its subject"):
        command_in(lies(said(), key=b"order-18"))
