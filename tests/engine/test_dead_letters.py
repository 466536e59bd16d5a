"""A dead letter always fits, is durable before its message counts as finished, and never ends a worker."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from pathlib import Path

import pytest

from saga import Retry, Saga, Service
from saga.broker.port import record_size
from saga.contracts import codec
from saga.engine.errors import format_stack
from saga.engine.persistence import dead_letters
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Outgoing, Partition, Record, texts_of
from saga.ops.dead_letters import decode_dead_letter
from saga.progress.actions import RunHandler
from saga.progress.document import DeadLetterRecord, SagaProgress
from saga.progress.failed_attempts import RunFailure, give_up
from saga.progress.handlers import HandlerRole, HandlerRoles
from saga.progress.journal import WriteContext
from saga.telemetry.events import DeadLettered, Recovered, Unavailable
from services.payment.events import OrderCancelled, OrderPlaced, PaymentReserved
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, message_of, workplace

payment = Service("payment")


@payment.handler
async def reserve(order: OrderPlaced) -> PaymentReserved:
    return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)


failing = Service("payment")


@failing.handler
async def refuse(order: OrderPlaced) -> None:
    if order.order_id != "order-2":
        raise LookupError("nobody")


DEAD = "payment.dead"
VALUE = codec.encode(an_order())


def unreadable(key: bytes = b"", value: bytes = b"?" * 100, headers: int = 0) -> Outgoing:
    return Outgoing("orders", key, value, tuple((f"x-{n}", b"y" * 1000) for n in range(headers)))


def refusing(place: Workplace, refuses: Callable[[Outgoing], Exception | None]) -> list[Outgoing]:
    """The log takes no dead letter of which that gives an error; what it was handed."""
    publish, handed = place.broker.publish, list[Outgoing]()

    async def published(messages: Sequence[Outgoing]) -> None:
        for message in messages:
            if message.topic == DEAD:
                handed.append(message)
                if (why := refuses(message)) is not None:
                    raise why
        await publish(messages)

    place.broker.publish = published  # type: ignore[method-assign] # a log with rules of its own
    return handed


def takes(bytes_max: int) -> Callable[[Outgoing], Exception | None]:
    """A log for records of at most so many bytes."""

    def refuses(message: Outgoing) -> Exception | None:
        size = len(message.key) + len(message.value or b"")
        size += sum(len(name.encode()) + len(value or b"") for name, value in message.headers)
        return BrokerError(f"a record of {size} bytes is too large") if size > bytes_max else None

    return refuses


# -------------------------------------------------------------------- it fits


@pytest.mark.parametrize("bytes_max", [1_000_000, 300_000, 70_000, 10_000, 1500])
@pytest.mark.parametrize("kept", [False, True])
async def test_a_dead_letter_fits_whatever_the_log_takes(tmp_path: Path, bytes_max: int, *, kept: bool) -> None:
    service = failing if kept else payment
    value = (VALUE if kept else b"") + b"x" * 900_000
    async with workplace(tmp_path) as place:
        refusing(place, takes(bytes_max))
        async with at_work(place, service):
            order = place.record_of(an_order())._replace(value=value)
            await place.broker.publish([order if kept else unreadable(SAGA.encode(), value, headers=50)])
            await place.publish(an_order("order-2"))
            await place.until(lambda: bool(place.reported_dead_letters()))
            await place.at_rest(service)
            ((record, headers),) = await place.dead(service)
            (original,) = [r for r in await place.records("orders") if r.value == value]
        assert takes(bytes_max)(Outgoing(*record[:1], record.key or b"", record.value, record.headers)) is None
        assert headers["dead_reason"].startswith("BadInput: the value has 90" if kept else "the value is no Avro")
        whole = "transition 0 of payment in saga order-1" if kept else "/".join(map(str, original[:3]))
        assert headers["dead_whole"] == whole
        assert record.key == SAGA.encode()
        if bytes_max == 1_000_000:
            assert record.value == value
            assert "dead_cut" not in headers
        else:
            assert headers["dead_cut"].startswith("the original is larger than the log takes: dead_whole says where")
            assert headers["dead_value"] == f"{len(value)} bytes, sha256 {sha256(value).hexdigest()}"
            assert value.startswith(record.value or b"")
            assert (record.value is None) == (bytes_max == 1500)
            if bytes_max > 10_000:
                assert len(record.value or b"") > bytes_max / 8, "as much as there is room for"
        assert [e.outcome for e in await place.history(service, "order-2")] == ["handled"]
        assert not place.reported(Unavailable)


async def test_a_compensation_is_retried_while_the_broker_refuses_its_escalation(tmp_path: Path) -> None:
    undoing, taken = Service("payment"), asyncio.Event()
    attempts = list[int]()

    @undoing.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @undoing.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None:
        attempts.append(len(attempts) + 1)
        if len(attempts) < 45:
            raise LookupError("nobody")

    def refuses(letter: Outgoing) -> Exception | None:
        if len(attempts) == 41:
            taken.set()
        return None if taken.is_set() else BrokerError("not now")

    async with workplace(tmp_path) as place:
        handed = refusing(place, refuses)
        async with at_work(place, undoing):
            place.clock.faster = 5000
            await place.publish(an_order(), OrderCancelled(order_id=SAGA, reason="-"))
            await place.until(lambda: len(attempts) > 40)
            (refused,) = place.reported(Unavailable)
            assert refused.error == "a dead letter is refused in every form: BrokerError: not now"
            await place.at_rest(undoing)
        assert len(attempts) == 45
        escalated_after = [headers["dead_attempts"] for _, headers in await place.dead(undoing)]
        assert escalated_after == ["34"], "the last that was due, once"
        offered = dict.fromkeys(texts_of(each.headers).get("dead_attempts") for each in handed)
        assert list(offered) == ["17", None, "34"], "whole, then without"
        assert len(place.reported(Recovered)) == 1
        entries = [(entry.outcome, entry.attempt) for entry in await place.history(undoing)]
        parked = [*range(4, 17), *range(41, 45)]
        assert entries == [("handled", 1), *(("retrying", n) for n in parked), ("compensated", 45)], (
            "it is not parked before its report is published: another worker would not know of it"
        )


def test_the_headers_of_a_dead_letter_are_bounded_whatever_a_handler_raised() -> None:
    message = message_of(an_order(), started=None)
    dead = DeadLetterRecord(
        id="dead-1",
        kind="escalation",
        handler="h" * 10_000,
        reason="ü" * 10_000,
        remedy="\n" * 10_000,
        message=message,
        where="/very/long" * 10_000,
        calls=tuple(f"step {'s' * 1000} {n}" for n in range(10_000)),
    )
    letter = dead_letters.to_outgoing("payment", dead, "2026-01-01T00:00:00.000Z", "-", None)
    size = record_size(letter)
    assert size < 20_000
    headers = texts_of(letter.headers)
    assert headers["dead_reason"].endswith("ü ...")
    assert all(text.isprintable() for name, text in headers.items())
    assert headers["dead_call"] == f"and {10_000 - 26} more: saga sagas show lists all"
    assert len(letter.value or b"") == len(VALUE)


SIZES = (100, 3000, 9000, 60_000, 200_000, 1_000_000)
LIMITS = (1000, 5000, 50_000, 500_000, 1_000_000)


@pytest.mark.parametrize("what", ["key", "value", "headers", "header", "all"])
def test_each_form_is_smaller_than_the_one_before_and_names_what_is_left_out(what: str) -> None:
    for size, limit in product(SIZES, LIMITS):
        check_forms(size, limit, what)


def check_forms(size: int, limit: int, what: str) -> None:
    key = b"k" * size if what in ("key", "all") else b"order-1"
    value = b"v" * size if what in ("value", "all") else b"v"
    headers = tuple((f"x{n}", b"y" * 90) for n in range(size // 100)) if what in ("headers", "all") else ()
    headers += (("x", b"y" * size),) if what in ("header", "all") else ()
    record = Record("orders", 3, 17, key, value, headers, 0)
    whole = dead_letters.from_unreadable("payment", record, "r" * 5000, 0, None)
    forms = list(dead_letters.shrink(whole, limit))
    sizes = [record_size(form) for form in forms]
    assert sizes[:-1] == sorted(set(sizes[:-1]), reverse=True)
    assert sizes[-1] < 2200, "whatever a log takes"
    if limit > 4000:
        assert all(each <= limit for each in sizes)
    for form in forms:
        letter_headers = texts_of(form.headers)
        assert (letter_headers["dead_what"], letter_headers["dead_whole"]) == ("dead letter", "orders/3/17")
        assert form is whole or letter_headers["dead_key"] == f"{len(key)} bytes, sha256 {sha256(key).hexdigest()}"


# -------------------------------------------------------------------- it is durable before its message is finished


@pytest.mark.parametrize("kept", [False, True])
async def test_a_dead_letter_is_durable_before_its_message_counts_as_finished(tmp_path: Path, *, kept: bool) -> None:
    service = failing if kept else payment
    async with workplace(tmp_path) as place:
        place.clock.faster = 5000
        may_go, tries = asyncio.Event(), 0

        def not_yet(message: Outgoing) -> Exception | None:
            nonlocal tries
            tries += 1
            return None if may_go.is_set() else BrokerUnavailable("not now")

        refusing(place, not_yet)
        bad = place.record_of(an_order()) if kept else unreadable(SAGA.encode())
        await place.broker.publish([bad])
        (record,) = await place.records("orders")
        partition = Partition("orders", record.partition)
        async with at_work(place, service):
            await place.until(lambda: tries > 3)
        if kept:  # what came first is parked by then, and a wake is not finished
            (wake,) = [
                record
                for tier in ("now", "1m", "4m", "16m", "1h")
                for record in (await place.records(f"payment.wake.{tier}"))[-1:]
                if place.committed(service, Partition(*record[:2])) <= record.offset
            ]
            partition = Partition(*wake[:2])
        committed = place.committed(service, partition)
        assert committed == (wake.offset if kept else 0), "not finished, and the worker has come to its end"
        may_go.set()
        place.broker.publish = type(place.broker).publish.__get__(place.broker)  # type: ignore[method-assign]
        async with at_work(place, service):
            await place.at_rest(service)
        assert len(await place.dead(service)) == 1
        assert place.committed(service, partition) > committed


# -------------------------------------------------------------------- it ends no worker


@pytest.mark.parametrize("error", [BrokerError("the topic is gone"), ValueError("a defect of the driver")])
@pytest.mark.parametrize("kept", [False, True])
async def test_a_dead_letter_that_is_refused_in_every_form_waits_and_is_reported(
    tmp_path: Path, error: Exception, *, kept: bool
) -> None:
    service = failing if kept else payment
    async with workplace(tmp_path) as place:
        place.clock.faster = 5000
        left = iter(range(11 if kept else 10))  # of a kept one the first is with the events of its transition
        handed = refusing(place, lambda _: error if next(left, None) is not None else None)
        async with at_work(place, service):
            await place.broker.publish([place.record_of(an_order()) if kept else unreadable(SAGA.encode())])
            await place.publish(an_order("order-2"))
            await place.at_rest(service)
        assert len(handed) > 10
        ((_, headers),) = await place.dead(service)
        assert "dead_cut" not in headers, "whole, as soon as it may be"
        assert [e.outcome for e in await place.history(service, "order-2")] == ["handled"]
        moments = [m for m in place.moments if isinstance(m, Unavailable) and m.operation == "publish a dead letter"]
        assert len(moments) == 1, "once a minute"
        assert moments[0].error == f"a dead letter is refused in every form: {type(error).__name__}: {error}"
        assert place.reported(DeadLettered)
        assert place.reported(Recovered)


# -------------------------------------------------------------------- it says enough


@dataclass(frozen=True)
class Notes:
    """State of a saga."""

    seen: str = ""


class Away(Exception):
    """Outage of a bank."""


async def charge(key: str) -> str:
    try:
        raise OSError("no route")
    except OSError as why:
        raise Away("the bank is away") from why


async def test_a_dead_letter_names_its_owner_what_led_there_and_the_state_before(tmp_path: Path) -> None:
    asking = Service("payment", state=Notes)

    @asking.handler
    async def note(cancelled: OrderCancelled, saga: Saga[Notes]) -> None:
        saga.state = replace(saga.state, seen=cancelled.reason)

    @asking.handler(retry=Retry(attempts_max=1))
    async def reserve(order: OrderPlaced, saga: Saga[Notes]) -> None:
        saga.state = replace(saga.state, seen="what failed")
        await saga.step(charge, saga.idempotency_key("charge"))

    async with workplace(tmp_path) as place, at_work(place, asking):
        cancelled = place.record_of(OrderCancelled(order_id=SAGA, reason="ch-1"))
        order = place.record_of(an_order())
        foreign = order._replace(headers=(*order.headers, ("x-shop", b"berlin"), ("x-none", None)))
        await place.broker.publish([cancelled])
        await place.at_rest(asking)
        await place.broker.publish([foreign])
        await place.until(lambda: bool(place.reported_dead_letters()))
        await place.at_rest(asking)
        ((record, headers),) = await place.dead(asking)
    found = decode_dead_letter("payment", Record(*record))
    assert found is not None
    assert (found.blame, found.owner, found.state) == ("outside", "order", '{"seen":"ch-1"}')
    assert ("x-shop", "berlin") in found.headers
    assert ("x-none", None) in found.headers
    assert ("ce_source", "somebody") in found.headers
    names = [place.rpartition(" in ")[2] for place in found.stack]
    assert [name for name in names if name in ("reserve", "charge", "from OSError: no route")] == [
        "reserve", "charge", "from OSError: no route", "charge"
    ]  # fmt: skip
    assert found.where == found.stack[names.index("charge")]
    assert headers["dead_class"] == "outside"
    (letter,) = place.reported_dead_letters()
    assert (letter.blame, letter.owner) == ("outside", "order")


async def test_the_sender_owns_an_unreadable_record(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.broker.publish([place.record_of(an_order())._replace(key=b"another")])
        await place.until(lambda: bool(place.reported_dead_letters()))
        ((_, headers),) = await place.dead(payment)
    assert (headers["dead_class"], headers["dead_owner"]) == ("data", "order")


def test_the_stack_and_the_state_in_a_dead_letter_are_bounded() -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise LookupError("x" * 5000)

    with pytest.raises(LookupError) as raised:
        deep(100)
    assert len(format_stack(raised.value)) == 12
    try:
        raise ValueError("worse") from raised.value
    except ValueError as why:
        places = format_stack(why)
    assert len(places) == 14
    assert all(len(place) <= 300 for place in places)
    message = message_of(an_order(), started=None)
    action = RunHandler(HandlerRole(name="reserve", takes=(frozenset({"OrderPlaced"}),)), message, (message,))
    roles = HandlerRoles("payment", [action.role], outcomes=frozenset(), emitted=frozenset())
    hand = WriteContext(message=message, position=None, roles=roles, self_consumed_types=(), now_ms=0, retention_s=60)
    p = SagaProgress(service="payment", saga=SAGA, state={"text": "y" * 10_000})
    written = give_up(p, hand, action, RunFailure(reason="r", remedy="m", attempts=1, stack=places), None)
    assert written.entry is not None
    (letter,) = written.entry.letters
    assert (letter.stack, len(letter.state)) == (places, 2000)
