"""Faults of containers while customers order, and their end."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.compose.system import System

SHORT_S = 5.0
LONG_S = 16.0
"""Longer than the 10 s after which a group counts a member as dead: others have its partitions when it comes back."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One of them."""

    name: str
    lasts_s: float
    begin: Callable[[], None]
    end: Callable[[], None]


def faults(system: System, *, store_forgets: bool) -> Iterator[Fault]:
    """One after the other: a service, the broker, the store; each is killed, cut off or frozen.

    `store_forgets`: the store would come back empty, so it is not killed.
    """

    def kill(what: str, service: str) -> Fault:
        container = system.containers(service)[0]
        return Fault(what, SHORT_S, lambda: system.kill(container), lambda: system.start(container))

    def cut(what: str, service: str, lasts_s: float) -> Fault:
        container = system.containers(service)[0]
        return Fault(what, lasts_s, lambda: system.cut_off(container), lambda: system.join(container, service))

    def freeze(what: str, service: str, lasts_s: float) -> Fault:
        container = system.containers(service)[-1]
        return Fault(what, lasts_s, lambda: system.freeze(container), lambda: system.thaw(container))

    yield kill("one of two processes of payment is killed", "payment")
    yield cut("inventory is cut off, longer than its group waits for it", "inventory", LONG_S)
    yield freeze("the other process of payment is frozen, as long", "payment", LONG_S)
    if os.geteuid() == 0:
        yield _crash(system, "order crashes, and only the engine starts it again", "order")
    yield kill("the broker is killed", "kafka")
    yield cut("the broker is cut off", "kafka", SHORT_S)
    yield freeze("the store is frozen", "couchbase", SHORT_S)
    if not store_forgets:
        yield kill("the store is killed", "couchbase")


def _crash(system: System, what: str, service: str) -> Fault:
    container = system.containers(service)[0]

    def crash() -> None:
        os.kill(int(system.inspect(container, "{{.State.Pid}}")), signal.SIGKILL)

    return Fault(what, SHORT_S, crash, lambda: None)
