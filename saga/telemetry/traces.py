"""OpenTelemetry traces: a telemetry listener that makes spans, and their export to a collector.

This is the only module that uses OpenTelemetry. Spans are made from recorded times after the processing of a message,
so they do not slow it down. A thread of the library exports them in batches over HTTP with OTLP. Spans that the
collector does not accept are dropped. The standard variables configure all this: `OTEL_EXPORTER_OTLP_ENDPOINT`,
`OTEL_TRACES_SAMPLER`, `OTEL_BSP_MAX_QUEUE_SIZE` and others.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from saga.messaging.message_ids import TracePosition, Tracing, parse_traceparent
from saga.support.clock import Clock
from saga.telemetry.events import Span, TelemetryEvent, Traced

FLUSH_S = 3.0
"""Seconds for which a stopping process still exports remaining spans."""
SCOPE = InstrumentationScope("saga")
KINDS = {
    "turn": SpanKind.CONSUMER,
    "handler": SpanKind.INTERNAL,
    "step": SpanKind.CLIENT,
    "store": SpanKind.CLIENT,
    "publish": SpanKind.PRODUCER,
}
VERBS = {"turn": "process ", "handler": "handler ", "step": "step ", "store": "", "publish": "publish "}
WAYS = ("otlp", "none")
"""Supported values of `OTEL_TRACES_EXPORTER`."""


def find_problems(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem for each of OpenTelemetry's standard variables that has an unsupported value."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if (protocol := environ.get(name, "").strip()) not in ("", "http/protobuf"):
            yield f"{name} is {protocol!r}: only http/protobuf is supported; collectors take it at port 4318"
    if (way := environ.get("OTEL_TRACES_EXPORTER", "").strip()) not in ("", *WAYS):
        yield f"OTEL_TRACES_EXPORTER is {way!r}: it may be {' or '.join(WAYS)}"


def is_disabled(environ: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's standard variables switch tracing off."""
    disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return disabled or environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none"


class Traces:
    """Telemetry listener that makes spans. An instance can be used as a `saga.telemetry.events.Report`."""

    def __init__(self, end: Callable[[ReadableSpan], None], process: str, sampler: Sampler | None = None) -> None:
        """Create a listener.

        Args:
            end: Function that is called with each finished span.
            process: Name of the process.
            sampler: Sampler; by default the one that `OTEL_TRACES_SAMPLER` names.
        """
        self._end = end
        sampler = sampler or TracerProvider(shutdown_on_exit=False).sampler
        self._resource = lru_cache(maxsize=64)(lambda service: Resource.create({"service.name": service}))

        @lru_cache(maxsize=4096)  # called several times for each message; the result depends on the trace alone
        def is_sampled(place: TracePosition) -> bool:
            above = (
                None
                if place.span is None
                else trace.set_span_in_context(NonRecordingSpan(_make_context(place, place.span)))
            )
            result = sampler.should_sample(above, int(place.trace, 16), "process", SpanKind.CONSUMER)
            return result.decision is Decision.RECORD_AND_SAMPLE

        self.tracing = Tracing(is_sampled, process)

    def __call__(self, moment: TelemetryEvent) -> None:
        if type(moment) is not Traced:
            return
        place = TracePosition(moment.trace, moment.parent, moment.flags)
        above = None if moment.parent is None else _make_context(place, moment.parent)
        resource, base = self._resource(moment.service), moment.now_ms * 1_000_000 - round(moment.now_s * 1e9)
        for span in moment.spans:
            self._end(
                ReadableSpan(
                    VERBS[span.kind] + span.name,
                    context=_make_context(place, span.id, is_remote=False),
                    parent=above if span.parent is None else _make_context(place, span.parent, is_remote=False),
                    resource=resource,
                    attributes=_make_attributes(moment, span),
                    links=[
                        Link(_make_context(at, at.span)) for at in map(parse_traceparent, span.links) if at and at.span
                    ],
                    kind=KINDS[span.kind],
                    status=Status(StatusCode.UNSET if span.error is None else StatusCode.ERROR),
                    start_time=base + round(span.began_s * 1e9),
                    end_time=base + round(span.ended_s * 1e9),
                    instrumentation_scope=SCOPE,
                )
            )


def _make_context(place: TracePosition, span: str, *, is_remote: bool = True) -> SpanContext:
    return SpanContext(int(place.trace, 16), int(span, 16), is_remote, TraceFlags(place.flags or 0))


def _make_attributes(moment: Traced, span: Span) -> dict[str, str | int]:
    """Return the attributes of a span: ids and names, under OpenTelemetry's standard names where there are any."""
    attributes: dict[str, str | int] = {"saga_id": moment.saga}
    if moment.principal is not None:
        attributes["enduser.id"] = moment.principal
    if span.error is not None:
        attributes["error.type"] = span.error
    if span.kind == "turn":
        attributes |= {
            "messaging.operation.type": "process",
            "messaging.destination.name": moment.topic,
            "messaging.destination.partition.id": str(moment.partition),
            "saga_offset": moment.offset,
            "messaging.message.id": moment.message,
        }
    elif span.event is not None:
        attributes |= {"messaging.operation.type": "send", "messaging.message.id": span.event}
    return attributes


# -------------------------------------------------------------------- trace context


def current_traceparent() -> str | None:
    """Return the `traceparent` header of the application's current span; `None` if there is none."""
    at = trace.get_current_span().get_span_context()
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}" if at.is_valid else None


@contextmanager
def use_traceparent(header: str | None) -> Iterator[None]:
    """Make the trace position in this header the current one within the block, for libraries that trace their calls.
    Without a valid header, nothing is changed."""
    place = parse_traceparent(header)
    if place is None or place.span is None:
        yield
        return
    token = context.attach(
        trace.set_span_in_context(NonRecordingSpan(_make_context(place, place.span, is_remote=False)))
    )
    try:
        yield
    finally:
        context.detach(token)


# -------------------------------------------------------------------- export


@asynccontextmanager
async def export_spans(process: str, clock: Clock, exporter: SpanExporter | None = None) -> AsyncIterator[Traces]:
    """Export spans within the block. When the block is left, wait up to `FLUSH_S` seconds for remaining spans."""
    processor = BatchSpanProcessor(exporter or OTLPSpanExporter())
    try:
        yield Traces(processor.on_end, process)
    finally:
        with suppress(TimeoutError):
            await clock.within(FLUSH_S, _in_thread(processor.shutdown))


async def _in_thread(work: Callable[[], None]) -> None:
    """Run the work in a daemon thread and wait for it. Threads of the event loop's pool are not used, because a
    stopping process waits for them, and an unreachable collector may block them for long."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        work()
        with suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="spans", daemon=True).start()
    await done.wait()
