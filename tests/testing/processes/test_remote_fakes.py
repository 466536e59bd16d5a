"""A fake called through a socket, as from another process."""

import asyncio
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Protocol, get_type_hints

import pytest

from saga import limited
from saga.declarations.resources import Limits, limits_of
from saga.errors import SagaError
from saga.testing.processes.remote_fakes import CodeMistake, FakeServer, make_remote_fake, report_mistake
from saga.testing.processes.worker_processes import CallLimits, RemoteFake


class Refused(Exception):
    """A declared answer."""


@dataclass(frozen=True)
class Offer:
    price: Decimal


class Shop(ABC):
    """Class of a resource."""

    def __init__(self, address: str) -> None:
        raise ConnectionError(f"there is no {address}")

    @abstractmethod
    @limited(timeout_s=2)
    async def ask(self, what: str, *, pieces: int = 1) -> Offer: ...

    @abstractmethod
    async def count(self) -> int: ...

    @abstractmethod
    async def hang(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class FakeShop(Shop):
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.at_once = self.at_once_max = 0
        self.cancelled = False

    async def ask(self, what: str, *, pieces: int = 1) -> Offer:
        if what == "lead":
            raise Refused("no lead", pieces)
        self.asked.append(what)
        return Offer(Decimal("1.50") * pieces)

    async def count(self) -> int:
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        await asyncio.sleep(0)  # noqa: TID251 - lets another call in, if it were let in
        self.at_once -= 1
        return len(self.asked)

    async def hang(self) -> None:
        self.asked.append("hang")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def close(self) -> None:
        raise NotImplementedError


CALLS = {"ask": None, "count": CallLimits(call="FakeShop.count", at_once_max=1, instead="hang"), "hang": None}


@pytest.fixture
def outside() -> Iterator[FakeServer]:
    with tempfile.TemporaryDirectory() as folder, FakeServer(Path(folder) / "s") as outside:
        yield outside


@pytest.fixture
def fake(outside: FakeServer) -> FakeShop:
    fake = FakeShop()
    outside.fakes += [object(), fake]
    return fake


def remote(fake: str, calls: dict[str, CallLimits | None]) -> RemoteFake:
    """The fake of number 1, as it is described to a worker."""
    return RemoteFake(resource="shop", fake=fake, number=1, calls=calls)


@pytest.fixture
def shop(outside: FakeServer, fake: FakeShop) -> Shop:
    made = make_remote_fake(Shop, remote("FakeShop", CALLS), outside.socket)
    assert isinstance(made, Shop)
    assert type(made).__name__ == "FakeShop", "what reports call it"
    return made


async def test_a_call_reaches_the_fake_and_its_answer_comes_back(shop: Shop, fake: FakeShop) -> None:
    assert await shop.ask("tea", pieces=2) == Offer(Decimal("3.00"))
    assert fake.asked == ["tea"]


async def test_an_exception_comes_back_as_the_same_class_with_its_arguments(shop: Shop) -> None:
    with pytest.raises(Refused) as raised:
        await shop.ask("lead", pieces=3)
    assert raised.value.args == ("no lead", 3)


def test_a_step_records_it_by_the_name_and_type_of_the_real_method(shop: Shop) -> None:
    assert shop.ask.__name__ == "ask"
    assert get_type_hints(shop.ask)["return"] is Offer


def test_a_remote_fake_has_the_limits_of_its_overriding_method(shop: Shop) -> None:
    expected = Limits(call="FakeShop.count", at_once_max=1, fallback=vars(type(shop))["hang"])
    assert (limits_of(Shop.ask) is not None, limits_of(shop.ask), limits_of(shop.count)) == (True, None, expected)


class Counter(Protocol):
    """Class of a fake for a resource that has no class of its own."""

    async def count(self) -> int: ...


async def test_a_fake_of_a_protocol_is_called_too(outside: FakeServer, fake: FakeShop) -> None:
    counter = make_remote_fake(Counter, remote("FakeShop", {"count": None}), outside.socket)
    assert await counter.count() == 0  # type: ignore[attr-defined] # made of its name


async def test_calls_are_answered_one_after_another(shop: Shop, fake: FakeShop) -> None:
    assert await asyncio.gather(*(shop.count() for _ in range(20))) == [0] * 20
    assert fake.at_once_max == 1


async def test_a_call_whose_caller_gives_up_blocks_no_other(shop: Shop, fake: FakeShop) -> None:
    call = asyncio.ensure_future(shop.hang())  # noqa: TID251 - it is to be cancelled
    async with asyncio.timeout(10):
        while not fake.asked:  # noqa: ASYNC110 - the other thread gives no signal
            await asyncio.sleep(0)  # noqa: TID251 - until it has come so far
        call.cancel()
        assert await shop.count() == 1
    assert fake.cancelled


async def test_a_method_that_is_not_async_is_refused_with_the_reason(shop: Shop) -> None:
    with pytest.raises(AttributeError, match=r"Shop\.asked: .* only calls of its async methods reach it"):
        shop.asked  # type: ignore[attr-defined] # noqa: B018 - it is not there
    with pytest.raises(AttributeError, match=r"Shop\.close: .* only calls of its async methods reach it"):
        shop.close()


async def test_a_value_that_cannot_be_sent_to_another_process_is_reported(shop: Shop, fake: FakeShop) -> None:
    with pytest.raises(SagaError, match=r"the arguments of Shop\.ask cannot go to the fake"):
        await shop.ask(lambda: None)  # type: ignore[arg-type] # on purpose

    async def ask(what: str) -> object:
        return lambda: None

    fake.ask = ask  # type: ignore[method-assign, assignment] # on purpose
    with pytest.raises(SagaError, match="what it returned cannot go to another process"):
        await shop.ask("tea")


async def test_an_exception_that_cannot_be_made_again_is_reported(shop: Shop, fake: FakeShop) -> None:
    class Local(Exception):
        pass

    async def ask(what: str) -> Offer:
        raise Local("here only")

    fake.ask = ask  # type: ignore[method-assign, assignment] # on purpose
    with pytest.raises(SagaError, match="Local: here only cannot go to another process"):
        await shop.ask("tea")


async def test_nothing_changes_while_it_is_looked_at(outside: FakeServer, shop: Shop, fake: FakeShop) -> None:
    with outside.pause():
        call = asyncio.ensure_future(shop.ask("tea"))  # noqa: TID251 - it is to wait
        for _ in range(100):
            await asyncio.sleep(0)  # noqa: TID251 - the call is on its way
            os.sched_yield()
        assert not fake.asked
    assert await call == Offer(Decimal("1.50"))


def test_a_path_that_is_too_long_for_a_socket_is_reported() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.raises(SagaError, match="choose a shorter path for temporary files"),
        FakeServer(Path(folder) / ("s" * 120)),
    ):
        pass


def test_a_mistake_that_a_worker_reports_is_noted_once_before_the_worker_goes_on(outside: FakeServer) -> None:
    broken, wrong = CodeMistake("broken", is_failure=False), CodeMistake("wrong", is_failure=True)
    for mistake in (broken, wrong, broken):
        report_mistake(outside.socket, mistake)
        assert mistake in outside.mistakes
    assert list(outside.mistakes) == [broken, wrong]


def test_a_mistake_is_lost_when_the_test_has_ended(tmp_path: Path) -> None:
    report_mistake(tmp_path / "no socket", CodeMistake("broken", is_failure=False))
