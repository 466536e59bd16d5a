"""Test a service alone, a choreography in a world, and every way in which it can break. Nothing here needs a server.

From the smallest: a handler by plain call with `a_saga`; one service with `trial`; several in a `World`; the same test
under many seeds with `simulate`, and with a crash at every point with `crash_everywhere`.

A fake of a resource is an instance of a subclass of the type that the resource gives (`class FakeBank(Bank)`).
"""

from saga.testing.faults import faults
from saga.testing.idempotence import check_idempotent
from saga.testing.plain import a_saga
from saga.testing.scenarios import crash_everywhere, replay, simulate
from saga.testing.trial import Trial, trial
from saga.testing.world import World

__all__ = [
    "Trial",
    "World",
    "a_saga",
    "check_idempotent",
    "crash_everywhere",
    "faults",
    "replay",
    "simulate",
    "trial",
]
