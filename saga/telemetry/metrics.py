"""Prometheus metrics: a telemetry listener that counts events, and the page that Prometheus scrapes.

Every message is counted, so counting must be fast. Here it is plain addition in the single thread of the event loop,
which takes 2 microseconds per message. The metrics of the client library use locks and take 6 microseconds for the
histograms alone. So the library is only used to format the sums for a scrape.

Labels are names from the code of services: never ids of sagas or messages, and never error texts.
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
from saga.support.printable import shorten
from saga.telemetry import events
from saga.telemetry.events import TelemetryEvent
from saga.telemetry.health import Recovery, WorkerView

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram buckets, in seconds. They cover everything from a message without a step to a message
that is retried for a long time."""
STAGES = ("queued", "handler", "persisted", "published", "total")
PAGE_S = 0.1
"""Time in seconds for which a page of metrics is cached."""
PAGES_MAX = 4
"""Maximum number of cached pages. It is limited because there is one for each content type, and a client chooses the
version in it."""
SERIES_MAX = 500
"""Maximum number of series of one metric. Further ones are counted under `other`. The number is limited because code
that creates functions may create any number of step names."""
KIND_MAX = 100
"""Maximum length of the name of an exception's class, in characters."""
BREAKER_STATES = ("closed", "half-open", "open")
REPLAY_RESULTS = ("succeeded", "died", "ignored")
OPERATIONS = ("write", "archive", "update")

Labels = tuple[str, ...]


class LabeledCounter:
    """A number for each set of labels. It is a counter, or a gauge if its values are set."""

    def __init__(self, name: str, meaning: str, *labels: str) -> None:
        self.name, self.meaning, self.labels = name, meaning, labels
        self.values: dict[Labels, float] = {}

    def add(self, *labels: str, by: float = 1) -> None:
        """Add to a series. Adding 0 creates the series. This is useful because Prometheus sees no increase in a series
        that begins at 1."""
        values = self.values
        if labels not in values and len(values) >= SERIES_MAX:
            labels = _to_overflow_labels(labels)
        values[labels] = values.get(labels, 0) + by


class LabeledHistogram:
    """A histogram of durations for one set of labels."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


class LabeledHistograms:
    """Histograms of durations: one for each set of labels."""

    def __init__(self, name: str, meaning: str, *labels: str) -> None:
        self.name, self.meaning, self.labels = name, meaning, labels
        self.values: dict[Labels, LabeledHistogram] = {}

    def of(self, *labels: str) -> LabeledHistogram:
        """Return the histogram with these labels, and create it if needed."""
        found = self.values.get(labels)
        if found is None:
            labels = labels if len(self.values) < SERIES_MAX else _to_overflow_labels(labels)
            found = self.values.setdefault(labels, LabeledHistogram())
        return found


def _to_overflow_labels(labels: Labels) -> Labels:
    """Return the labels of the overflow series: the service itself, and `other` for all other labels."""
    return (labels[0], *("other" for _ in labels[1:]))


class Metrics(Collector):
    """Telemetry listener that counts the events of all services of this process. An instance can be used as a
    `saga.telemetry.events.Report`."""

    def __init__(self, working: Mapping[str, WorkerView], clock: Clock) -> None:
        """Create all metrics.

        `working`: the running workers by service. The caller keeps this mapping up to date.
        """
        self._working, self._clock = working, clock
        self._recovering: dict[str, Recovery] = {}
        self._stages: dict[tuple[str, str], tuple[LabeledHistogram, ...]] = {}
        count = LabeledCounter
        self._handled = count(
            *("saga_handled", "Transitions by outcome: one for each handler of a message."),
            *("service", "type", "outcome"),
        )
        self._redelivered = count(
            "saga_redelivered", "Duplicate messages: they were found in the inbox.", "service", "type"
        )
        self._retries = count("saga_retries", "Failed attempts of handlers that are repeated.", "service", "handler")
        self._failures = count(
            *("saga_failures", "Failed attempts of handlers, including the last ones, by class."),
            *("service", "handler", "error", "class"),
        )
        self._parked = count(
            *("saga_parked", "Failed attempts after which the run was parked, so that other sagas go on."),
            *("service", "handler"),
        )
        self._fallbacks = count(
            *("saga_fallbacks", "Calls that were refused and answered by a fallback."),
            *("service", "step", "instead"),
        )
        self._put_off = count(
            *("saga_put_off", "Attempts postponed without counting: a breaker was open, or too many calls waited."),
            *("service", "handler"),
        )
        self._breakers = count(
            *(
                "saga_breaker_state",
                "State of a resource's circuit breaker since its first change: 0 closed, 1 half-open, 2 open.",
            ),
            *("service", "resource"),
        )
        self._controls = count(
            "saga_control", "Controls set by operators: 1 while active.", "service", "control", "name"
        )
        self._conflicts = count(
            *("saga_conflicts", "Writes refused because another process had written: read and decided again."),
            *("service", "operation"),
        )
        self._ambiguous = count(
            *("saga_ambiguous_writes", "Writes whose answer was lost: read and decided again."),
            *("service", "operation"),
        )
        self._dead = count("saga_dead_letters", "Messages given up; each is on <service>.dead.", "service", "type")
        self._replays = count("saga_replays", "Finished replays of dead letters.", "service", "handler", "result")
        self._escalated = count(
            "saga_escalations", "Failures that need an operator; compensations are retried.", "service", "handler"
        )
        self._stuck = count(
            "saga_stuck", "Times that a per-saga queue could not decide: it waits and tries again.", "service"
        )
        self._counts_of_the_log()
        self._histograms()
        self._listens = self._listeners()

    def _counts_of_the_log(self) -> None:
        """Create the metrics about partitions and the consumer group."""
        self._strangers = LabeledCounter(
            "saga_strangers_met", "Minutes with members of another service or store in the group.", "service"
        )
        self._of_partitions = LabeledCounter(
            *("saga_partition_messages", "Finished messages, by partition of this worker."),
            *("service", "topic", "partition"),
        )
        self._expired = LabeledCounter(
            *("saga_expired_records", "Records removed from the log before the service had read them, by partition."),
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
            "saga_timers_lost",
            "Times that timer topics or records were lost, and the timers published again.",
            "service",
        )
        self._published_lost = LabeledCounter(
            "saga_published_lost", "Topics that lost the events that the service had published.", "service"
        )
        self._moved = LabeledCounter(
            "saga_partitions_moved",
            "Partitions that a worker got (assigned) or gave up (revoked, lost).",
            "service",
            "how",
        )

    def _histograms(self) -> None:
        """Create the metrics of durations."""
        self._recovery_s = LabeledCounter(
            "saga_recovery_seconds", "Time from start until the records that the log had then were handled.", "service"
        )
        self._drained_s = LabeledCounter("saga_drained_seconds", "How long the last drain took.", "service")
        self._durations = LabeledHistograms(
            *(
                "saga_stage_seconds",
                "Time of handled messages by stage: queued, handler, persisted, published, and total.",
            ),
            *("service", "type", "stage"),
        )
        self._steps = LabeledHistograms(
            "saga_step_seconds",
            "Duration of answered calls of steps to external systems.",
            "service",
            "handler",
            "step",
        )
        self._waits = LabeledHistograms(
            "saga_call_wait_seconds", "How long calls waited for a limit.", "service", "resource"
        )

    def _listeners(self) -> Mapping[type[TelemetryEvent], Callable[..., None]]:
        """Return the function that counts each class of event. Classes that are not counted are left out."""
        return {
            events.Handled: self._on_handled,
            events.StepDone: lambda m: self._steps.of(m.service, m.handler, m.step).observe(m.ms / 1000),
            events.Failed: lambda m: self._failures.add(m.service, m.handler, shorten(m.kind, KIND_MAX), m.blame),
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
        for topic, number in m.partitions:  # a process that has had many partitions would reach SERIES_MAX
            self._of_partitions.values.pop((m.service, topic, str(number)), None)

    # ---------------------------------------------------------------- workers

    def begins(self, worker: WorkerView) -> None:
        """Create the series of a starting worker with the value 0."""
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
        """Record how long workers needed to recover. Call this often, because scrapes are too rare to measure the
        time."""
        for name, worker in self._working.items():
            if (name,) not in self._recovery_s.values:
                took_s = self._recovering[name].took_s(worker, self._clock)
                if took_s is not None:
                    self._recovery_s.add(name, by=took_s)

    # ---------------------------------------------------------------- scrapes

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their current values."""
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
        """Yield the gauges of the running workers."""
        inflight = LabeledCounter(
            "saga_in_flight_messages", "Messages that were started and are not finished.", "service"
        )
        bound = LabeledCounter("saga_in_flight_messages_limit", "Upper bound of saga_in_flight_messages.", "service")
        yields = LabeledCounter(
            "saga_yielding_messages",
            "Messages held back because their handlers may wait, so that others get through.",
            "service",
        )
        owned = LabeledCounter("saga_partitions", "Partitions assigned to this worker.", "service")
        lags = LabeledCounter(
            "saga_lag_messages", "Records not read yet, by partition.", "service", "topic", "partition"
        )
        away = LabeledCounter(
            "saga_unavailable_seconds",
            "How long store, broker, schema registry or key folder has been out of reach; 0: it can be reached.",
            "service",
            "what",
        )
        standing = LabeledCounter(
            *("saga_standing", "Stalled partitions, which cannot be read; partition -1: a whole topic."),
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
    """The page `/metrics`: the metrics of the services and of the Python process.

    Formatting takes milliseconds. So the page is cached for `PAGE_S`, and frequent requests do not slow down messages.
    """

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._clock, self._writing = clock, asyncio.Lock()
        self._written: dict[str, tuple[float, bytes]] = {}
        """Time and text of each cached page, by content type; the oldest first."""
        self._registry = CollectorRegistry()
        self._registry.register(metrics)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    async def text(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its content type. The Accept header of the request selects the content type."""
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:  # the client's version is not made of numbers
            encode, content_type = choose_encoder("")
        async with self._writing:
            at_s, text = self._written.get(content_type, (-PAGE_S, b""))
            if self._clock.monotonic_s() - at_s >= PAGE_S:
                # Formatting takes five times as long as collecting, so it runs in a thread.
                text = await asyncio.to_thread(encode, CollectedMetrics(list(self._registry.collect())))
                self._written.pop(content_type, None)
                self._written[content_type] = self._clock.monotonic_s(), text
                if len(self._written) > PAGES_MAX:
                    del self._written[next(iter(self._written))]
        return text, content_type


class CollectedMetrics(Collector):
    """Metrics that were already collected, so that another thread can format them."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the collected metrics."""
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
    """Return the upper bounds of the buckets, each with the cumulative count."""
    bounds: Iterable[str] = (*map(str, BOUNDS_S), "+Inf")
    return list(zip(bounds, map(float, accumulate(counts)), strict=True))
