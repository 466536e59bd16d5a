"""What pytest says of events that differ, and of fakes whose own mistakes make handlers dead."""

import pytest

from saga.errors import Problems
from saga.testing import check_idempotent
from saga.testing.event_differences import explain_difference
from tests.testing.plugin.buggy_service import Drawer, an_order, till
from tests.testing.plugin.conftest import Runs, note_of

pytest_plugins = ["pytester"]
A_MISTAKE = (
    "BROKEN FAKE: NewDrawer.put raised AttributeError in handler 'ring': 'NewDrawer' object has no attribute 'sum'"
)
BROKEN = """
from tests.testing.plugin.buggy_service import till

class NewDrawer(Drawer):
    async def put(self, key: str, customer: str) -> None:
        self.sum += 1

def run(world: World) -> None:
    world.start(till, use=[NewDrawer()])
    world.publish(an_order(1))
    world.run_until_quiet()

def test_once(world: World) -> None:
    run(world)

def test_fails(world: World) -> None:
    run(world)
    assert world.outcome("order-1")

@simulate(seeds=2)
def test_many(world: World) -> None:
    run(world)
"""


class NewDrawer(Drawer):
    async def put(self, key: str, customer: str) -> None:
        self.sum += 1  # type: ignore[attr-defined]  # the mistake


def test_pytest_prints_which_event_of_a_list_differs_and_in_which_field(runs: Runs) -> None:
    result = runs("""
from dataclasses import replace

def test_it() -> None:
    one, two = an_order(1), an_order(2)
    assert [one, two] == [one, replace(two, quantity=3, card="43" * 2)]
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E * assert [[]OrderPlaced, OrderPlaced[]] == [[]OrderPlaced, OrderPlaced[]]",
            "E *event 2, OrderPlaced.quantity: 1 != 3",
            "E *event 2, OrderPlaced.card: differs, and is hidden as a sensitive value",
        ]
    )
    result.stdout.no_fnmatch_line("*4343*")


def test_missing_events_and_another_order_are_named() -> None:
    one, two = an_order(1), an_order(2)
    assert explain_difference([one, two], (two, one)) == [
        "[OrderPlaced, OrderPlaced] == [OrderPlaced, OrderPlaced]",
        "the same events in another order",
    ]
    assert explain_difference([one], []) == ["[OrderPlaced] == []", f"event 1 is only on the left: {one!r}"]
    assert explain_difference([one, one], [one]) == [
        "[OrderPlaced, OrderPlaced] == [OrderPlaced]",
        f"event 2 is only on the left: {one!r}",
    ]
    assert explain_difference(one, two) == [
        "OrderPlaced == OrderPlaced",
        "OrderPlaced.order_id: 'order-1' != 'order-2'",
        "OrderPlaced.customer_id: 'c-1' != 'c-2'",
    ]


def test_a_tuple_of_the_events_of_a_list_is_named() -> None:
    one, two = an_order(1), an_order(2)
    assert explain_difference([one, two], (one, two)) == [
        "[OrderPlaced, OrderPlaced] == [OrderPlaced, OrderPlaced]",
        "the same events, but a list never equals a tuple",
    ]
    assert explain_difference([one, two], (two, one)) == [
        "[OrderPlaced, OrderPlaced] == [OrderPlaced, OrderPlaced]",
        "the same events in another order",
    ]


@pytest.mark.parametrize("values", [([], []), ([1], [2]), (an_order(1), None), ([an_order(1)], "x")])
def test_pytest_explains_all_other_comparisons(values: tuple[object, object]) -> None:
    assert explain_difference(*values) is None


def test_worlds_name_the_fake_and_the_handler_that_its_mistake_made_dead(runs: Runs) -> None:
    result = runs(BROKEN)
    result.assert_outcomes(passed=2, failed=1)
    text = result.stdout.str()
    assert f"test_it.py::test_once: {A_MISTAKE}" in text
    assert f"test_it.py::test_many: {A_MISTAKE}; 2 runs" in text
    assert A_MISTAKE in note_of(result)


@pytest.mark.timeout(120)
def test_worlds_of_real_processes_name_the_fake_and_the_handler_too(runs: Runs) -> None:
    impatient = BROKEN.replace("import till", "import impatient").replace("start(till", "start(impatient")
    result = runs(impatient, "--saga-world=embedded")
    result.assert_outcomes(passed=2, failed=1)
    mistake = A_MISTAKE.replace("'ring'", "'ring_once'")
    text = result.stdout.str()
    assert f"test_it.py::test_once: {mistake}; 1 run as real processes" in text
    assert f"test_it.py::test_many: {mistake}; 2 runs as real processes" in text
    assert mistake in note_of(result)


def test_a_fake_without_a_mistake_is_not_blamed(runs: Runs) -> None:
    result = runs("def test_it(world: World) -> None: scenario(orders=1, asked_max=1)(world)")
    result.stdout.no_fnmatch_line("*BROKEN FAKE*")


async def test_check_idempotent_names_the_fake_and_the_handler_that_its_mistake_made_dead() -> None:
    with pytest.raises(Problems) as raised:
        await check_idempotent(till, an_order(1), use=[NewDrawer()])
    assert A_MISTAKE in str(raised.value)
