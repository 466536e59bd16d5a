"""Handlers of changes of documents: what is declared and refused, and what a service does with them."""

import asyncio
from dataclasses import dataclass, make_dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saga import Change, DeclarationError, Delete, Expiry, Insert, Saga, SagaError, Service, Update
from saga.choreography.manifest import format_manifest, make_manifest, parse_manifest
from saga.engine.prepared_service import needs_of, prepare, topics_of
from saga.messaging.names import change_topic
from saga.testing import trial
from services.order.events import OrderConfirmed, OrderPlaced
from tests.service.documents import OrderDocument, intake, place

DOCUMENT = OrderDocument(customer_id="c-1", sku="tea", total=Decimal(9))
MORE = OrderDocument(customer_id="c-1", sku="tea", total=Decimal(18), quantity=2)
INSERTED = Insert(key="order-17", document=DOCUMENT)


@dataclass(frozen=True)
class Basket:
    """Document that says of which saga it is."""

    order: str
    left: int = 0


@dataclass(frozen=True)
class State:
    """Kinds of changes that a saga has seen."""

    seen: tuple[str, ...] = ()


async def test_a_document_becomes_an_order() -> None:
    result = await trial(intake, INSERTED)
    (placed,) = result.emitted
    assert isinstance(placed, OrderPlaced)
    assert (placed.order_id, placed.total) == ("order-17", Decimal(9))


async def test_an_equal_change_is_the_same_and_later_ones_are_ignored_visibly() -> None:
    later = Update(key="order-17", document=MORE, before=DOCUMENT)
    result = await trial(intake, INSERTED, INSERTED, later, Delete(key="order-17", before=MORE))
    assert len(result.emitted) == 1
    assert [(t.outcome, t.reason) for t in result.progress.transitions] == [
        ("handled", None),
        ("ignored", "place has taken a message for this already"),
        ("ignored", "place has taken a message for this already"),
    ]


async def test_a_plain_call_tests_it() -> None:
    assert await place(Delete(key="order-17")) is None
    placed = await place(Change(key="order-17", document=DOCUMENT))
    assert placed is not None


@pytest.mark.parametrize("gone", [Delete(key="order-17", before=MORE), Expiry(key="order-17")])
async def test_a_document_that_is_removed_first_and_made_again_starts_its_saga(gone: Delete[OrderDocument]) -> None:
    result = await trial(intake, gone, INSERTED)
    assert len(result.emitted) == 1
    assert [(t.outcome, t.reason) for t in result.progress.transitions] == [
        ("ignored", "the document is gone, and place runs on one that is there"),
        ("handled", None),
    ]


async def test_a_removal_is_no_part_of_a_fan_in() -> None:
    service = Service("joining")
    service.document(OrderDocument, "orders")

    @service.handler
    async def joined(change: Change[OrderDocument], confirmed: OrderConfirmed) -> None:
        assert change.document is not None

    confirmed = OrderConfirmed(order_id="order-17")
    result = await trial(service, Delete(key="order-17", before=MORE), confirmed, INSERTED)
    assert [t.outcome for t in result.progress.transitions] == ["ignored", "waiting", "handled"]


async def test_a_handler_of_each_event_is_shown_the_first_document_that_is_there() -> None:
    service = Service("joining", state=State)
    service.document(OrderDocument, "orders")

    @service.handler(repeats=OrderConfirmed)
    async def joined(confirmed: OrderConfirmed, change: Change[OrderDocument], saga: Saga[State]) -> None:
        saga.state = State((*saga.state.seen, type(change).__name__))

    confirmed = OrderConfirmed(order_id="order-17")
    result = await trial(service, Delete(key="order-17", before=MORE), confirmed, INSERTED)
    assert result.state.seen == ("Insert",)


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["insert", "update", "delete", "expiry"]), max_size=6))
def test_a_document_that_is_there_in_the_end_has_started_its_saga_whatever_came_before(words: list[str]) -> None:
    made = {
        "insert": INSERTED,
        "update": Update(key="order-17", document=MORE),
        "delete": Delete[OrderDocument](key="order-17"),
        "expiry": Expiry[OrderDocument](key="order-17"),
    }
    result = asyncio.run(trial(intake, *(made[word] for word in words), INSERTED))
    (placed,) = result.emitted
    first = next(word for word in (*words, "insert") if word in ("insert", "update"))
    assert isinstance(placed, OrderPlaced)
    assert placed.quantity == (1 if first == "insert" else 2)


async def test_with_many_each_change_is_seen_with_what_was_before() -> None:
    service = Service("watching", state=State)
    service.document(Basket, "baskets", saga="order")

    @service.handler(repeats=Change[Basket])
    async def look(change: Change[Basket], saga: Saga[State]) -> OrderPlaced | None:
        summary = (
            f"{type(change).__name__} {change.before and change.before.left} {change.document and change.document.left}"
        )
        saga.state = State((*saga.state.seen, summary))
        return None

    one, two, three = Basket("o-1", 1), Basket("o-1", 2), Basket("o-1", 3)
    result = await trial(
        service,
        Insert(key="b", document=one),
        Update(key="b", document=two, before=one),
        Change(key="b", document=three),
        Delete(key="b", before=three),
        Expiry(key="c", before=one),
    )
    assert result.state.seen == ("Insert None 1", "Update 1 2", "Change None 3", "Delete 3 None", "Expiry 1 None")


async def test_a_change_is_a_part_of_a_fan_in() -> None:
    service = Service("joining")
    service.document(OrderDocument, "orders")

    @service.handler
    async def joined(change: Change[OrderDocument], confirmed: OrderConfirmed) -> None: ...

    result = await trial(service, INSERTED, timedelta(hours=1), OrderConfirmed(order_id="order-17"))
    assert [t.outcome for t in result.progress.transitions] == ["waiting", "handled"]


async def test_a_change_of_no_document_of_the_service_is_refused() -> None:
    with pytest.raises(SagaError, match="a change of a Basket fits 0 of the documents whose changes 'intake' takes"):
        await trial(intake, Insert(key="b", document=Basket("o-1")))


async def test_a_number_is_a_saga_id_and_a_list_is_none() -> None:
    service = Service("numbers")

    @dataclass(frozen=True)
    class Numbered:
        number: int | tuple[int, ...] | UUID

    service.document(Numbered, "numbered", saga="number")

    @service.handler
    async def look(change: Change[Numbered]) -> OrderPlaced | None: ...

    assert (await trial(service, Insert(key="a", document=Numbered(17)))).progress.transitions
    with pytest.raises(SagaError, match="document 'a' of 'numbered': its number is not a saga id"):
        await trial(service, Insert(key="a", document=Numbered((1, 2))))
    with pytest.raises(
        SagaError, match="document 'a' of 'numbered' is gone, and its source does not say what its 'number'"
    ):
        await trial(service, Delete[Numbered](key="a"))


def test_changes_are_equal_by_kind_and_content() -> None:
    assert Insert(key="a", document=DOCUMENT) == Insert(key="a", document=DOCUMENT)
    assert len({Insert(key="a", document=DOCUMENT), Insert(key="a", document=DOCUMENT)}) == 1
    assert Insert(key="a", document=DOCUMENT) != Update(key="a", document=DOCUMENT)
    assert Insert(key="a", document=DOCUMENT) != Insert(key="a", document=MORE)
    assert repr(Delete[Basket](key="a")) == "Delete(key='a', document=None, before=None)"


def test_the_service_has_a_topic_for_them_and_reads_it() -> None:
    topic = change_topic("intake", "orders")
    assert topic in {each.name for each in topics_of(intake.declared)}
    assert topic in needs_of([intake.declared]).reads
    assert topic in prepare(intake.declared).topics


def test_the_manifest_names_the_changes_that_are_handled() -> None:
    manifest = make_manifest(intake.declared)
    assert manifest.changes == {"ChangeOf_orders": "orders"}
    assert manifest.reaction("place") is not None
    assert not manifest.consumes
    assert parse_manifest(format_manifest(manifest), "here") == manifest


def test_a_document_that_is_not_declared_is_refused() -> None:
    service = Service("intake")
    with pytest.raises(
        DeclarationError, match=r"intake.place, parameter change: 'intake' declares no document OrderDoc"
    ):
        service.handler(place)


def test_a_handler_cannot_ask_for_one_kind_of_change() -> None:
    service = Service("intake")
    service.document(OrderDocument, "orders")

    async def place_new(change: Insert[OrderDocument]) -> OrderPlaced | None: ...

    with pytest.raises(DeclarationError, match=r"it is Insert\[OrderDocument\]: write Change\[TheDocument\], and ask"):
        service.handler(place_new)

    async def place_some(change: Change[OrderDocument] | None) -> OrderPlaced | None: ...

    with pytest.raises(DeclarationError, match=r"write Change\[TheDocument\]"):
        service.handler(place_some)


def test_a_service_that_handles_changes_has_to_declare_which_sagas_it_follows() -> None:
    service = Service("quiet")
    service.document(OrderDocument, "orders")

    async def look(change: Change[OrderDocument]) -> None: ...

    with pytest.raises(DeclarationError, match="nothing says yet which sagas 'quiet' follows"):
        service.handler(look)


def test_a_saga_field_that_is_none_is_refused() -> None:
    with pytest.raises(DeclarationError, match="saga='number' is no field of OrderDocument"):
        Service("intake").document(OrderDocument, "orders", saga="number")


@pytest.mark.parametrize("hint", [bool, float | None, tuple[str, ...], dict[str, str], OrderDocument])
def test_a_saga_field_that_never_holds_a_saga_id_is_refused(hint: Any) -> None:
    kind = make_dataclass("Kind", [("number", hint)], frozen=True)
    with pytest.raises(DeclarationError, match="saga='number' never holds a saga id"):
        Service("intake").document(kind, "orders", saga="number")


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 17),
        (str | None, "17"),
        (UUID, UUID(int=17)),
        (date, date(2026, 1, 17)),
        (Annotated[str, msgspec.Meta(description="Number of the order.")], "17"),
    ],
)
async def test_what_is_text_or_a_whole_number_in_a_document_may_be_a_saga_id(hint: Any, value: object) -> None:
    kind = make_dataclass("Kind", [("number", hint)], frozen=True)
    service = Service("intake")
    service.document(kind, "orders", saga="number")

    @service.handler
    async def look(change: Change[kind]) -> OrderPlaced | None: ...  # type: ignore[valid-type] # made above

    result = await trial(service, Insert(key="a", document=kind(value)))
    assert [t.outcome for t in result.progress.transitions] == ["handled"]


def test_deadlines_and_compensations_take_no_changes() -> None:
    service = Service("late")
    service.document(OrderDocument, "orders")

    async def expire(change: Change[OrderDocument]) -> OrderPlaced | None: ...

    with pytest.raises(DeclarationError, match=r"late.expire takes a Change: only a handler may"):
        service.deadline(within=timedelta(hours=1))(expire)


def test_two_handlers_of_one_collection_are_refused() -> None:
    service = Service("twice")
    service.document(OrderDocument, "orders")

    @service.handler
    async def one(change: Change[OrderDocument]) -> OrderPlaced | None: ...

    async def two(change: Change[OrderDocument]) -> OrderPlaced | None: ...

    with pytest.raises(DeclarationError, match="'twice' handles ChangeOf_orders twice"):
        service.handler(two)


async def test_a_handler_that_has_run_is_not_called_again_for_later_changes() -> None:
    service, called = Service("counting"), list[str]()
    service.document(Basket, "baskets", saga="order")

    @service.handler
    async def look(change: Change[Basket]) -> OrderPlaced | None:
        called.append(type(change).__name__)
        return None

    one, two = Basket("o-1", 1), Basket("o-1", 2)
    await trial(service, Insert(key="b", document=one), Update(key="b", document=two, before=one))
    assert called == ["Insert"]
