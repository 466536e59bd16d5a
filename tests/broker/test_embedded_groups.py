"""Members, generations and zombies of the embedded broker, and how long it keeps what."""

import asyncio
from collections.abc import Awaitable, Collection, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga.broker.administration import OffsetBounds
from saga.broker.embedded.broker import EmbeddedAdministration, EmbeddedBroker
from saga.broker.embedded.groups import MemberLock, assign_ranges, read_heartbeat
from saga.broker.embedded.log import DAY_MS, TopicExtent
from saga.broker.embedded.membership import Timing
from saga.broker.port import Subscription, partition_of
from saga.errors import BrokerError, Fenced
from saga.messages import Partition, Topic
from saga.store.sqlite.connection import FREE_PAGES_MIN
from saga.support.clock import SystemClock
from saga.testing.conformance.broker import BrokerConformance
from saga.testing.conformance.broker_suite import RecordingListener, event, values

CLOCK = SystemClock()
conformance = BrokerConformance()
conformance.within_s = 60.0
ORDERS = Topic("orders", 4)
T = TypeVar("T")


class Freezing(SystemClock):
    """A clock on which all that sleeps keeps sleeping while it is frozen, as in a stopped process."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.running.set()

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        await self.running.wait()

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        try:
            return await super().within(seconds, what)
        finally:
            await self.running.wait()


class Later(SystemClock):
    """A clock with which time may pass quickly, or which may be set wrongly."""

    def __init__(self) -> None:
        self.days = self.wrong_days = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + round((self.days + self.wrong_days) * DAY_MS)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.days * DAY_MS / 1000


def seats(folder: Path) -> list[Path]:
    return list(folder.glob("*.member-*"))


# ---------------------------------------------------------------- who has what


@given(st.sets(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 40))
def test_a_topics_partitions_are_divided_evenly_in_ranges(members: set[int], partitions: int) -> None:
    kept = {"a": TopicExtent(1, partitions, None), "b": TopicExtent(1 + partitions, partitions, None)}
    targets = assign_ranges(sorted(members), {member: ["a", "b"] for member in members}, kept)
    first = [targets[1 + number] for number in range(partitions)]
    assert first == sorted(first)
    assert first == [targets[1 + partitions + number] for number in range(partitions)]
    counts = [first.count(member) for member in members]
    assert max(counts) - min(counts) <= 1


def test_a_topic_goes_to_those_who_read_it() -> None:
    kept = {"a": TopicExtent(1, 2, None), "b": TopicExtent(3, 2, None)}
    assert assign_ranges([5, 6], {5: ["a"], 6: ["a", "b"]}, kept) == {1: 5, 2: 6, 3: 6, 4: 6}


async def test_joining_for_a_topic_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK) as broker:
        with pytest.raises(BrokerError, match="no topic 'orders'"):
            async with broker.join(Subscription("payment", ["orders"]), RecordingListener()):
                pytest.fail("it joined")
        assert not seats(tmp_path)


async def test_a_partition_moves_after_the_drain_even_if_its_member_does_not_let_go(tmp_path: Path) -> None:
    timing = Timing(drain_s=0.3)
    async with (
        EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK, timing=timing) as broker,
        EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK, timing=timing) as other,
    ):
        await broker.ensure_topics([ORDERS])
        first, second = RecordingListener(), RecordingListener()
        async with broker.join(Subscription("payment", ["orders"]), first) as membership:
            await conformance.complete(first)
            first.may_let_go.clear()
            async with other.join(Subscription("payment", ["orders"]), second):
                await conformance.until(lambda: len(second.has) == 2)
                assert first.partitions_of("lost") == second.has.keys()
                with pytest.raises(Fenced):
                    await membership.commit(dict.fromkeys(second.has, 1))
                first.may_let_go.set()


async def test_a_partition_moves_after_the_drain_from_a_member_that_was_frozen_meanwhile(tmp_path: Path) -> None:
    clock, timing = Freezing(), Timing(silence_s=60, drain_s=0.2)
    async with (
        EmbeddedBroker(tmp_path / "broker.db", clock=clock, timing=timing) as broker,
        EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK, timing=timing) as other,
    ):
        await broker.ensure_topics([ORDERS])
        first, second = RecordingListener(), RecordingListener()
        async with broker.join(Subscription("payment", ["orders"]), first):
            await conformance.complete(first)
            first.may_let_go.clear()
            clock.running.clear()
            async with other.join(Subscription("payment", ["orders"]), second):
                await conformance.until(lambda: len(second.has) == 2)
                assert len(first.has) == 4  # it does not know yet
                clock.running.set()
                first.may_let_go.set()
                await conformance.until(lambda: len(first.has) == 2)


async def test_a_member_taken_for_dead_is_fenced_then_notified_and_joins_again(tmp_path: Path) -> None:
    clock, timing = Freezing(), Timing(silence_s=0.5)
    async with (
        EmbeddedBroker(tmp_path / "broker.db", clock=clock, timing=timing) as broker,
        EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK, timing=timing) as other,
    ):
        await broker.ensure_topics([ORDERS])
        zombie, second = RecordingListener(), RecordingListener()
        async with broker.join(Subscription("payment", ["orders"]), zombie) as membership:
            await conformance.complete(zombie)
            async with other.join(Subscription("payment", ["orders"]), second):
                await conformance.until(lambda: len(zombie.has) == 2 and len(second.has) == 2)
                had = dict(zombie.has)
                clock.running.clear()
                await conformance.complete(second)
                assert zombie.has == had  # it does not know yet
                with pytest.raises(Fenced, match="2 of 2 partitions"):
                    await membership.commit(dict.fromkeys(had, 1))
                clock.running.set()
                await conformance.until(lambda: zombie.partitions_of("lost") == had.keys() and len(zombie.has) == 2)
                assert set(zombie.has.values()) == {0}


async def test_members_that_are_idle_change_nothing_in_the_file(tmp_path: Path) -> None:
    path, timing = tmp_path / "broker.db", Timing(silence_s=0.5)
    async with (
        EmbeddedBroker(path, clock=CLOCK, timing=timing) as broker,
        EmbeddedBroker(path, clock=CLOCK, timing=timing) as other,
    ):
        await broker.ensure_topics([ORDERS])
        first, second = RecordingListener(), RecordingListener()
        async with (
            broker.join(Subscription("payment", ["orders"]), first),
            other.join(Subscription("payment", ["orders"]), second),
        ):
            await conformance.until(lambda: len(first.has) == 2 and len(second.has) == 2)
            seats = seats_beside(path)
            before = version_of(broker)
            stirred = {seat: (read_heartbeat(seat) or 0) + 10 for seat in seats}
            await conformance.until(lambda: all((read_heartbeat(seat) or 0) >= stirred[seat] for seat in seats))
            assert version_of(broker) == before
            assert not first.partitions_of("lost") | second.partitions_of("lost"), (
                "they lived on for four times the silence"
            )


def seats_beside(path: Path) -> list[Path]:
    """Seats of the members of groups on a broker file."""
    return list(path.parent.glob(f"{path.name}.member-*"))


def version_of(broker: EmbeddedBroker) -> int:
    """Number that SQLite raises with each change of the file by another connection."""
    return int(broker.connection.execute("PRAGMA data_version").fetchone()[0])


async def test_writes_of_others_are_noticed_only_in_followed_topics(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "broker.db", [Topic(f"elsewhere-{n}", 10) for n in range(20)]
    async with EmbeddedBroker(path, clock=CLOCK) as broker, EmbeddedBroker(path, clock=CLOCK) as other:
        await broker.ensure_topics([ORDERS, *elsewhere])
        listener = RecordingListener()
        async with broker.join(Subscription("payment", ["orders"]), listener) as membership:
            await conformance.complete(listener)
            for n, topic in enumerate(elsewhere):
                await other.publish([event(topic.name, "k", f"{n}")])
            await other.publish([event("orders", "k", "last")])
            await conformance.until(lambda: any((membership.lag() or {}).values()))
            assert len(broker._open.log.heads) == len(listener.has) == 4
            await broker.publish([event(topic.name, "k", "after") for topic in elsewhere])
        for topic in elsewhere:
            assert len(values([record async for record in other.scan(topic.name)])) == 2


async def test_a_member_that_was_frozen_takes_no_other_for_dead(tmp_path: Path) -> None:
    clocks, timing = (Freezing(), Freezing()), Timing(silence_s=1)
    async with (
        EmbeddedBroker(tmp_path / "broker.db", clock=clocks[0], timing=timing) as broker,
        EmbeddedBroker(tmp_path / "broker.db", clock=clocks[1], timing=timing) as other,
    ):
        await broker.ensure_topics([ORDERS])
        first, second = RecordingListener(), RecordingListener()
        async with (
            broker.join(Subscription("payment", ["orders"]), first),
            other.join(Subscription("payment", ["orders"]), second),
        ):
            await conformance.until(lambda: len(first.has) == 2 and len(second.has) == 2)
            await conformance.until(
                lambda: min(read_heartbeat(seat) or 0 for seat in seats_beside(tmp_path / "broker.db")) >= 1
            )
            await CLOCK.sleep(2 * timing.watch_s)  # they have seen one another stir
            for clock in clocks:  # the machine sleeps
                clock.running.clear()
            await CLOCK.sleep(timing.silence_s + timing.watch_s)
            for clock in clocks:  # one is up again before the other
                clock.running.set()
                await CLOCK.sleep(3 * timing.watch_s)
            assert not first.partitions_of("lost") | second.partitions_of("lost")


async def test_a_reader_that_never_runs_dry_lets_others_run(tmp_path: Path) -> None:
    listener, turns = RecordingListener(), 0
    async with EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([ORDERS])
        await broker.publish([event("orders", "k", f"{n}") for n in range(50)])
        async with broker.join(Subscription("payment", ["orders"]), listener) as membership:
            await conformance.complete(listener)

            async def others() -> None:
                nonlocal turns
                while turns < 1000:
                    await CLOCK.sleep(0)
                    turns += 1

            running = asyncio.gather(others())
            for _ in range(50):
                await membership.poll(list(listener.has), records_max=1, timeout_s=1)
            assert turns >= 49
            await running


async def test_a_member_that_comes_after_a_crash_gets_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    async with EmbeddedBroker(path, clock=CLOCK) as broker:
        await broker.ensure_topics([ORDERS])
        broker.connection.execute(
            "INSERT INTO members (grp, seat, topics) VALUES ('payment', ?, ?)",
            ("broker.db.member-0-0", '["orders"]'),
        )
        listener = RecordingListener()
        async with broker.join(Subscription("payment", ["orders"]), listener):
            await conformance.complete(listener)
            assert [len(partitions) for _, partitions in listener.calls] == [4]


async def test_an_error_of_the_listener_comes_out_of_polling(tmp_path: Path) -> None:
    class Failing(RecordingListener):
        async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
            raise ZeroDivisionError("a defect")

    async with EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([ORDERS])
        with pytest.raises(ZeroDivisionError, match="a defect"):
            async with broker.join(Subscription("payment", ["orders"]), Failing()) as membership:
                await membership.poll([Partition("orders", 0)], records_max=1, timeout_s=5)


async def test_an_error_in_the_block_comes_out_as_it_is_and_the_partitions_are_given_back(tmp_path: Path) -> None:
    listener = RecordingListener()
    async with EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([ORDERS])

        async def failing() -> None:
            async with broker.join(Subscription("payment", ["orders"]), listener):
                await conformance.complete(listener)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()
        assert not listener.has
        assert not seats(tmp_path)


async def test_several_services_of_one_process_share_one_broker(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([ORDERS])
        first, second = RecordingListener(), RecordingListener()
        async with (
            broker.join(Subscription("payment", ["orders"]), first) as payment,
            broker.join(Subscription("shipping", ["orders"]), second) as shipping,
        ):
            await conformance.complete(first)
            await conformance.complete(second)
            await broker.publish([event("orders", "k", "for both")])
            for membership, listener in ((payment, first), (shipping, second)):
                assert values(await conformance.read(membership, 1, listener=listener)) == ["for both"]


async def test_partitions_take_turns_when_one_has_much_to_read(tmp_path: Path) -> None:
    listener = RecordingListener()
    async with EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([ORDERS])
        await broker.publish([event("orders", "busy", "busy") for _ in range(100)])
        async with broker.join(Subscription("payment", ["orders"]), listener) as membership:
            await conformance.complete(listener)
            read = await membership.poll(list(listener.has), records_max=10, timeout_s=1)
            busy = read[0].partition
            quiet = next(key for key in "abcdefgh" if partition_of(key.encode(), 4) != busy)
            await broker.publish([event("orders", quiet, "quiet")])
            turns = [await membership.poll(list(listener.has), records_max=20, timeout_s=1) for _ in range(2)]
            assert [values(turn) for turn in turns] == [["busy"] * 20, ["quiet", *["busy"] * 19]]


# ---------------------------------------------------------------- how long records are kept


async def test_records_past_their_retention_go_but_none_that_a_known_group_has_not_committed(tmp_path: Path) -> None:
    clock, listener = Later(), RecordingListener()
    topic = Topic("orders", 1, retention_days=7)
    partition = Partition("orders", 0)

    async def there(broker: EmbeddedBroker) -> list[str]:
        return values([record async for record in broker.scan("orders")])

    async with EmbeddedBroker(tmp_path / "broker.db", clock=clock) as broker:
        await broker.ensure_topics([topic])
        await broker.publish([event("orders", "k", f"{n}") for n in range(500)])
        async with broker.join(Subscription("payment", ["orders"]), listener) as membership:
            await conformance.until(lambda: bool(listener.has))
            await membership.commit({partition: 450})
        further = RecordingListener()
        async with broker.join(Subscription("inventory", ["orders"]), further) as membership:
            await conformance.until(lambda: bool(further.has))
            await membership.commit({partition: 501})
        clock.days = 6.9
        await broker.publish([event("orders", "k", "new")])
        await broker.trim()
        assert len(await there(broker)) == 501
        clock.days = 7.1
        await broker.trim()
        assert await there(broker) == [*(f"{n}" for n in range(450, 500)), "new"]
        async with broker.join(Subscription("payment", ["orders"]), listener) as membership:
            await conformance.until(lambda: bool(listener.has))
            await membership.commit({partition: 501})
        await broker.trim()
        assert await there(broker) == ["new"]
        newcomer = RecordingListener()
        async with broker.join(Subscription("shipping", ["orders"]), newcomer) as membership:
            await conformance.until(lambda: bool(newcomer.has))
            assert newcomer.has == {partition: 500}
            assert values(await conformance.read(membership, 1, listener=newcomer)) == ["new"]


async def test_retention_removes_nothing_by_a_clock_that_is_wrong_for_a_moment(tmp_path: Path) -> None:
    clock, path = Later(), tmp_path / "broker.db"

    async def there(broker: EmbeddedBroker) -> list[str]:
        await broker.trim()
        return values([record async for record in broker.scan("orders")])

    async with EmbeddedBroker(path, clock=clock) as broker:
        await broker.ensure_topics([Topic("orders", 1, retention_days=7)])
        await broker.publish([event("orders", "k", "right")])
        clock.wrong_days = -365
        await broker.publish([event("orders", "k", "behind")])
        clock.wrong_days = 365
        await broker.publish([event("orders", "k", "ahead")])
        assert await there(broker) == ["right", "behind", "ahead"]
    async with EmbeddedBroker(path, clock=clock) as broker:
        assert await there(broker) == ["right", "behind", "ahead"], "nor by one that is wrong at the start"
    clock.wrong_days = 0
    async with EmbeddedBroker(path, clock=clock) as broker:
        assert await there(broker) == ["right", "behind", "ahead"]
        clock.days = 8
        assert await there(broker) == ["ahead"]
    clock.wrong_days = 365
    async with EmbeddedBroker(path, clock=clock) as broker:
        await there(broker)
        clock.days += 1 / 23
        assert await there(broker) == [], "a time that has lasted for an hour is believed"


async def test_records_past_their_retention_go_a_bounded_number_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no process waits long for the file meanwhile."""
    clock = Later()
    async with EmbeddedBroker(tmp_path / "broker.db", clock=clock) as broker:
        await broker.ensure_topics([Topic("orders", 1, retention_days=7)])
        await broker.publish([event("orders", "k", f"{n}") for n in range(50)])
        clock.days = 7.1
        removed = list[int]()
        broker.connection.create_function("removed", 1, removed.append)
        broker.connection.execute(
            "CREATE TEMP TRIGGER seen AFTER UPDATE OF oldest ON logs BEGIN SELECT removed(new.oldest - old.oldest); END"
        )
        monkeypatch.setattr("saga.broker.embedded.log.TRIMMED_MAX", 20)
        await broker.trim()
        assert removed == [20, 20, 10]


async def test_a_topic_without_limit_keeps_everything_and_an_emptied_one_keeps_counting(tmp_path: Path) -> None:
    clock = Later()
    async with EmbeddedBroker(tmp_path / "broker.db", clock=clock) as broker:
        await broker.ensure_topics([Topic("kept", 1, retention_days=None), Topic("emptied", 1, retention_days=1)])
        for topic in ("kept", "emptied"):
            await broker.publish([event(topic, "k", "old")])
        clock.days = 1000
        await broker.trim()
        assert values([record async for record in broker.scan("kept")]) == ["old"]
        assert [record async for record in broker.scan("emptied")] == []
        await broker.publish([event("emptied", "k", "new")])
        assert [record.offset async for record in broker.scan("emptied")] == [1]


async def test_retention_is_the_longest_that_any_release_wants_until_a_person_shortens_it(tmp_path: Path) -> None:
    clock = Later()
    async with EmbeddedAdministration(tmp_path / "broker.db", clock=clock) as broker:
        for days in (7, 1):
            await broker.ensure_topics([Topic("orders", 1, retention_days=days)])
        await broker.publish([event("orders", "k", "old")])
        clock.days = 2
        await broker.trim()
        assert values([record async for record in broker.scan("orders")]) == ["old"]
        await broker.set_retention("orders", DAY_MS)
        await broker.trim()
        assert [record async for record in broker.scan("orders")] == []
        await broker.ensure_topics([Topic("orders", 1, retention_days=None)])
        await broker.ensure_topics([Topic("orders", 1, retention_days=3)])
        assert (await broker.describe_topics(["orders"]))["orders"].retention_ms is None


ORDERS_0, WAKES_0 = Partition("orders", 0), Partition("payment.wake.1m", 0)


async def trimmed_for(broker: EmbeddedBroker, clock: Later, *, hours: int) -> None:
    """Have the broker look again and again for as many hours."""
    for _ in range(hours * 30):  # a look counts for two minutes at most
        clock.days += 2 / 1440
        await broker.trim()


async def test_retention_does_not_wait_for_a_group_that_is_away_for_too_long_but_its_timers_stay(
    tmp_path: Path,
) -> None:
    clock, listener = Later(), RecordingListener()
    async with EmbeddedAdministration(
        tmp_path / "broker.db", clock=clock, timing=Timing(away_s_max=3 * 3600)
    ) as broker:
        await broker.ensure_topics([Topic("orders", 1, retention_days=1), Topic(WAKES_0.topic, 1, retention_days=None)])
        await broker.publish([event(topic, "k", f"{n}") for topic in ("orders", WAKES_0.topic) for n in range(5)])
        async with broker.join(Subscription("payment", ["orders", WAKES_0.topic]), listener) as membership:
            await conformance.until(lambda: len(listener.has) == 2)
            await membership.commit({ORDERS_0: 2, WAKES_0: 2})
            clock.days = 2
            await trimmed_for(broker, clock, hours=4)  # with a member it may stand still for as long as it likes
            assert await broker.list_inactive_groups() == []
        await trimmed_for(broker, clock, hours=2)
        bounds = await broker.fetch_bounds(["orders", WAKES_0.topic])
        assert [at.begin for at in bounds.values()] == [2, 2]
        (away,) = await broker.list_inactive_groups()
        assert (away.group, away.behind, away.is_lost) == ("payment", 6, False)
        assert abs(away.away_ms - 2 * 3_600_000) < 5 * 60_000
        clock.wrong_days += 1000  # no member was there to look, or the clock is ahead: that is no absence
        await broker.trim()
        clock.wrong_days -= 999
        await broker.trim()
        (away,) = await broker.list_inactive_groups()
        assert not away.is_lost
        await trimmed_for(broker, clock, hours=2)
        (away,) = await broker.list_inactive_groups()
        assert away.is_lost
        bounds = await broker.fetch_bounds(["orders", WAKES_0.topic])
        assert [at.begin for at in bounds.values()] == [5, 2], "its timers are not lost with it"
        back = RecordingListener()
        async with broker.join(Subscription("payment", ["orders", WAKES_0.topic]), back) as membership:
            await conformance.until(lambda: len(back.has) == 2)
            assert await broker.list_inactive_groups() == [], "from now on it is waited for again"
            await broker.publish([event("orders", "k", "new")])
            await conformance.until(lambda: bool((membership.lag() or {}).get(ORDERS_0)))
            await membership.poll([ORDERS_0], records_max=10, timeout_s=1)
            assert back.expired == {ORDERS_0: [range(2, 5)]}, "it learns what it has missed"


async def test_a_member_that_died_is_no_member_and_a_frozen_one_is(tmp_path: Path) -> None:
    clock = Later()
    async with EmbeddedAdministration(tmp_path / "broker.db", clock=clock) as broker:
        await broker.ensure_topics([Topic("orders", 1, retention_days=1)])
        await broker.move_positions("payment", {ORDERS_0: 0})
        await broker.trim()
        assert [away.group for away in await broker.list_inactive_groups()] == ["payment"]
        seat = MemberLock(tmp_path / "broker.db")
        broker.connection.execute(
            "INSERT INTO members (grp, seat, topics) VALUES ('payment', ?, '[]')", (seat.path.name,)
        )
        await broker.trim()
        assert await broker.list_inactive_groups() == []
        seat.release()
        await broker.trim()
        assert [away.group for away in await broker.list_inactive_groups()] == ["payment"]


async def test_a_group_that_is_forgotten_begins_at_the_oldest_record_and_holds_up_nothing(tmp_path: Path) -> None:
    clock, listener = Later(), RecordingListener()
    async with EmbeddedAdministration(tmp_path / "broker.db", clock=clock) as broker:
        await broker.ensure_topics([Topic("orders", 1, retention_days=1)])
        await broker.publish([event("orders", "k", f"{n}") for n in range(5)])
        async with broker.join(Subscription("payment", ["orders"]), listener) as membership:
            await conformance.until(lambda: bool(listener.has))
            await membership.commit({ORDERS_0: 2})
            with pytest.raises(BrokerError, match=r"group 'payment' has members \(.*\): stop the service first"):
                await broker.forget_group("payment")
        await broker.forget_group("payment")
        assert (await broker.describe_group("payment")).positions == {}
        clock.days = 2
        await broker.trim()
        assert (await broker.fetch_bounds(["orders"]))[ORDERS_0] == OffsetBounds(5, 5)
        again = RecordingListener()
        async with broker.join(Subscription("payment", ["orders"]), again):
            await conformance.until(lambda: again.has == {ORDERS_0: 5})


async def test_timers_that_their_service_is_done_with_go_after_a_day(tmp_path: Path) -> None:
    clock, listener = Later(), RecordingListener()
    async with EmbeddedBroker(tmp_path / "broker.db", clock=clock) as broker:
        await broker.ensure_topics([Topic(WAKES_0.topic, 1, None), Topic("payment.commands", 1, None)])
        await broker.publish([event(t, "k", f"{n}") for t in (WAKES_0.topic, "payment.commands") for n in range(5)])
        clock.days = 2
        await broker.trim()
        assert len([record async for record in broker.scan(WAKES_0.topic)]) == 5, "no group has read them"
        async with broker.join(Subscription("payment", [WAKES_0.topic, "payment.commands"]), listener) as membership:
            await conformance.until(lambda: len(listener.has) == 2)
            await membership.commit({WAKES_0: 3, Partition("payment.commands", 0): 3})
            await broker.publish([event(WAKES_0.topic, "k", "new")])
            await broker.trim()
        assert values([record async for record in broker.scan(WAKES_0.topic)]) == ["3", "4", "new"]
        assert len([record async for record in broker.scan("payment.commands")]) == 5, "the audit reads them"


async def test_a_file_shrinks_when_most_of_it_is_free(tmp_path: Path) -> None:
    path, clock = tmp_path / "broker.db", Later()
    async with EmbeddedBroker(path, clock=clock) as broker:
        await broker.ensure_topics([Topic("orders", 1, retention_days=1)])
        for n in range(20):
            await broker.publish([event("orders", "k", f"{n}" + "x" * 100_000) for n in range(10)])
        broker.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        large = path.stat().st_size
        clock.days = 2
        await broker.trim()
        await broker.publish([event("orders", "k", "new")])
        broker.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert large > 20_000_000
        assert path.stat().st_size < FREE_PAGES_MIN * 4096 + 1_000_000
        assert values([record async for record in broker.scan("orders")]) == ["new"]
    async with EmbeddedBroker(path, clock=clock) as broker:
        assert values([record async for record in broker.scan("orders")]) == ["new"]


async def test_a_listener_that_is_called_again_after_leaving_gets_nothing(tmp_path: Path) -> None:
    class Late(RecordingListener):
        async def on_revoked(self, partitions: Collection[Partition]) -> None:
            await super().on_revoked(partitions)
            assert await membership.poll(list(partitions), records_max=1, timeout_s=0) == []

    listener = Late()
    async with EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([ORDERS])
        async with broker.join(Subscription("payment", ["orders"]), listener) as membership:
            await conformance.complete(listener)
            await broker.publish([event("orders", "k", "too late")])
        assert listener.partitions_of("revoked")
