"""Delivery of one message: from its lane to the end of its turn, however often that takes."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field

from msgspec.structs import replace

from saga.engine.consumer.keyed_executor import Item
from saga.engine.errors import Draining
from saga.engine.execution import control_log, value_codec
from saga.engine.execution.beginning import begin
from saga.engine.execution.message_processor import advance
from saga.engine.processing_state import Measurements, ProcessingState
from saga.engine.progress_cache import ProgressCache
from saga.engine.service_runtime import ServiceRuntime
from saga.engine.trace_spans import TurnSpans
from saga.errors import Broken
from saga.messaging.controls import Control
from saga.messaging.trace_context import Tracing, place_of
from saga.progress.actions import AwaitLog
from saga.progress.document import SagaProgress, decode_entry
from saga.support.clock import from_iso
from saga.telemetry.events import Handled, Stuck

STUCK_S_FIRST, STUCK_S_MAX = 0.5, 30.0
"""Pauses of a lane that cannot decide: nothing of it is lost, and other lanes go on."""


@dataclass(slots=True)
class Delivery:
    """Brings messages to their end, on progresses that it remembers."""

    service: ServiceRuntime
    cache_max: InitVar[int]
    keep: Callable[[Item, AwaitLog], None]
    """Keeps a wake until the log has been handled: then its turn is taken again."""
    cache: ProgressCache = field(init=False)

    def __post_init__(self, cache_max: int) -> None:
        self.cache = ProgressCache(cache_max, self.service.memory_s / 2)

    async def deliver(self, item: Item) -> bool:
        """Return whether the message is finished: if not, it is left to whoever has its partition next."""
        pause_s, service, saga = STUCK_S_FIRST, self.service, item.message.saga
        ports = service.ports
        while True:
            stages = Measurements(received_s=item.received_s, begun_s=ports.clock.monotonic_s())
            try:
                ports.assignment.check_running(item.position)
                if isinstance(item.message, Control):
                    await control_log.write_control(service, item.position, item.message)
                    self._tell(item, stages)
                    return True
                cached = self.cache.take(saga, stages.begun_s)
                if ports.outage_watch.tracing is not None:
                    stages.spans = self._spans(item, ports.outage_watch.tracing)
                message = item.message
                if ports.keys is not None:
                    message = await value_codec.encrypt_message(service, message, item.position)
                turn = begin(service, message, item.position, cached and cached[:2], stages)
                if item.deaths:
                    turn = replace(turn, deaths=item.deaths)
                while not turn.is_complete:  # as `take_turn`, with one coroutine less around each write
                    turn = await advance(service, turn)
                if turn.progress is not None and turn.is_cacheable:
                    written_s = stages.begun_s if stages.outcomes else self._written_s(turn.progress, cached, stages)
                    self.cache.put(saga, turn.progress, turn.cas, written_s)
            except Draining:
                return False
            except Broken:
                raise  # ends the service
            except Exception as why:  # noqa: BLE001 - a lane that cannot decide waits and tells; it never skips a message
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
                    item.deaths = 0  # it is given up: what else is ready is not
                if item.survived is not None:
                    item.survived()
                try:
                    await ports.assignment.pause(pause_s, item.position)
                except Draining:
                    return False
                pause_s = min(pause_s * 2, STUCK_S_MAX)
            else:
                return self._is_finished(item, turn, stages)

    def _is_finished(self, item: Item, turn: ProcessingState, stages: Measurements) -> bool:
        """Return whether nothing is left to do, and tell so; a wake that waits for the log is kept."""
        if turn.awaited_log is None or stages.outcomes:
            self._tell(item, stages)
        if turn.awaited_log is not None:
            self.keep(item, turn.awaited_log)
        return turn.awaited_log is None

    def _written_s(
        self, p: SagaProgress, cached: tuple[SagaProgress, int, float] | None, stages: Measurements
    ) -> float:
        """Time at which a progress was written that was not written now: as the cache knows, or as it tells itself."""
        if cached is not None and p is cached[0]:
            return cached[2]
        if not p.transitions:
            return stages.begun_s
        age_ms = self.service.ports.clock.now_ms() - from_iso(decode_entry(p.transitions[-1]).time)
        return stages.begun_s - max(0, age_ms) / 1000

    def _tell(self, item: Item, stages: Measurements) -> None:
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
        if stages.spans is not None and (traced := stages.spans.told(message, item.position)) is not None:
            ports.outage_watch.report(traced)

    def _spans(self, item: Item, tracing: Tracing) -> TurnSpans | None:
        """Spans to be noted down of a message; `None`: it is of a trace that is not sampled."""
        service, message = self.service, item.message
        place = place_of(message) if message.type in service.consumed else None
        if place is not None and not tracing.is_sampled(place):
            return None
        return TurnSpans(tracing, service.name, service.ports.clock, item.position, place)
