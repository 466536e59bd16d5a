"""A world for a choreography's tests: services run in it, events come in from outside, and everything may break.

The same test runs in more than one kind of world: `saga.testing.simulation` runs the services in one thread on a
virtual clock, `saga.testing.processes` as real processes on the embedded adapters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from saga.commands import Wanted, to_record
from saga.errors import SagaError
from saga.messages import Event, Outgoing
from saga.progress.document import Snapshot
from saga.service import Service

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_D = TypeVar("_D", bound="DataclassInstance")

NOTHING_STARTED = (
    "nothing was started in this world, so a test in it shows nothing: world.start(a_service, use=[a_fake]) comes first"
)
NO_DOCUMENTS: "Mapping[str, DataclassInstance]" = MappingProxyType({})


def command(wanted: Wanted, p: Snapshot | None, now_ms: int) -> Outgoing:
    """Record of a person's command about the dead letter that blocks a saga. Raises `SagaError` if none does."""
    kept = next((k for k in (*p.queue, *p.compensating) if k.dead), None) if p is not None else None
    if p is None or kept is None or kept.dead is None:
        raise SagaError("no dead letter blocks this saga in the service: let the world run until it does")
    return to_record(
        p.service, p.saga, wanted=wanted, dead=kept.dead, who="a test", why="its cause is mended", now_ms=now_ms
    )


class World(ABC):
    """Several services on the real runtime in a simulated world: seeded scheduler, virtual clock, faults. A fixture.

    Promises: the same seed gives the same run, byte for byte; a year passes in seconds; nothing is patched. Real time,
    chance, threads or network used by a service raise `SagaError` with the name of the culprit. After each test the
    invariants of the kit are checked; a failure prints seed, invariant and the saga's timeline, after shrinking.
    """

    @abstractmethod
    def start(
        self,
        *services: "Service[DataclassInstance | None]",
        use: Sequence[object] = (),
        real: Sequence[type] = (),
        documents: "Mapping[str, DataclassInstance]" = NO_DOCUMENTS,
    ) -> None:
        """Start two workers of each service. `use`, `real` and `documents`: as in `trial`, for all of them; a document
        goes to the services that declare its kind. Raises `DeclarationError` for a fake that nothing uses, and for a
        resource without a fake that is not in `real`; `SagaError` for a document that no service declares."""

    @abstractmethod
    def read(self, service: "Service[DataclassInstance | None]", kind: type[_D], key: str, /) -> _D | None:
        """A service's document as it is now."""

    @abstractmethod
    def publish(self, *events: Event) -> None:
        """Publish as `Client.publish` does, by an application in this world; takes effect with `run_until_quiet`."""

    @abstractmethod
    def replay(self, service: "Service[DataclassInstance | None]", saga_id: str, /) -> None:
        """Have a person replay the dead letter that blocks this saga in the service, as `saga dead replay` does; takes
        effect with `run_until_quiet`. Raises `SagaError` if none does."""

    @abstractmethod
    def discard(self, service: "Service[DataclassInstance | None]", saga_id: str, /) -> None:
        """Have a person discard it, as `saga dead discard` does, which the service may refuse. As `replay`."""

    @abstractmethod
    def run_until_quiet(self) -> None:
        """Let the world run, time included, until nothing is under way and nothing waits.

        Raises `SagaError`: it does not become quiet, with what still goes on; nothing was started in it.
        """

    @abstractmethod
    def run_for(self, time: timedelta, /) -> None:
        """Let so much time pass, and everything happen that happens in it."""

    @abstractmethod
    def outcome(self, saga_id: str) -> type[Event] | None:
        """Class of the outcome, as the service that decides knows it; `None`: not ended."""

    @abstractmethod
    def always(self, what: str, holds: Callable[[], bool]) -> None:
        """Add an invariant of your own: looked at after everything that happens, and at the end. `what` says it in
        words: `world.always("nobody is charged twice", lambda: len(bank.taken) <= 1)`."""

    @abstractmethod
    def verify(self) -> None:
        """Check the invariants of the kit, once the world is quiet: done after each test. Raises `AssertionError`;
        `SagaError` for a world in which nothing was started, where they would all hold."""

    @abstractmethod
    def save_schedule(self) -> Path:
        """Write this run's schedule as a regression test beside the test that ran it; its path."""
