"""The fixture `world`: what takes it, and what is left alone."""

import pytest

from tests.testing.plugin.conftest import Runs, note_of

pytest_plugins = ["pytester"]

PLAIN = """
def test_plain(world: World) -> None:
    scenario(orders=1, asked_max=1)(world)
"""


def test_a_plain_test_runs_once_in_a_world(runs: Runs) -> None:
    result = runs(PLAIN)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*runs of worlds*")


def test_another_fixture_may_fill_the_world_of_a_plain_test(runs: Runs) -> None:
    result = runs("""
@pytest.fixture
def filled(world: World) -> Drawer:
    drawer = Drawer()
    world.start(till, use=[drawer])
    return drawer

def test_plain(filled: Drawer, world: World) -> None:
    world.publish(an_order(1))
    world.run_until_quiet()
    assert filled.asked == {"c-1": 1}

def test_that_leaves_the_world_to_the_fixture(filled: Drawer) -> None:
    assert not filled.asked
""")
    result.assert_outcomes(passed=2)


def test_a_test_that_starts_nothing_fails(runs: Runs) -> None:
    result = runs("""
def test_empty(world: World) -> None:
    pass

@simulate(seeds=3)
def test_empty_in_many(world: World) -> None:
    world.publish(an_order(1))

@crash_everywhere
def test_empty_everywhere(world: World) -> None:
    pass
""")
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*nothing was started in this world, so a test in it shows nothing*"])


def test_a_test_that_publishes_after_its_last_run_fails(runs: Runs) -> None:
    result = runs("""
def publish(world: World) -> None:
    world.start(till, use=[Drawer()])
    world.publish(an_order(1))

def test_plain(world: World) -> None:
    publish(world)

@simulate(seeds=3)
def test_many(world: World) -> None:
    publish(world)
    world.run_until_quiet()
    world.publish(an_order(2))

@crash_everywhere
def test_everywhere(world: World) -> None:
    publish(world)
""")
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*OrderPlaced was published, written or commanded in this world and never sent*"] * 3)


def test_a_test_whose_time_is_too_short_to_send_its_events_fails(runs: Runs) -> None:
    result = runs("""
from datetime import timedelta

@pytest.mark.parametrize("us", [0, 10])
def test_short(world: World, us: int) -> None:
    world.start(till, use=[Drawer()])
    world.publish(an_order(1), an_order(2))
    world.run_for(timedelta(microseconds=us))

def test_long_enough(world: World) -> None:
    world.start(till, use=[Drawer()])
    world.publish(an_order(1))
    world.run_for(timedelta(0))
    world.publish(an_order(2))
    world.run_for(timedelta(minutes=1))

def test_negative(world: World) -> None:
    world.start(till, use=[Drawer()])
    world.run_for(timedelta(seconds=-5))
""")
    result.assert_outcomes(passed=1, failed=3)
    sent = "*OrderPlaced (and 1 more) was published, written or commanded in this world and never sent*"
    result.stdout.fnmatch_lines([sent, sent, "*SagaError: -5 s: time does not go back, so nothing would run"])


def test_an_invariant_of_ones_own_is_checked_at_the_end_even_if_the_world_does_not_run_any_more(runs: Runs) -> None:
    result = runs("""
def run(world: World, holds) -> None:
    world.start(till, use=[Drawer()])
    world.publish(an_order(1))
    world.run_until_quiet()
    world.always("none is wrong", holds)

def test_late(world: World) -> None:
    run(world, lambda: False)

@simulate(seeds=2)
def test_many(world: World) -> None:
    run(world, lambda: False)

def test_holds(world: World) -> None:
    run(world, lambda: True)
""")
    result.assert_outcomes(passed=1, failed=2)
    assert note_of(result).count("CheckFailed: your own invariant: none is wrong - does not hold at") == 2


CHECKING = """
class Checking(Drawer):
    def __init__(self, fails) -> None:
        super().__init__()
        self.fails = fails

    async def put(self, key: str, customer: str) -> None:
        self.fails(customer)

def asserts(customer: str) -> None:
    assert customer == "c-2"

def run(world: World, fails) -> None:
    world.start(till, use=[Checking(fails)])
    world.publish(an_order(1))
    world.run_until_quiet()

def test_assert(world: World) -> None:
    run(world, asserts)

def test_fail(world: World) -> None:
    run(world, lambda customer: pytest.fail("not this one"))

@simulate(seeds=2)
def test_many(world: World) -> None:
    run(world, asserts)
"""


def test_a_check_that_fails_in_a_fake_fails_the_test(runs: Runs) -> None:
    result = runs(CHECKING)
    result.assert_outcomes(failed=3)
    note = note_of(result)
    assert note.count("AssertionError: assert 'c-1' == 'c-2'") >= 2
    assert "Failed: not this one" in note
    assert "seed 0 of test_many fails" in note


@pytest.mark.timeout(120)
def test_a_check_that_fails_in_a_fake_fails_the_test_with_real_processes_too(runs: Runs) -> None:
    result = runs(CHECKING, "--saga-world=embedded")
    result.assert_outcomes(failed=3)
    note = note_of(result)
    assert note.count("AssertionError: Checking.put failed: AssertionError: assert 'c-1' == 'c-2'") == 2
    assert "AssertionError: Checking.put failed: Failed: not this one" in note


ROUTED = """
from services.inventory import inventory
from services.inventory.stock import Stock
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from services.simulate import an_order as books_order
from tests.services.waiting_order import order

def book(world: World, *orders: str) -> None:
    use, documents = [Bank(), Carrier()], {"tea": Stock(left=9)}
    world.start(order, payment, inventory, shipping, use=use, documents=documents)
    world.publish(*map(books_order, orders))
    world.run_until_quiet()
    world.route(payment, "reserve", to="dead")
    world.run_until_quiet()
    world.publish(books_order("routed"))
    world.run_until_quiet()

def test_only_one_that_dies(world: World) -> None:
    book(world)

def test_one_that_ends(world: World) -> None:
    book(world, "ends")

def test_one_that_is_discarded(world: World) -> None:
    book(world)
    world.discard(payment, "routed")
    world.run_until_quiet()
"""


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        ([], "1 run; 2 events published"),
        pytest.param(["--saga-world=embedded"], "1 run as real processes", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(120)
def test_a_plain_test_whose_only_saga_dies_fails_and_other_dead_letters_are_reported(
    runs: Runs, options: list[str], counted: str
) -> None:
    result = runs(ROUTED, *options)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*SagaError: no saga ended in 1 run: *so nothing was tested; most of them: payment.reserve: *",
            f"test_it.py::test_one_that_ends: {counted}; 1 dead letter (1 payment.reserve: *",
        ]
    )


def test_a_test_in_many_worlds_that_discards_its_dead_letter_may_end_so(runs: Runs) -> None:
    result = runs(
        ROUTED.replace("def test_one_that_is_disc", "@simulate(seeds=2)\ndef test_one_that_is_disc"), "-k_disc"
    )
    result.assert_outcomes(passed=1, deselected=2)


DEAD_BUT_IN_ONE = """
@simulate(seeds=2, faults=faults.of("poison", rate=1))
def test_many(world: World) -> None:
    book(world)

@replay(seed=0, faults=["application#1 poison"])
def test_kept(world: World) -> None:
    book(world)
"""


def test_one_seed_or_a_recorded_schedule_may_end_with_a_dead_letter(runs: Runs) -> None:
    tests = ROUTED[: ROUTED.index("def test_only_one")] + DEAD_BUT_IN_ONE
    result = runs(tests)
    result.assert_outcomes(passed=1, failed=1)
    assert "SagaError: no saga ended in 2 runs" in note_of(result)
    runs(tests, "--saga-seed=1").assert_outcomes(passed=2)


def test_the_world_is_verified_after_a_plain_test(runs: Runs) -> None:
    result = runs("""
def test_plain(world: World, monkeypatch) -> None:
    scenario(orders=1, asked_max=1)(world)
    def verify(): raise AssertionError("looked at")
    monkeypatch.setattr(world, "verify", verify)
""")
    result.assert_outcomes(failed=1)
    assert "AssertionError: looked at" in note_of(result)


def test_a_plain_failure_is_reported_with_seed_and_timeline(runs: Runs) -> None:
    result = runs(PLAIN.replace("asked_max=1", "asked_max=0, customer='c-0'"), "--saga-seed=5")
    result.assert_outcomes(failed=1)
    note = note_of(result)
    assert "seed 5 of test_plain fails: AssertionError: c-0 was asked 1 times" in note
    assert "no fault is needed" in note
    assert "order-0: ring(OrderPlaced) handled" in note


@pytest.mark.parametrize("decorator", ["", "@simulate(seeds=2)\n", "@crash_everywhere(pairs=False)\n"])
def test_a_test_in_a_class_takes_a_world(runs: Runs, decorator: str) -> None:
    result = runs(f"""
class TestTill:
    orders = 1

    {decorator.replace(chr(10), chr(10) + "    ")}def test_it(self, world: World) -> None:
        scenario(orders=self.orders, asked_max=2)(world)
""")
    result.assert_outcomes(passed=1)


def test_a_parametrized_test_takes_a_world(runs: Runs) -> None:
    result = runs("""
@pytest.mark.parametrize("orders", [1, 2])
@simulate(seeds=2)
def test_many(world: World, orders: int, tmp_path) -> None:
    assert tmp_path.is_dir()
    scenario(orders=orders, asked_max=1)(world)

@pytest.mark.parametrize("orders", [1, 2])
def test_plain(orders: int, world: World) -> None:
    scenario(orders=orders, asked_max=1)(world)
""")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*::test_many?1?: 2 runs; 2 events*", "*::test_many?2?: 2 runs; 4 events*"])


@pytest.mark.parametrize("decorator", ["", "@simulate(seeds=2)\n"])
@pytest.mark.parametrize(
    "plugins", [[], ["-p", "no:asyncio", "-o", "asyncio_mode=", "-W", "ignore::pytest.PytestWarning"]]
)
def test_an_async_test_is_refused(runs: Runs, decorator: str, plugins: list[str]) -> None:
    result = runs(f"{decorator}async def test_it(world: World) -> None: ...\n", *plugins)
    result.assert_outcomes(errors=1)
    assert "SagaError: test_it is async, and a world runs a loop of its own: write it as a plain `def`" in note_of(
        result
    )


def test_a_test_of_a_unittest_class_is_refused_because_unittest_itself_calls_it(runs: Runs) -> None:
    result = runs("""
import unittest

class TestTill(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def take(self, world: World) -> None:
        self.world = world

    def test_it(self) -> None:
        self.world.start(till, use=[Drawer()])
        self.world.publish(an_order(1))

    @simulate(seeds=3)
    def test_many(self) -> None: ...

class TestOthers(unittest.TestCase):
    @simulate(seeds=3)
    def test_many(self) -> None: ...

    def test_without(self) -> None: ...
""")
    result.assert_outcomes(passed=1, errors=3)
    assert "SagaError: test_it is a test of a unittest.TestCase, which verifies no world" in note_of(result)


def test_a_world_that_a_test_gets_while_it_runs_is_refused_because_nothing_would_verify_it(runs: Runs) -> None:
    result = runs("""
@pytest.fixture
def filled(request) -> World:
    world = request.getfixturevalue("world")
    world.start(till, use=[Drawer()])
    return world

def test_by_a_fixture(filled: World) -> None:
    filled.publish(an_order(1))

def test_itself(request) -> None:
    request.getfixturevalue("world")

def test_that_has_taken_it_before(world: World, filled: World) -> None:
    assert filled is world
""")
    result.assert_outcomes(passed=1, failed=1, errors=1)
    assert note_of(result).count("gets its world by getfixturevalue, so the world would never be verified") == 2


def test_a_decorated_class_is_refused(runs: Runs) -> None:
    result = runs("""
@simulate(seeds=3)
class TestTill:
    def test_it(self, world: World) -> None: ...
""")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*SagaError: TestTill is a class, and only a test is run in many worlds: decorate*"])


def test_a_fixture_that_takes_the_world_is_refused_where_there_are_many(runs: Runs) -> None:
    result = runs("""
@pytest.fixture
def filled(world: World) -> Drawer:
    return Drawer()

@pytest.fixture
def of_it(filled: Drawer) -> Drawer:
    return filled

@simulate(seeds=2)
def test_it(world: World, of_it: Drawer) -> None: ...

@simulate(seeds=2)
def test_without(of_it: Drawer) -> None: ...
""")
    result.assert_outcomes(failed=2)
    assert "SagaError: the fixture 'filled' takes a world, and test_it is run in many: let the test itself" in note_of(
        result
    )


def test_a_simulated_test_without_a_world_of_its_own_is_refused(runs: Runs) -> None:
    result = runs("""
@pytest.mark.usefixtures("world")
@simulate(seeds=2)
def test_it() -> None: ...
""")
    result.assert_outcomes(failed=1)
    assert "test_it is to be run in many worlds, and takes none: give it a parameter `world: World`" in note_of(result)


def test_a_simulated_test_that_uses_no_world_at_all_is_refused(runs: Runs) -> None:
    result = runs("""
@simulate(seeds=2)
def test_it() -> None: ...
""")
    result.assert_outcomes(failed=1)
    assert "test_it is to be run in many worlds, and takes none: give it a parameter `world: World`" in note_of(result)


def test_a_simulated_test_whose_world_is_of_another_kind_is_refused(runs: Runs) -> None:
    result = runs("""
@pytest.fixture
def world() -> str:
    return "wide"

@simulate(seeds=2)
def test_it(world: str) -> None: ...
""")
    result.assert_outcomes(failed=1)
    assert "test_it is to be run in many worlds, and its fixture 'world' is another one: rename that" in note_of(result)


def test_a_fixture_that_fills_the_world_under_the_same_name_gives_a_world_that_is_verified(runs: Runs) -> None:
    result = runs("""
@pytest.fixture
def world(world: World) -> World:
    world.start(till, use=[Drawer()])
    return world

def test_sent(world: World) -> None:
    world.publish(an_order(1))
    world.run_until_quiet()

def test_unsent(world: World) -> None:
    world.publish(an_order(1))

@simulate(seeds=2)
def test_many(world: World) -> None:
    world.publish(an_order(1))
    world.run_until_quiet()
""")
    result.assert_outcomes(passed=1, failed=2)
    assert "OrderPlaced was published, written or commanded in this world and never sent" in note_of(result)
    assert "SagaError: the fixture 'world' takes a world, and test_many is run in many" in note_of(result)


def test_two_ways_to_run_one_test_are_refused(runs: Runs) -> None:
    result = runs("@crash_everywhere\n@simulate(seeds=2)\ndef test_it(world: World) -> None: ...\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*SagaError: test_it is to be run in two ways: keep one decorator*"])


def test_tests_without_a_world_are_left_alone(runs: Runs) -> None:
    result = runs("""
def test_plain() -> None: ...

async def test_async() -> None: ...

def test_it_is_not_marked(request) -> None:
    assert request.node.get_closest_marker("saga_world") is None
""")
    result.assert_outcomes(passed=3)


def test_a_world_of_another_kind_is_left_alone(runs: Runs) -> None:
    result = runs("""
@pytest.fixture
def world() -> str:
    return "wide"

def test_plain(world: str) -> None:
    assert world == "wide"

async def test_async(world: str) -> None:
    assert world == "wide"
""")
    result.assert_outcomes(passed=2)


def test_without_the_plugin_nothing_else_is_missing(runs: Runs) -> None:
    result = runs(PLAIN + "def test_without() -> None: ...\n", "-p", "no:saga")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*fixture 'world' not found*"])
