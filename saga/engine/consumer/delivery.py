"""Deliver one message to the engine, and retry until it is processed."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field

from msgspec.structs import replace

from saga.engine.consumer.keyed_executor import WorkItem
from saga.engine.errors import Draining
from saga.engine.execution import control_log, value_codec
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.processing_state import Measurements, ProcessingState
from saga.engine.progress_cache import ProgressCache
from saga.engine.service_runtime import ServiceRuntime
from saga.engine.trace_spans import TurnSpans
from saga.errors import Broken
from saga.messaging.controls import Control
from saga.messaging.message_ids import Tracing, trace_position
from saga.progress.actions import AwaitLog
from saga.progress.document import SagaProgress, decode_transition
from saga.support.clock import from_iso
from saga.telemetry.events import Handled, Stuck

STUCK_S_FIRST, STUCK_S_MAX = 0.5, 30.0
"""First and longest pause after an unexpected error. Only this saga waits, and no message is skipped."""


@dataclass(slots=True)
class MessageDelivery:
    """Delivers messages to the engine, with a cache of progress documents."""

    service: ServiceRuntime
    cache_max: InitVar[int]
    keep_timer: Callable[[WorkItem, AwaitLog], None]
    """Keeps a timer until the log is processed far enough, and then delivers it again."""
    cache: ProgressCache = field(init=False)
    processor: MessageProcessor = field(init=False)

    def __post_init__(self, cache_max: int) -> None:
        self.processor = MessageProcessor(self.service)
        self.cache = ProgressCache(cache_max, self.service.retention_s / 2)

    async def deliver(self, item: WorkItem) -> bool:
        """Process a message. Returns False if it is left to the next owner of its partition."""
        pause_s, service, saga = STUCK_S_FIRST, self.service, item.message.saga
        ports = service.ports
        while True:
            stages = Measurements(received_s=item.received_s, begun_s=ports.clock.monotonic_s())
            try:
                ports.assignment.check_running(item.position)
                if isinstance(item.message, Control):
                    await control_log.write_control(service, item.position, item.message)
                    self._report_handled(item, stages)
                    return True
                cached = self.cache.take(saga, stages.begun_s)
                if ports.outage_watch.tracing is not None:
                    stages.spans = self._start_spans(item, ports.outage_watch.tracing)
                message = item.message
                if ports.keys is not None:
                    message = await value_codec.encrypt_message(service, message, item.position)
                state = self.processor.begin(message, item.position, cached and cached[:2], stages)
                if item.deaths:
                    state = replace(state, deaths=item.deaths)
                state = await self.processor.process(state)
                if state.progress is not None and state.is_cacheable:
                    written_s = (
                        stages.begun_s if stages.outcomes else self._find_write_time(state.progress, cached, stages)
                    )
                    self.cache.put(saga, state.progress, state.cas, written_s)
            except Draining:
                return False
            except Broken:
                raise  # a damaged store ends the service
            except Exception as why:  # noqa: BLE001 - report, wait and retry: no message is ever skipped
                ports.outage_watch.report(
                    Stuck(
                        service=service.name,
                        saga=saga,
                        message=item.message.id,
                        error=f"{type(why).__name__}: {why}",
                        retry_s=pause_s,
                    )
                )
                if any(outcome == "dead" for _, outcome, _ in stages.outcomes):
                    item.deaths = 0  # the deadly run is given up; other runs of the saga are not
                if item.on_survived is not None:
                    item.on_survived()
                try:
                    await ports.assignment.pause(pause_s, item.position)
                except Draining:
                    return False
                pause_s = min(pause_s * 2, STUCK_S_MAX)
            else:
                return self._finish(item, state, stages)

    def _finish(self, item: WorkItem, state: ProcessingState, stages: Measurements) -> bool:
        """Report the outcome. A timer that has to wait for the log is kept and does not count as finished."""
        awaited = state.awaited_log
        if not stages.outcomes:
            item.is_repeat = True
        if awaited is None or stages.outcomes:
            self._report_handled(item, stages)
        if awaited is not None:
            self.keep_timer(item, awaited)
        return awaited is None

    def _find_write_time(
        self, p: SagaProgress, cached: tuple[SagaProgress, int, float] | None, stages: Measurements
    ) -> float:
        """Return when the progress was written, if this message did not change it. The time comes from the cache or the
        journal."""
        if cached is not None and p is cached[0]:
            return cached[2]
        if not p.transitions:
            return stages.begun_s
        age_ms = self.service.ports.clock.now_ms() - from_iso(decode_transition(p.transitions[-1]).time)
        return stages.begun_s - max(0, age_ms) / 1000

    def _report_handled(self, item: WorkItem, stages: Measurements) -> None:
        ports, message = self.service.ports, item.message
        now = ports.clock.monotonic_s()
        topic, partition, offset, _ = item.position
        ports.outage_watch.report(
            Handled(
                service=self.service.name,
                saga=message.saga,
                message=message.id,
                type=message.type,
                topic=topic,
                partition=partition,
                offset=offset,
                outcomes=tuple(stages.outcomes),
                queued_ms=(stages.begun_s - stages.received_s) * 1000,
                handler_ms=stages.handler_s * 1000,
                persisted_ms=stages.persisted_s * 1000,
                published_ms=stages.published_s * 1000,
                total_ms=(now - stages.received_s) * 1000,
                attempts=stages.attempts,
                principal=message.principal,
            )
        )
        if stages.spans is not None and (traced := stages.spans.to_traced(message, item.position)) is not None:
            ports.outage_watch.report(traced)

    def _start_spans(self, item: WorkItem, tracing: Tracing) -> TurnSpans | None:
        """Start recording spans; `None` if the message's trace is not sampled."""
        service, message = self.service, item.message
        place = trace_position(message) if message.type in service.consumed else None
        if place is not None and not tracing.is_sampled(place):
            return None
        return TurnSpans(tracing, service.name, service.ports.clock, item.position, place)
