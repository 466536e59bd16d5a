"""`saga sagas show` of compensations that fail, of parts that are left over, and of the fields of events."""

import asyncio
import json
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga.broker.embedded.broker import EmbeddedBroker
from saga.contracts.schema import RecordType
from saga.contracts.schema_parser import read_record
from saga.contracts.sensitive_fields import HIDDEN, merge_marks, redact_fields
from saga.engine.persistence import dead_letters
from saga.messages import Topic
from saga.ops.histories import SagaHistory, TimelineEntry, build_timeline
from saga.progress.document import (
    DeadLetterRecord,
    FailedAttempt,
    Intent,
    PendingMessage,
    SagaProgress,
    decode_progress,
    decode_transition,
    encode,
)
from saga.progress.document import StepRecord as Made
from saga.store.sqlite.documents import checksum
from saga.support.clock import SystemClock
from tests.cli.conftest import ROOT, Call
from tests.cli.test_listing import put
from tests.progress.pieces import a_message, kept


def edit(shop: Path, service: str, name: str, **fields: object) -> SagaProgress:
    """With other fields: only what is shown matters here."""
    file, key = shop / ".saga" / f"{service}.db", f"{service}::{name}"
    with sqlite3.connect(file) as connection:
        query = "SELECT content FROM documents WHERE collection = 'saga' AND key = ?"
        [(content,)] = connection.execute(query, (key,)).fetchall()
        p = replace(decode_progress(content), **fields)
        row = (encode(p), checksum("saga", key, encode(p)), key)
        connection.execute("UPDATE documents SET content = ?, sum = ? WHERE key = ?", row)
    connection.close()
    return p


def undoing(name: str = "release") -> Intent:
    message = replace(a_message("OrderCancelled"), saga="order-1")
    return Intent(
        handler="reserve", kind="undo", name=name, cause="reserved-1", message=message, parts=(message,), state={},
        time="2026-01-01T00:00:00.000Z",
    )  # fmt: skip


def escalate(shop: Path) -> None:
    message = replace(a_message("OrderCancelled"), saga="order-1")

    async def publish() -> None:
        async with EmbeddedBroker(shop / ".saga" / "broker.db", clock=SystemClock()) as broker:
            await broker.ensure_topics([Topic("payment.dead", 1, None)])
            for attempts in (8, 16):
                dead = DeadLetterRecord(
                    id=f"dead-{attempts}", kind="escalation", handler="release", message=message, remedy="-",
                    reason=f"{attempts} attempts failed, the last with OSError: the bank is shut", attempts=attempts,
                )  # fmt: skip
                time = f"2026-01-01T00:00:{attempts:02}.000Z"
                await broker.publish(
                    [dead_letters.escalation_to_outgoing("payment", dead, time, "reserved-1", "-", None)]
                )

    asyncio.run(publish())


def test_a_compensation_that_fails_is_shown_by_its_own_name_with_the_last_reason(shop: Path, saga: Call) -> None:
    edit(shop, "payment", "order-1", intents=(undoing(),))
    escalate(shop)
    still_open = saga("sagas", "show", "order-1").stdout.partition("still open:\n")[2]
    assert still_open == (
        "  payment: release undoes what reserve did, because of OrderCancelled, and fails: "
        "16 attempts failed, the last with OSError: the bank is shut\n"
    )
    assert json.loads(saga("sagas", "show", "order-1", "--json").stdout)["failing"] == {
        "reserved-1": "16 attempts failed, the last with OSError: the bank is shut"
    }


def test_a_compensation_is_shown_though_the_log_cannot_be_asked(shop: Path, saga: Call) -> None:
    edit(shop, "payment", "order-1", intents=(undoing(name=""),))
    shown = saga("sagas", "show", "order-1")
    assert shown.exit_code == 0
    assert "why a compensation fails is not known: no file" in shown.stderr
    expected = "payment: the compensation of reserve undoes what reserve did, because of OrderCancelled\n"
    assert shown.stdout.endswith(expected)


def test_a_call_of_unknown_result_is_shown_with_its_run(shop: Path, saga: Call) -> None:
    call = Made(kind="step", name="refund", number=2, input="d", arguments='"charge-1", 7')
    first = replace(call, number=1, arguments="")
    begun = replace(undoing(), kind="do", begins=call, calls=(first,))
    edit(shop, "payment", "order-1", intents=(replace(undoing(), begins=call), begun, replace(begun, begins=first)))
    unknown = 'step refund("charge-1", 7) has no answer'
    assert saga("sagas", "show", "order-1").stdout.partition("still open:\n")[2].splitlines() == [
        f"  payment: release undoes what reserve did, because of OrderCancelled; {unknown}",
        f"  payment: reserve has begun on OrderCancelled; {unknown}",
        "  payment: reserve has begun on OrderCancelled",
    ]


def test_a_compensation_that_is_parked_is_shown_by_its_own_name_with_why_and_until_when(shop: Path, saga: Call) -> None:
    failed = PendingMessage(handler="reserve", message=undoing().message, n=0, attempts=20, due_ms=4_102_444_800_000)
    p = edit(shop, "payment", "order-1")
    last = decode_transition(p.transitions[-1])
    why = "OSError: the bank is shut"
    attempts = (FailedAttempt(time="2026-01-01T00:00:00.000Z", ms=7, reason=why, worker="a:1"),)
    entry = replace(last, n=p.n, outcome="retrying", handler="release", attempt=20, reason=why, failures=attempts)
    transitions = (*p.transitions, Raw(encode(entry)))
    edit(shop, "payment", "order-1", compensating=(failed,), transitions=transitions, n=p.n + 1)
    escalate(shop)
    shown = saga("sagas", "show", "order-1").stdout
    assert shown.partition("still open:\n")[2] == (
        "  payment: release, which undoes what reserve did, is tried again at 2100-01-01T00:00:00.000Z: 20 attempts "
        f"failed since {decode_transition(p.transitions[0]).time}; last error: {why}\n"
    )
    assert f"    attempt 20 failed at 2026-01-01T00:00:00.000Z after 7 ms on a:1: {why}\n" in shown
    open_ = next(line for line in saga("sagas", "list", "--open").stdout.splitlines() if line.startswith("order-1 "))
    assert "parked:1" in open_
    assert "payment:retrying" in open_
    dead = json.loads(saga("sagas", "list", "--dead", "--json").stdout)["letters"]
    assert ("release", "escalation", "reserved-1") in {(each["handler"], each["what"], each["undoes"]) for each in dead}


def test_each_step_is_shown_with_its_duration_and_its_result_or_claim_check(shop: Path, saga: Call) -> None:
    p = edit(shop, "payment", "order-1")
    entry = decode_transition(p.transitions[0])
    [call] = entry.calls
    plain = saga("sagas", "show", "order-1", "--service", "payment", "--steps").stdout
    expected = f"    step {call.name}: {call.ms} ms, input {call.input}, result {len(bytes(call.value))} bytes\n"
    assert expected in plain
    assert expected not in saga("sagas", "show", "order-1", "--service", "payment").stdout
    calls = (
        replace(call, value=Raw(b"null"), claim="abc", ms=1234, arguments='"order-1", 7'),
        replace(call, number=2, answer="Declined", by="eve"),
        replace(call, kind="update", name="set_aside", document="stock/tea"),
        replace(call, kind="read", name="stock", document="stock/tea"),
    )
    edit(shop, "payment", "order-1", transitions=(Raw(encode(replace(entry, calls=calls))), *p.transitions[1:]))
    lines = saga("sagas", "show", "order-1", "--service", "payment", "--steps").stdout.splitlines()
    shown = [line.replace(call.input, "d") for line in lines if call.input in line]
    result = f"input d, result {len(bytes(call.value))} bytes"
    assert shown == [
        f'    step {call.name}("order-1", 7): 1234 ms, input d, result payment|claim::order-1::abc in saga-archive',
        f"    step {call.name} 2: {call.ms} ms, input d, raised Declined, according to eve",
        f"    update set_aside of stock/tea: {result}",
        f"    read stock: {result}",
    ]
    one = saga("sagas", "show", "order-1", "--service", "payment", "--transition", "0", "--steps").stdout
    assert "1234 ms" in one
    made = json.loads(saga("sagas", "show", "order-1", "--service", "payment", "--json").stdout)["timeline"][0][
        "calls"
    ][0]
    assert (made["ms"], made["bytes"], made["claim"]) == (1234, 0, "payment|claim::order-1::abc")
    assert made["arguments"] == '"order-1", 7'
    refused = saga("sagas", "show", "order-1", "--steps", "--follow")
    assert (refused.exit_code, "--steps shows old transitions" in refused.stderr) == (2, True)


def test_following_a_saga_shows_each_failed_attempt(shop: Path, saga: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = decode_transition(edit(shop, "payment", "order-1").transitions[0])
    attempts = (FailedAttempt(time="2026-01-01T00:00:00.000Z", ms=7, reason="OSError: shut"),)
    failed = replace(entry, outcome="retrying", attempt=1, failures=attempts)
    history = SagaHistory(SagaProgress(service="payment", saga="order-1"), (Raw(encode(failed)),))

    async def once(*_: object) -> AsyncIterator[list[TimelineEntry]]:
        yield build_timeline([history])

    monkeypatch.setattr("saga.cli.sagas.follow_saga", once)
    lines = saga("sagas", "show", "order-1", "--follow").stdout.splitlines()
    assert lines[1:] == ["    attempt 1 failed at 2026-01-01T00:00:00.000Z after 7 ms: OSError: shut"]


def test_what_waits_for_further_events_is_left_over_once_the_saga_has_ended(shop: Path, saga: Call) -> None:
    parts = (kept("book", a_message("A")), kept("other", a_message("B")))
    edit(shop, "shipping", "order-2", waiting=parts, closed=("book",))
    never, no_more = "A for book: it can never run", "B for other: its other events did not come before the end"
    ended = saga("sagas", "show", "order-2").stdout
    assert "still open:" not in ended
    assert ended.partition("left over, and nothing is to be done:\n")[2] == (
        f"  shipping: {never}\n  shipping: {no_more}\n"
    )
    edit(shop, "payment", "order-2", intents=(undoing(),))
    still_open = saga("sagas", "show", "order-2").stdout.partition("still open:\n")[2]
    assert still_open.splitlines()[1:] == [
        "  shipping: B for other is waiting", "", "left over, and nothing is to be done:", f"  shipping: {never}"
    ]  # fmt: skip


def test_what_waits_for_further_events_is_open_before_the_outcome(shop: Path, saga: Call) -> None:
    edit(shop, "order", "order-2", outcome=None)
    for service in ("payment", "inventory", "order", "shipping", "tally"):
        edit(shop, service, "order-2", failed=())
    edit(shop, "shipping", "order-2", waiting=(kept("other", a_message("B")),))
    assert saga("sagas", "show", "order-2").stdout.endswith("still open:\n  shipping: B for other is waiting\n")


# ---------------------------------------------------------------- values

Reserved: TypeAlias = tuple[Path, dict[str, Any], dict[str, Any]]


@pytest.fixture
def reserved(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Reserved:
    """The contract of PaymentReserved in a copy that the shop's sagas are shown by: file, schema, field `charge_id`."""
    contracts = shop / "contracts"
    shutil.copytree(ROOT / "contracts", contracts)
    monkeypatch.setenv("SAGA_CONTRACTS", str(contracts))
    file = contracts / "payments" / "PaymentReserved.v1.avsc"
    schema = json.loads(file.read_text())
    [charge] = [field for field in schema["fields"] if field["name"] == "charge_id"]
    return file, schema, charge


def test_the_fields_of_events_are_shown_with_what_is_sensitive_hidden(saga: Call, reserved: Reserved) -> None:
    file, schema, charge = reserved
    charge["sensitive"] = True
    file.write_text(json.dumps(schema))
    text = saga("sagas", "show", "order-1", "--values").stdout
    assert '    PaymentReserved {"order_id": "order-1", "charge_id": "***", "amount": "9.80"}\n' in text
    timeline = json.loads(saga("sagas", "show", "order-1", "--values", "--json").stdout)["timeline"]
    [line] = [line for line in timeline if "PaymentReserved" in line["emitted"]]
    [value] = line["values"]
    assert value["fields"] == {"order_id": "order-1", "charge_id": HIDDEN, "amount": "9.80"}
    assert value["problem"] is None
    assert all("values" in line for line in timeline)


@pytest.mark.parametrize("when", ["written", "shown"])
def test_a_field_is_hidden_if_it_was_sensitive_when_it_was_written_or_is_now(
    saga: Call, reserved: Reserved, when: str
) -> None:
    first, schema, charge = reserved
    for number, is_sensitive in ((1, when == "written"), (2, when == "shown")):
        charge["sensitive"] = is_sensitive
        first.with_name(f"PaymentReserved.v{number}.avsc").write_text(json.dumps(schema))
        schema["fields"].append({"name": "note", "type": "string", "default": ""})
    text = saga("sagas", "show", "order-1", "--values").stdout
    assert '    PaymentReserved {"order_id": "order-1", "charge_id": "***", "amount": "9.80", "note": ""}\n' in text


def test_a_field_that_was_sensitive_is_hidden_under_its_new_name_too(saga: Call, reserved: Reserved) -> None:
    first, schema, charge = reserved
    charge["sensitive"] = True
    first.write_text(json.dumps(schema))
    charge |= {"name": "charge", "aliases": ["charge_id"], "sensitive": False}
    first.with_name("PaymentReserved.v2.avsc").write_text(json.dumps(schema))
    assert (
        '    PaymentReserved {"order_id": "order-1", "charge": "***",'
        in saga("sagas", "show", "order-1", "--values").stdout
    )


def test_an_upcast_event_is_shown_as_it_was_written(saga: Call, reserved: Reserved) -> None:
    """Tools have the contracts, and not the code of services; sensitive is what is so in any version."""
    first, schema, charge = reserved
    charge |= {"name": "charge", "aliases": ["charge_id"], "sensitive": True}
    schema["fields"].append({"name": "currency", "type": "string"})
    schema |= {"upcasts": [1], "compatible": "backward"}
    first.with_name("PaymentReserved.v2.avsc").write_text(json.dumps(schema))
    text = saga("sagas", "show", "order-1", "--values").stdout
    assert '    PaymentReserved {"order_id": "order-1", "charge_id": "***", "amount": "9.80"}\n' in text


def test_without_contracts_no_value_is_shown_and_the_reason_is_given(
    shop: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_CONTRACTS", str(shop / "nowhere"))
    shown = saga("sagas", "show", "order-1", "--values")
    assert shown.exit_code == 0
    assert "    PaymentReserved there are no contracts to read it by: SAGA_CONTRACTS is" in shown.stdout
    assert '"9.80"' not in shown.stdout


def test_an_event_of_contracts_that_are_not_here_is_shown_without_values(saga: Call, reserved: Reserved) -> None:
    file, *_ = reserved
    file.unlink()
    shown = saga("sagas", "show", "order-1", "--values").stdout
    assert "    PaymentReserved no schema in " in shown
    assert '    OrderConfirmed {"order_id": "order-1"' in shown


def test_values_are_of_the_whole_timeline(shop: Path, saga: Call) -> None:
    assert saga("sagas", "show", "order-1", "--values", "--follow").exit_code == 2
    assert saga("sagas", "show", "order-1", "--values", "--transition", "0").exit_code == 2


def record(schema: dict[str, Any]) -> RecordType:
    read, problems = read_record(schema)
    assert read is not None, problems
    return read


def test_sensitive_values_are_redacted_at_any_depth() -> None:
    inner = {"type": "record", "name": "Card", "fields": [
        {"name": "number", "type": "string", "sensitive": True}, {"name": "holder", "type": "string"}]}  # fmt: skip
    schema = record({"type": "record", "name": "R", "namespace": "x", "fields": [
        {"name": "one", "type": inner},
        {"name": "maybe", "type": ["null", "Card"], "default": None},
        {"name": "many", "type": {"type": "array", "items": "x.Card"}},
        {"name": "named", "type": {"type": "map", "values": ["null", "Card"]}},
        {"name": "whole", "type": ["null", {"type": "array", "items": "string"}], "default": None, "sensitive": True},
    ]})  # fmt: skip
    card, seen = {"number": "4242", "holder": "Ada"}, {"number": HIDDEN, "holder": "Ada"}
    given: dict[str, object] = {
        "one": card, "maybe": card, "many": [card, card], "named": {"a": card, "b": None}, "whole": None,
    }  # fmt: skip
    assert redact_fields(given, schema) == {
        "one": seen, "maybe": seen, "many": [seen, seen], "named": {"a": seen, "b": None}, "whole": HIDDEN,
    }  # fmt: skip
    assert redact_fields({**given, "maybe": None}, schema)["maybe"] is None


def test_fields_are_found_under_their_new_names_at_any_depth() -> None:
    def of(name: str, *, sensitive: bool) -> RecordType:
        card = {"type": "record", "name": "Card", "fields": [
            {"name": name, "type": "string", "sensitive": sensitive, "aliases": ["number"]},
            {"name": "holder", "type": "string"}]}  # fmt: skip
        return record({"type": "record", "name": "R", "fields": [
            {"name": "one", "type": card},
            {"name": "maybe", "type": ["null", "Card"]},
            {"name": "many", "type": {"type": "array", "items": ["null", "Card"]}},
            {"name": "named", "type": {"type": "map", "values": "Card"}},
            {"name": "words", "type": {"type": {"type": "array", "items": "string"}}},
        ]})  # fmt: skip

    card, seen = {"pan": "4242", "holder": "Ada"}, {"pan": HIDDEN, "holder": "Ada"}
    given: dict[str, object] = {"one": card, "maybe": card, "many": [card, None], "named": {"a": card}, "words": ["x"]}
    both = merge_marks(of("pan", sensitive=False), [of("number", sensitive=True)])
    assert redact_fields(given, both) == {
        "one": seen, "maybe": seen, "many": [seen, None], "named": {"a": seen}, "words": ["x"],
    }  # fmt: skip


# ---------------------------------------------------------------- waiting


def test_waiting_for_a_saga_that_has_ended_shows_it_at_once(shop: Path, saga: Call) -> None:
    for order, outcome in (("order-1", "OrderConfirmed"), ("order-2", "OrderCancelled")):
        shown = saga("sagas", "show", order, "--wait", "1h")
        assert (shown.exit_code, shown.stderr) == (0, "")
        assert shown.stdout.startswith(f"saga {order}: ended with {outcome}")


def test_a_saga_that_has_not_ended_in_time_is_shown_with_what_it_waits_for(shop: Path, saga: Call) -> None:
    shown = saga("sagas", "show", "order-3", "--wait", "0s")
    assert shown.exit_code == 1
    assert shown.stdout == saga("sagas", "show", "order-3").stdout
    first, outcome, *others, last = shown.stderr.splitlines()
    assert (first, outcome) == ("saga order-3 has not ended within 0 s:", "  no outcome yet")
    assert any(re.fullmatch("  payment: OrderPlaced for reserve is a dead letter and blocks .*", one) for one in others)
    assert last == "saga explain order-3 says what holds it up"
    assert json.loads(saga("sagas", "show", "order-3", "--wait", "0s", "--json").stdout)["saga"] == "order-3"
    assert saga("sagas", "show", "order-17", "--wait", "0s").exit_code == 1


@pytest.mark.parametrize("known_by", ["contracts", "a service that took it"])
def test_a_failed_saga_has_not_ended_before_its_compensations_have_run(
    shop: Path, saga: Call, known_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(shop, "order", "order-1", outcome="OrderCancelled")
    if known_by != "contracts":
        monkeypatch.setenv("SAGA_CONTRACTS", str(shop / "nowhere"))
        assert saga("sagas", "show", "order-1", "--wait", "0s").exit_code == 0, "whether it is a failure is not known"
        edit(shop, "shipping", "order-1", failed=("OrderCancelled",))
    waits = saga("sagas", "show", "order-1", "--wait", "0s")
    assert waits.exit_code == 1
    assert "  payment: reserve is to be undone because of OrderCancelled\n" in waits.stderr


def test_a_progress_that_cannot_be_read_is_neither_unknown_nor_ended(shop: Path, saga: Call) -> None:
    put(shop / ".saga" / "payment.db", ("payment::order-1", b"rubbish"))
    waited = saga("sagas", "show", "order-1", "--wait", "0s")
    assert (waited.exit_code, "ended with OrderConfirmed" in waited.stdout) == (1, True)
    assert "has not ended within 0 s:\n  payment: its progress cannot be read\n" in waited.stderr
    assert saga("sagas", "show", "order-1").exit_code == 0
    explained = saga("explain", "order-1")
    assert explained.exit_code == 1
    assert "payment: the progress of payment cannot be read" in explained.stdout
    assert "`saga sagas verify order-1` names it" in explained.stdout
    for args in ((), ("--service", "payment"), ("--wait", "0s")):
        if not args:
            for name in ("order", "inventory", "shipping", "tally"):
                (shop / ".saga" / f"{name}.db").unlink()
        shown = saga("sagas", "show", "order-1", *args)
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert shown.stderr.startswith("saga: saga order-1 in payment: a progress document cannot be read")
        assert "no service knows" not in shown.stderr
    alone = saga("explain", "order-1")
    assert (alone.exit_code, alone.stdout.splitlines()) == (1, [
        "Saga order-1 waits for a run in payment.",
        "payment: the progress of payment cannot be read, so what it did and still has to do is not known; what "
        "payment last wrote is in it.",
        "Restore the document from a backup, or read it with the version of saga that wrote it: `saga sagas verify "
        "order-1` names it.",
    ])  # fmt: skip


@pytest.mark.parametrize("damage", [b'{"n":"x"}', b'{"n":7,"handler":"\xff"}'])
def test_no_transition_that_cannot_be_read_ends_a_command(
    shop: Path, saga: Call, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    entries = edit(shop, "payment", "order-1").transitions
    encoded = b'{"time":"2026-01-01T00:00:00.000Z","outcome":"handled",' + damage[1:]
    edit(shop, "payment", "order-1", published=0, transitions=(*entries[:-1], Raw(encoded)))
    edit(shop, "payment", "order-3", transitions=(Raw(encoded), *edit(shop, "payment", "order-3").transitions[1:]))
    monkeypatch.setenv("SAGA_KEYS", str(shop / "keys"))
    by = ("--who", "ada", "--why", "to see", "--within", "0.1")
    assert saga("keys", "new", *by[:4]).exit_code == 0
    assert saga("topics", "apply", "services.payment").exit_code == 0
    for args, code in (
        (("sagas", "show", "order-1"), 2),
        (("explain", "order-1"), 2),
        (("deploy", "check", "services.payment"), 1),
        (("dead", "discard", "payment", "--saga", "order-3", *by), 1),
    ):
        result = saga(*args)
        assert result.exit_code == code, (args, result.output)
        assert "cannot be read" in result.output
    assert "it cannot be used" not in saga("doctor", "services.payment").stdout


@pytest.mark.parametrize(("wrong", "says"), [
    (("--wait", "10"), "--wait 10: give a time as 90s, 30m, 2h or 3d"),
    (("--wait", "10s", "--follow"), "--follow never ends, --wait ends with the saga: give one of them"),
])  # fmt: skip
def test_a_wait_needs_a_time_and_an_end(shop: Path, saga: Call, wrong: tuple[str, ...], says: str) -> None:
    refused = saga("sagas", "show", "order-1", *wrong)
    assert refused.exit_code == 2
    assert says in refused.stderr
