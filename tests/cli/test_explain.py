"""`saga explain`: sentences, path, JSON and exit codes, and what it does where something cannot be read."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from saga.cli import explain as explaining
from saga.messaging.controls import control_log_key
from saga.monitor.views import SagaRow, SagaWait, Timeline, TimelineRow
from saga.store.sqlite.documents import checksum
from tests.cli.conftest import ROOT, Call


def test_a_finished_saga_is_exit_code_0(shop: Path, saga: Call) -> None:
    result = saga("explain", "order-1")
    assert result.exit_code == 0, result.output
    first, second, third, empty, *path = result.stdout.splitlines()
    assert first.startswith("Saga order-1 is finished: it ended with OrderConfirmed (success), emitted by order at 20")
    assert second == "No service has anything left to do for it: inventory, order, payment, shipping, tally."
    assert (third, empty) == ("Nothing is to be done.", "")
    assert [line.split()[:2] for line in path] == [
        ["+", "OrderPlaced"], ["+", "PaymentReserved"], ["+", "InventoryReserved"], ["+", "ShipmentBooked"],
        ["+", "OrderConfirmed"], ["+", "PaymentCaptured"], ["+", "InventoryHandedOut"], ["+", "ShipmentDispatched"],
    ]  # fmt: skip
    assert "whether the services run is not known: there is no file" in result.stderr


def test_an_unfinished_saga_is_exit_code_1_with_the_next_command(shop: Path, saga: Call) -> None:
    result = saga("explain", "order-3")
    assert result.exit_code == 1, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "Saga order-3 waits for PaymentReserved or PaymentDeclined."
    assert "Permanent: the bank does not know such cards" in lines[1]
    assert "`saga dead replay payment --saga order-3 --who NAME --why REASON`" in lines[2]
    assert "  ! PaymentReserved    payment.reserve after OrderPlaced  <-- missing" in lines
    assert lines[-2] == "also unfinished:"
    assert lines[-1].startswith("  order: deadline expire, opened by OrderPlaced, is due at 20")


def test_the_explanation_is_one_json_document(shop: Path, saga: Call) -> None:
    found = json.loads(saga("explain", "order-2", "--json").stdout)
    assert (found["state"], found["outcome"], found["result"]) == ("finished", "OrderCancelled", "failure")
    assert {each["type"]: each["mark"] for each in found["path"]}["InventoryReserved"] == "compensated"
    assert found["notes"] == ["whether the services run is not known: there is no file .saga/broker.db"]


def test_an_unknown_saga_is_exit_code_1(shop: Path, saga: Call) -> None:
    result = saga("explain", "order-99")
    assert result.exit_code == 1
    assert result.stdout.startswith(
        "No service knows saga order-99.\nThe stores of these services were read, and none "
    )


def test_without_a_store_nothing_is_known(folder: Path, saga: Call) -> None:
    result = saga("explain", "order-1")
    assert result.exit_code == 1
    assert "none has it: none." in result.stdout
    assert "saga: " in result.stderr


class AnsweringMonitor:
    """A monitor that knows one saga, of services without a store here."""

    def __init__(self, address: str) -> None:
        if address != "127.0.0.1:8642":
            raise ConnectionRefusedError("nobody listens")

    def saga(self, saga: str) -> Timeline:
        row = SagaRow(
            saga=saga, began_ms=0, changed_ms=1, result="", outcome="", transitions=1, services=("payment",),
            open=("payment",), dead=False,
        )  # fmt: skip
        line = TimelineRow(
            service="payment", number=0, time_ms=1, handler="reserve", outcome="waiting", type="OrderPlaced",
            source="client", emitted=(), steps=(), error="", attempt=1, worker="", queued_ms=None, handler_ms=None,
        )  # fmt: skip
        wait = SagaWait(
            service="payment", handler="reserve", for_=(), since_ms=1, until_ms=60_000,
            ends="its next attempt at 1970-01-01T00:01:00.000Z",
        )  # fmt: skip
        return Timeline(row=row, lines=(line,), missing=0, left_out=0, awaited=(wait,), stuck=())


def test_a_service_without_a_store_here_is_explained_by_its_reports(
    folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explaining, "MonitorClient", AnsweringMonitor)
    result = saga("explain", "order-1", "--monitor", "127.0.0.1:8642")
    assert result.exit_code == 1
    first, second, third, *_ = result.stdout.splitlines()
    assert first == "Saga order-1 waits for PaymentReserved or PaymentDeclined."
    assert "as payment has reported to the monitor; its store is not read here" in second
    assert third == "It ends with: its next attempt at 1970-01-01T00:01:00.000Z."


def test_a_monitor_that_does_not_answer_is_left_out(shop: Path, saga: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "MonitorClient", AnsweringMonitor)
    result = saga("explain", "order-1", "--monitor", "127.0.0.1:1")
    assert result.exit_code == 0
    assert "what the monitor at 127.0.0.1:1 knows is left out: nobody listens" in result.stderr


@pytest.mark.parametrize("address", ["localhost", "localhost:x", "localhost:99999", "a/b"])
def test_an_address_of_a_monitor_that_is_none_is_refused(shop: Path, saga: Call, address: str) -> None:
    result = saga("explain", "order-1", "--monitor", address)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "it must be host:port" in result.stderr


def test_a_control_log_that_cannot_be_read_is_a_note(shop: Path, saga: Call) -> None:
    key, content = control_log_key("payment"), b"no control log"
    with sqlite3.connect(shop / ".saga" / "payment.db") as connection:
        connection.execute(
            "INSERT INTO documents (collection, key, cas, sum, content) VALUES (?, ?, 1, ?, ?)",
            ("saga-archive", key, checksum("saga-archive", key, content), content),
        )
    connection.close()
    result = saga("explain", "order-3")
    assert result.exit_code == 1
    assert (
        "whether payment is paused or limited is not known: the control log of payment cannot be read" in result.stderr
    )
    assert result.stdout.startswith("Saga order-3 waits for PaymentReserved or PaymentDeclined.")


def test_manifests_that_cannot_be_used_are_an_error(shop: Path, saga: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "contracts", shop / "contracts")
    (shop / "manifests").mkdir()
    (shop / "manifests" / "payment.json").write_text("{}")
    monkeypatch.setenv("SAGA_CONTRACTS", str(shop / "contracts"))
    result = saga("explain", "order-3")
    assert result.exit_code == 2
    assert "payment.json" in result.stderr
