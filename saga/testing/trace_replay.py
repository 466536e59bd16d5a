"""Replay a trace of `saga check` on the real runtime: message by message, in the order of the trace.

Stand-ins take the place of the services in the manifests. Each has the real runtime and a store of its own, as in
`trial`. An event that one of them emits is delivered to another when the trace says so. After the trace, the remaining
events are delivered in order, and deadlines and suspended runs become due, until nothing is left to happen.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from saga.choreography.check.model import EventInstance, Move, ReactionModel, ReactionRun
from saga.choreography.check.search import EventTrace, PropertyViolation
from saga.choreography.manifest import Manifest
from saga.choreography.releases import read_manifests
from saga.engine.consumer.record_router import route_record
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.isolated_ports import RecordingPublisher
from saga.engine.lifecycle import open_resources
from saga.engine.prepared_service import prepare
from saga.engine.service_runtime import ServiceRuntime, make_service_runtime
from saga.errors import SagaError
from saga.messages import Message, Outgoing, Position, Record, texts_of
from saga.messaging.names import PROGRESS
from saga.progress.document import SagaProgress, decode_progress, progress_key
from saga.progress.journal import find_remaining_consumers
from saga.store.sqlite.store import SqliteStore
from saga.support.settings import OPEN_S_MAX
from saga.testing.stand_ins import Chooser, StandIns, make_stand_ins
from saga.testing.trials import TrialClock, make_arriving_event, make_timer, retry_at_once, trial_ports

SAGA = "replayed"
"""Id of the saga that is replayed."""
DRAIN_MAX = 5_000
"""Maximum number of deliveries after the moves of a trace."""


@dataclass(frozen=True, slots=True)
class ReplayedSaga:
    """The replayed saga after the end of the trace."""

    outcomes: frozenset[str]
    standing: frozenset[str]
    """Labels of the reactions whose effects have not been undone."""
    waiting: frozenset[str]
    """Labels of the handlers that have received some of their events, but not all."""

    def breaks(self, violation: PropertyViolation, failures: frozenset[str]) -> bool:
        """Return True if this saga shows the violation. `failures`: the failure outcomes."""
        if violation.code == "two-outcomes":
            return len(self.outcomes) > 1
        if violation.code == "no-outcome":
            return not self.outcomes
        if violation.code == "waits-for-ever":
            return violation.subject in self.waiting
        return violation.subject in self.standing and bool(self.outcomes & failures)


def check_trace(manifests: str | Path, start: str, moves: Sequence[str], finding: str, subject: str) -> None:
    """Replay a trace, and raise `AssertionError` if it still shows the finding.

    `saga check` prints tests that call this function. Raises `SagaError` if the trace names a service, reaction or
    event that is in no manifest, for example because it was renamed: then the replay would show nothing. A reaction may
    be gone together with the events that it emitted, unless the finding is about it.

    Args:
        manifests: folder of the manifests.
        start: the event that starts the saga.
        moves: the moves of the trace, as `saga check` writes them.
        finding: code of the finding, such as `not-undone`.
        subject: reaction or event that the finding is about, such as `payment.reserve`.
    """
    found = list(read_manifests(Path(manifests)).values())
    kinds = {
        each.kind
        for each in found
        if start in each.changes or any(used.contract == start for used in (*each.consumes, *each.emits))
    }
    services = [each for each in found if each.kind in kinds]
    parsed = [parse_move(text) for text in moves]
    _check_names(services, start, parsed, finding, subject)
    saga, failures = asyncio.run(_replay(services, start, [m for m, _ in parsed], [r for _, rs in parsed for r in rs]))
    assert not saga.breaks(PropertyViolation(finding, subject), failures), (
        f"{finding} ({subject}): outcomes {', '.join(sorted(saga.outcomes)) or 'none'}; effects that stand: "
        f"{', '.join(sorted(saga.standing)) or 'none'}; waiting: {', '.join(sorted(saga.waiting)) or 'none'}"
    )


def _check_names(
    services: Sequence[Manifest],
    start: str,
    parsed: Sequence[tuple[Move, Sequence[ReactionRun]]],
    finding: str,
    subject: str,
) -> None:
    """Raise `SagaError` if a trace names a service, reaction or event that none of these manifests has.

    A reaction whose events its service does not emit any more was removed, which may have corrected what was found.
    """
    emitted = {each.service: {name for reaction in each.reactions for name in reaction.emits} for each in services}
    known = {f"{each.service}.{reaction.name}" for each in services for reaction in each.reactions}
    for each in services:
        known |= {each.service, *each.changes, *(used.contract for used in (*each.consumes, *each.emits))}
    named = [start]
    for move, runs in parsed:
        named += [move.service] if move.service else []
        if move.kind in ("start", "deliver"):
            named.append(move.name)
        elif not runs:
            named.append(f"{move.service}.{move.name}")
        named += [run.label for run in runs if emitted.get(run.service, set()).issuperset(run.emitted)]
    named += [subject] if finding not in ("two-outcomes", "no-outcome") else []
    if unknown := [name for name in dict.fromkeys(named) if name not in known]:
        raise SagaError(
            f"no manifest has {', '.join(unknown)} of this trace, so a replay would show nothing: if it was renamed, "
            "print the test again with saga check, otherwise delete it"
        )


def replay_trace(manifests: Iterable[Manifest], trace: EventTrace) -> bool:
    """Replay a trace on stand-ins. Return True if the saga then shows the violation that the trace leads to."""
    saga, failures = asyncio.run(_replay(manifests, trace.start, [step.move for step in trace.steps], trace.runs))
    return saga.breaks(trace.violation, failures)


# -------------------------------------------------------------------- moves as text


def parse_move(text: str) -> tuple[Move, list[ReactionRun]]:
    """Parse a move and its runs from the text that `saga.choreography.check.reports.format_moves` writes. Raises
    `SagaError` for a text that is not a move.
    """
    head, *chosen = text.split("; ")
    service, _, rest = head.rpartition(": ")
    kind, name, *number = rest.split()
    if kind not in ("start", "deliver", "deadline", "turn"):
        raise SagaError(f"{text!r} is no move of a trace: copy it from saga check")
    runs = []
    for each in chosen:
        reaction, _, emitted = each.partition(" -> ")
        events = tuple(name for name in emitted.split() if name not in ("-", "@later"))
        runs.append(ReactionRun(service, reaction, (), events, emitted.endswith("@later")))
    return Move(kind, service, name, int(number[0]) if number else 0), runs  # type: ignore[arg-type] # checked above


# -------------------------------------------------------------------- replay


@dataclass(slots=True)
class _Script:
    """A chooser that gives the answers of the runs in a trace. After the last of them it picks the reaction's first
    alternative that does not suspend the run, or else the first alternative.
    """

    choices: defaultdict[str, list[tuple[tuple[str, ...], bool]]] = field(default_factory=lambda: defaultdict(list))
    answered: dict[tuple[str, str], tuple[tuple[str, ...], bool]] = field(default_factory=dict)

    def __call__(self, reaction: ReactionModel, run: str, /) -> tuple[tuple[str, ...], bool]:
        key = (reaction.label, run)
        if key not in self.answered:
            left = self.choices[reaction.label]
            first = next((each for each in reaction.alternatives if not each.later), reaction.alternatives[0])
            self.answered[key] = left.pop(0) if left else (first.list_choices()[0], first.later)
        return self.answered[key]


@dataclass(slots=True)
class _Participant:
    """A service of the replay, with its log and clock."""

    runtime: ServiceRuntime
    log: RecordingPublisher
    clock: TrialClock
    seen: int = 0
    """Number of records of `log` that `RuntimeReplay.collect` has already taken over."""

    async def process(self, message: Message, number: int) -> None:
        processor = MessageProcessor(self.runtime)
        await processor.process(processor.begin(message, Position("replayed", 0, number), None))

    async def load(self) -> SagaProgress | None:
        found = await self.runtime.ports.store.get(PROGRESS, progress_key(self.runtime.name, SAGA))
        return None if found is None else decode_progress(found.content)


@dataclass(slots=True)
class RuntimeReplay:
    """Replays one saga in all services: it knows which events are published, and delivers them one by one."""

    stand_ins: StandIns
    participants: Mapping[str, _Participant]
    published: dict[str, list[tuple[str, Outgoing | None]]] = field(default_factory=lambda: defaultdict(list))
    """The published events of each contract, in order. Each entry is the service that published the event, and the
    record. For an event from outside, the service is an empty string and the record is `None`.
    """
    delivered: set[tuple[str, str, int]] = field(default_factory=set)
    count: int = 0

    def publish(self, name: str) -> None:
        """Publish an event as an external producer."""
        self.published[name].append(("", None))

    def list_published(self) -> frozenset[EventInstance]:
        """Return all published events. Each is identified by its contract and its number among the events of that
        contract.
        """
        return frozenset((name, number) for name, records in self.published.items() for number in range(len(records)))

    async def list_moves(self) -> list[Move]:
        """Return all moves that are still possible: first deliveries of events, then deadlines and suspended runs."""
        found = [
            Move("deliver", service, name, number)
            for name, records in self.published.items()
            for number in range(len(records))
            for service in self.participants
            if (service, name, number) not in self.delivered
        ]
        for service, participant in self.participants.items():
            p = await participant.load()
            found += [Move("turn", service, handler) for handler, _ in (() if p is None else _list_timed(p))]
        return found

    async def make(self, move: Move) -> None:
        if move.kind == "start":
            self.publish(move.name)
        elif move.kind == "deliver":
            if move.number < len(self.published[move.name]):
                await self.deliver(move.service, move.name, move.number)
        else:
            await self.wake(move.service, move.name)

    async def deliver(self, service: str, name: str, number: int) -> None:
        participant, (source, record) = self.participants[service], self.published[name][number]
        self.delivered.add((service, name, number))
        if source == service or name not in participant.runtime.contracts:
            return
        self.count += 1
        if record is None:
            event = self.stand_ins.make_event(name, SAGA)
            first = make_arriving_event(participant.runtime, event, participant.clock)
            # A later event of the contract has the same content, and would count as the first one delivered again.
            message: object = replace(first, id=f"{first.id}-{number}") if number else first
        else:
            arrived = Record(record.topic, 0, self.count, record.key, record.value, record.headers, 0)
            message = route_record(arrived, participant.runtime)
        if isinstance(message, Message):
            await participant.process(message, self.count)
        self.collect()

    async def wake(self, service: str, name: str) -> bool:
        """Advance the clock of one service until a deadline or suspended run of the handler `name` is due, run it, and
        set the clock back.

        Return False if nothing of this handler is open, or if it could not run because of a dead letter.
        """
        participant = self.participants[service]
        p = await participant.load()
        due = [] if p is None else [due_ms for handler, due_ms in _list_timed(p) if handler == name]
        if not due:
            return False
        now_ms = participant.clock.now_ms()
        participant.clock.set_to(max(now_ms, min(due)))
        self.count += 1
        await participant.process(
            make_timer(participant.runtime, SAGA, participant.clock, min(due), self.count), self.count
        )
        participant.clock.set_to(now_ms)
        self.collect()
        return await participant.load() != p  # equal if a dead letter keeps it from running

    def collect(self) -> None:
        """Add the events that services have published since the last call, each event once."""
        for service, participant in self.participants.items():
            for record in participant.log.messages[participant.seen :]:
                headers = texts_of(record.headers)
                name = headers.get("ce_type", "").rpartition(".")[2]
                known = [each for _, each in self.published[name] if each is not None]
                is_repeated = any(texts_of(each.headers)["ce_id"] == headers.get("ce_id") for each in known)
                if "dead_id" not in headers and name in self.stand_ins.events and not is_repeated:
                    self.published[name].append((service, record))
            participant.seen = len(participant.log.messages)

    async def drain(self) -> None:
        """Deliver the remaining events in order. Whenever none is left, let an open deadline or suspended run become
        due, except for runs that never end.
        """
        services = self.stand_ins.choreography.services
        for _ in range(DRAIN_MAX):
            for move in await self.list_moves():
                if move.kind == "deliver":
                    await self.make(move)
                    break
                never_ends = services[move.service].reactions[move.name].never_ends
                if not never_ends and await self.wake(move.service, move.name):
                    break
            else:
                return
        raise SagaError(f"the replay does not come to an end: {DRAIN_MAX} deliveries")

    async def describe(self) -> ReplayedSaga:
        choreography = self.stand_ins.choreography
        waiting = set[str]()
        for service, participant in self.participants.items():
            p = await participant.load()
            waiting |= {f"{service}.{name}" for name in (() if p is None else _list_waiting(p, participant.runtime))}
        outcomes = {name for name, records in self.published.items() if records and name in choreography.outcomes}
        return ReplayedSaga(frozenset(outcomes), self.stand_ins.book.list_standing(SAGA), frozenset(waiting))


def _list_waiting(p: SagaProgress, runtime: ServiceRuntime) -> Iterator[str]:
    """Yield the handlers that have received some of their events, but not all. Self-consumed events count too."""
    yield from (pending.handler for pending in p.waiting)
    for own in p.self_consumed:
        yield from (role.name for role in find_remaining_consumers(p, runtime.roles, own))


def _list_timed(p: SagaProgress) -> list[tuple[str, int]]:
    """Return the handlers of open deadlines and suspended runs, each with the time when it is due."""
    deadlines = [(each.handler, each.due_ms) for each in p.deadlines]
    return deadlines + [(each.handler, each.due_ms) for each in p.suspended_runs]


async def _replay(
    manifests: Iterable[Manifest], start: str, moves: Sequence[Move], runs: Sequence[ReactionRun]
) -> tuple[ReplayedSaga, frozenset[str]]:
    script = _Script()
    for run in runs:
        script.choices[run.label].append((run.emitted, run.later))
    async with open_replay(manifests, script) as replay:
        replay.publish(start)
        for move in moves:
            await replay.make(move)
        await replay.drain()
        return await replay.describe(), replay.stand_ins.choreography.failures


@asynccontextmanager
async def open_replay(manifests: Iterable[Manifest], choose: Chooser) -> AsyncGenerator[RuntimeReplay]:
    """Start stand-ins for the services of these manifests on the real runtime. Nothing has happened in the saga yet."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="saga-replay-")))
        stand_ins = make_stand_ins(manifests, folder, choose)
        participants = {}
        for name, service in stand_ins.services.items():
            clock, log = TrialClock(), RecordingPublisher()
            store = await stack.enter_async_context(SqliteStore(folder / f"{name}.db", clock=clock))
            use = [stand_ins.book] if service.declared.resources else []
            resources = await open_resources(service.declared, stack, clock, OPEN_S_MAX, use)
            prepared = retry_at_once(prepare(service.declared))
            runtime = make_service_runtime(prepared, resources, trial_ports(name, store, clock, log))
            participants[name] = _Participant(runtime, log, clock)
        yield RuntimeReplay(stand_ins, participants)
