"""`saga publish`: lines of JSON become events in the embedded broker, or nothing does and the reason is printed."""

import asyncio
import importlib
import json
import time
from pathlib import Path

import pytest

from saga.broker.embedded.broker import EmbeddedBroker
from saga.cli.publish import BATCH, LINE_TIMES, PROBLEMS_OF_LINE_MAX
from saga.clients.events import to_record
from saga.contracts import codec
from saga.contracts.library import binding_of
from saga.messages import Record
from saga.support.clock import SystemClock
from services.order.events import OrderConfirmed
from services.payment.events import OrderPlaced
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery


def a_line(order_id: str = "order-1", **changed: object) -> dict[str, object]:
    line: dict[str, object] = {
        "order_id": order_id,
        "customer_id": "customer-1",
        "sku": "tea",
        "quantity": 2,
        "total": "9.80",
        "card": "visa-1",
        "address": "Kiel, Hafenstraße 1",
    }
    return {name: value for name, value in {**line, **changed}.items() if value is not None}


def lines(*each: dict[str, object]) -> str:
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in each)


def published(folder: Path, topic: str = "orders") -> list[Record]:
    async def scanned() -> list[Record]:
        async with EmbeddedBroker(folder / ".saga" / "broker.db", clock=SystemClock()) as broker:
            return [record async for record in broker.scan(topic)]

    return asyncio.run(scanned())


def test_each_line_becomes_an_event_with_its_envelope(folder: Path, saga: Call) -> None:
    result = saga("publish", "OrderPlaced", stdin=lines(a_line("order-1"), a_line("order-2", total="10")))
    assert result.exit_code == 0, result.output
    assert result.stdout == "2 OrderPlaced published to orders\n"
    records = {record.key: record for record in published(folder)}
    assert set(records) == {b"order-1", b"order-2"}
    headers = dict(records[b"order-2"].headers)
    assert headers["ce_type"] == b"OrderPlaced"
    assert headers["ce_source"] == b"client"
    assert headers["ce_sagastart"] == headers["ce_time"]
    event = codec.decode(records[b"order-2"].value, OrderPlaced, binding_of(OrderPlaced).library)
    assert codec.to_json(event) == a_line("order-2", total="10.00")


def test_an_order_sent_twice_is_one_order(folder: Path, saga: Call) -> None:
    saga("publish", "OrderPlaced", stdin=lines(a_line(total="9.8"), a_line(total="9.80")))
    saga("publish", "OrderPlaced", stdin=lines(a_line(total="9.80")))
    ids = [dict(record.headers)["ce_id"] for record in published(folder)]
    assert len(ids) == 3
    assert len(set(ids)) == 1


def test_a_file_with_a_wrong_line_publishes_nothing_and_names_each_line_and_field(folder: Path, saga: Call) -> None:
    wrong = [
        a_line("order-2", total=9.8),
        a_line("order-3", quantity="two"),
        a_line("order-4", sku=None),
        a_line("order-5", colour="red"),
        a_line(""),
    ]
    text = (
        lines(a_line())
        + "\n"
        + lines(*wrong)
        + '{"order_id": \n'
        + lines(a_line()).replace('"sku"', '"sku": "a", "sku"')
        + "[" * 100_000
    )
    result = saga("publish", "OrderPlaced", stdin=text)
    assert result.exit_code == 1
    problems = [line for line in result.stderr.splitlines() if line.startswith("line ")]
    for line, (number, field) in zip(
        problems,
        [
            (3, "total"),
            (4, "quantity"),
            (5, "sku"),
            (6, "colour"),
            (7, "order_id"),
            (8, "no JSON"),
            (9, "sku"),
            (10, ""),
        ],
        strict=True,
    ):
        assert line.startswith(f"line {number}: ")
        assert field in line
    assert "nothing was published: 8 lines are wrong" in result.stderr
    assert result.stdout == ""
    assert not (folder / ".saga" / "broker.db").exists()


def test_problems_come_as_json_when_asked_for(folder: Path, saga: Call) -> None:
    result = saga("publish", "OrderPlaced", "--json", stdin=lines(a_line(), a_line(card=5)))
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["published"] == 0
    assert [problem["line"] for problem in report["problems"]] == [2]
    assert "card" in report["problems"][0]["what"]
    good = json.loads(saga("publish", "OrderPlaced", "--json", stdin=lines(a_line())).stdout)
    assert good == {"event": "OrderPlaced", "topic": "orders", "published": 1}


def test_the_value_of_a_sensitive_field_is_not_printed(folder: Path, saga: Call) -> None:
    result = saga("publish", "OrderPlaced", stdin=lines(a_line(card=4242424242)))
    assert "card" in result.stderr
    assert "4242424242" not in result.output


def test_more_than_a_batch_is_published_whole_and_in_order(folder: Path, saga: Call) -> None:
    count = 2 * BATCH + 3
    (folder / "orders.jsonl").write_text(lines(*(a_line(quantity=n + 1) for n in range(count))))
    result = saga("publish", "OrderPlaced", "--file", "orders.jsonl")
    assert result.stdout == f"{count} OrderPlaced published to orders\n"
    library = binding_of(OrderPlaced).library
    events = [codec.decode(record.value, OrderPlaced, library) for record in published(folder)]
    assert [codec.to_json(event)["quantity"] for event in events] == list(range(1, count + 1))


def test_a_line_without_end_is_refused_before_it_fills_the_memory(folder: Path, saga: Call) -> None:
    result = saga("publish", "OrderPlaced", stdin=lines(a_line()) + "x" * (LINE_TIMES * 1_000_000 + 1))
    assert result.exit_code == 1
    assert "line 2: is longer than 4000000 bytes" in result.stderr


def test_all_wrong_fields_of_a_line_are_named_at_once(folder: Path, saga: Call) -> None:
    wrong = a_line("order-1", total=9.8, quantity="two", sku=None, colour="red", address="\ud800")
    text = json.dumps(wrong).replace('"card"', '"card": "visa-1", "card"')
    result = saga("publish", "OrderPlaced", stdin=text + "\n" + lines(a_line()))
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "line 1: card: comes twice",
        "line 1: OrderPlaced: quantity: is text, not a whole number",
        'line 1: OrderPlaced: total: must be a decimal as text: "9.80"',
        "line 1: OrderPlaced: address: half of a surrogate pair is no text",
        "line 1: OrderPlaced: colour: OrderPlaced has no such field; it has order_id, customer_id, sku, quantity, "
        "total, card, address",
        "line 1: OrderPlaced: sku: is missing",
        "nothing was published: 1 line is wrong",
    ]


@pytest.mark.parametrize("last", ['"f89999": 1', '"g": 1'])
def test_a_line_of_any_number_of_wrong_fields_takes_time_in_proportion(folder: Path, saga: Call, last: str) -> None:
    """90,000 names, of which the last or none comes twice: a minute, where each is counted among all."""
    text = "{" + ", ".join(f'"f{n}": 1' for n in range(90_000)) + f", {last}}}\n"
    began = time.process_time()
    result = saga("publish", "OrderPlaced", "--json", stdin=text)
    assert time.process_time() - began < 5
    report = json.loads(result.stdout)
    assert report["wrong_lines"] == 1
    assert len(report["problems"]) <= PROBLEMS_OF_LINE_MAX + 1
    assert report["problems"][0]["what"].startswith("f89999: comes twice" if "f8" in last else "OrderPlaced: ")


def test_a_file_of_wrong_lines_prints_the_first_problems_and_counts_all_lines(
    folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saga.cli.publish.PROBLEMS_MAX", 5)
    report = json.loads(saga("publish", "OrderPlaced", "--json", stdin="7\n" * 40).stdout)
    assert report["wrong_lines"] == 40
    assert [problem["line"] for problem in report["problems"]] == [1, 2, 3, 4, 5]


def test_an_event_that_no_broker_would_take_is_a_wrong_line(
    folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = lines(a_line(), a_line("order-2", address="x" * 1_000_000))
    result = saga("publish", "OrderPlaced", stdin=text)
    assert result.exit_code == 1
    assert "line 2: OrderPlaced was not published: it has 1000047 bytes, and may have 967232" in result.stderr
    assert not (folder / ".saga" / "broker.db").exists()
    monkeypatch.setenv("SAGA_RECORD_BYTES_MAX", "1100000")
    more = saga("publish", "OrderPlaced", stdin=text)
    assert more.stdout == "2 OrderPlaced published to orders\n"


def test_text_that_is_not_utf_8_is_refused(folder: Path, saga: Call) -> None:
    result = saga("publish", "OrderPlaced", stdin=b'{"order_id": "\xff"}\n')
    assert result.exit_code == 1
    assert "line 1: is no JSON" in result.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OrderPlacd", "is it OrderPlaced?"),
        ("Nothing", "is no contract in"),
        (OrderConfirmed.__name__, "only the service 'order' may say OrderConfirmed"),
    ],
)
def test_an_event_that_cannot_be_published_exits_with_2(folder: Path, saga: Call, name: str, message: str) -> None:
    result = saga("publish", name, stdin=lines(a_line()))
    assert result.exit_code == 2
    assert message in result.stderr


def test_without_contracts_or_a_broker_it_cannot_start(
    folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".saga" / "broker.db").write_bytes(b"not a database, but long enough to be taken for one" * 100)
    no_broker = saga("publish", "OrderPlaced", stdin=lines(a_line()))
    assert no_broker.exit_code == 2
    assert "broker.db" in no_broker.stderr
    monkeypatch.delenv("SAGA_CONTRACTS")
    no_contracts = saga("publish", "OrderPlaced", stdin=lines(a_line()))
    assert no_contracts.exit_code == 2
    assert "there is no folder contracts/" in no_contracts.stderr


def test_the_principal_of_the_sagas_is_in_each_event(folder: Path, saga: Call) -> None:
    result = saga(
        "publish", "OrderPlaced", "--principal", "user:4711", stdin=lines(a_line("order-1"), a_line("order-2"))
    )
    assert result.exit_code == 0, result.output
    assert [dict(record.headers)["ce_sagaprincipal"] for record in published(folder)] == [b"user:4711"] * 2


def test_an_invalid_principal_is_reported_before_anything_is_read(folder: Path, saga: Call) -> None:
    result = saga("publish", "OrderPlaced", "--principal", " ", stdin=lines(a_line("order-1")))
    assert (result.exit_code, "has to be printable text" in result.stderr) == (2, True)


def test_an_event_that_starts_no_saga_has_no_principal(
    embedded_pottery: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(embedded_pottery.folder))
    cup = '{"cup_id": "cup-1"}'
    result = saga("publish", "CupSold", "--principal", "user:4711", stdin=cup)
    assert (result.exit_code, "CupSold starts no saga" in result.stderr) == (2, True)
    sold = importlib.import_module(embedded_pottery.module).CupSold(cup_id="cup-1")
    assert "ce_sagaprincipal" not in dict(to_record(sold, 0, principal="user:4711").headers)
    assert saga("publish", "CupOrdered", "--principal", "user:4711", stdin=cup).exit_code == 0


def test_an_example_is_a_line_that_can_be_published(folder: Path, saga: Call) -> None:
    line = saga("publish", "OrderPlaced", "--example").stdout
    assert json.loads(line)["order_id"] == "order-1"
    assert json.loads(line)["total"] == "1.00"
    assert not (folder / ".saga" / "broker.db").exists()
    assert saga("publish", "OrderPlaced", stdin=line).stdout == "1 OrderPlaced published to orders\n"
