"""The order saga in real processes on a real Kafka and CouchbaseMock, with what can go wrong between them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from saga.errors import SagaError, StoreUnavailable
from saga.messages import Outgoing, Topic
from saga.support.clock import SystemClock
from saga.testing.processes import ProcessWorld
from saga.testing.processes.faults import ProcessFaults
from saga.testing.processes.servers import ServerFault, load_provider
from saga.testing.processes.worker_processes import WorkerPool, WorkerSetup
from saga.testing.servers.world_servers import start_servers
from tests.testing.processes.noted_crew import HandClock, Hands
from tests.testing.processes.test_process_world import orders_are_paid_once_or_not_at_all

A_CUT_AND_A_ZOMBIE = {"partition": 0.01, "late answer": 0.01, "lost answer": 0.01, "freeze": 0.01, "clock": 0.01}
AN_EVENT = Outgoing("orders", b"order-1", b"1", ())
CUT_S = 1.0
CLOCK = SystemClock()
GIVER = "saga.testing.servers.world_servers:start_servers"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_orders_are_paid_once_though_servers_are_cut_off_and_workers_freeze(server_jars: Path) -> None:
    with ProcessWorld(3, A_CUT_AND_A_ZOMBIE, servers=start_servers) as world:
        orders_are_paid_once_or_not_at_all(world)
        world.verify()
        assert len(world.happened) == 4
        assert [line.partition(":")[0] for line in world.left_out(A_CUT_AND_A_ZOMBIE)] == ["clock"]


@pytest.mark.timeout(60)
async def test_workers_reach_both_servers_only_by_what_can_be_cut_and_the_world_past_it(
    server_jars: Path, tmp_path: Path
) -> None:
    with start_servers(tmp_path) as given:
        cut_broker, cut_store, _ = given.troubles["partition"]
        async with given.place.store(CLOCK) as store, given.aside.store(CLOCK) as aside:
            await store.insert("stock", "tea", b"{}")
            cut_store.begin()
            with pytest.raises(StoreUnavailable):
                await store.get("stock", "tea")
            assert await aside.get("stock", "tea") is not None
            cut_store.end()
            assert await store.get("stock", "tea") is not None
        async with given.place.broker(CLOCK) as broker, given.aside.broker(CLOCK) as aside_broker:
            await broker.ensure_topics([Topic("orders", 1)])
            cut_broker.begin()
            with pytest.raises(TimeoutError):
                await CLOCK.within(CUT_S, broker.publish([AN_EVENT]))
            await aside_broker.publish([AN_EVENT])
            cut_broker.end()
            await broker.publish([AN_EVENT])


def accidents(troubles: Mapping[str, Sequence[ServerFault]]) -> tuple[ProcessFaults, HandClock]:
    clock = HandClock()
    made = ProcessFaults(
        seed=1,
        rates=dict.fromkeys(troubles, 0.02),
        crew=cast(WorkerPool, Hands(["payment"])),
        clock=clock,
        hire=Hands([]).hire,
        publish_again=lambda chance: None,
        troubles=troubles,
    )
    return made, clock


def test_troubles_of_servers_come_one_after_the_other_and_each_ends() -> None:
    done = list[str]()

    def trouble(name: str) -> ServerFault:
        return ServerFault(name, (0.5, 0.5), lambda: done.append(f"{name} begins"), lambda: done.append(f"{name} ends"))

    made, clock = accidents({"partition": [trouble("cut")], "late answer": [trouble("frozen")]})
    made.begin()
    while not made.are_over:
        clock.now_s += 0.02
        made.happen(lambda service: True)
    assert Counter(done) == dict.fromkeys(["cut begins", "cut ends", "frozen begins", "frozen ends"], 2)
    assert all(begun.split()[0] == ended.split()[0] for begun, ended in zip(done[::2], done[1::2], strict=True))
    assert sorted(made.happened) == ["cut for 0.5 s"] * 2 + ["frozen for 0.5 s"] * 2


def test_a_worker_that_cannot_start_is_started_again_so_many_times(tmp_path: Path) -> None:
    broken_setup = WorkerSetup(
        modules=("services.payment",), attribute="nobody", declarations=(), outside=str(tmp_path), fakes=()
    )
    with WorkerPool(tmp_path, CLOCK, starts_max=3) as crew:
        member = crew.hire("payment", broken_setup)
        first = member.process.pid
        for _ in range(2):
            member.process.wait()
            crew.check()
        member.process.wait()
        with pytest.raises(SagaError, match=r"ended by itself, with 2; the end of its log:\n.*is no service"):
            crew.check()
        assert (member.starts, member.process.pid != first) == (3, True)


def test_the_provider_of_servers_is_named_by_module_and_function() -> None:
    assert load_provider(GIVER) is start_servers


@pytest.mark.parametrize(
    "name", ["servers", "saga.testing.servers.world_servers:nobody", "tests.nowhere:servers", ":servers"]
)
def test_a_name_that_gives_no_servers_is_reported_with_what_would(name: str) -> None:
    with pytest.raises(SagaError, match="write module:function"):
        load_provider(name)
