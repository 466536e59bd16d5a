"""The operator console behind the page. It reads the stores and topics of services, and sends operator commands.

It reads as `saga dead`, `saga sagas show` and `saga audit` do. It sends commands as they do, on the services' command
topics. Reading the dead letters takes time in proportion to the length of their topics. So it happens in the
background, and the result is cached. The longer the read took, the longer it is cached.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from saga.choreography.overview import Overview
from saga.configuration.settings import Settings
from saga.contracts.library import Library, find_library
from saga.errors import BadInput, NoStore, SagaError
from saga.messaging import controls
from saga.messaging.controls import ControlEntry, Switch, Target
from saga.ops import operator_commands
from saga.ops.attention import AttentionItem, find_attention, find_blocking
from saga.ops.bulk_commands import BulkCommand, BulkRequest, LetterKey
from saga.ops.dead_letters import RECORDS_MAX, DeadLetter
from saga.ops.event_fields import EventFields, read_event_fields
from saga.ops.explanation import SagaExplanation, explain
from saga.ops.letter_groups import LetterTable
from saga.ops.letter_payload import read_payload
from saga.ops.operator_commands import REPLAYS_MAX, CommandAnswer, CommandRequest, describe_answer
from saga.ops.saga_facts import complete_facts, read_offsets_of_all, read_overview
from saga.ops.saga_situation import NO_REPORTS, SagaReports
from saga.ops.sagas import OpenWork, SagaDetails, add_reasons, list_open_work, read_saga
from saga.ops.selection import Deployment, Operator, Selection
from saga.ops.sources import Warn, open_stores
from saga.support.clock import Clock, from_iso

log = logging.getLogger("saga.monitor")
T = TypeVar("T")

FRESH_S = 2.0
"""Age in seconds up to which cached data are used without a refresh. Data that took long to read are used for
longer."""
REST = 4.0
"""Minimum ratio between the pause after a read and the time that the read took."""
OLD_S = 10.0
"""The page shows the age of its data if they are older than this number of seconds."""
PATIENCE_S = 0.06
"""Seconds for which a page waits for a refresh. After that it shows older data, or says that the data are being
read."""
OFFSETS_S_MAX = 2.0
"""Seconds for which the page of a saga waits for the broker to report which services run and how far they are."""
ACTING_S = 5.0
"""Seconds for which a page waits for the services' answers after an operator has acted."""
LETTERS_MAX = RECORDS_MAX
"""Maximum number of items that are read."""
BULKS_MAX = 4
"""Maximum number of bulk commands that run at the same time."""
BULKS_KEPT = 20
"""Maximum number of bulk commands that are kept, including those that have ended."""
TROUBLES_MAX = 20


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[T]):
    """The result of the latest completed read of some data."""

    value: T | None = None
    """The data; `None` if the first read has not finished, or if the latest one failed."""
    troubles: tuple[str, ...] = ()
    """Reasons why the data, or a part of them, are missing."""
    age_s: float = 0.0
    rest_s: float = 0.0
    """Seconds for which the result is used in addition to `FRESH_S`, because reading it took long."""
    reading_s: float = 0.0
    """Seconds since the current read began; 0 if no read is running."""

    @property
    def is_coming(self) -> bool:
        """True if the first read has not finished."""
        return self.value is None and not self.troubles

    @property
    def is_old(self) -> bool:
        """True if the data are so old that the page must say how old they are."""
        return self.value is not None and self.age_s > OLD_S + 2 * self.rest_s

    @property
    def is_late(self) -> bool:
        """True if the data are old because reading them takes long, and not because the page was not used for some
        time."""
        return self.is_old and self.reading_s > OLD_S + 2 * self.rest_s


class CachedRead(Generic[T]):
    """A read whose result is cached for a short time. It never runs twice at the same time."""

    def __init__(self, read: Callable[[list[str]], Awaitable[T]], clock: Clock) -> None:
        self._read, self._clock = read, clock
        self._last: Snapshot[T] | None = None
        self._at_s = self._began_s = 0.0
        self._fresh_s = FRESH_S
        self._task: asyncio.Task[None] | None = None
        self._is_stale = False

    def forget(self) -> None:
        """Mark the result as stale, because an operator has changed something. It is refreshed when it is next used."""
        self._is_stale = True

    async def get(self, patience_s: float = PATIENCE_S) -> Snapshot[T]:
        """Return the result. If it is old, start a refresh and wait for it, but only for `patience_s` seconds. After
        that return the old result."""
        if self._task is None and (self._last is None or self._is_stale or self._age_s() > self._fresh_s):
            self._is_stale, self._began_s = False, self._clock.monotonic_s()
            self._task = asyncio.get_running_loop().create_task(self._refresh(), name="reading")
        if self._task is not None:
            await asyncio.wait([self._task], timeout=patience_s)
        last: Snapshot[T] = self._last if self._last is not None else Snapshot()
        age_s = self._age_s() if self._last is not None else 0.0
        reading_s = self._clock.monotonic_s() - self._began_s if self._task is not None else 0.0
        return Snapshot(last.value, last.troubles, age_s, self._fresh_s - FRESH_S, reading_s)

    async def end(self) -> None:
        """Wait until no read is running. A read that has begun in a thread cannot be cancelled."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _age_s(self) -> float:
        return self._clock.monotonic_s() - self._at_s

    async def _refresh(self) -> None:
        troubles: list[str] = []
        value, began_s = None, self._clock.monotonic_s()
        try:
            value = await asyncio.to_thread(asyncio.run, self._call(troubles))  # the page is rendered meanwhile
        except SagaError as why:
            troubles.append(str(why))
        except Exception:
            log.exception("the monitor's page could not read something")
            troubles.append("it could not be read; the monitor's log says why")
        finally:
            self._task = None
        more = len(troubles) - TROUBLES_MAX
        shown = [*troubles[:TROUBLES_MAX], *([f"and {more} more"] if more > 0 else [])]
        self._last, self._at_s = Snapshot(value, tuple(shown)), self._clock.monotonic_s()
        self._fresh_s = max(FRESH_S, REST * (self._at_s - began_s))

    async def _call(self, troubles: list[str]) -> T:
        return await self._read(troubles)


@dataclass(frozen=True, slots=True)
class ServiceControls:
    """The control log of one service, prepared for display."""

    service: str
    switches: tuple[Switch, ...] = ()
    """Settings of flags that have not expired."""
    active: Mapping[Target, ControlEntry] = field(default_factory=dict)
    entries: tuple[ControlEntry, ...] = ()
    """All entries of the control log, newest first."""
    unknown: tuple[str, ...] = ()
    wrong: str | None = None
    """The first contradiction in the control log, or the reason why it cannot be read; `None` if there is neither."""
    digest: str = ""

    @property
    def is_quiet(self) -> bool:
        """True if there is nothing to show but the name, because no control is active and the control log is in
        order."""
        return not (self.switches or self.active or self.unknown or self.wrong)


@dataclass(frozen=True, slots=True)
class StoredSaga:
    """A saga as recorded in the stores, together with its unfinished work and the fields of its events."""

    saga: str
    shown: SagaDetails
    work: OpenWork
    values: Mapping[tuple[str, int], Sequence[EventFields]]
    """Decoded events by service and number of the transition. Sensitive fields are redacted."""
    explanation: SagaExplanation
    troubles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunningBulk:
    """A bulk command that an operator has started on the page."""

    number: int
    title: str
    """What its dead letters have in common."""
    command: BulkCommand
    task: asyncio.Task[None]


def collect(troubles: list[str]) -> Warn:
    """Return a `Warn` function that appends each reason to this list as a string."""
    return lambda why: troubles.append(str(why))


class OperatorConsole:
    """Everything that the page can read and do. Use it inside `open_console`."""

    def __init__(self, settings: Settings, clock: Clock, addresses: Sequence[str]) -> None:
        self._settings, self.clock, self._addresses = settings, clock, tuple(addresses)
        self._letters: CachedRead[LetterTable] = CachedRead(self._read_letters, clock)
        self._controls: CachedRead[tuple[ServiceControls, ...]] = CachedRead(self._read_controls, clock)
        self._overview: CachedRead[Overview] = CachedRead(self._read_overview, clock)
        self._bulks: dict[int, RunningBulk] = {}
        self._bulk_number = 0

    async def end(self) -> None:
        """Stop all bulk commands. Wait until they have ended and no read is running."""
        for each in self._bulks.values():
            each.command.stop("the monitor was stopped")
        await asyncio.gather(*(each.task for each in self._bulks.values()), return_exceptions=True)
        await self._letters.end()
        await self._controls.end()
        await self._overview.end()

    # ---------------------------------------------------------------- reading

    async def letters(self, patience_s: float = PATIENCE_S) -> Snapshot[LetterTable]:
        """Return everything that may need a person, newest first: see `CachedRead.get`."""
        return await self._letters.get(patience_s)

    async def letter(self, service: str, id_: str) -> tuple[AttentionItem | None, Snapshot[LetterTable]]:
        """Return the dead letter, escalation or failing run with this service and id, and the snapshot in which it was
        looked for. The first is `None` if the snapshot does not contain it."""
        found = await self.letters()
        return None if found.value is None else found.value.by_key.get((service, id_)), found

    async def read_payload(self, letter: DeadLetter, *, searches: bool) -> EventFields | None:
        """Read the message of a dead letter, with its sensitive fields redacted. Return `None` if it was not found.

        Args:
            searches: True to search the whole topic of dead letters if the saga's progress does not have the message.
        """
        troubles: list[str] = []
        try:
            deployment = self._deployment(collect(troubles))
            return await asyncio.to_thread(asyncio.run, read_payload(letter, deployment, searches=searches))
        except SagaError as why:
            return EventFields(type=letter.type or "", id=letter.message or "", fields=None, problem=str(why))

    async def controls(self) -> Snapshot[tuple[ServiceControls, ...]]:
        """Return the control logs of all services."""
        return await self._controls.get()

    async def overview(self) -> Snapshot[Overview]:
        """Return the choreography: the contracts of the current folder, together with the manifests next to them."""
        return await self._overview.get()

    async def saga(self, saga: str, reports: SagaReports = NO_REPORTS) -> StoredSaga:
        """Read one saga in all services. Raises `SagaError` if there is no store, or if a store cannot be read.

        Args:
            reports: What the monitor knows about the saga.
        """
        return await asyncio.to_thread(asyncio.run, self._load_saga(saga, reports))

    async def _load_saga(self, saga: str, reports: SagaReports) -> StoredSaga:
        troubles: list[str] = []

        def warn(why: object) -> None:
            troubles.append(str(why))

        overview = self._read_choreography(warn)
        notes: list[str] = []
        noting = self._deployment(lambda why: notes.append(str(why)))
        readings = await read_offsets_of_all(overview, noting, seconds_max=OFFSETS_S_MAX)
        seen = await read_saga(saga, self._deployment(warn))
        if seen.undoing:
            seen = await add_reasons(saga, seen, self._deployment(warn))
        values = {(h.service, n): fields for h in seen.histories for n, fields in read_event_fields(h).items()}
        facts = await complete_facts(saga, seen, readings, noting)
        explanation = explain(replace(facts, reports=reports, notes=tuple(notes)))
        work = list_open_work(seen, has_outcome=explanation.outcome is not None)
        return StoredSaga(saga, seen, work, values, explanation, tuple(troubles))

    def _read_choreography(self, warn: Warn) -> Overview:
        """Read the choreography. If manifests or contracts cannot be used, it is returned without them."""
        try:
            return read_overview()
        except SagaError as why:
            warn(why)
        try:
            return Overview(find_library(), {})
        except SagaError:  # the same reason
            return Overview(Library(folder=Path(), contracts={}, topics={}, by_path={}, by_fingerprint={}), {})

    @property
    def _addresses_or_default(self) -> Sequence[str]:
        return self._addresses or (self._settings.store,)

    def _deployment(self, warn: Warn = log.warning) -> Deployment:
        return Deployment(stores=self._addresses_or_default, settings=self._settings, clock=self.clock, warn=warn)

    async def _read_letters(self, troubles: list[str]) -> LetterTable:
        selection, deployment = Selection(limit=LETTERS_MAX, only_dead=True), self._deployment(collect(troubles))
        return LetterTable.of(await find_attention(selection, deployment, with_sagas=False))

    async def _read_controls(self, troubles: list[str]) -> tuple[ServiceControls, ...]:
        try:
            async with open_stores(self._addresses_or_default, self.clock) as sources:
                services = [source.service for source in sources]
        except NoStore:
            return ()
        return tuple([await self._read_control_log(service) for service in dict.fromkeys(services)])

    async def _read_overview(self, _: list[str]) -> Overview:
        return read_overview()

    async def _read_control_log(self, service: str) -> ServiceControls:
        try:
            control_log = await operator_commands.read_control_log(service, self._deployment())
        except SagaError as why:
            return ServiceControls(service, wrong=str(why))
        now_ms, now = self.clock.now_ms(), controls.read_controls(control_log)
        flags = (*now.flags.for_all.values(), *now.flags.for_one.values())
        return ServiceControls(
            service,
            tuple(switch for switch in flags if switch.until is None or from_iso(switch.until) > now_ms),
            controls.active_entries(now, now_ms),
            tuple(reversed(controls.entries_of(control_log))),
            now.unknown,
            controls.verify_control_log(control_log),
            controls.digest_of(control_log),
        )

    # ---------------------------------------------------------------- acting

    async def act(self, keys: Sequence[tuple[str, str]], wish: CommandRequest, *, again: bool = False) -> list[str]:
        """Send a command about each of these items to its service. Return a sentence about each result.

        Args:
            keys: Service and id of each item.

        Raises:
            SagaError: The commands could not be sent.
        """
        try:
            letters, sentences = await self._select(keys, wish, again)
            if not letters:
                return sentences
            sent = await operator_commands.send_commands(letters, wish, self._deployment())
            return sentences + [
                _describe_answer(answer, wish)
                async for answer in operator_commands.wait_for_answers(sent, self._deployment(), ACTING_S)
            ]
        finally:
            self._letters.forget()

    async def _select(
        self, keys: Sequence[tuple[str, str]], wish: CommandRequest, again: bool
    ) -> tuple[list[DeadLetter], list[str]]:
        """Return the items for which the command can be sent, and a sentence about each of the other items."""
        troubles: list[str] = []
        sentences: list[tuple[tuple[str, str], str]] = []
        if wish.wanted == "resolve" and wish.answered is None:
            letters = await self._find_escalations(keys)
        else:
            letters, sentences = await self._find_blocking(keys, wish, again, troubles)
        known = {(letter.service, letter.id) for letter in letters}
        looping = {key for key, _ in sentences}
        gone = [
            f"{service}: {id_} no longer blocks a saga"
            for service, id_ in keys
            if (service, id_) not in known | looping
        ]
        return letters, [*(text for _, text in sentences), *gone, *troubles[:TROUBLES_MAX]]

    async def _find_blocking(
        self, keys: Sequence[tuple[str, str]], wish: CommandRequest, again: bool, troubles: list[str]
    ) -> tuple[list[DeadLetter], list[tuple[tuple[str, str], str]]]:
        """Return the dead letters that block sagas according to the stores. Dead letters that were replayed too often
        are returned separately, with a sentence about each."""
        letters: dict[tuple[str, str], DeadLetter] = {}
        looping = []
        sagas = dict.fromkeys(each.letter.saga for each in await self._find_items(keys) if each.letter.saga)
        if not sagas:
            return [], []
        selection = Selection(sagas=tuple(sagas), limit=LETTERS_MAX, only_dead=True)
        async for each in find_blocking(selection, self._deployment(collect(troubles))):
            key = (each.letter.service, each.letter.id)
            if key not in keys or key in letters:
                continue
            if wish.wanted == "replay" and not again and each.replays >= REPLAYS_MAX:
                often = f"{each.letter.saga} had {each.replays} replays in {key[0]} already"
                looping.append((key, f"{often}: fix the cause, then tick the box for it"))
            else:
                letters[key] = each.letter
        return [*letters.values()], looping

    async def _find_items(self, keys: Sequence[tuple[str, str]]) -> list[AttentionItem]:
        """Return those of the items with these services and ids that are still known."""
        found = (await self._letters.get(ACTING_S)).value
        return [] if found is None else [found.by_key[key] for key in dict.fromkeys(keys) if key in found.by_key]

    async def _find_escalations(self, keys: Sequence[tuple[str, str]]) -> list[DeadLetter]:
        """Return the escalations that an operator may close. Escalations of failing compensations are left out, because
        they end when the compensation succeeds."""
        meant = await self._find_items(keys)
        return [e.letter for e in meant if e.letter.what == "escalation" and e.letter.undoes is None and e.letter.saga]

    # ---------------------------------------------------------------- acting on many

    def list_bulks(self) -> list["RunningBulk"]:
        """List the bulk commands that were started here, newest first."""
        return [*reversed(self._bulks.values())]

    def get_bulk(self, number: int) -> "RunningBulk | None":
        """Return the bulk command with this number; `None` if it is not known any more."""
        return self._bulks.get(number)

    def start_bulk(self, title: str, items: Sequence[AttentionItem], request: BulkRequest) -> int:
        """Begin to send a command about many dead letters. Return the number of the bulk command.

        Items that do not block a saga are left out. Raises `BadInput` if none is left, or if too many bulk commands are
        running.
        """
        letters = [each.letter for each in items if each.state == "blocks"]
        keys = [LetterKey(letter.service, letter.id, letter.saga) for letter in letters if letter.saga]
        if not keys:
            raise BadInput("none of these blocks a saga any more: nothing was sent")
        if sum(not each.command.progress.is_over for each in self._bulks.values()) >= BULKS_MAX:
            raise BadInput(f"{BULKS_MAX} bulk actions are running: wait for one to end, or stop one")
        self._bulk_number += 1
        command = BulkCommand(keys, request, self._deployment())
        task = asyncio.get_running_loop().create_task(self._run_bulk(command), name="bulk")
        self._bulks[self._bulk_number] = RunningBulk(self._bulk_number, title, command, task)
        over = [number for number, each in self._bulks.items() if each.command.progress.is_over]
        for number in over[: max(0, len(self._bulks) - BULKS_KEPT)]:
            del self._bulks[number]
        return self._bulk_number

    async def _run_bulk(self, command: BulkCommand) -> None:
        try:
            await asyncio.to_thread(asyncio.run, command.run())  # the page is rendered meanwhile
        except Exception:
            log.exception("a bulk action ended with an error")
        finally:
            self._letters.forget()

    # ---------------------------------------------------------------- controls

    async def switch(self, service: str, wanted: Switch, operator: Operator) -> str:
        """Set or end a control of a service. Return a sentence about the result.

        Raises `BadInput` if the control is invalid or the service refuses it, and another `SagaError` if it cannot be
        sent.
        """
        if mistakes := controls.find_mistakes(wanted):
            raise BadInput("; ".join(mistakes))
        try:
            wish = await operator_commands.send_switch(service, wanted, operator, self._deployment())
            entry = await operator_commands.wait_for_entry(service, wish, self._deployment(), ACTING_S)
        finally:
            self._controls.forget()
        if entry is None:
            return f"{service} has not applied it yet: does it run? The request stays, and is applied when it does"
        if entry.refused is not None:
            raise BadInput(f"{service} refuses it: {entry.refused}")
        return f"{service}: {controls.describe_switch(wanted)}"


def _describe_answer(answer: CommandAnswer, wish: CommandRequest) -> str:
    letter = answer.sent.dead_letter
    reason = "" if answer.is_success(wish.wanted) else f" - {answer.reason}"
    return f"{letter.service}, {letter.saga}: {describe_answer(answer)}{reason}"


@asynccontextmanager
async def open_console(
    settings: Settings, clock: Clock, addresses: Sequence[str] = ()
) -> AsyncIterator[OperatorConsole]:
    """Open the console within the block."""
    desk = OperatorConsole(settings, clock, addresses)
    try:
        yield desk
    finally:
        await desk.end()
