"""Worker of a shared monitor, based on Faust. It has some partitions of the topic of transition events, applies their
records, and stores the results in tables. The changelogs of the tables are topics.

Faust assigns partitions to workers, and reassigns those of a dead worker. It restores a table from its changelog before
any record is applied. The position is written to the same table, after all table changes up to it are acknowledged. So
no transition is lost when a worker dies, and one that is applied twice is recognised by its number.
"""

import asyncio
import logging
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import faust
from aiokafka.errors import IllegalStateError, KafkaError
from faust.auth import OAuthCredentials, SASLCredentials, SSLCredentials
from faust.stores.base import Store
from faust.tables.table import Table
from faust.types import TP, AppT

from saga.broker.adapter import ClientOptions, Copies
from saga.errors import BrokerUnavailable, SagaError
from saga.messages import Record
from saga.messaging.names import TRANSITIONS
from saga.monitor.counters import MINUTE_MS, MINUTES
from saga.monitor.read_model import ReadModel
from saga.monitor.shared.partitions import PartitionModel, parse_partition
from saga.support.clock import Clock

GAPS_MAX, AGAIN_S = 3, 2.0
"""How often missing records are requested again, and how many seconds to wait for each request.

After that the records are considered non-existent. The wait is long enough for thousands of records to arrive that
Faust had already fetched.
"""
BATCH_RECORDS = 100
"""Maximum number of records that are applied before the worker waits until their table changes are acknowledged."""
EXPIRES_S = 120 * MINUTES
"""Seconds for which the rate table keeps a minute."""
SESSION_S, HEARTBEAT_S, REQUEST_S = 10.0, 1.0, 40.0
LOOK_S, LOG_S = 0.2, 5.0
"""Seconds between two checks of the app's state, and between two checks of whether the topic still has the same log."""

for _name in ("faust", "mode"):
    logging.getLogger(_name).setLevel(
        logging.CRITICAL
    )  # problems that matter raise an exception, or leave an answer missing


FetchLogIds: TypeAlias = Callable[[Collection[str]], Awaitable[Mapping[str, str]]]
"""Function that returns the log ids of topics; see `saga.broker.port.Broker.fetch_log_ids`."""


class MonitorWorker:
    """A worker, with the read models of its share of the partitions."""

    def __init__(
        self, name: str, address: str, partitions: int, sagas_max: int, clock: Clock, log_ids: FetchLogIds
    ) -> None:
        self.name, self.partitions = name, partitions
        self.url = f"http://{address}"
        """Address to which the other workers send questions."""
        self.parts: dict[int, PartitionModel] = {}
        """Assigned partitions, each with its read model."""
        self.ready = False
        """True if the tables of all assigned partitions have been restored."""
        self._sagas_max, self._clock, self._log_ids = sagas_max, clock, log_ids
        self._log_looked_s = 0.0
        """Time of the last check of the log ids."""
        self._table_ids: dict[str, str] = {}
        """Log ids of the changelog topics when they were first read."""
        self._app: faust.App | None = None
        self._sent: list[asyncio.Future[Any]] = []
        """Futures of table changes that are not acknowledged yet."""
        self._minute_s = 0.0
        """Time that determines under which minute a rate is written."""
        self._gaps: Counter[int] = Counter()
        """For each partition, how often missing records were requested again without success."""
        self._sought_s: dict[int, float] = {}
        """For each partition, when reading last restarted at its position."""
        self._windows: Any = None
        """The rate table, in the form in which Faust writes to the window of the current minute. `None` until the app
        is built.
        """
        self._taken: asyncio.Queue[Any] = asyncio.Queue(BATCH_RECORDS)
        """Records that Faust has delivered and that have not been applied yet."""

    def ready_models(self) -> dict[int, ReadModel]:
        """Return the read models by partition; empty while they are being restored."""
        return {partition: part.read_model for partition, part in self.parts.items()} if self.ready else {}

    def owners(self) -> dict[str, set[int]]:
        """Return the partitions that each worker had at the last assignment, by the worker's address."""
        if self._app is None:
            return {}
        found: Mapping[str, Mapping[str, Iterable[int]]] = self._app.router.tables_metadata()
        topic = changelog_topic(self.name)
        return {url: set(topics[topic]) for url, topics in found.items() if topics.get(topic)}

    # ---------------------------------------------------------------- life

    async def follow(self, options: ClientOptions, copies: Copies) -> None:
        """Apply existing and new records until cancelled. Raises `SagaError` if the worker cannot continue."""
        with tempfile.TemporaryDirectory() as folder:
            app = self._app = self._create_app(options, copies, folder)
            folding = asyncio.get_running_loop().create_task(self._run(), name="folding")
            try:
                await app.start()
                was_settled = False
                while not folding.done() and not app.should_stop:
                    await self._clock.sleep(LOOK_S)
                    is_settled = _is_settled(app)
                    if is_settled and was_settled and not self.ready:
                        self._restore_rates(app)
                        if await self._compare_log() is not None:
                            self.ready = True
                            await self._seek(set(self.parts))
                    elif self.ready and self._clock.monotonic_s() >= self._log_looked_s + LOG_S:
                        await self._restart_recreated()
                    was_settled = is_settled
                over = folding.exception() if folding.done() else app.crash_reason
                raise self._describe_end(over) from over
            except KafkaError as why:
                raise self._describe_end(why) from why
            finally:
                self.ready = False
                folding.cancel()
                await asyncio.wait([folding])
                await app.stop()

    def _describe_end(self, why: BaseException | None) -> SagaError:
        return SagaError(f"the shared monitor {self.name} cannot continue: {type(why).__name__}: {why}")

    def _create_app(self, options: ClientOptions, copies: Copies, folder: str) -> faust.App:
        """Create the Faust app with its two tables."""
        app = faust.App(
            self.name,
            env={},  # only our own settings apply
            datadir=folder,
            broker=[f"kafka://{server}" for server in options["bootstrap_servers"]],
            broker_credentials=_build_credentials(options),
            broker_session_timeout=SESSION_S,
            broker_heartbeat_interval=HEARTBEAT_S,
            broker_request_timeout=REQUEST_S,
            producer_acks=-1,
            producer_request_timeout=REQUEST_S,
            consumer_auto_offset_reset="earliest",
            topic_replication_factor=copies.replication,
            topic_partitions=self.partitions,
            topic_disable_leader=True,
            table_standby_replicas=0,
            store="memory://",
            stream_wait_empty=False,
            web_enabled=False,
            canonical_url=self.url,
            Table=_build_table_class(self),
        )
        config = {"min.insync.replicas": str(copies.in_sync)}
        app.Table(KEPT, key_type=bytes, value_type=bytes, partitions=self.partitions, extra_topic_configs=config)
        rates = app.Table(
            RATES,
            value_type=bytes,
            partitions=self.partitions,
            extra_topic_configs={**config, "segment.ms": str(1000 * EXPIRES_S)},
        )
        windows: Any = rates.tumbling(MINUTE_MS / 1000, expires=EXPIRES_S)
        self._windows = windows.relative_to(lambda _: self._minute_s)
        source = app.topic(TRANSITIONS, key_serializer="raw", value_serializer="raw", allow_empty=True)

        async def taking(stream: Any) -> None:
            async for event in stream.noack().events():
                await self._taken.put(event)

        app.agent(source, name="taking")(taking)
        return app

    # ---------------------------------------------------------------- applying records

    async def _run(self) -> None:
        """Apply delivered records until cancelled. A batch contains the records that are in the queue at that time."""
        while True:
            events = [await self._taken.get()]
            while len(events) < BATCH_RECORDS and not self._taken.empty():
                events.append(self._taken.get_nowait())
            while not self.ready:  # before that the counts are incomplete
                await self._clock.sleep(LOOK_S)
            await self._apply(events)

    async def _apply(self, events: Sequence[Any]) -> None:
        """Apply these records. When this returns, their changes are in the changelogs of both tables, followed by the
        new positions."""
        assert self._app is not None
        table, gaps, moved = self._app.tables[KEPT], set[int](), set[int]()
        for event in events:
            message = event.message
            part = self.parts.get(message.partition)
            if part is None or message.offset < part.position:  # the partition was revoked, or assigned again
                continue
            if message.offset > part.position:
                if self._clock.monotonic_s() < self._sought_s.get(part.partition, 0.0) + AGAIN_S:
                    continue
                if self._gaps[part.partition] < GAPS_MAX:
                    gaps.add(part.partition)
                    continue
            self._gaps[part.partition] = 0
            part.position = message.offset + 1
            moved.add(part.partition)
            for key, value in part.apply(_to_record(message)):
                table.send_changelog(part.partition, key, value, value_serializer="raw")
            while sum(len(each.read_model.sagas) for each in self.parts.values()) > self._sagas_max:
                largest = max(self.parts.values(), key=lambda each: len(each.read_model.sagas))
                for key, value in largest.forget_one():
                    table.send_changelog(largest.partition, key, value, value_serializer="raw")
            await self._clock.sleep(0)
        await self._wait_acknowledged()
        for part in list(self.parts.values()) if self.ready else ():
            for rate in part.take_changed_rates():
                self._minute_s = rate.minute * MINUTE_MS / 1000
                self._windows[rate.name] = rate.value
        for part in [self.parts[number] for number in moved if number in self.parts]:
            table.send_changelog(part.partition, *part.encode_position(), value_serializer="raw")
        await self._wait_acknowledged()
        self._gaps.update(gaps)
        if gaps:
            await self._seek(gaps)

    async def _restart_recreated(self) -> None:
        """If the transition topic was deleted and created again, read it from its beginning."""
        if replaced := await self._compare_log():
            await self._seek(replaced)

    async def _compare_log(self) -> set[int] | None:
        """Return the partitions whose positions belong to another log of the topic. Return `None` if the broker does
        not answer.

        Raises `SagaError` if the changelog topics were deleted and created again. The new ones would get only future
        changes, and not the entries that are now only in the memory of workers.
        """
        tables = [changelog_topic(self.name, table) for table in (KEPT, RATES)]
        try:
            ids = dict(await self._log_ids([TRANSITIONS, *tables]))
        except BrokerUnavailable:
            return None
        self._log_looked_s, log_id = self._clock.monotonic_s(), ids.pop(TRANSITIONS, None)
        if gone := [topic for topic, id_ in ids.items() if self._table_ids.setdefault(topic, id_) != id_]:
            raise SagaError(
                f"the shared monitor {self.name} cannot continue: {' and '.join(gone)} was deleted and created again; "
                "start all its workers again: they read the topic from its beginning"
            )
        replaced = {number for number, part in self.parts.items() if log_id and part.note_log_id(log_id)}
        for number in replaced:
            self._gaps[number] = 0
        return replaced

    async def _seek(self, numbers: set[int]) -> None:
        """Restart the reading of these partitions at their positions.

        This is needed when partitions are reassigned, because Faust then drops records that it has fetched, and would
        not fetch them again.
        """
        assert self._app is not None
        consumer, places = self._app.consumer, {number: TP(TRANSITIONS, number) for number in numbers}
        begins = await consumer.earliest_offsets(*places.values())
        mine = {place: self.parts[number] for number, place in places.items() if number in self.parts}
        for place, part in mine.items():
            part.position = max(part.position, begins.get(place) or 0)

        async def seek(place: TP, position: int) -> None:
            with suppress(IllegalStateError):  # being reassigned: its next owner begins at the stored position
                await consumer.seek(place, position)
                self._sought_s[place.partition] = self._clock.monotonic_s()

        await asyncio.gather(*(seek(place, part.position) for place, part in mine.items()))

    async def _wait_acknowledged(self) -> None:
        sent, self._sent = self._sent, []
        for each in sent:
            await each

    def _add_sent(self, sent: asyncio.Future[Any]) -> None:
        self._sent.append(sent)

    # ---------------------------------------------------------------- assigned partitions

    def _assign(self, partitions: set[int]) -> None:
        """Take over these partitions, and drop all others. No question is answered until the tables of all of them are
        restored."""
        self.ready = False
        self.parts = {number: self.parts.get(number) or PartitionModel(number) for number in sorted(partitions)}

    def _restore_rates(self, app: faust.App) -> None:
        """Restore the counts from the rate table, after both tables have been read."""
        table: Any = app.tables[RATES]
        rows = table.data
        newest_s = max((part.counts.newest_ms for part in self.parts.values()), default=0) / 1000
        for (name, (begin_s, _)), value in list(rows.items()):
            part = self.parts.get(parse_partition(name) or 0)
            if part is None or parse_partition(name) is None or begin_s < newest_s - EXPIRES_S:
                rows.data.pop((name, (begin_s, _)), None)
            else:
                part.restore_rate(name, int(begin_s * 1000) // MINUTE_MS, value)


def _is_settled(app: faust.App) -> bool:
    """Return whether partitions are assigned and their tables are restored.

    Faust may report this too early if partitions are reassigned during the restore. The next check then corrects this.
    """
    tables: Any = app.tables
    recovery = tables.recovery
    begins = recovery.signal_recovery_start.is_set() or recovery.in_recovery
    return bool(tables.actives_ready) and not app.rebalancing and not begins


KEPT, RATES = "transitions", "rates"


def changelog_topic(name: str, table: str = KEPT) -> str:
    """Return the changelog topic of a table of the shared monitor with this name."""
    return f"{name}-{table}-changelog"


class TransitionTableStore(Store[Any, Any]):
    """Faust store of the transition table. Its entries are kept only in the read models."""

    def __init__(self, worker: MonitorWorker, app: AppT, table: Table[Any, Any]) -> None:
        super().__init__("memory://", app, table)
        self._worker, self._topic = worker, table.changelog_topic_name
        self._read: dict[Any, int] = {}
        """For each changelog partition, the offset up to which all changes are applied without a gap."""

    def apply_changelog_batch(
        self, batch: Iterable[Any], to_key: Callable[[Any], Any], to_value: Callable[[Any], Any]
    ) -> None:
        """Apply entries of the changelog topic."""
        for event in batch:
            message = event.message
            part = self._worker.parts.get(message.partition)
            if part is not None and message.topic == self._topic:
                part.restore(message.key or b"", message.value)
                self._read[message.tp] = message.offset

    def persisted_offset(self, tp: Any) -> int | None:
        """Return the offset up to which all changes are applied; `None` if there are none."""
        return self._read.get(tp)

    def set_persisted_offset(self, tp: Any, offset: int) -> None:
        """Record that this worker wrote a change. If the change does not directly follow the last one, the changes in
        between still have to be read."""
        if offset == self._read.get(tp, -1) + 1:
            self._read[tp] = offset

    async def on_rebalance(
        self, assigned: set[Any], revoked: set[Any], newly_assigned: set[Any], generation_id: int = 0
    ) -> None:
        """Take over the newly assigned partitions, and drop all that are no longer assigned."""
        mine = {tp for tp in assigned if tp.topic == self._topic}
        self._read = {tp: offset for tp, offset in self._read.items() if tp in mine}
        self._worker._assign({tp.partition for tp in mine})

    def reset_state(self) -> None:
        """Do nothing, because the store has no state besides what it reads from the topic."""

    async def backup_partition(self, tp: Any, flush: bool = True, purge: bool = False, keep: int = 1) -> None:
        """Do nothing, because the changelog topic is the backup."""

    def restore_backup(self, tp: Any, latest: bool = True, backup_id: int = 0) -> None:
        """Do nothing, because there is no backup."""

    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key)

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __delitem__(self, key: Any) -> None: ...

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


def _build_table_class(worker: MonitorWorker) -> type[Table[Any, Any]]:
    """Build the class of a worker's tables. It chooses the partition of each entry, and tracks changes that are not
    acknowledged yet."""

    class ChangelogTable(Table[Any, Any]):
        def _new_store(self) -> Any:
            return TransitionTableStore(worker, self.app, self) if self.name == KEPT else super()._new_store()

        def partition_for_key(self, key: Any) -> int | None:
            return parse_partition(key[0])

        def send_changelog(self, *given: Any, **named: Any) -> Any:
            sent = super().send_changelog(*given, **named)
            worker._add_sent(sent)
            return sent

    return ChangelogTable


def _to_record(message: Any) -> Record:
    """Convert a Faust message to a `Record`."""
    time_ms = round(message.timestamp * 1000)
    return Record(TRANSITIONS, message.partition, message.offset, message.key, message.value, (), time_ms)


def _build_credentials(options: ClientOptions) -> Any:
    """Convert the credentials in the options to the form that Faust needs; `None` if the broker needs none."""
    context = options["ssl_context"]
    if options["sasl_oauth_token_provider"] is not None:
        return OAuthCredentials(oauth_cb=options["sasl_oauth_token_provider"], ssl_context=context)
    if options["security_protocol"].startswith("SASL"):
        return SASLCredentials(
            username=options["sasl_plain_username"],
            password=options["sasl_plain_password"],
            mechanism=options["sasl_mechanism"],
            ssl_context=context,
        )
    return None if context is None else SSLCredentials(context)
