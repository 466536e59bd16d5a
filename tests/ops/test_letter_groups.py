"""Dead letters in groups: what belongs together, how many there are, and how they are found again."""

from dataclasses import replace
from typing import Any

import pytest

from saga.ops import letter_groups
from saga.ops.attention import Attention, AttentionItem
from saga.ops.dead_letters import DeadLetter
from saga.ops.letter_groups import LetterTable, digest_group, find_cause, group_letters, make_group_key, select_group
from saga.support.clock import iso


def make_item(number: int, reason: str, state: str = "blocks", **more: Any) -> AttentionItem:
    fields: dict[str, Any] = {"service": "payment", "handler": "reserve", "type": "OrderPlaced", "what": "dead letter"}
    time = iso(1_795_000_000_000 + number)
    letter = DeadLetter(**{"id": f"dead-{number}", "time": time, "reason": reason, "remedy": "", **fields, **more})
    return AttentionItem(replace(letter, saga=f"s-{number}"), state)


def make_table(*items: AttentionItem) -> LetterTable:
    return LetterTable.of(Attention(sorted(items, key=lambda each: each.letter.time, reverse=True), [], False))


TABLE = make_table(
    *(make_item(n, f"BankDown: no answer to request {n} of 'card-{n}'") for n in range(10)),
    *(make_item(n, f"BankDown: refused {n}") for n in range(10, 13)),
    make_item(13, "ValueError: x", "replayed"),
    make_item(14, "ValueError: x", handler="refund"),
    make_item(15, "no words at all: here", "goes on", what="escalation"),
    make_item(16, "BankDown: refused 1", service="wallet", type="CardAdded"),
)


def test_letters_whose_reasons_differ_in_numbers_ids_and_quoted_values_are_one_group() -> None:
    found = group_letters(TABLE.rows, "reason")
    assert [(each.count, each.open, each.blocking, each.cause.reason) for each in found] == [
        (10, 10, 10, "BankDown: no answer to request # of '...'"),
        (3, 3, 3, "BankDown: refused #"),
        (1, 1, 1, "ValueError: x"),
        (1, 1, 1, "BankDown: refused #"),
        (1, 1, 0, "no words at all: here"),
        (1, 0, 0, "ValueError: x"),
    ]
    assert (found[0].first, found[0].last) == (iso(1_795_000_000_000), iso(1_795_000_000_009))
    assert found[0].newest.letter.id == "dead-9"
    assert [each.is_uniform for each in found] == [False, False, True, True, True, True]
    assert [each.reason for each in found][:4] == [
        "BankDown: no answer to request # of '...'", "BankDown: refused #", "ValueError: x", "BankDown: refused 1"
    ]  # fmt: skip
    [long] = group_letters(make_table(make_item(1, "7" * 1000)).rows, "reason")
    assert long.reason == f"{'7' * letter_groups.PATTERN_MAX}..."


@pytest.mark.parametrize(
    ("by", "counts"),
    [("exception", [13, 1, 1, 1, 1]), ("handler", [14, 1, 1, 1]), ("event", [15, 1, 1])],
)
def test_letters_can_be_grouped_by_other_things(by: letter_groups.Grouping, counts: list[int]) -> None:
    found = group_letters(TABLE.rows, by)
    assert sorted((each.count for each in found), reverse=True) == counts
    assert sum(each.count for each in found) == len(TABLE.rows), "none is left out"
    assert max(each.reasons for each in found) >= 2


def test_the_exception_is_the_class_at_the_beginning_of_a_reason() -> None:
    for reason, exception in (
        ("BankDown: no", "BankDown"),
        ("sqlalchemy.exc.OperationalError: (psycopg) gone", "sqlalchemy.exc.OperationalError"),
        ("KeyError", "KeyError"),
        ("two words: x", ""),
        ("<b>: x", ""),
        ("", ""),
    ):
        assert find_cause(make_item(1, reason)).exception == exception, reason


@pytest.mark.parametrize("by", ["reason", "exception", "handler", "event"])
def test_each_letter_is_found_by_the_digest_of_its_group(by: letter_groups.Grouping) -> None:
    found = [row for group in group_letters(TABLE.rows, by) for row in select_group(TABLE.rows, by, group.digest)]
    assert sorted(row.item.letter.id for row in found) == sorted(each.letter.id for each in TABLE.items)
    assert select_group(TABLE.rows, by, "0" * 16) == []


def test_the_parts_of_a_group_cannot_be_confused() -> None:
    assert digest_group(("a", "bc")) != digest_group(("ab", "c"))
    one, other = make_item(1, "x", handler="a"), make_item(2, "x", handler="b")
    assert make_group_key(find_cause(one), "reason") != make_group_key(find_cause(other), "reason")


def test_selecting_a_group_of_very_many_letters_computes_a_digest_for_each_group_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = make_table(*(make_item(n, f"E{n % 7}: {n}") for n in range(5000)))
    [group, *_] = group_letters(table.rows, "exception")
    digest = group.digest
    computed = list[object]()

    def counting(key: tuple[str, ...]) -> str:
        computed.append(key)
        return digest_group(key)

    monkeypatch.setattr(letter_groups, "digest_group", counting)
    assert len(select_group(table.rows, "exception", digest)) == group.count
    assert len(computed) == 7


def test_a_letter_and_those_of_a_saga_are_found_without_a_search() -> None:
    assert TABLE.by_key["payment", "dead-3"].letter.saga == "s-3"
    assert ("payment", "dead-16") not in TABLE.by_key
    assert [each.letter.id for each in TABLE.by_saga["s-3"]] == ["dead-3"]


def test_a_hostile_reason_costs_no_more_than_another() -> None:
    cause = find_cause(make_item(1, "'" * 100_000 + "a" * 100_000))
    assert len(cause.reason) <= letter_groups.PATTERN_MAX
