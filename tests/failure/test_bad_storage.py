"""Unusable storage: what prevents the start of a service is reported at once, an outage is waited for, and a permanent
loss ends the service."""

import ctypes
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path

import pytest

from saga.broker.embedded.broker import EmbeddedBroker
from saga.clients.events import to_record
from saga.errors import SagaError
from saga.messaging import envelope
from saga.support.clock import SystemClock
from saga.telemetry.events import Assigned, DeadLettered, Handled, Recovered, Unavailable
from services import ledger
from services.demo.fleet import ROOT, Fallen, Fleet
from services.order.events import OrderPlaced
from services.payment import payment
from tests.failure.failing_calls import Hasty, House, house_of

START_S_MAX = 15.0
KIB = 1024
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1


def bound_by_permissions() -> None:
    """Called between fork and exec: from now on root, too, is refused what a file's mode forbids."""
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "root cannot give up its rights here")


def refused(
    tmp_path: Path,
    *,
    settings: Mapping[str, str] | None = None,
    command: tuple[str, ...] = ("saga.cli.main", "run", "services.payment"),
    limited: Callable[[], object] | None = None,
) -> str:
    """Error of `saga run services.payment` when it cannot start. It must say it in time, with exit code 2."""
    environment = {**Fleet(tmp_path, SystemClock()).environment, **(settings or {})}
    ended = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
        check=False,
        preexec_fn=limited,
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr


def forbid(tmp_path: Path, pattern: str) -> None:
    """Make these files read-only."""
    for path in tmp_path.glob(pattern):
        path.chmod(0o444)


async def made_by_a_run(tmp_path: Path) -> None:
    """Let a service run once, so that its files are there."""
    clock = SystemClock()
    with Fleet(tmp_path, clock, ["payment"]) as fleet:
        fleet.start("payment")
        until_s = clock.monotonic_s() + START_S_MAX
        while '"started"' not in (tmp_path / "payment.log").read_text():
            fleet.check()
            assert clock.monotonic_s() < until_s, "it did not start"
            await clock.sleep(0.02)
        await fleet.stop()


# -------------------------------------------------------------------- at the start


def test_a_full_store_keeps_a_service_from_starting(tmp_path: Path) -> None:
    message = refused(tmp_path, command=("tests.failure.full_store", "run", "services.payment"))
    assert "payment.db is full" in message
    assert "make room on its disk" in message


def test_a_full_disk_keeps_a_service_from_starting(tmp_path: Path) -> None:
    limit = (20 * KIB, 20 * KIB)
    message = refused(tmp_path, limited=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert str(tmp_path) in message
    assert "room" in message or "look at the disk" in message


async def test_a_store_that_cannot_be_written_keeps_a_service_from_starting(tmp_path: Path) -> None:
    await made_by_a_run(tmp_path)
    forbid(tmp_path, "payment.db*")
    message = refused(tmp_path, limited=bound_by_permissions)
    assert f"{tmp_path}/payment.db" in message
    assert "writable" in message


async def test_a_broker_that_cannot_be_written_keeps_a_service_from_starting(tmp_path: Path) -> None:
    await made_by_a_run(tmp_path)
    forbid(tmp_path, "broker.db*")
    message = refused(tmp_path, limited=bound_by_permissions)
    assert f"{tmp_path}/broker.db" in message
    assert "writable" in message or "give this user write access" in message


async def test_a_broker_file_of_a_newer_version_keeps_a_service_from_starting(tmp_path: Path) -> None:
    await made_by_a_run(tmp_path)
    with closing(sqlite3.connect(tmp_path / "broker.db")) as file:
        (version,) = file.execute("PRAGMA user_version").fetchone()
        file.execute(f"PRAGMA user_version = {version + 1}")  # the lowest byte is the format
    message = refused(tmp_path)
    known = version & 0xFF
    assert f"broker.db is of format {known + 1}, newer than {known}" in message
    assert "run the version of saga that wrote it" in message


def test_a_broken_contract_keeps_a_service_from_starting(tmp_path: Path) -> None:
    contracts = tmp_path / "contracts"
    shutil.copytree(ROOT / "contracts", contracts)
    broken = contracts / "payments" / "PaymentReserved.v1.avsc"
    schema = json.loads(broken.read_text())
    schema["fields"][0]["type"] = "sting"
    broken.write_text(json.dumps(schema))
    (contracts / "orders" / "OrderPlaced.v1.avsc").write_text("{")
    message = refused(tmp_path, settings={"SAGA_CONTRACTS": str(contracts)})
    assert "payments/PaymentReserved.v1.avsc" in message
    assert "sting" in message
    assert "orders/OrderPlaced.v1.avsc" in message, "all problems at once"


def test_a_resource_that_does_not_open_keeps_a_service_from_starting(tmp_path: Path) -> None:
    message = refused(tmp_path, settings={"PAYMENT_LEDGER": "/dev/null/ledgers/bank.db"})
    assert "service 'payment' cannot start" in message
    assert "resource bank does not open: NotADirectoryError" in message


# -------------------------------------------------------------------- while running


class Ahead(Hasty):
    """A clock that can be put forward."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


class Narrowable(sqlite3.Connection):
    """A connection whose pragmas can be set from outside while a store uses it."""

    last: "Narrowable"

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # handed on as sqlite3 gives them
        Narrowable.last = self


UNTIL_S_MAX = 60
"""Time that a busy machine may take until a worker notices that its ground has gone."""
ORDERS = 240
"""Enough that neither file can take what comes of them without growing."""


def orders() -> list[OrderPlaced]:
    return [
        OrderPlaced(
            order_id=f"order-{number}", customer_id="c", sku="tea-earl-grey-250g", quantity=1, total=Decimal("9.80"),
            card="visa-1", address="Kiel",
        )
        for number in range(ORDERS)
    ]  # fmt: skip


def find_outages(house: House, what: str) -> list[Unavailable]:
    return [moment for moment in house.moments if isinstance(moment, Unavailable) and moment.what == what]


async def until(house: House, condition: Callable[[], bool], what: str) -> None:
    began_s = SystemClock().monotonic_s()
    while not condition():
        handled = sum(isinstance(moment, Handled) for moment in house.moments)
        assert SystemClock().monotonic_s() < began_s + UNTIL_S_MAX, (
            f"it never happened: {what}; {handled} handled, behind: {house.behind()}; {house.moments[-3:]}"
        )
        await SystemClock().sleep(0.02)


async def goes_on_afterwards(house: House, clock: Ahead, what: str, narrow: str, wide: str, file: str) -> None:
    """Take the ground away while orders come in; one moment a minute; give it back, and everything is handled."""
    connection = Narrowable.last if what == "store" else house.broker.connection
    await house.at_rest()
    await house.publish(*orders())
    connection.execute(f"PRAGMA {narrow}")
    await until(house, lambda: bool(find_outages(house, what)), "the outage is reported")
    waiting = house.behind()
    assert waiting == ["payment"]
    for _ in range(50):  # each of these is time for some more attempts
        await clock.sleep(0.1)
    assert len(find_outages(house, what)) == 1, "once a minute"
    assert file in find_outages(house, what)[0].error
    clock.ahead_s += 61
    await until(house, lambda: len(find_outages(house, what)) == 2, "the outage is reported again after a minute")
    connection.execute(f"PRAGMA {wide}")
    await house.at_rest()
    handled = [moment for moment in house.moments if isinstance(moment, Handled)]
    assert {moment.saga for moment in handled} == {order.order_id for order in orders()}
    assert {moment.attempts for moment in handled} == {1}, "waiting is no attempt of anything"
    assert [moment for moment in house.moments if isinstance(moment, DeadLettered)] == []


@pytest.mark.parametrize(
    ("narrow", "wide", "says"),
    [
        ("max_page_count = 1", "max_page_count = 1000000", "is full"),
        ("query_only = 1", "query_only = 0", "cannot be written"),
    ],
    ids=["full", "read-only"],
)
async def test_lanes_wait_while_the_store_cannot_be_written_and_go_on(
    tmp_path: Path, narrow: str, wide: str, says: str
) -> None:
    clock = Ahead()
    async with house_of(tmp_path, [payment], clock=clock, connection=Narrowable) as house:
        await goes_on_afterwards(house, clock, "store", narrow, wide, "payment.db")
        assert says in find_outages(house, "store")[0].error
        for order in orders():
            (entry,) = await house.history("payment", order.order_id)
            assert (entry.outcome, len(entry.events)) == ("handled", 1)
    assert len(ledger.read(tmp_path / "bank.db")) == ORDERS, "each charged once"


async def test_lanes_wait_while_the_log_is_full_and_go_on(tmp_path: Path) -> None:
    clock = Ahead()
    async with house_of(tmp_path, [payment], clock=clock, connection=Narrowable) as house:
        narrow, wide = "max_page_count = 1", "max_page_count = 1000000"
        await goes_on_afterwards(house, clock, "broker", narrow, wide, "broker.db")
        assert "nothing was written: make room on its disk" in find_outages(house, "broker")[0].error
        reserved = [record async for record in house.broker.scan("payments")]
    ids = {envelope.to_message(record, type_="PaymentReserved", schema="", contract=None).id for record in reserved}
    assert len(ids) == ORDERS, "each emitted, however often it was published"
    assert len(ledger.read(tmp_path / "bank.db")) == ORDERS, "each charged once"


async def test_a_worker_that_cannot_take_its_partitions_reports_the_full_log(tmp_path: Path) -> None:
    clock = Ahead()
    async with house_of(tmp_path, [payment], clock=clock, connection=Narrowable) as house:
        execute = house.broker.connection.execute
        await house.publish(*orders())
        while not list(execute("SELECT name FROM groups")):
            await clock.sleep(0)
        execute("PRAGMA max_page_count = 1")  # it has joined its group, and has no partition yet
        await until(house, lambda: bool(find_outages(house, "broker")), "the full log is reported")
        assert not [moment for moment in house.moments if isinstance(moment, Assigned)]
        assert "is full" in find_outages(house, "broker")[0].error
        execute("PRAGMA max_page_count = 1000000")
        await house.at_rest()
        assert [moment.what for moment in house.moments if isinstance(moment, Recovered)] == ["broker"]
    assert len(ledger.read(tmp_path / "bank.db")) == ORDERS


# -------------------------------------------------------------------- gone for good


def garbled(path: Path) -> None:
    """Another program has written over the file's beginning."""
    with path.open("r+b") as file:
        file.write(b"to be or not to be " * 300)


def replaced(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.rename(path)


ENDS_S_MAX = 60.0


@pytest.mark.parametrize("happens", [Path.unlink, replaced, garbled])
@pytest.mark.parametrize("file", ["payment.db", "broker.db"])
async def test_a_service_whose_file_is_deleted_or_replaced_ends_with_a_remedy(
    tmp_path: Path, file: str, happens: Callable[[Path], object]
) -> None:
    clock = SystemClock()
    broker = EmbeddedBroker(tmp_path / "broker.db", clock=clock)
    with Fleet(tmp_path, clock, ["payment"]) as fleet:
        fleet.start("payment")
        until_s = clock.monotonic_s() + START_S_MAX
        while '"started"' not in (tmp_path / "payment.log").read_text():
            assert clock.monotonic_s() < until_s, "it did not start"
            await clock.sleep(0.02)
        await broker.__aenter__()
        happens(tmp_path / file)
        with suppress(SagaError):  # we have the file open, too
            await broker.publish([to_record(order, clock.now_ms()) for order in orders()[:3]])
        until_s, ended = clock.monotonic_s() + ENDS_S_MAX, ""
        while not ended:
            assert clock.monotonic_s() < until_s, "it goes on"
            await clock.sleep(0.02)
            try:
                fleet.check()
            except Fallen as why:
                ended = str(why)
        with suppress(SagaError):
            await broker.__aexit__(None, None, None)
    log = (tmp_path / "payment.log").read_text()
    assert "payment ended by itself, with 2" in ended
    assert "Traceback" not in log
    assert f"{tmp_path}/{file}" in log
    assert "in use" in log or "damaged" in log
    assert "start again" in log or "restore" in log
