"""State versions: migrations as declared, what is refused of them, and what a test is shown of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from saga import DeclarationError, Saga, SagaError, Service
from saga.engine.prepared_service import prepare
from saga.progress.document import TransitionView
from saga.testing import check_idempotent, migrated, trial
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import an_order


@dataclass(frozen=True)
class NotesV1:
    """Version 1: euros."""

    total: str = "0.00"
    paid: bool = False


@dataclass(frozen=True)
class NotesV2:
    """Version 2: cents, and no longer whether it is paid."""

    cents: int = 0


@dataclass(frozen=True)
class Notes:
    """Version 3: the cents of each payment."""

    cents: tuple[int, ...] = ()
    placed: int = 0


payment = Service("payment", state=Notes)


@payment.migrate(1)
def in_cents(old: NotesV1) -> NotesV2:
    return NotesV2(cents=round(float(old.total) * 100))


@payment.migrate(2)
def each(old: NotesV2) -> Notes:
    return Notes(cents=(old.cents,))


@payment.handler
async def reserve(order: OrderPlaced, saga: Saga[Notes]) -> PaymentReserved:
    saga.state = replace(saga.state, placed=saga.state.placed + 1)
    return PaymentReserved(order_id=order.order_id, charge_id=str(saga.state.cents), amount=order.total)


def test_a_state_is_migrated_by_all_that_follow_its_version() -> None:
    assert prepare(payment.declared).version == 3
    assert migrated(payment, NotesV1(total="9.80", paid=True)) == Notes(cents=(980,))
    assert migrated(payment, NotesV2(cents=7)) == Notes(cents=(7,))
    assert migrated(payment, Notes(placed=3)) == Notes(placed=3)


async def test_a_handler_is_shown_an_old_state_migrated_and_its_end_writes_the_whole() -> None:
    done = await trial(payment, an_order(), state=NotesV1(total="9.80"))
    assert done.state == Notes(cents=(980,), placed=1)
    assert [event.charge_id for event in done.emitted if isinstance(event, PaymentReserved)] == ["(980,)"]
    assert done.progress.transitions == (TransitionView(handler="reserve", outcome="handled", reason=None),)


async def test_a_state_of_any_older_version_is_where_a_trial_may_begin() -> None:
    assert (await trial(payment, an_order(), state=NotesV2(cents=7))).state == Notes(cents=(7,), placed=1)
    assert (await trial(payment, an_order(), state=Notes(cents=(7,), placed=1))).state == Notes(cents=(7,), placed=2)


@dataclass(frozen=True)
class Counted:
    """Notes, with a field of the name that it had, and another type."""

    total: int = 0
    placed: bool = False


async def test_a_field_may_keep_its_name_and_have_another_type() -> None:
    service = Service("payment", state=Counted)

    @service.migrate(1)
    def count_cents(old: NotesV1) -> Counted:
        return Counted(total=round(float(old.total) * 100))

    @service.handler
    async def reserve(order: OrderPlaced, saga: Saga[Counted]) -> None:
        saga.state = replace(saga.state, placed=True)

    assert (await trial(service, an_order(), state=NotesV1(total="9.80"))).state == Counted(total=980, placed=True)


async def test_a_new_saga_begins_with_the_state_of_now() -> None:
    assert (await trial(payment, an_order())).state == Notes(placed=1)
    await check_idempotent(payment, an_order())


@dataclass(frozen=True)
class Other:
    """State of another service."""


async def test_a_state_that_no_migration_takes_is_refused_with_those_that_are() -> None:
    pattern = r"Other\(\) is no state that 'payment' has had: give NotesV1 or NotesV2 or Notes"
    with pytest.raises(SagaError, match=pattern):
        migrated(payment, Other())
    with pytest.raises(SagaError, match=pattern):
        await trial(payment, an_order(), state=Other())


# -------------------------------------------------------------------- migrations that fail


def service_with(function: Callable[[NotesV1], Any]) -> Service[NotesV2]:
    """A service whose only migration does just that."""
    service = Service("payment", state=NotesV2)

    @service.migrate(1)
    def move(old: NotesV1) -> NotesV2:
        made: NotesV2 = function(old)
        return made

    @service.handler
    async def reserve(order: OrderPlaced, saga: Saga[NotesV2]) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id=str(saga.state.cents), amount=order.total)

    return service


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda old: NotesV2(cents=int(old.total)), "ValueError: invalid literal"),
        (lambda old: old, "is to return a NotesV2"),
        (lambda old: NotesV2(cents="1"), "NotesV2(cents='1'), which is not the same when it is read back"),  # type: ignore[arg-type] # that is the mistake
        (lambda old: NotesV2(cents=object()), "TypeError"),  # type: ignore[arg-type] # that is the mistake
    ],
)
async def test_a_migration_that_fails_is_reported_with_the_remedy_and_nothing_is_written(
    function: Callable[[NotesV1], Any], message: str
) -> None:
    service = service_with(function)
    with pytest.raises(SagaError) as why:
        migrated(service, NotesV1(total="9.80"))
    assert message in str(why.value)
    assert "from version 1, by payment.move" in str(why.value)
    assert "fix it and deploy, or roll back: nothing of it is written" in str(why.value)
    with pytest.raises(SagaError, match="cannot be migrated"):
        await trial(service, an_order(), state=NotesV1(total="9.80"))


def test_a_migration_that_gives_another_result_the_second_time_is_reported() -> None:
    number = count()
    with pytest.raises(SagaError, match=r"and \{'cents': 1\} the second time: a migration runs again"):
        migrated(service_with(lambda old: NotesV2(cents=next(number))), NotesV1())


# -------------------------------------------------------------------- mistakes in declarations


@dataclass
class Changeable:
    cents: int = 0


@dataclass(frozen=True)
class Bare:
    cents: int


def refused(version: Any, function: Callable[..., Any], *, state: Any = Notes) -> str:
    service = Service("payment", state=state)
    with pytest.raises(DeclarationError) as why:
        service.migrate(version)(function)
    return str(why.value)


def test_all_mistakes_of_a_migration_are_reported_at_once() -> None:
    async def late(old: Bare, more: int) -> Changeable:
        return Changeable()

    def two(old: Bare, more: int) -> Changeable:
        return Changeable()

    assert "is no plain function: write `def`, without `async` and `yield`" in refused(1, late)
    message = refused(0, two)
    assert message.startswith("payment.migrate(0), two: versions are counted from 1 on")
    assert "it takes 2 parameters: let it take one, the state as it was" in message
    assert "what it returns: Changeable can be changed in place" in message
    assert "Service('payment', state=...)" in refused(1, in_cents, state=None)


def test_a_migration_without_annotation_or_state_is_refused() -> None:
    def bare(old):  # type: ignore[no-untyped-def] # that is the mistake
        return old

    def of_bare(old: Bare) -> Notes:
        return Notes()

    def of_itself(old: Notes) -> Notes:
        return old

    assert "what it takes is not annotated" in refused(1, bare)
    assert "what it returns is not annotated" in refused(1, bare)
    assert "what it takes: the field 'cents' of Bare has no default" in refused(1, of_bare)
    assert "it takes and returns Notes: keep the class of before under another name" in refused(1, of_itself)
    assert "is no plain function" in refused(1, 5)  # type: ignore[arg-type] # that is the mistake
    assert "versions are counted from 1 on" in refused(True, in_cents)


def test_a_version_has_one_migration() -> None:
    service = Service("payment", state=Notes)
    service.migrate(1)(in_cents)
    with pytest.raises(DeclarationError, match="in_cents takes that version already: keep one, or give the next"):
        service.migrate(1)(in_cents)


def test_all_gaps_of_a_chain_and_all_that_does_not_fit_are_reported_at_once() -> None:
    service = Service("payment", state=Notes)
    service.migrate(4)(in_cents)
    service.migrate(5)(in_cents)
    with pytest.raises(DeclarationError) as why:
        prepare(service.declared)
    message = str(why.value)
    assert message.startswith("the migrations of 'payment': nothing takes version 1: declare migrate(1); nothing takes")
    assert "nothing takes version 3: declare migrate(3)" in message
    assert (
        "in_cents takes NotesV1, but version 5 is NotesV2, which in_cents returns: let both name one class" in message
    )
    assert "in_cents returns NotesV2, but the state of the service is Notes: let it return that" in message
    assert "or declare migrate(6)" in message


def test_the_order_of_declarations_does_not_matter() -> None:
    service = Service("payment", state=Notes)
    service.migrate(2)(each)
    service.migrate(1)(in_cents)
    service.handler(reserve)
    assert [m.version for m in prepare(service.declared).migrations] == [1, 2]
    assert migrated(service, NotesV1(total="1.00")) == Notes(cents=(100,))
