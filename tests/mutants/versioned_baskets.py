"""Baskets of clients that know the first version of a schema, and of clients that know the second; and bugs in how the
first is read."""

from collections.abc import Callable

import pytest

from saga import Event
from saga.contracts import codec
from saga.contracts.upcasters import Upcaster
from saga.engine.prepared_service import PreparedService
from saga.messages import Message, name_of
from saga.testing.simulation.simulated_world import SimulatedWorld
from tests.testing.baskets.events import BasketFilled, BasketFilledV1
from tests.testing.baskets.releases import Drawer, shop, till

BASKETS, CENTS = 4, 980


def versioned_baskets(world: SimulatedWorld) -> Callable[[], None]:
    """Every basket is handed over for its sum, whichever version emitted it; an older till emits the old one."""
    drawer = Drawer(fails=3)
    world.start(shop(3), till(2), use=[drawer])
    for number in range(0, BASKETS, 2):
        world.publish(BasketFilledV1(basket_id=f"b-{number}", amount=CENTS))
        world.publish(BasketFilled(basket_id=f"b-{number + 1}", amount=CENTS * 10))
    world.run_until_quiet()

    def judge() -> None:
        ends = [world.outcome(f"b-{number}") for number in range(BASKETS)]
        assert [end and name_of(end) for end in ends] == ["BasketDone"] * BASKETS, ends
        assert list(drawer.taken.values()) == [CENTS] * BASKETS, drawer.taken
        assert drawer.handed_over == drawer.taken, drawer.handed_over

    return judge


def what_waits_is_read_by_resolution(patch: pytest.MonkeyPatch) -> None:
    """Messages that wait for others, or for which others have waited, are read as if nothing had been a step."""
    decode = PreparedService.decode

    def without(service: PreparedService, handler: str, message: Message) -> Event:
        role, to = service.roles.handlers.get(handler), service.classes[handler][message.type]
        if role is None or not role.is_joined() or message.schema == to.__contract__:
            return decode(service, handler, message)
        compiled = codec._codec(to)
        read = compiled.reader_of(codec.identify(message.value, service.schemas.library))
        event: Event = compiled.from_raw(read(message.value))
        return event

    patch.setattr(PreparedService, "decode", without)


def what_was_upcast_is_upcast_again(patch: pytest.MonkeyPatch) -> None:
    """An upcaster is given what it has made itself."""
    once = Upcaster.__call__

    def twice(upcaster: Upcaster, old: Event) -> Event:
        made = once(upcaster, old)
        return once(upcaster, made) if hasattr(made, "amount") else made

    patch.setattr(Upcaster, "__call__", twice)
