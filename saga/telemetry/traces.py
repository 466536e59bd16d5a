"""Traces for OpenTelemetry: a listener of moments that makes spans of them, and the way of spans to a collector.

The only module that knows OpenTelemetry. Spans are made when a message has come to its end, out of the times that were
noted down: nothing is done for them while it is handled. They leave in batches, from a thread of the library, over OTLP
on HTTP; what a collector does not take is dropped, and holds up nobody. The standard variables say where to, how many
of them, and which traces: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_MAX_QUEUE_SIZE` and others.
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

from saga.messaging.trace_context import Place, Tracing, place_in
from saga.support.clock import Clock
from saga.telemetry.events import Span, TelemetryEvent, Traced

FLUSH_S = 3.0
"""Seconds that a process which stops gives to the spans that are still to leave."""
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
"""Values of OTEL_TRACES_EXPORTER that mean something here."""


def find_problems(environ: Mapping[str, str]) -> Iterator[str]:
    """Problems of the standard variables: what they ask for and is not to be had."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if (protocol := environ.get(name, "").strip()) not in ("", "http/protobuf"):
            yield f"{name} is {protocol!r}: spans leave by http/protobuf; collectors take it at port 4318"
    if (way := environ.get("OTEL_TRACES_EXPORTER", "").strip()) not in ("", *WAYS):
        yield f"OTEL_TRACES_EXPORTER is {way!r}: it may be {' or '.join(WAYS)}"


def is_disabled(environ: Mapping[str, str]) -> bool:
    """Return whether the standard variables say that nothing is traced in this process."""
    disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return disabled or environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none"


class Traces:
    """Listener of moments that makes spans of them: an instance is a `saga.telemetry.events.Report`."""

    def __init__(self, end: Callable[[ReadableSpan], None], process: str, sampler: Sampler | None = None) -> None:
        """`end`: told of each span. `sampler`: by default the one that OTEL_TRACES_SAMPLER names."""
        self._end = end
        sampler = sampler or TracerProvider(shutdown_on_exit=False).sampler
        self._resource = lru_cache(maxsize=64)(lambda service: Resource.create({"service.name": service}))

        @lru_cache(maxsize=4096)  # it is asked several times for each message, and goes by the trace alone
        def is_sampled(place: Place) -> bool:
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
        place = Place(moment.trace, moment.parent, moment.flags)
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
                    links=[Link(_make_context(at, at.span)) for at in map(place_in, span.links) if at and at.span],
                    kind=KINDS[span.kind],
                    status=Status(StatusCode.UNSET if span.error is None else StatusCode.ERROR),
                    start_time=base + round(span.began_s * 1e9),
                    end_time=base + round(span.ended_s * 1e9),
                    instrumentation_scope=SCOPE,
                )
            )


def _make_context(place: Place, span: str, *, is_remote: bool = True) -> SpanContext:
    return SpanContext(int(place.trace, 16), int(span, 16), is_remote, TraceFlags(place.flags or 0))


def _make_attributes(moment: Traced, span: Span) -> dict[str, str | int]:
    """Attributes of a span: ids and names, as OpenTelemetry calls them where it has a name."""
    said: dict[str, str | int] = {"saga_id": moment.saga}
    if moment.principal is not None:
        said["enduser.id"] = moment.principal
    if span.error is not None:
        said["error.type"] = span.error
    if span.kind == "turn":
        said |= {
            "messaging.operation.type": "process",
            "messaging.destination.name": moment.topic,
            "messaging.destination.partition.id": str(moment.partition),
            "saga_offset": moment.offset,
            "messaging.message.id": moment.message,
        }
    elif span.event is not None:
        said |= {"messaging.operation.type": "send", "messaging.message.id": span.event}
    return said


# -------------------------------------------------------------------- applications and what steps call


def current_traceparent() -> str | None:
    """Header `traceparent` of what the application traces just now; `None` if that is nothing."""
    at = trace.get_current_span().get_span_context()
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}" if at.is_valid else None


@contextmanager
def use_traceparent(header: str | None) -> Iterator[None]:
    """Have libraries that trace their calls go on with this trace inside the block."""
    place = place_in(header)
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


# -------------------------------------------------------------------- the way out


@asynccontextmanager
async def export_spans(process: str, clock: Clock, exporter: SpanExporter | None = None) -> AsyncIterator[Traces]:
    """Have spans leave inside the block. Leaving it waits a moment for what is still on its way."""
    processor = BatchSpanProcessor(exporter or OTLPSpanExporter())
    try:
        yield Traces(processor.on_end, process)
    finally:
        with suppress(TimeoutError):
            await clock.within(FLUSH_S, _in_thread(processor.shutdown))


async def _in_thread(work: Callable[[], None]) -> None:
    """Return when the work is done. Not among the threads of the loop: a process that ends waits for those, however
    long a collector that is away lets them wait."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        work()
        with suppress(RuntimeError):  # the loop has gone
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="spans", daemon=True).start()
    await done.wait()
