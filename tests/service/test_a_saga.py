"""A handler by plain call: what `a_saga` gives it."""

from dataclasses import dataclass, replace
from string import ascii_letters, digits

import pytest

from saga.errors import Permanent
from saga.testing import a_saga
from services.inventory.stock import OutOfStock, Stock
from services.payment.bank import Bank, Declined


@dataclass(frozen=True)
class Memory:
    seen: int = 0


@dataclass(frozen=True)
class Cabin:
    """A document whose updates give something back."""

    free: tuple[str, ...] = ("1A",)


def take(cabin: Cabin, passenger: str) -> tuple[Cabin, str]:
    return replace(cabin, free=cabin.free[1:]), f"{cabin.free[0]} for {passenger}"


def add(cabin: Cabin | None, seat: str) -> Cabin:
    return Cabin(free=(*cabin.free, seat) if cabin else (seat,))


async def test_steps_call_through() -> None:
    async def charge(card: str, *, times: int) -> str:
        return card * times

    assert await a_saga().step(charge, "42", times=2) == "4242"


async def test_an_exception_of_a_step_reaches_the_handler() -> None:
    bank = Bank()

    async def refuse(card: str) -> None:
        raise Declined(card)

    with pytest.raises(Declined, match="4242"):
        await a_saga().step(refuse, "4242")
    assert bank.held == {}


async def test_a_key_that_no_document_can_have_is_refused_as_in_a_service() -> None:
    with pytest.raises(Permanent, match="'' was given as the key of a Stock"):
        await a_saga().read(Stock, "")


async def test_an_update_is_applied_and_read_back_and_the_given_mapping_stays() -> None:
    documents = {"tea": Stock(left=3)}
    saga = a_saga(documents=documents)
    await saga.update(Stock, "tea", Stock.set_aside, quantity=2)
    await saga.update(Stock, "tea", Stock.set_aside, 1)
    assert await saga.read(Stock, "tea") == Stock(left=0, aside=3)
    assert documents == {"tea": Stock(left=3)}


async def test_an_update_gives_back_what_stands_beside_the_document() -> None:
    saga = a_saga(documents={"LH1": Cabin(free=("1A", "1B"))})
    assert await saga.update(Cabin, "LH1", take, "Ada") == "1A for Ada"
    assert await saga.read(Cabin, "LH1") == Cabin(free=("1B",))


async def test_a_refusal_changes_nothing() -> None:
    saga = a_saga(documents={"tea": Stock(left=1)})
    with pytest.raises(OutOfStock):
        await saga.update(Stock, "tea", Stock.set_aside, 2)
    assert await saga.read(Stock, "tea") == Stock(left=1)


async def test_an_absent_document_is_created_only_by_a_function_that_takes_none() -> None:
    saga = a_saga(documents={"tea": Stock(left=1)})
    await saga.update(Cabin, "LH1", add, "2C")
    assert await saga.read(Cabin, "LH1") == Cabin(free=("2C",))
    with pytest.raises(Permanent, match=r"there is no Cabin 'LH2': give it to a_saga\(documents=\{'LH2': \.\.\.\}\)"):
        await saga.update(Cabin, "LH2", take, "Ada")


async def test_a_document_of_another_kind_is_another_document() -> None:
    saga = a_saga(documents={"tea": Stock(left=1)})
    assert await saga.read(Cabin, "tea") is None
    with pytest.raises(Permanent, match="there is no Cabin 'tea'"):
        await saga.update(Cabin, "tea", take, "Ada")


async def test_a_function_that_returns_no_document_is_a_permanent_failure() -> None:
    def forget(stock: Stock) -> None: ...

    with pytest.raises(Permanent, match="forget returned a NoneType: it must return the new Stock"):
        await a_saga(documents={"tea": Stock(left=1)}).update(Stock, "tea", forget)  # type: ignore[misc] # the mistake


async def test_the_state_is_kept_as_it_is_assigned() -> None:
    saga = a_saga(state=Memory())
    saga.state = Memory(seen=saga.state.seen + 1)
    assert saga.state == Memory(seen=1)
    assert a_saga().state is None


async def test_a_state_of_another_class_is_refused() -> None:
    with pytest.raises(Permanent, match=r"saga\.state is a Memory here and is assigned a Cabin"):
        a_saga(state=Memory()).state = Cabin()  # type: ignore[assignment] # the mistake
    with pytest.raises(Permanent, match=r"saga\.state is a NoneType here and is assigned a Memory"):
        a_saga().state = Memory()  # type: ignore[assignment] # the mistake


def test_keys_are_the_same_for_the_same_name_and_fit_for_the_outside() -> None:
    saga, other = a_saga(), a_saga(state=Memory())
    assert saga.idempotency_key("charge") == saga.idempotency_key("charge") == other.idempotency_key("charge")
    assert saga.idempotency_key("charge") != saga.idempotency_key("capture")
    assert saga.idempotency_key("chärge") != saga.idempotency_key("ch.rge")
    long = saga.idempotency_key("ä b/" * 50)
    assert len(long) <= 80
    assert set(long) <= set(ascii_letters + digits + "-_")
