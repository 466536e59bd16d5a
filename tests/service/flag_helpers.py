"""Functions beside a service that ask for flags."""

from types import SimpleNamespace

from saga import Saga

THING = SimpleNamespace(flag=True)


async def asks_for_six(saga: Saga) -> bool:
    return await saga.flag("six")


async def asks_for_seven(saga: Saga) -> bool:
    return await saga.flag("seven")
