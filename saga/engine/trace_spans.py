"""Record the spans of one message's processing. Without tracing, none of these objects is created."""

from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Literal, TypeAlias, TypeVar

from saga.messages import Message, Position
from saga.messaging.message_ids import TracePosition, Tracing, id_in, span_of, span_of_event, trace_position
from saga.support.clock import Clock
from saga.telemetry.events import Span, Traced

T = TypeVar("T")
Kind: TypeAlias = Literal["handler", "step", "store"]
SPANS_MAX = 500
"""Maximum number of spans of one kind for a message. If a handler has thousands of steps, only the first are recorded.
Each kind counts by itself, because the spans of the handler and of its events end last, and are the parents of others.
"""
UNTRACED = nullcontext("")
"""Replacement for the result of `TurnSpans.of` when nothing is traced."""


class TurnSpans:
    """Spans of the processing of one message. Steps of a handler never overlap, so there is always one innermost
    span."""

    __slots__ = ("_clock", "_count", "_counts", "_inner", "_spans", "began_s", "id", "place", "service", "tracing")

    def __init__(
        self, tracing: Tracing, service: str, clock: Clock, position: Position, place: TracePosition | None
    ) -> None:
        """`place`: trace position of the message; `None` for a timer or a command, whose trace the first run
        determines."""
        self.tracing, self.service, self.place = tracing, service, place
        self._clock, self.began_s = clock, clock.monotonic_s()
        self.id = span_of(f"{tracing.process}|{service}|{position}|{self.began_s!r}")
        self._inner: str = self.id
        self._spans: list[Span] = []
        self._count = 0
        self._counts = Counter[str]()

    @contextmanager
    def of(self, kind: Kind, name: str, parts: Sequence[Message] = ()) -> Iterator[str]:
        """Record the block as a span, and yield the span's id. `parts`: messages that are processed in the block."""
        if self.place is None and parts:  # a timer belongs to the trace of the run that it triggers
            self.place = trace_position(parts[0])
        outer, self._count = self._inner, self._count + 1
        id_ = self._inner = span_of(f"{self.id}|{self._count}")
        began_s, error = self._clock.monotonic_s(), None
        try:
            yield id_
        except BaseException as why:
            error = type(why).__name__
            raise
        finally:
            self._inner = outer
            links = self._links(parts)
            ended_s = self._clock.monotonic_s()
            self._add(
                Span(
                    id=id_,
                    parent=outer,
                    kind=kind,
                    name=name,
                    began_s=began_s,
                    ended_s=ended_s,
                    error=error,
                    links=links,
                )
            )

    async def around(self, kind: Kind, name: str, work: Awaitable[T], parts: Sequence[Message] = ()) -> T:
        """Await the work and record it as a span."""
        with self.of(kind, name, parts):
            return await work

    def published(self, events: Sequence[Message], began_s: float) -> None:
        """Record spans for events that were published since `began_s`. These spans are the parents of the consumers'
        spans."""
        for event in events:
            self._add(
                Span(
                    id=span_of_event(event),
                    parent=self._inner,
                    kind="publish",
                    name=event.type,
                    began_s=began_s,
                    ended_s=self._clock.monotonic_s(),
                    event=id_in(event.id),
                )
            )

    def header(self, span: str) -> str | None:
        """Return the `traceparent` header for a call in this span; `None` while the trace is unknown."""
        return None if self.place is None else self.place.header(span, self.tracing.is_sampled(self.place))

    def to_traced(self, message: Message, position: Position) -> Traced | None:
        """Return the spans as a telemetry event; `None` if they are not sampled, or if a timer triggered nothing."""
        place = self.place
        if place is None or not self.tracing.is_sampled(place):
            return None
        now_s = self._clock.monotonic_s()
        root = Span(id=self.id, parent=None, kind="turn", name=message.type, began_s=self.began_s, ended_s=now_s)
        return Traced(
            service=self.service,
            saga=message.saga,
            message=message.id,
            type=message.type,
            topic=position.topic,
            partition=position.partition,
            offset=position.offset,
            trace=place.trace,
            parent=place.span,
            flags=(place.flags or 0) | 1,
            spans=(root, *self._spans),
            now_s=now_s,
            now_ms=self._clock.now_ms(),
            principal=message.principal,
        )

    def _add(self, span: Span) -> None:
        if self._counts[span.kind] < SPANS_MAX:
            self._counts[span.kind] += 1
            self._spans.append(span)

    def _links(self, parts: Sequence[Message]) -> tuple[str, ...]:
        """Return the trace headers of those messages whose span is not the parent of these spans."""
        if not parts or self.place is None:
            return ()
        own = self.place.span
        found = (self.tracing.outgoing_header(m) if m.source == self.service else m.trace for m in parts)
        return tuple(dict.fromkeys(header for header in found if header and (own is None or own not in header)))
