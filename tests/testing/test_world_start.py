"""Worlds are started with what stands for everything outside; and one in which nothing was started shows nothing."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest

from saga import Service
from saga.errors import DeclarationError, SagaError
from saga.testing.processes import ProcessWorld
from saga.testing.simulation.simulated_world import SimulatedWorld
from saga.testing.world import World
from services.payment import payment
from services.payment.bank import Bank
from services.payment.events import OrderPlaced
from tests.testing.plugin.buggy_service import Drawer, an_order, till

opened: list[str] = []
shop = Service("shop")


@shop.resource
async def drawer() -> AsyncIterator[Drawer]:
    opened.append("drawer")
    yield Drawer()


@shop.handler
async def ring(order: OrderPlaced, drawer: Drawer) -> None:
    await drawer.put("key", order.customer_id)


@pytest.fixture(params=[SimulatedWorld, ProcessWorld])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made: AbstractContextManager[World] = request.param()
    with made as world:
        yield world


def test_a_resource_without_a_fake_is_refused_with_the_way_out(world: World) -> None:
    with pytest.raises(DeclarationError) as refused:
        world.start(till, payment, use=[])
    assert str(refused.value) == (
        "till.drawer gives a Drawer, and nothing in use=[...] stands for it: give a fake, an instance of a subclass of "
        "Drawer; or real=[Drawer], to have drawer opened as it is; payment.bank gives a Bank, and nothing in use=[...] "
        "stands for it: give a fake, an instance of a subclass of Bank; or real=[Bank], to have bank opened as it is"
    )


def test_what_is_asked_for_by_name_must_be_there_and_have_no_fake(world: World) -> None:
    with pytest.raises(DeclarationError, match=r"^no resource of 'till' gives a Bank, which is in real="):
        world.start(till, use=[Drawer()], real=[Bank])
    with pytest.raises(
        DeclarationError, match=r"^Drawer is in real=\[...\], and use=\[...\] has a fake for it: keep one"
    ):
        world.start(till, use=[Drawer()], real=[Drawer])
    with pytest.raises(
        DeclarationError, match=r"^no resource of 'till' is what the fake Bank stands for: a fake is an"
    ):
        world.start(till, use=[Drawer(), Bank()])


def test_a_resource_that_is_asked_for_by_name_is_opened_as_it_is() -> None:
    with SimulatedWorld() as world:
        world.start(shop, real=[Drawer])
        world.publish(an_order(1))
        world.run_until_quiet()
        world.verify()
    assert set(opened) == {"drawer"}


def test_a_world_in_which_nothing_was_started_fails_whatever_is_done_in_it(world: World) -> None:
    pattern = r"^nothing was started in this world, so a test in it shows nothing: world\.start\("
    with pytest.raises(SagaError, match=pattern):
        world.verify()
    with pytest.raises(SagaError, match=pattern):
        world.run_until_quiet()
    with pytest.raises(SagaError, match=pattern):
        world.run_for(timedelta(seconds=1))


def test_what_was_published_and_never_sent_fails_the_world(world: World) -> None:
    world.start(till, use=[Drawer()])
    world.publish(an_order(1), an_order(2))
    pattern = (
        r"^OrderPlaced \(and 1 more\) was published, written or commanded in this world and never sent, .*_quiet\(\)"
    )
    with pytest.raises(SagaError, match=pattern):
        world.verify()
    world.run_until_quiet()
    world.verify()
    world.switch(till, "new_price")
    with pytest.raises(SagaError, match=r"^control was published, written or commanded in this"):
        world.verify()
    world.run_until_quiet()
    world.verify()
