"""Driver of the containers, without containers: a missing engine fails with a remedy, customers retry, and a command
has a timeout."""

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from tests.compose import __main__ as story
from tests.compose import customers
from tests.compose.__main__ import balanced, main
from tests.compose.customers import Customers
from tests.compose.engine import CommandFailed, run, succeeds
from tests.compose.system import System

ORDERS = [b'{"order_id": "%d"}' % n for n in range(12)]


class Shop:
    """Stands for the system: takes batches, and now and then does not say that it did."""

    def __init__(self, *, silent: int = 0) -> None:
        self.taken: list[bytes] = []
        self._silent = silent

    def client(self, *arguments: str, stdin: bytes, within_s: float) -> str:
        assert arguments == ("publish", "OrderPlaced")
        self.taken += stdin.splitlines()
        if self._silent:
            self._silent -= 1
            raise CommandFailed("no answer")
        return ""


class Auditor:
    """Stands for the system whose books are read: they differ as often as it is set to, and then balance."""

    def __init__(self, differ: int) -> None:
        self.asked: list[str] = []
        self._differ = differ

    def containers(self, service: str) -> list[str]:
        return [f"{service}-1"]

    def inspect(self, container: str, what: str) -> str:
        assert (container, "Env" in what) == ("order-1", True)
        return "SAGA_LOG=json\nSAGA_STORE=couchbase://couchbase/saga/order\n"

    def client(self, *arguments: str, entrypoint: str, mount: Mapping[Path, str]) -> str:
        assert entrypoint == "python"
        self.asked.append(" ".join(arguments))
        if len(self.asked) <= self._differ:
            raise CommandFailed("DIFFERS")
        return "all is well\n"


@pytest.fixture
def no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which nothing is installed."""
    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("COMPOSE", raising=False)
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


@pytest.mark.usefixtures("no_programs")
def test_without_a_container_engine_the_error_names_what_to_install() -> None:
    result = CliRunner().invoke(main)
    assert result.exit_code == 1
    assert "NOT TESTED" in result.output
    assert "apt-get install" in result.output
    assert "COMPOSE=optional" in result.output


@pytest.mark.usefixtures("no_programs")
def test_a_machine_without_an_engine_passes_loudly_when_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSE", "optional")
    result = CliRunner().invoke(main)
    assert result.exit_code == 0
    assert "NOT TESTED" in result.output


def test_customers_order_as_much_as_is_wanted_and_no_more() -> None:
    shop = Shop()
    with Customers(cast(System, shop), ORDERS) as customers_:
        customers_.wait_until(customers_.want(7), 10)
        assert shop.taken == ORDERS[:7]
        customers_.wait_until(customers_.want(100), 10)
    assert shop.taken == ORDERS
    assert customers_.repeated == 0


def test_customers_repeat_orders_that_were_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(customers, "AGAIN_S", 0.001)
    shop = Shop(silent=2)
    with Customers(cast(System, shop), ORDERS[:5]) as customers_:
        customers_.wait_until(customers_.want(5), 10)
    assert shop.taken == ORDERS[:5] * 3
    assert customers_.repeated == 2


def test_orders_that_cannot_be_placed_fail_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(customers, "AGAIN_S", 0.001)
    with (
        Customers(cast(System, Shop(silent=10**9)), ORDERS) as customers_,
        pytest.raises(CommandFailed, match="0 of 12 orders could be placed"),
    ):
        customers_.wait_until(customers_.want(12), 0.05)
    assert "customers" not in {thread.name for thread in threading.enumerate()}


def test_books_that_do_not_balance_yet_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "AUDIT_S", 0.001)
    auditor = Auditor(differ=2)
    assert balanced(cast(System, auditor), stand_ins=False)
    assert len(auditor.asked) == 3
    assert "--store couchbase://couchbase/saga/{service}" in auditor.asked[0]
    assert "--by-key" not in auditor.asked[0]


def test_books_that_never_balance_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(story, "BALANCED_S_MAX", 0)
    auditor = Auditor(differ=10**9)
    assert not balanced(cast(System, auditor), stand_ins=True)
    assert "DIFFERS" in capsys.readouterr().err
    assert "--store couchbase://couchbase/saga/order --by-key" in auditor.asked[0]


def test_a_failed_command_raises_an_error_with_its_exit_code_and_output() -> None:
    with pytest.raises(CommandFailed, match=r"ended with 3\nno such thing"):
        run(sys.executable, "-c", "import sys; print('no such thing'); sys.exit(3)")


def test_a_command_that_does_not_end_is_given_up() -> None:
    with pytest.raises(CommandFailed, match="did not end within 0 s"):
        run(
            sys.executable,
            "-c",
            "import sys; sys.stdin.read(); import threading; threading.Event().wait()",
            within_s=0.2,
        )


def test_a_command_that_is_not_there_does_not_succeed() -> None:
    assert not succeeds("no-such-program")
