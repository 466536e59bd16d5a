"""What operators have to act on: dead letters and escalations on the topics of services, blocked messages in their
stores, and parked runs that wait for their next attempt."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from msgspec import Raw
from msgspec.structs import asdict

from saga.errors import NoListing, NoStore, SagaError
from saga.messages import Partition
from saga.messaging import envelope
from saga.messaging.timers import tiers_of
from saga.ops.dead_letters import DeadLetter, decode_headers_as_text, read_dead_letters
from saga.ops.histories import (
    UnreadableHistory,
    add_archives,
    compute_status,
    decode_progress,
    decode_summary,
    read_document,
    read_documents,
)
from saga.ops.sagas import LOOKED_AT_MAX, ListedSaga, list_every_saga, read_summary
from saga.ops.selection import Deployment, Selection
from saga.ops.sources import ServiceStore, Warn, open_administration
from saga.progress.actions import ParkedRun
from saga.progress.decisions import TOO_OLD
from saga.progress.document import ABORT, UNREADABLE, PendingMessage, SagaProgress, Transition, decode_transition
from saga.progress.failed_attempts import find_parked_runs
from saga.store.port import NewestFirst
from saga.support.clock import LATEST_MS, iso

TRIED_AGAIN = "tried again"


@dataclass(frozen=True, slots=True)
class AttentionItem:
    """A dead letter, an escalation or a failing run, with its current state."""

    letter: DeadLetter
    state: str
    """State of the item:

    - `blocks`: the dead letter blocks its saga.
    - `dropped`, `replayed`, `discarded` or `resolved`: the item has ended in this way.
    - `goes on`: the compensation that failed is still being retried.
    - `over`: the compensation that failed has ended.
    - `tried again`: the failing run is being retried.
    - `-`: the item blocks nothing, as far as is known.
    """

    @property
    def is_open(self) -> bool:
        """True if an operator still has to act."""
        if self.letter.what == "escalation":
            return self.state not in ("resolved", "over")
        return self.state in ("blocks", "goes on", TRIED_AGAIN)

    @property
    def has_no_end(self) -> bool:
        """True for a dead letter that blocks no saga.

        Such an item never ends, because the service does not learn whether the sender has fixed the cause.
        """
        return self.letter.what == "dead letter" and self.state == "-"


class Attention(NamedTuple):
    """Everything that may need an operator."""

    items: Sequence[AttentionItem]
    """Dead letters, escalations and failing runs, newest first."""
    sagas: Sequence[ListedSaga]
    """Blocked sagas."""
    more: bool
    """True if there are more items or sagas than the limit allows."""


async def find_attention(
    selection: Selection, deployment: Deployment, *, with_ended: bool = True, with_sagas: bool = True
) -> Attention:
    """Find everything in the selection that may need an operator.

    Args:
        with_ended: Include items that no longer need an operator.
        with_sagas: Also describe the blocked sagas. For this, each of them is read in all services.

    Raises:
        NoStore: There is no store, and the selection names no service.
    """
    async with AsyncExitStack() as stack:
        try:
            sources = await stack.enter_async_context(deployment.open_stores(selection.services))
        except NoStore:
            if not selection.services:
                raise
            sources = []
        blocked = await _find_blocked(selection, sources, deployment, with_sagas=with_sagas)
        return await _collect(selection, sources, deployment, blocked, with_ended=with_ended)


class _Blocked(NamedTuple):
    """Dead letters and failing runs that block sagas, according to the stores."""

    letters: list[DeadLetter]
    sagas: list[ListedSaga]
    more: bool
    """True if some were left out because of the selection's limit."""


async def _find_blocked(
    selection: Selection, sources: Sequence[ServiceStore], deployment: Deployment, *, with_sagas: bool
) -> _Blocked:
    found = _Blocked([], [], False)
    if not with_sagas and not selection.sagas:
        try:
            return await _scan_blocked(selection, sources, deployment.warn)
        except NoListing:
            found.letters.clear()
    if not sources:
        return found
    owners = await _read_owners(selection, [source.service for source in sources], deployment)
    async for each in _list_blocked(selection, deployment):
        letters = _add_owners(await _blocking_in_saga(each, sources, deployment.warn), owners)
        if letters and not any(map(selection.matches, letters)):
            continue
        if len(found.sagas) == selection.limit:
            return found._replace(more=True)
        found.sagas.append(each)
        found.letters.extend(letters)
    return found


Owners: TypeAlias = Mapping[str, str | None]


async def _read_owners(selection: Selection, services: Sequence[str], deployment: Deployment) -> Owners:
    """Return the owner of the contract of each dead letter, by its id; empty if the selection names no owner.

    Owners are recorded on `<service>.dead`, but in no progress.
    """
    if selection.owner is None:
        return {}
    found = await read_dead_letters(services, deployment.broker_settings, deployment.clock)
    if found.problem:
        deployment.warn(f"some owners are not known, as records of <service>.dead cannot be read: {found.problem}")
    return {letter.id: letter.owner for letter in found.letters}


def _add_owners(letters: Sequence[DeadLetter], owners: Owners) -> list[DeadLetter]:
    return [replace(each, owner=owners.get(each.id)) for each in letters]


async def _scan_blocked(selection: Selection, sources: Sequence[ServiceStore], warn: Warn) -> _Blocked:
    """Find dead letters and failing runs by scanning the progresses that never expire, as those of open sagas do.
    Raises `NoListing` if a store cannot list its sagas."""
    found, blocked = list[DeadLetter](), 0
    for source in sources:
        looked = 0
        async for saga, document in read_documents(source, selection.prefix, never_expiring=True):
            looked += 1
            if looked > LOOKED_AT_MAX and not isinstance(source.store, NewestFirst):
                warn(f"the store of {source.service} lists by key only: what blocks is known of {LOOKED_AT_MAX} sagas")
                break
            try:
                if not compute_status(decode_summary(document.content)).needs_person:
                    continue
                p = decode_progress(source, saga, document)
            except SagaError as why:
                warn(f"saga {saga} in {source.service}: {why}")
                continue
            if blocked == selection.limit:
                return _Blocked(found, [], True)
            blocked += 1
            found += [*await _blocking_in_progress(source, p, warn), *_failing_runs(p, warn)]
    return _Blocked(found, [], False)


async def _collect(
    selection: Selection,
    sources: Sequence[ServiceStore],
    deployment: Deployment,
    blocked_now: _Blocked,
    *,
    with_ended: bool,
) -> Attention:
    names = {source.service for source in sources}
    found = await read_dead_letters(
        sorted(names | set(selection.services)), deployment.broker_settings, deployment.clock
    )
    if found.problem:
        deployment.warn(f"some records of the topics <service>.dead cannot be shown: {found.problem}")
    blocking, sagas, more = blocked_now
    on_topics = {letter.id for letter in found.letters}
    letters = [*found.letters, *(letter for letter in blocking if letter.id not in on_topics)]
    ended = {letter.ends: letter.what for letter in letters}
    letters = [letter for letter in letters if selection.matches(letter)]
    blocked = {letter.id for letter in blocking}
    items = list[AttentionItem]()
    for letter in sorted(letters, key=lambda letter: letter.time, reverse=True):
        one = AttentionItem(letter, await _find_state(letter, sources, blocked, ended))
        if not (with_ended or one.is_open or one.has_no_end):
            continue
        if len(items) == selection.limit:
            return Attention(items, sagas, True)
        items.append(one)
    return Attention(items, sagas, more)


async def _list_blocked(selection: Selection, deployment: Deployment) -> AsyncIterator[ListedSaga]:
    """List all selected sagas.

    If a store cannot list its sagas, list those with a record on `<service>.dead`. This finds every blocked saga,
    because each one has such a record, and these topics are kept for ever.
    """
    try:
        async for each in list_every_saga(selection, deployment):
            yield each
        return
    except NoListing:  # raised before the first saga
        async with deployment.open_stores(selection.services) as sources:
            found = await read_dead_letters(
                [source.service for source in sources], deployment.broker_settings, deployment.clock
            )
    if found.problem:
        deployment.warn(f"some blocked sagas cannot be found: {found.problem}")
    sagas = [letter.saga for letter in found.letters if letter.saga and selection.includes_saga(letter.saga)]
    if sagas:
        async for each in list_every_saga(replace(selection, sagas=sagas), deployment):
            yield each


class TooOldMessages(NamedTuple):
    """Dead letters of messages that were older than the service's retention."""

    letters: Sequence[DeadLetter]
    """The dead letters, newest first."""
    more: bool
    """True if there are more dead letters than the limit allows, or if some records could not be read."""


async def find_too_old(selection: Selection, deployment: Deployment) -> TooOldMessages:
    """Find dead letters of messages that were older than the service's retention. They block nothing.

    Dead letters that were replayed are left out. The limit counts only the dead letters that are returned.
    """
    found = await read_dead_letters(selection.services, deployment.broker_settings, deployment.clock)
    if found.problem:
        deployment.warn(f"some records of the topics <service>.dead cannot be shown: {found.problem}")
    ended = {letter.ends for letter in found.letters}
    letters = [
        letter
        for letter in found.letters
        if letter.what == "dead letter" and letter.saga and letter.reason.startswith(TOO_OLD)
        if letter.id not in ended and selection.matches(letter)
    ]
    is_cut = len(letters) > selection.limit
    if is_cut:
        deployment.warn(
            f"there are more than {selection.limit} messages older than the retention: repeat the command for the "
            "rest, or raise --limit"
        )
    return TooOldMessages(letters[: selection.limit], is_cut or found.problem is not None)


class BlockingDeadLetter(NamedTuple):
    """A dead letter that currently blocks its saga."""

    letter: DeadLetter
    replays: int
    """Number of dead letters of the saga that have been replayed in this service so far."""


class BlockingDeadLetters(NamedTuple):
    """Dead letters that block sagas."""

    items: Sequence[BlockingDeadLetter]
    """The dead letters; those of the newest saga come first."""
    more: bool
    """True if there are more sagas than the limit allows."""


REPEAT = "there are more than {limit} sagas: repeat the command for the rest, or raise --limit"
"""Warning of a command that acts only on a part of what it finds."""


async def select_blocking(selection: Selection, deployment: Deployment) -> BlockingDeadLetters:
    """Find the blocking dead letters on which a command is to act. Raises `NoStore` if there is no store."""
    found = [each async for each in _list_blocking(selection, deployment)]
    more = None in found
    if more:
        deployment.warn(REPEAT.format(limit=selection.limit))
    return BlockingDeadLetters([each for each in found if each is not None], more)


async def find_blocking(selection: Selection, deployment: Deployment) -> AsyncIterator[BlockingDeadLetter]:
    """Yield the dead letters that block sagas according to the stores, newest saga first. Raises `NoStore` if there is
    no store."""
    async for each in _list_blocking(selection, deployment):
        if each is None:
            deployment.warn(f"there are more than {selection.limit} sagas: raise --limit to see them")
            return
        yield each


async def _list_blocking(selection: Selection, deployment: Deployment) -> AsyncIterator[BlockingDeadLetter | None]:
    """Yield the same as `find_blocking`, and `None` after the last one if there are more sagas than the limit. Only
    sagas with such a dead letter count.
    """
    count = 0
    async with deployment.open_stores(selection.services) as sources:
        owners = await _read_owners(selection, [source.service for source in sources], deployment)
        async for each in _list_blocked(selection, deployment):
            found = list[BlockingDeadLetter]()
            for source in sources:
                p = await _try_read_progress(each.saga, source, deployment.warn)
                if p is not None:
                    letters = _add_owners(await _blocking_in_progress(source, p, deployment.warn), owners)
                    found += [BlockingDeadLetter(letter, p.replays) for letter in filter(selection.matches, letters)]
            if found and count == selection.limit:
                yield None
                return
            count += bool(found)
            for letter in found:
                yield letter


async def _blocking_in_saga(each: ListedSaga, sources: Sequence[ServiceStore], warn: Warn) -> list[DeadLetter]:
    """Return the dead letters and failing runs in a saga's progresses. Some have no record on `<service>.dead`."""
    found = []
    services = {*(status.service for status in each.statuses), *(damage.source.service for damage in each.damaged)}
    for source in sources:
        if source.service not in services:
            continue
        p = await _try_read_progress(each.saga, source, warn)
        if p is not None:
            found += [*await _blocking_in_progress(source, p, warn), *_failing_runs(p, warn)]
    return found


def _failing_runs(p: SagaProgress, warn: Warn) -> list[DeadLetter]:
    try:
        return find_failing(p)
    except UNREADABLE as why:
        warn(f"saga {p.saga} in {p.service}: a transition cannot be read: {why}")
        return []


async def _try_read_progress(saga: str, source: ServiceStore, warn: Warn) -> SagaProgress | None:
    """Read the progress of a saga. Return `None` if the service has none, or if it cannot be read; the latter is
    reported to `warn`."""
    try:
        document = await read_document(source, saga)
        return None if document is None else decode_progress(source, saga, document)
    except UnreadableHistory as why:
        warn(why)
        return None


async def _blocking_in_progress(source: ServiceStore, p: SagaProgress, warn: Warn) -> list[DeadLetter]:
    """Return the dead letters that block a saga in one service.

    Their details come from the transitions that recorded them, which are in the progress or in an archive.
    """
    blocks = [pending for pending in (*p.queue, *p.compensating) if pending.dead]
    recorded: Mapping[str, DeadLetter] = {}
    try:
        recorded = _find_recorded_letters(p, p.transitions, blocks)
        if p.first and any(pending.dead not in recorded for pending in blocks):
            recorded = _find_recorded_letters(p, (await add_archives(source.store, p)).transitions, blocks)
    except (UnreadableHistory, *UNREADABLE) as why:
        warn(f"saga {p.saga} in {source.service}: a transition cannot be read: {why}")
    return [recorded.get(pending.dead or "") or _make_unexplained_letter(p, pending) for pending in blocks]


def _find_recorded_letters(
    p: SagaProgress, transitions: Sequence[Raw], blocks: Sequence[PendingMessage]
) -> Mapping[str, DeadLetter]:
    """Return the dead letters of the pending messages in `blocks`, by id, with the details that the transitions
    recorded."""
    wanted, found = {pending.dead: pending for pending in blocks}, dict[str, DeadLetter]()
    for entry in map(decode_transition, reversed(transitions)):
        if not wanted:
            break
        for dead in entry.letters:
            if (pending := wanted.pop(dead.id, None)) is not None:
                letter, recorded = _make_unexplained_letter(p, pending), asdict(dead)
                what, _ = recorded.pop("kind"), recorded.pop("message")
                found[dead.id] = replace(letter, time=entry.time, what=what, **recorded)
    return found


def _make_unexplained_letter(p: SagaProgress, pending: PendingMessage) -> DeadLetter:
    """Make a dead letter from a pending message alone, without the details that its transition recorded."""
    return DeadLetter(
        service=p.service,
        id=pending.dead or "",
        what="dead letter",
        time="",
        reason="not known: the transition in which the message was given up cannot be read",
        remedy="",
        saga=p.saga,
        type=pending.message.type,
        message=pending.message.id,
        handler=pending.handler,
        headers=decode_headers_as_text((*envelope.headers_of(pending.message, None), *pending.message.foreign)),
    )


async def _find_state(
    letter: DeadLetter, sources: Sequence[ServiceStore], blocked: set[str], ended: Mapping[str | None, str]
) -> str:
    if letter.id in ended:
        return ended[letter.id]
    if letter.what == FAILING:
        return TRIED_AGAIN
    if letter.id in blocked:
        return "blocks"
    if letter.saga is None or (letter.undoes is None and letter.handler is None):
        return "-"
    source = next((source for source in sources if source.service == letter.service), None)
    if source is None or not letter.saga:
        return "-"
    seen = await read_summary(source, letter.saga)
    if seen is None:  # the progress has expired, which it does not while a compensation is pending
        return "-" if letter.undoes is None else "over"
    p = seen.progress
    if p is None:  # a damaged progress is reported where sagas are listed
        return "-"
    if letter.undoes is not None:
        is_aborted = any(intent.kind == ABORT and intent.handler == letter.handler for intent in p.intents)
        return "goes on" if is_aborted or any(r.event.id == letter.undoes for r in p.results) else "over"
    return "blocks" if any(pending.dead == letter.id for pending in (*p.queue, *p.compensating)) else "-"


# -------------------------------------------------------------------- parked runs


WHAT = "parked"
"""Kind of an item for a parked run. Such an item is not on a topic, and needs no operator."""
FAILING = "failing"
"""Kind of an item for a parked run that fails because of the service's own code. It needs a release with a fix."""


class ParkedRuns(NamedTuple):
    """Parked runs, as `DeadLetter` values.

    In each value, `id` is the id of the parked run, and `time` is the time of its last attempt. The reason consists of
    its last error and the time of its next attempt.
    """

    runs: Sequence[DeadLetter]
    """The parked runs; those of the newest saga come first."""
    more: bool
    """True if there are more sagas than the limit allows."""


async def select_parked_runs(selection: Selection, deployment: Deployment) -> ParkedRuns:
    """Find the parked runs on which a command is to act. Only sagas with such a run count for the limit. Raises
    `NoStore` if there is no store.
    """
    runs, count = list[DeadLetter](), 0
    async with deployment.open_stores(selection.services) as sources:
        async for each in _list_parked(selection, sources, deployment):
            found = [
                run for source in sources for run in await _list_parked_in_saga(source, each.saga, deployment.warn)
            ]
            found = [run for run in found if selection.matches(run)]
            if found and count == selection.limit:
                deployment.warn(REPEAT.format(limit=selection.limit))
                return ParkedRuns(runs, more=True)
            count += bool(found)
            runs += found
    return ParkedRuns(runs, more=False)


async def _list_parked(
    selection: Selection, sources: Sequence[ServiceStore], deployment: Deployment
) -> AsyncIterator[ListedSaga]:
    """List all selected sagas, which may have parked runs.

    If a store cannot list its sagas, list those with a timer that has not been handled, because every parked run has
    one.
    """
    try:
        async for each in list_every_saga(selection, deployment):
            yield each
        return
    except NoListing:  # raised before the first saga
        sagas = dict[str, None]()
        for source in sources:
            async for saga in _list_sagas_with_timers(source.service, deployment):
                sagas[saga] = None
    if sagas:
        async for each in list_every_saga(replace(selection, sagas=[*sagas]), deployment):
            yield each


async def _list_sagas_with_timers(service: str, deployment: Deployment) -> AsyncIterator[str]:
    """List the sagas with a timer that the service has not handled yet. Raises `SagaError` if the broker cannot be
    read."""
    async with open_administration(deployment.broker_settings, deployment.clock) as broker:
        positions = (await broker.describe_group(service)).positions
        for topic in await broker.count_partitions(list(tiers_of(service))):
            async for record in broker.scan(topic):
                at = Partition(record.topic, record.partition)
                if record.key is not None and record.offset >= positions.get(at, 0):
                    yield record.key.decode("utf-8", "backslashreplace")


async def _list_parked_in_saga(source: ServiceStore, saga: str, warn: Warn) -> list[DeadLetter]:
    try:
        document = await read_document(source, saga)
        p = None if document is None else decode_progress(source, saga, document)
        return [] if p is None else [_to_dead_letter(p, run) for run in find_parked_runs(p)]
    except (UnreadableHistory, *UNREADABLE) as why:
        warn(f"saga {saga} in {source.service}: {why}")
        return []


def find_failing(p: SagaProgress) -> list[DeadLetter]:
    """Find the runs that are parked because the service's own code fails. Raises one of `UNREADABLE` if a transition
    cannot be read."""
    found = [_to_dead_letter(p, run) for run in find_parked_runs(p)]
    return [replace(letter, what=FAILING) for letter in found if letter.blame == "code"]


def _to_dead_letter(p: SagaProgress, run: ParkedRun) -> DeadLetter:
    last = next((e for e in map(decode_transition, reversed(p.transitions)) if _matches(e, p, run)), None)
    error = f"`saga sagas show {p.saga}` shows why" if last is None else (last.reason or "")
    again = "checked each minute" if run.put_off else f"tried again at {iso(min(run.due_ms, LATEST_MS))}"
    return DeadLetter(
        service=p.service,
        id=run.id,
        what=WHAT,
        time="" if last is None else last.time,
        reason=f"{error}; {again}",
        remedy="",
        saga=p.saga,
        type=run.message.type,
        message=run.message.id,
        handler=run.handler if last is None else last.handler,
        attempts=run.attempts,
        blame=last.failures[-1].blame if last is not None and last.failures else None,
    )


def _matches(entry: Transition, p: SagaProgress, run: ParkedRun) -> bool:
    """Return whether this transition parked the run.

    Several compensations may run for the same outcome. The names in their intents distinguish them.
    """
    if (entry.outcome, entry.attempt, entry.message) != ("retrying", run.attempts, run.message.id):
        return False
    if not run.undoes:
        return entry.handler == run.handler
    name = next((i.name for i in p.intents if i.kind == "undo" and i.handler == run.handler), "")
    return entry.handler == name if name else entry.handler != run.handler
