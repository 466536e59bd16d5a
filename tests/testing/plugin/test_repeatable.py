"""A run that goes another way the second time is reported, with the place where the two part."""

from collections.abc import Callable
from itertools import count

import pytest

from saga import SagaError
from saga.testing import World
from saga.testing.decorators import Seeds
from saga.testing.fault_plans import Faults
from saga.testing.simulation.runs import RunOptions, Tally, run_all
from tests.testing.plugin.buggy_service import Drawer, an_order, scenario, till

numbers = count()
"""Counter that no fake should depend on: it outlives the world."""


class Counting(Drawer):
    """Takes longer from run to run, or refuses."""

    def __init__(self, refuses: Callable[[int], bool]) -> None:
        super().__init__()
        self.refuses = refuses

    async def put(self, key: str, customer: str) -> None:
        if self.refuses(next(numbers)):
            raise ConnectionError("no")
        await super().put(key, customer)


def asked(refuses: Callable[[int], bool]) -> Callable[[World], None]:
    def run(world: World) -> None:
        world.start(till, use=[Counting(refuses)])
        world.publish(an_order(1))
        world.run_until_quiet()

    return run


@pytest.fixture(autouse=True)
def _from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.numbers", count())


def once(run: Callable[[World], None]) -> None:
    run_all(run, Seeds(1, Faults()), Tally(), RunOptions())


def test_a_fake_that_asks_a_global_is_noticed_with_the_place_where_the_runs_part() -> None:
    with pytest.raises(SagaError, match="seed 0 runs another way the second time") as raised:
        once(asked(lambda number: number == 0))
    text = str(raised.value)
    assert "ring" in text
    assert "ConnectionError" in text
    assert "a global that the test does not create again" in text


def test_a_run_that_is_the_same_each_time_is_fine() -> None:
    once(scenario(orders=2, asked_max=1))


def test_a_run_that_only_ends_earlier_the_second_time_is_noticed() -> None:
    rounds = count(1)

    def run(world: World) -> None:
        world.start(till, use=[Drawer()])
        world.publish(*map(an_order, range(1)))
        world.run_until_quiet()
        if next(rounds) == 1:
            world.publish(an_order(2))
            world.run_until_quiet()

    with pytest.raises(SagaError, match="seed 0 goes on longer the first time") as raised:
        once(run)
    assert "publish" in str(raised.value)


def test_a_run_that_fails_the_second_time_only_is_noticed() -> None:
    rounds = count(1)

    def run(world: World) -> None:
        scenario(orders=1, asked_max=1)(world)
        assert next(rounds) == 1, "not the first"

    with pytest.raises(SagaError, match="not the first"):
        once(run)
