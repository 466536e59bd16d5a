"""Suite that every publisher of changes passes: from the application that writes a document to the
handler that is shown it, on the runtime as it ships.

A subclass gives the fixtures `publisher` and `connect`, and `remove` for its log.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from saga.broker.administration import Administration
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.lifecycle import ServiceOptions, serve
from saga.engine.prepared_service import prepare, topics_of
from saga.messages import Partition
from saga.messaging.names import PROGRESS, change_topic
from saga.progress.document import decode_progress, progress_key
from saga.service import Service
from saga.store.sqlite.store import SqliteStore
from saga.telemetry.events import Expired, Handled, TelemetryEvent
from saga.testing.conformance.broker_suite import Remove
from tests.changes.change_sources import CLOCK, PARCELS, ChangePublisher
from tests.testing.parcels import GONE, Seen, watcher

Connect: TypeAlias = Callable[[], Administration]
WITHIN_S = 60.0
KEYS = tuple(f"p-{n}" for n in range(20))


@dataclass
class Shown:
    """What the service's handler was shown of each document, and what it reported meanwhile."""

    seen: Mapping[str, Seen]
    moments: list[TelemetryEvent]

    def versions(self, key: str) -> tuple[int, ...]:
        return self.seen[key].versions

    @property
    def handled(self) -> int:
        return sum(isinstance(moment, Handled) for moment in self.moments)


def parcel(version: int) -> str:
    return f'{{"version":{version}}}'


class PublishedChangesConformance:
    """Tests of what `docs/guides/change-streams.md` promises of both sources. The publisher declares what differs."""

    @pytest.fixture
    def service(self) -> Service[Seen]:
        raise NotImplementedError("give the fixture `service`: one of its own name for each test")

    @pytest.fixture
    def publisher(self, service: Service[Seen]) -> ChangePublisher:
        raise NotImplementedError("give the fixture `publisher`")

    @pytest.fixture
    def connect(self) -> Connect:
        raise NotImplementedError(
            "give the fixture `connect`: a function that makes a broker on the same log each time"
        )

    @pytest.fixture
    def remove(self) -> Remove:
        raise NotImplementedError("give the fixture `remove`")

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        """File of the service's store."""
        return tmp_path / "store.db"

    @pytest.fixture(autouse=True)
    async def topics(self, connect: Connect, service: Service[Seen], file: Path) -> None:
        async with connect() as broker, SqliteStore(file, clock=CLOCK):
            await broker.ensure_topics(topics_of(service.declared))

    async def publish(self, publisher: ChangePublisher, connect: Connect, *, twice: bool = False) -> None:
        async with connect() as broker:
            await publisher.publish(broker, twice=twice)

    async def shown(self, service: Service[Seen], connect: Connect, file: Path) -> Shown:
        """Run the service until it has committed all that is in the log, then stop it in good order."""
        stop, moments, name = asyncio.Event(), list[TelemetryEvent](), service.declared.name
        options = ServiceOptions(clock=CLOCK, report=moments.append, limits=FlowLimits(), stop=stop)
        async with (
            connect() as broker,
            connect() as watched,
            SqliteStore(file, clock=CLOCK) as store,
            asyncio.TaskGroup() as tasks,
        ):
            running = tasks.create_task(serve(prepare(service.declared), store=store, broker=broker, options=options))
            try:
                await CLOCK.within(WITHIN_S, self._caught_up(watched, name, running))
            finally:
                stop.set()
        prefix, seen = progress_key(name, ""), dict[str, Seen]()
        async with SqliteStore(file, clock=CLOCK, readonly=True) as store:
            async for key, document in store.scan(PROGRESS, prefix):
                state = decode_progress(document.content).state
                seen[key.removeprefix(prefix)] = Seen(*(tuple(state[part]) for part in ("versions", "before", "kinds")))
        return Shown(seen, moments)

    async def _caught_up(self, broker: Administration, name: str, running: "asyncio.Task[None]") -> None:
        topic = change_topic(name, PARCELS)
        while not running.done():
            positions = (await broker.describe_group(name)).positions
            bounds = await broker.fetch_bounds([topic])
            if all(positions.get(partition, at.begin) >= at.end for partition, at in bounds.items()):
                return
            await CLOCK.sleep(0.02)

    # ---------------------------------------------------------------- tests

    async def test_changes_of_a_document_are_published_in_order_with_the_version_before_where_the_source_knows_it(
        self, service: Service[Seen], publisher: ChangePublisher, connect: Connect, file: Path
    ) -> None:
        await publisher.begin(changes_from="beginning")
        for version in (1, 2):
            await publisher.write("a", parcel(version))
            await self.publish(publisher, connect)
        await publisher.remove("a")
        await self.publish(publisher, connect)
        seen = (await self.shown(service, connect, file)).seen["a"]
        assert seen.versions == (1, 2, GONE)
        assert seen.kinds == ("Insert", "Update", "Delete")
        assert seen.before == ((None, 1, 2) if publisher.publishes_before else (None, None, None))

    async def test_a_document_whose_time_is_over_has_expired_and_may_be_written_again(
        self, service: Service[Seen], publisher: ChangePublisher, connect: Connect, file: Path
    ) -> None:
        await publisher.begin(changes_from="beginning")
        await publisher.write("a", parcel(1), expires=True)
        if publisher.merges:
            await self.publish(publisher, connect)
        await publisher.write("a", parcel(2))
        await self.publish(publisher, connect)
        seen = (await self.shown(service, connect, file)).seen["a"]
        assert seen.versions == ((GONE, 2) if publisher.merges else (1, GONE, 2))
        new = "Insert" if publisher.publishes_new_after_removal else "Update"
        assert seen.kinds[-2:] == ("Expiry", new)

    async def test_the_changes_of_each_of_many_documents_come_in_its_order(
        self, service: Service[Seen], publisher: ChangePublisher, connect: Connect, file: Path
    ) -> None:
        await publisher.begin(changes_from="beginning")
        for version in (1, 2, 3):
            for key in KEYS:
                await publisher.write(key, parcel(version))
            await self.publish(publisher, connect)
        shown = await self.shown(service, connect, file)
        assert {key: shown.versions(key) for key in KEYS} == dict.fromkeys(KEYS, (1, 2, 3))

    async def test_a_repeated_change_is_ignored_by_key_and_version(
        self, service: Service[Seen], publisher: ChangePublisher, connect: Connect, file: Path
    ) -> None:
        await publisher.begin(changes_from="beginning")
        for version in (1, 2):
            await publisher.write("a", parcel(version))
            await self.publish(publisher, connect, twice=True)
        await publisher.remove("a")
        await self.publish(publisher, connect, twice=True)
        async with connect() as broker:
            assert len([r async for r in broker.scan(change_topic(service.declared.name, PARCELS))]) == 6
        assert (await self.shown(service, connect, file)).versions("a") == (1, 2, GONE)

    async def test_quick_writes_come_as_the_last_where_the_source_merges_and_else_each(
        self, service: Service[Seen], publisher: ChangePublisher, connect: Connect, file: Path
    ) -> None:
        await publisher.begin(changes_from="beginning")
        for version in (1, 2, 3):
            await publisher.write("a", parcel(version))
        await publisher.write("b", parcel(1))
        await publisher.remove("b")
        await self.publish(publisher, connect)
        shown = await self.shown(service, connect, file)
        assert shown.versions("a") == ((3,) if publisher.merges else (1, 2, 3))
        assert shown.seen["a"].kinds[-1] == "Update", "the first that is seen of a merged document may be an Update"
        assert shown.versions("b") == ((GONE,) if publisher.merges else (1, GONE))

    async def test_a_document_that_was_removed_before_it_was_seen_starts_its_saga_when_it_is_made_again(
        self, service: Service[Seen], publisher: ChangePublisher, connect: Connect, file: Path
    ) -> None:
        starting = watcher(service.declared.name, many=False)
        await publisher.write("a", parcel(1))
        await publisher.begin(changes_from="now")
        await publisher.remove("a")
        await self.publish(publisher, connect)
        await publisher.write("a", parcel(2))
        await publisher.write("b", parcel(1))
        await publisher.remove("b")
        await self.publish(publisher, connect)
        await publisher.write("b", parcel(2))
        await self.publish(publisher, connect)
        seen = (await self.shown(starting, connect, file)).seen
        assert {key: seen[key].versions for key in ("a", "b")} == {"a": (2,), "b": (2,) if publisher.merges else (1,)}

    @pytest.mark.parametrize(("changes_from", "versions"), [("beginning", (1, 2)), ("now", (2,))])
    async def test_existing_documents_count_only_when_read_from_the_beginning(
        self,
        service: Service[Seen],
        publisher: ChangePublisher,
        connect: Connect,
        file: Path,
        changes_from: str,
        versions: tuple[int, ...],
    ) -> None:
        await publisher.write("a", parcel(1))
        await publisher.write("untouched", parcel(1))
        await publisher.begin(changes_from="beginning" if changes_from == "beginning" else "now")
        await self.publish(publisher, connect)
        await publisher.write("a", parcel(2))
        await self.publish(publisher, connect)
        shown = await self.shown(service, connect, file)
        assert shown.versions("a") == versions
        assert ("untouched" in shown.seen) == (changes_from == "beginning")

    async def test_a_service_continues_from_its_stored_offset_and_from_where_that_is_moved_to(
        self, service: Service[Seen], publisher: ChangePublisher, connect: Connect, file: Path
    ) -> None:
        await publisher.begin(changes_from="beginning")
        await publisher.write("a", parcel(1))
        await self.publish(publisher, connect)
        assert (await self.shown(service, connect, file)).handled == 1
        await publisher.write("a", parcel(2))
        await self.publish(publisher, connect)
        second = await self.shown(service, connect, file)
        assert (second.handled, second.versions("a")) == (1, (1, 2)), "it has not read the first again"
        name = service.declared.name
        async with connect() as broker:
            bounds = await broker.fetch_bounds([change_topic(name, PARCELS)])
            await broker.move_positions(name, {partition: at.begin for partition, at in bounds.items()})
        third = await self.shown(service, connect, file)
        assert third.versions("a") == (1, 2), "what comes again is dropped"

    async def test_a_gap_is_reported_and_what_comes_after_it_is_shown(
        self, service: Service[Seen], publisher: ChangePublisher, connect: Connect, file: Path, remove: Remove
    ) -> None:
        await publisher.begin(changes_from="beginning")
        await publisher.write("a", parcel(1))
        await self.publish(publisher, connect)
        await self.shown(service, connect, file)
        for version in (2, 3):
            await publisher.write("a", parcel(version))
            await self.publish(publisher, connect)
        topic = change_topic(service.declared.name, PARCELS)
        async with connect() as broker:
            (last,) = [at.end - 1 for at in (await broker.fetch_bounds([topic])).values() if at.end]
            (partition,) = [p for p, at in (await broker.fetch_bounds([topic])).items() if at.end]
        await remove({Partition(*partition): last})
        shown = await self.shown(service, connect, file)
        (gap,) = [moment for moment in shown.moments if isinstance(moment, Expired)]
        assert (gap.topic, gap.first, gap.last) == (topic, 1, 1)
        assert shown.versions("a") == (1, 3)
