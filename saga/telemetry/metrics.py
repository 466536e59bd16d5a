"""Metrics of moments and workers: a listener that counts, and what Prometheus is given when it asks.

Counting is on the way of every message. So it is plain addition here, by the one thread there is: 2 microseconds a
message, where metrics of the client library, which lock, take 6 for the histograms alone. The library writes down the
sums when somebody asks. Labels are names from the code of services: never ids of sagas or messages, nor texts
of errors.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from saga.support.clock import Clock
from saga.support.printable import shortened
from saga.telemetry import events
from saga.telemetry.events import TelemetryEvent
from saga.telemetry.health import Recovery, WorkerView

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histograms: from a message without a step to one that is tried again and again."""
STAGES = ("queued", "handler", "persisted", "published", "total")
PAGE_S = 0.1
"""Greatest age of a page of metrics."""
SERIES_MAX = 500
"""Most series of one metric. What comes later is counted under `other`: a step may be made of functions without end."""
KIND_MAX = 100
"""Most characters of the name of an exception's class."""
BREAKER_STATES = ("closed", "half-open", "open")
REPLAY_RESULTS = ("succeeded", "died", "ignored")
OPERATIONS = ("write", "archive", "update")

Labels = tuple[str, ...]


class LabeledCounter:
    """Metric of numbers that only grow, or that are set."""

    def __init__(self, name: str, meaning: str, *labels: str) -> None:
        self.name, self.meaning, self.labels = name, meaning, labels
        self.values: dict[Labels, float] = {}

    def add(self, *labels: str, by: float = 1) -> None:
        """Count one more; by 0, so that there is a beginning: of a series that begins with 1 nobody sees it grow."""
        values = self.values
        if labels not in values and len(values) >= SERIES_MAX:
            labels = _to_overflow_labels(labels)
        values[labels] = values.get(labels, 0) + by


class LabeledHistogram:
    """Counts of durations by their bounds, for one set of labels."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


class LabeledHistograms:
    """Metric of durations."""

    def __init__(self, name: str, meaning: str, *labels: str) -> None:
        self.name, self.meaning, self.labels = name, meaning, labels
        self.values: dict[Labels, LabeledHistogram] = {}

    def of(self, *labels: str) -> LabeledHistogram:
        """Histogram with these labels."""
        found = self.values.get(labels)
        if found is None:
            labels = labels if len(self.values) < SERIES_MAX else _to_overflow_labels(labels)
            found = self.values.setdefault(labels, LabeledHistogram())
        return found


def _to_overflow_labels(labels: Labels) -> Labels:
    """Labels of the series that takes in what there are too many of: only the service is told apart."""
    return (labels[0], *("other" for _ in labels[1:]))


class Metrics(Collector):
    """Listener to the moments of all services of this process: an instance is a `saga.telemetry.events.Report`."""

    def __init__(self, working: Mapping[str, WorkerView], clock: Clock) -> None:
        """Make all metrics, at 0. `working`: the workers that run, kept up by somebody else."""
        self._working, self._clock = working, clock
        self._recovering: dict[str, Recovery] = {}
        self._stages: dict[tuple[str, str], tuple[LabeledHistogram, ...]] = {}
        count = LabeledCounter
        self._handled = count(
            *("saga_handled", "Transitions: what became of messages, handler by handler."),
            *("service", "type", "outcome"),
        )
        self._redelivered = count(
            "saga_redelivered", "Messages that had been handled before: found in the inbox.", "service", "type"
        )
        self._retries = count(
            "saga_retries", "Attempts of handlers that failed and are repeated.", "service", "handler"
        )
        self._failures = count(
            *("saga_failures", "Attempts of handlers that failed, the last ones included, by class."),
            *("service", "handler", "error", "class"),
        )
        self._parked = count(
            *("saga_parked", "Attempts that failed and after which the saga was parked: it holds up nobody."),
            *("service", "handler"),
        )
        self._fallbacks = count(
            *("saga_fallbacks", "Calls that were refused, and answered in another way."),
            *("service", "step", "instead"),
        )
        self._put_off = count(
            *("saga_put_off", "Attempts that did not count: a breaker was open, or too many calls waited."),
            *("service", "handler"),
        )
        self._breakers = count(
            *("saga_breaker_state", "The breaker of a resource: 0 closed, 1 half-open, 2 open; once it has turned."),
            *("service", "resource"),
        )
        self._controls = count("saga_control", "What people switched: 1 while it is on.", "service", "control", "name")
        self._conflicts = count(
            *("saga_conflicts", "Writes refused because somebody else had written: decided again."),
            *("service", "operation"),
        )
        self._ambiguous = count(
            *("saga_ambiguous_writes", "Writes whose answer was lost: reloaded and decided again."),
            *("service", "operation"),
        )
        self._dead = count("saga_dead_letters", "Messages given up; each lies on <service>.dead.", "service", "type")
        self._replays = count(
            "saga_replays", "Replays of dead letters that came to an end.", "service", "handler", "result"
        )
        self._escalated = count(
            "saga_escalations", "What only a person can put right; compensations are tried on.", "service", "handler"
        )
        self._stuck = count("saga_stuck", "Times that a lane could not decide: it waits and tries again.", "service")
        self._counts_of_the_log()
        self._histograms()
        self._listens = self._listeners()

    def _counts_of_the_log(self) -> None:
        """Make the metrics about partitions, and who else has them."""
        self._strangers = LabeledCounter(
            "saga_strangers_met", "Minutes with members of another service or store in the group.", "service"
        )
        self._of_partitions = LabeledCounter(
            *("saga_partition_messages", "Messages brought to their end, by partition that this worker has."),
            *("service", "topic", "partition"),
        )
        self._expired = LabeledCounter(
            *("saga_expired_records", "Records that were removed before the service had them, by partition."),
            *("service", "topic", "partition"),
        )
        self._passed_over = LabeledCounter(
            *("saga_passed_over_records", "Records without a value, or of a type that no contract has, by topic."),
            *("service", "topic", "why"),
        )
        self._replaced = LabeledCounter(
            *("saga_replaced_logs", "Partitions whose topic was deleted and created again."),
            *("service", "topic", "partition"),
        )
        self._timers_lost = LabeledCounter(
            "saga_timers_lost", "Times that timers were lost with their topics, and sent again.", "service"
        )
        self._published_lost = LabeledCounter(
            "saga_published_lost", "Topics that have lost what the service published there.", "service"
        )
        self._moved = LabeledCounter(
            "saga_partitions_moved", "Partitions that came (assigned) or went (revoked, lost).", "service", "how"
        )

    def _histograms(self) -> None:
        """Make the metrics of durations."""
        self._recovery_s = LabeledCounter(
            "saga_recovery_seconds", "From start until all that the log had then was handled.", "service"
        )
        self._drained_s = LabeledCounter("saga_drained_seconds", "How long the drain took, once it is over.", "service")
        self._durations = LabeledHistograms(
            *("saga_stage_seconds", "Handled messages by stage: queued, handler, persisted, published; and in total."),
            *("service", "type", "stage"),
        )
        self._steps = LabeledHistograms(
            "saga_step_seconds", "Calls of steps to the outside that got an answer.", "service", "handler", "step"
        )
        self._waits = LabeledHistograms(
            "saga_call_wait_seconds", "Calls that waited for their turn.", "service", "resource"
        )

    def _listeners(self) -> Mapping[type[TelemetryEvent], Callable[..., None]]:
        """Listener to each kind of moment."""
        return {
            events.Handled: self._on_handled,
            events.StepDone: lambda m: self._steps.of(m.service, m.handler, m.step).observe(m.ms / 1000),
            events.Failed: lambda m: self._failures.add(m.service, m.handler, shortened(m.kind, KIND_MAX), m.blame),
            events.Retrying: lambda m: self._retries.add(m.service, m.handler),
            events.Parked: self._on_parked,
            events.PutOff: lambda m: self._put_off.add(m.service, m.handler),
            events.BreakerTurned: lambda m: self._breakers.values.__setitem__(
                (m.service, m.resource), BREAKER_STATES.index(m.state)
            ),
            events.ControlTurned: lambda m: self._controls.values.__setitem__(
                (m.service, m.control, m.name), int(m.is_on)
            ),
            events.CallWaited: lambda m: self._waits.of(m.service, m.resource).observe(m.ms / 1000),
            events.FellBack: lambda m: self._fallbacks.add(m.service, m.step, m.instead),
            events.WriteRefused: self._on_refused,
            events.DeadLettered: lambda m: self._dead.add(m.service, m.type or ""),
            events.ReplayEnded: lambda m: self._replays.add(m.service, m.handler, m.result),
            events.Escalated: lambda m: self._escalated.add(m.service, m.handler),
            events.Stuck: lambda m: self._stuck.add(m.service),
            events.StrangersMet: lambda m: self._strangers.add(m.service),
            events.PassedOver: lambda m: self._passed_over.add(m.service, m.topic, m.why),
            events.Expired: lambda m: self._expired.add(m.service, m.topic, str(m.partition), by=m.count),
            events.LogReplaced: lambda m: self._replaced.add(m.service, m.topic, str(m.partition)),
            events.TimersLost: lambda m: self._timers_lost.add(m.service),
            events.PublishedLost: lambda m: self._published_lost.add(m.service),
            events.Assigned: self._on_assigned,
            events.Revoked: lambda m: self._on_gone(m, "revoked"),
            events.Lost: lambda m: self._on_gone(m, "lost"),
            events.Stopped: lambda m: self._drained_s.values.__setitem__((m.service,), m.drained_s),
        }

    # ---------------------------------------------------------------- listening

    def __call__(self, moment: TelemetryEvent) -> None:
        listens = self._listens.get(type(moment))
        if listens is not None:
            listens(moment)

    def _on_handled(self, m: events.Handled) -> None:
        stages = self._stages.get((m.service, m.type)) or self._stages_of(m.service, m.type)
        queued, handler, persisted, published, total = stages
        queued.observe(m.queued_ms / 1000)
        handler.observe(m.handler_ms / 1000)
        persisted.observe(m.persisted_ms / 1000)
        published.observe(m.published_ms / 1000)
        total.observe(m.total_ms / 1000)
        self._of_partitions.add(m.service, m.topic, str(m.partition))
        for _, outcome, _ in m.outcomes:
            self._handled.add(m.service, m.type, outcome)
        if not m.outcomes:
            self._redelivered.add(m.service, m.type)

    def _stages_of(self, service: str, type_: str) -> tuple[LabeledHistogram, ...]:
        self._stages[service, type_] = stages = tuple(self._durations.of(service, type_, stage) for stage in STAGES)
        return stages

    def _on_parked(self, m: events.Parked) -> None:
        self._retries.add(m.service, m.handler)
        self._parked.add(m.service, m.handler)

    def _on_refused(self, m: events.WriteRefused) -> None:
        (self._conflicts if m.why == "conflict" else self._ambiguous).add(m.service, m.operation)

    def _on_assigned(self, m: events.Assigned) -> None:
        self._moved.add(m.service, "assigned", by=len(m.partitions))
        for topic, number in m.partitions:
            self._expired.add(m.service, topic, str(number), by=0)
            self._replaced.add(m.service, topic, str(number), by=0)
            self._of_partitions.add(m.service, topic, str(number), by=0)

    def _on_gone(self, m: events.Revoked | events.Lost, how: str) -> None:
        self._moved.add(m.service, how, by=len(m.partitions))
        for topic, number in m.partitions:  # or else a process that has had many has no room for those it has
            self._of_partitions.values.pop((m.service, topic, str(number)), None)

    # ---------------------------------------------------------------- looking

    def begins(self, worker: WorkerView) -> None:
        """Begin the series of a worker that begins, at 0."""
        self._recovering[worker.name] = Recovery(self._clock.monotonic_s())
        types = sorted(worker.types)
        for type_ in types:
            self._redelivered.add(worker.name, type_, by=0)
        for type_ in ("", *types):
            self._dead.add(worker.name, type_, by=0)
        for handler in worker.handlers:
            self._retries.add(worker.name, handler, by=0)
            self._parked.add(worker.name, handler, by=0)
            self._put_off.add(worker.name, handler, by=0)
            self._escalated.add(worker.name, handler, by=0)
            for result in REPLAY_RESULTS:
                self._replays.add(worker.name, handler, result, by=0)
        for operation in OPERATIONS:
            self._conflicts.add(worker.name, operation, by=0)
            self._ambiguous.add(worker.name, operation, by=0)
        for how in ("assigned", "revoked", "lost"):
            self._moved.add(worker.name, how, by=0)
        self._stuck.add(worker.name, by=0)
        self._strangers.add(worker.name, by=0)
        self._timers_lost.add(worker.name, by=0)
        self._published_lost.add(worker.name, by=0)

    def look(self) -> None:
        """Note the workers that have recovered: to be called often, for Prometheus asks seldom."""
        for name, worker in self._working.items():
            if (name,) not in self._recovery_s.values:
                took_s = self._recovering[name].took_s(worker, self._clock)
                if took_s is not None:
                    self._recovery_s.add(name, by=took_s)

    # ---------------------------------------------------------------- telling

    def collect(self) -> Iterator[Metric]:
        """Collect all metrics as they are now."""
        yield from self._workers()
        for gauge in (self._recovery_s, self._drained_s, self._breakers, self._controls):
            yield _to_gauge(gauge)
        for counts in (
            *(self._handled, self._redelivered, self._retries, self._conflicts, self._ambiguous, self._dead),
            *(self._parked, self._put_off, self._fallbacks, self._escalated, self._stuck, self._expired, self._moved),
            *(self._failures, self._replays, self._of_partitions, self._replaced, self._strangers, self._passed_over),
            *(self._timers_lost, self._published_lost),
        ):
            counter = CounterMetricFamily(counts.name, counts.meaning, labels=counts.labels)
            for labels, value in counts.values.items():
                counter.add_metric(labels, value)
            yield counter
        for histograms in (self._durations, self._steps, self._waits):
            yield _to_histogram(histograms)

    def _workers(self) -> Iterator[Metric]:
        """Metrics of what the workers have in hand now."""
        inflight = LabeledCounter("saga_in_flight_messages", "Messages begun and not finished.", "service")
        bound = LabeledCounter("saga_in_flight_messages_limit", "The bound of saga_in_flight_messages.", "service")
        yields = LabeledCounter("saga_yielding_messages", "Held back for others: their handlers may wait.", "service")
        owned = LabeledCounter("saga_partitions", "Partitions that this worker has.", "service")
        lags = LabeledCounter("saga_lag_messages", "Not read yet, by partition.", "service", "topic", "partition")
        away = LabeledCounter(
            "saga_unavailable_seconds",
            "How long store, broker or schema registry cannot be reached; 0: it can.",
            "service",
            "what",
        )
        standing = LabeledCounter(
            *("saga_standing", "Parts of the log that cannot be read, and stand still; partition -1: a topic."),
            *("service", "topic", "partition"),
        )
        for name, worker in self._working.items():
            for topic, part, *_ in worker.stalled_partitions():
                standing.values[name, topic, str(-1 if part is None else part)] = 1
            inflight.values[name,] = worker.inflight
            bound.values[name,] = worker.inflight_max
            yields.values[name,] = worker.yields
            owned.values[name,] = worker.partitions
            for (topic, number), lag in (worker.lag() or {}).items():
                lags.values[name, topic, str(number)] = lag
            now = worker.away()
            for what in dict.fromkeys(("store", "broker", *now)):
                away.values[name, what] = now.get(what, 0)
        for counts in (inflight, bound, yields, owned, lags, away, standing):
            yield _to_gauge(counts)


class MetricsPage:
    """Page `/metrics`: our metrics, and those of the Python process. It is written down once for all who ask within
    `PAGE_S`: that takes milliseconds, and whoever asks again and again shall not take them from the messages."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._clock, self._writing = clock, asyncio.Lock()
        self._written: dict[str, tuple[float, bytes]] = {}
        """Text by content type, of which there are a few."""
        self._registry = CollectorRegistry()
        self._registry.register(metrics)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    async def text(self, accept: str) -> tuple[bytes, str]:
        """Text of the page, and its content type: whatever the asking side accepts of what there is."""
        encode, content_type = choose_encoder(accept)
        async with self._writing:
            at_s, text = self._written.get(content_type, (-PAGE_S, b""))
            if self._clock.monotonic_s() - at_s >= PAGE_S:
                # Writing the numbers down takes five times as long as reading them: it is left to a thread.
                text = await asyncio.to_thread(encode, CollectedMetrics(list(self._registry.collect())))
                self._written[content_type] = self._clock.monotonic_s(), text
        return text, content_type


class CollectedMetrics(Collector):
    """Numbers read at one moment."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Give the numbers to the library, which writes down whatever collects."""
        return self._families


def _to_gauge(counts: LabeledCounter) -> Metric:
    gauge = GaugeMetricFamily(counts.name, counts.meaning, labels=counts.labels)
    for labels, value in counts.values.items():
        gauge.add_metric(labels, value)
    return gauge


def _to_histogram(histograms: LabeledHistograms) -> Metric:
    family = HistogramMetricFamily(histograms.name, histograms.meaning, labels=histograms.labels)
    for labels, histogram in histograms.values.items():
        family.add_metric(labels, buckets=_to_buckets(histogram.counts), sum_value=histogram.sum_s)
    return family


def _to_buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Upper bounds, each with how many lie below it."""
    bounds: Iterable[str] = (*map(str, BOUNDS_S), "+Inf")
    return list(zip(bounds, map(float, accumulate(counts)), strict=True))
