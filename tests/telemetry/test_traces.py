"""One saga is one trace across its services: spans as a collector receives them, propagation by headers, and
sampling."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, DEFAULT_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from saga import Client, Later, Retry, Saga, Service
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.errors import ConfigurationError
from saga.messages import texts_of
from saga.messaging.message_ids import parse_traceparent
from saga.support.clock import SystemClock
from saga.telemetry import traces
from saga.telemetry.events import TelemetryEvent
from saga.telemetry.traces import Traces
from services.payment.bank import Declined
from services.payment.events import (
    OrderConfirmed,
    OrderPlaced,
    PaymentCaptured,
    PaymentDeclined,
    PaymentReserved,
)
from services.shipping.events import OrderPlaced as Ordered
from services.shipping.events import PaymentReserved as Reserved
from services.shipping.events import ShipmentBooked
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, workplace
from tests.telemetry.collector import Collector, collecting

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
CARD, ADDRESS = "visa-4711-secret", "Harbour street 7"
WITHIN_S = 60.0


class Bank:
    """Bank that remembers in which trace it was called."""

    def __init__(self) -> None:
        self.called_in: list[str | None] = []
        self.fails: Callable[[int], Exception | None] = lambda n: None

    async def charge(self, key: str, card: str) -> str:
        self.called_in.append(traces.current_traceparent())
        if (error := self.fails(len(self.called_in))) is not None:
            raise error
        return f"charge of {card}"


def a_payment(bank: Bank) -> Service[None]:
    payment = Service("payment")

    async def opened() -> AsyncIterator[Bank]:
        yield bank

    payment.resource(timeout_s=5, expected_errors=(Declined,))(opened)

    @payment.handler(retry=Retry(attempts_max=3, delay_s_first=0.01, in_place_s=60))
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved | PaymentDeclined:
        try:
            charge = await saga.step(bank.charge, saga.idempotency_key("charge"), order.card)
        except Declined:
            return PaymentDeclined(order_id=order.order_id, reason="declined")
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    return payment


def a_shipping() -> Service[None]:
    shipping = Service("shipping")

    @shipping.handler
    async def book(order: Ordered, reserved: Reserved) -> ShipmentBooked:
        return ShipmentBooked(order_id=order.order_id, booking_id="b-1")

    return shipping


def made(sampler: Sampler = DEFAULT_ON) -> tuple[Traces, list[ReadableSpan]]:
    """A listener, and the spans that it has made."""
    spans: list[ReadableSpan] = []
    return Traces(spans.append, "a process", sampler), spans


def an_id(span: ReadableSpan | Any) -> str:
    return f"{span.context.span_id:016x}"


def above(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def of(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"


@asynccontextmanager
async def traced(tmp_path: Path, sampler: Sampler = DEFAULT_ON) -> AsyncIterator[tuple[Workplace, list[ReadableSpan]]]:
    async with workplace(tmp_path) as place:
        place.traces, spans = made(sampler)
        yield place, spans


async def publish_with_trace(place: Workplace, event: Any, header: str | None = PARENT, **how: Any) -> None:
    """Publish an event with a trace, as a foreign sender does."""
    record = place.record_of(event, **how)
    headers = (*record.headers, *((("traceparent", header.encode()),) if header else ()))
    await place.broker.publish([record._replace(headers=headers)])


# -------------------------------------------------------------------- the whole way, to a collector


@pytest.fixture
def otel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector, and the variables that name it."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        monkeypatch.setenv("SAGA_TRACES", "on")
        yield collector


@pytest.mark.timeout(180)
async def test_one_saga_is_one_trace_from_the_application_through_all_services_to_the_collector(
    tmp_path: Path, otel: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.from_environment(
        broker=f"embedded:///{tmp_path}/broker.db", store=f"sqlite:///{tmp_path}/{{service}}.db"
    )
    bank, stop, moments, clock = Bank(), asyncio.Event(), list[TelemetryEvent](), SystemClock()
    services = [a_payment(bank).declared, a_shipping().declared]
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("a shop")
    async with Client(settings.broker) as client:
        with tracer.start_as_current_span("POST /orders") as root:
            await client.publish(placed := an_order(), principal="user:4711")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wiring.run(services, settings, moments.append, stop))
        until_s = clock.monotonic_s() + WITHIN_S
        while not {"process PaymentReserved", "publish ShipmentBooked"} <= {span.name for _, span in otel.spans}:
            assert clock.monotonic_s() < until_s, [span.name for _, span in otel.spans]
            await clock.sleep(0.05)
        stop.set()
    assert otel.paths == {"/v1/traces"}
    context = root.get_span_context()
    by_id = {span.span_id.hex(): (service, span) for service, span in otel.spans}
    assert {span.trace_id.hex() for _, span in otel.spans} == {f"{context.trace_id:032x}"}
    shop = f"{context.span_id:016x}"

    def way(name: str, service: str) -> list[str]:
        """Names of the spans from this one up to the application."""
        [span] = [span for its, span in otel.spans if (its, span.name) == (service, name)]
        names = []
        while span.parent_span_id.hex() != shop:
            names.append(span.name)
            service, span = by_id[span.parent_span_id.hex()]
        return [*names, span.name]

    assert way("publish ShipmentBooked", "shipping") == [
        "publish ShipmentBooked",
        "process PaymentReserved",
        "publish PaymentReserved",
        "process OrderPlaced",
    ]
    assert way("step charge", "payment") == ["step charge", "handler reserve", "process OrderPlaced"]
    assert bank.called_in == [
        f"00-{context.trace_id:032x}-{span.span_id.hex()}-{context.trace_flags:02x}"
        for _, span in otel.spans
        if span.name == "step charge"
    ]
    for service, span in otel.spans:
        attributes = {attribute.key: attribute.value.string_value for attribute in span.attributes}
        assert (attributes["saga_id"], attributes["enduser.id"]) == (placed.order_id, "user:4711"), (service, span.name)
        parent = by_id.get(span.parent_span_id.hex())
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if parent is not None and parent[0] == service:
            assert span.start_time_unix_nano >= parent[1].start_time_unix_nano
            assert span.end_time_unix_nano <= parent[1].end_time_unix_nano
    for secret in (placed.card, placed.address, "charge of"):
        assert secret.encode() not in otel.received


async def test_a_collector_that_is_away_blocks_no_handler(tmp_path: Path, otel: Collector, monkeypatch: Any) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(traces, "FLUSH_S", 0.2)
    async with workplace(tmp_path) as place, traces.export_spans("a process", SystemClock()) as place.traces:
        payment = a_payment(Bank())
        async with at_work(place, payment):
            await place.publish(an_order())
            await place.at_rest(payment)
        assert [record.key for record in await place.records("payments")] == [SAGA.encode()]


# -------------------------------------------------------------------- spans


async def test_each_stage_of_a_turn_is_a_span(tmp_path: Path) -> None:
    async with traced(tmp_path) as (place, spans):
        payment = a_payment(Bank())
        async with at_work(place, payment):
            await publish_with_trace(place, an_order())
            await place.at_rest(payment)
        names = {an_id(span): span.name for span in spans}
        found = {(span.name, span.kind, names.get(above(span) or "", above(span))) for span in spans}
        assert found == {
            ("process OrderPlaced", SpanKind.CONSUMER, SPAN),
            ("handler reserve", SpanKind.INTERNAL, "process OrderPlaced"),
            ("step charge", SpanKind.CLIENT, "handler reserve"),
            ("write progress", SpanKind.CLIENT, "handler reserve"),  # the intent
            ("write progress", SpanKind.CLIENT, "process OrderPlaced"),
            ("publish PaymentReserved", SpanKind.PRODUCER, "process OrderPlaced"),
        }
        assert {of(span) for span in spans} == {TRACE}
        assert {span.status.status_code for span in spans} == {StatusCode.UNSET}


async def test_a_handler_of_very_many_steps_keeps_the_spans_that_others_have_as_their_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saga.engine.trace_spans.SPANS_MAX", 2)
    payment, bank = Service("payment"), Bank()

    @payment.resource
    async def opened() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
        for number in range(5):
            await saga.step(bank.charge, saga.idempotency_key(f"charge {number}"), order.card)
        return PaymentReserved(order_id=order.order_id, charge_id="all", amount=order.total)

    async with traced(tmp_path) as (place, spans):
        async with at_work(place, payment):
            await publish_with_trace(place, an_order())
            await place.at_rest(payment)
        assert len([span for span in spans if span.name == "step charge"]) == 2
        assert {span.name for span in spans} > {"handler reserve", "publish PaymentReserved"}
        assert {above(span) for span in spans} <= {SPAN, *map(an_id, spans)}


async def test_an_event_carries_the_span_of_its_publishing_whichever_worker_publishes_it(tmp_path: Path) -> None:
    async with traced(tmp_path) as (place, spans):
        payment = a_payment(Bank())
        async with at_work(place, payment):
            await publish_with_trace(place, an_order())
            await place.at_rest(payment)
        [record] = await place.records("payments")
        [publishing] = [span for span in spans if span.kind is SpanKind.PRODUCER]
        header = texts_of(record.headers)["traceparent"]
        assert header == f"00-{TRACE}-{an_id(publishing)}-01"
        assert publishing.attributes is not None
        assert publishing.attributes["messaging.message.id"] == texts_of(record.headers)["ce_id"]


async def test_a_failing_attempt_is_an_error_by_its_class_and_without_its_words(tmp_path: Path) -> None:
    bank = Bank()
    bank.fails = lambda n: ConnectionError(f"no {CARD}") if n < 3 else None
    async with traced(tmp_path) as (place, spans):
        payment = a_payment(bank)
        async with at_work(place, payment):
            await publish_with_trace(place, an_order())
            await place.at_rest(payment)
        attempts = [s for s in spans if s.name in ("handler reserve", "step charge")]
        errors = [(s.name, s.status.status_code, (s.attributes or {}).get("error.type")) for s in attempts]
        names = ("step charge", "handler reserve")
        failed = [(name, StatusCode.ERROR, "ConnectionError") for name in names]
        assert errors == [*failed, *failed, *((name, StatusCode.UNSET, None) for name in names)]
        assert CARD not in "".join(span.to_json() for span in spans)


async def test_a_declared_answer_is_no_error(tmp_path: Path) -> None:
    bank = Bank()
    bank.fails = lambda n: Declined("no money")
    async with traced(tmp_path) as (place, spans):
        payment = a_payment(bank)
        async with at_work(place, payment):
            await publish_with_trace(place, an_order())
            await place.at_rest(payment)
        assert {span.status.status_code for span in spans} == {StatusCode.UNSET}
        assert "publish PaymentDeclined" in {span.name for span in spans}


async def test_a_fan_in_links_the_parts_that_came_before(tmp_path: Path) -> None:
    other = f"00-{'c' * 32}-{'d' * 16}-01"
    async with traced(tmp_path) as (place, spans):
        shipping = a_shipping()
        async with at_work(place, shipping):
            await publish_with_trace(place, Ordered(**vars_of(an_order())), other)
            await place.at_rest(shipping)
            await publish_with_trace(place, Reserved(order_id=SAGA, charge_id="c", amount=an_order().total))
            await place.at_rest(shipping)
        [run] = [span for span in spans if span.name == "handler book"]
        assert of(run) == TRACE
        assert [f"00-{link.context.trace_id:032x}-{an_id(link)}-01" for link in run.links] == [other]
        assert not [span for span in spans if span.name == "process OrderPlaced" and of(span) == TRACE]


async def test_a_part_of_ones_own_is_linked_as_it_was_published(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.handler
    async def capture(confirmed: OrderConfirmed, reserved: PaymentReserved) -> PaymentCaptured:
        return PaymentCaptured(order_id=confirmed.order_id, amount=reserved.amount)

    async with traced(tmp_path) as (place, spans):
        async with at_work(place, payment):
            await publish_with_trace(place, an_order())
            await place.at_rest(payment)
            await publish_with_trace(place, OrderConfirmed(order_id=SAGA))
            await place.at_rest(payment)
        [publishing] = [span for span in spans if span.name == "publish PaymentReserved"]
        [run] = [span for span in spans if span.name == "handler capture"]
        assert [an_id(link) for link in run.links] == [an_id(publishing)]


async def test_a_run_that_a_wake_brings_is_of_the_trace_of_its_message(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga) -> PaymentReserved | Later:
        if not saga.elapsed:
            return Later(after=timedelta(seconds=1))
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    async with traced(tmp_path) as (place, spans):
        async with at_work(place, payment):
            await publish_with_trace(place, an_order())
            await place.until(lambda: "publish PaymentReserved" in {span.name for span in spans})
        assert {of(span) for span in spans} == {TRACE}
        turns = [span for span in spans if span.kind is SpanKind.CONSUMER]
        assert [above(turn) for turn in turns] == [SPAN, SPAN]
        assert turns[1].name != "process OrderPlaced"


# -------------------------------------------------------------------- which trace, and whether


async def test_a_saga_that_began_without_a_trace_has_the_one_of_its_id(tmp_path: Path) -> None:
    async with traced(tmp_path) as (place, spans):
        payment = a_payment(Bank())
        async with at_work(place, payment):
            await place.publish(an_order())
            await place.at_rest(payment)
        [record] = await place.records("payments")
        [turn] = [span for span in spans if span.kind is SpanKind.CONSUMER]
        assert turn.parent is None
        assert {of(span) for span in spans} == {texts_of(record.headers)["traceparent"].split("-")[1]}


@pytest.mark.parametrize(
    ("sampler", "header", "flag"),
    [
        (DEFAULT_ON, PARENT, "01"),
        (DEFAULT_ON, PARENT[:-1] + "0", "00"),
        (DEFAULT_ON, PARENT[:-1] + "3", "03"),
        (ALWAYS_ON, PARENT[:-1] + "0", "01"),
        (ALWAYS_OFF, PARENT, "00"),
        (ParentBased(ALWAYS_OFF), PARENT, "01"),
        (ParentBased(ALWAYS_OFF), None, "00"),
        (TraceIdRatioBased(0.0), PARENT, "00"),
    ],
)
async def test_the_sampler_decides_and_its_decision_is_handed_on(
    tmp_path: Path, sampler: Sampler, header: str | None, flag: str
) -> None:
    async with traced(tmp_path, sampler) as (place, spans):
        payment = a_payment(bank := Bank())
        async with at_work(place, payment):
            await publish_with_trace(place, an_order(), header)
            await place.at_rest(payment)
        [record] = await place.records("payments")
        assert texts_of(record.headers)["traceparent"][-2:] == flag
        assert bool(spans) == (int(flag) & 1 == 1)
        assert len(bank.called_in) == 1


async def test_without_traces_the_header_is_handed_on_as_it_came_and_nothing_is_noted_down(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        payment = a_payment(Bank())
        async with at_work(place, payment):
            await publish_with_trace(place, an_order())
            await place.at_rest(payment)
        [record] = await place.records("payments")
        assert texts_of(record.headers)["traceparent"] == PARENT
        assert "Traced" not in {type(moment).__name__ for moment in place.moments}


@pytest.mark.parametrize(
    "header", [None, "", "rubbish", PARENT[:-1], f"00-{'0' * 32}-{SPAN}-01", f"ff{PARENT[2:]}", PARENT.upper()]
)
def test_a_header_that_is_not_as_it_should_be_is_none(header: str | None) -> None:
    assert parse_traceparent(header) is None


# -------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'http/json'"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER is 'zipkin': it may be otlp or none"),
    ],
)
async def test_unusable_trace_settings_prevent_the_start(
    otel: Collector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    settings = Settings.from_environment(broker=f"embedded:///{tmp_path}/broker.db")
    with pytest.raises(ConfigurationError, match=message):
        await wiring.run([a_shipping().declared], settings, lambda _: None, asyncio.Event())


@pytest.mark.parametrize(("variable", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
def test_the_standard_variables_turn_it_off(
    otel: Collector, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    assert wiring.current_trace(Settings.from_environment()) is traces.current_traceparent
    monkeypatch.setenv(variable, value)
    assert wiring.current_trace(Settings.from_environment()) is None


def test_an_application_without_a_trace_hands_on_none() -> None:
    assert traces.current_traceparent() is None
    assert not trace.get_current_span().get_span_context().is_valid


def vars_of(event: Any) -> dict[str, Any]:
    return {field.name: getattr(event, field.name) for field in fields(event)}
