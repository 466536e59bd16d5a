"""A world for a choreography's tests: services run in it, events come in from outside, and everything may break.

The same test runs in more than one kind of world: `saga.testing.simulation` runs the services in one thread on a
virtual clock, `saga.testing.processes` as real processes on the embedded adapters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from saga.declarations.values import Declared
from saga.errors import DeclarationError, SagaError
from saga.messages import Event, Outgoing
from saga.messaging import controls
from saga.messaging.controls import Switch
from saga.messaging.operator_commands import StepAnswer, Wanted, command_to_record
from saga.progress.document import SagaProgress
from saga.progress.failed_attempts import find_parked_runs
from saga.service import Service
from saga.support.clock import iso

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_D = TypeVar("_D", bound="DataclassInstance")

NOTHING_STARTED = (
    "nothing was started in this world, so a test in it shows nothing: world.start(a_service, use=[a_fake]) comes first"
)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
NO_DOCUMENTS: "Mapping[str, DataclassInstance]" = MappingProxyType({})


def command(wanted: Wanted, p: SagaProgress | None, now_ms: int, answered: StepAnswer | None = None) -> Outgoing:
    """Record of a person's command about the dead letter that blocks a saga, or about its first run that is parked.
    Raises `SagaError` if there is none."""
    if wanted == "release":
        about = next((run.id for run in find_parked_runs(p)), None) if p is not None else None
    else:
        about = next((k.dead for k in (*p.queue, *p.compensating) if k.dead), None) if p is not None else None
    if p is None or about is None:
        what = "nothing of this saga is parked" if wanted == "release" else "no dead letter blocks this saga"
        raise SagaError(f"{what} in the service: let the world run until it is so")
    return command_to_record(
        p.service,
        p.saga,
        wanted=wanted,
        dead=about,
        who="a test",
        why="its cause is mended",
        now_ms=now_ms,
        answered=answered,
    )


def answer_of(step: str, answered: object, raised: Exception | None) -> StepAnswer:
    """Answer of a person to a step, as the outside would have given it."""
    if raised is not None:
        return StepAnswer(step=step, value=msgspec.json.encode(raised.args).decode(), raised=type(raised).__name__)
    return StepAnswer(step=step, value=msgspec.json.encode(answered).decode())


class DocumentWrite(NamedTuple):
    """Document as an application writes it."""

    collection: str
    key: str
    content: bytes | None
    """JSON of the document; `None`: it is removed."""
    expires: timedelta | None


def with_marks_of(before: bytes, content: bytes) -> bytes:
    """JSON of a document with the toolkit's marks of what was before, as a store keeps them that other programs write
    to.

    >>> with_marks_of(b'{"_saga":{"markers":{}},"n":1}', b'{"n":2}')
    b'{"_saga":{"markers":{}},"n":2}'
    """
    marks = _fields.decode(before).get("_saga")
    return content if marks is None else msgspec.json.encode({"_saga": marks, **_fields.decode(content)})


def _collection_of(service: "Service[DataclassInstance | None]", kind: type) -> str:
    collection = next((d.collection for d in service.declared.documents if d.kind is kind), None)
    if collection is None:
        raise SagaError(f"{service.declared.name!r} declares no document {kind.__name__}")
    return collection


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

    def deploy(self, service: "Service[DataclassInstance | None]", /, *, use: Sequence[object] = ()) -> None:
        """Deploy another release of a service that was started: its workers are restarted in good order, one after
        another, while the world runs, so old and new are there side by side. A release that was there before is rolled
        back to. Takes effect with `run_until_quiet`; with the fault `deploy` workers go back and forth besides.

        `use`: fakes that the release needs besides those it was started with. Raises `SagaError` for a service that was
        not started, and in a world that has no releases: that of real processes; otherwise as `start`.
        """
        raise SagaError("this world has one release of each service: deploy others in the simulated world")

    @abstractmethod
    def read(self, service: "Service[DataclassInstance | None]", kind: type[_D], key: str, /) -> _D | None:
        """A service's document as it is now."""

    def use_connector(self) -> None:
        """Have changes of documents told by a connector, as on Couchbase: quick writes of one document come as the
        last, without what was before, and a stretch may come again. Otherwise the services' stores note them, as on
        SQLite. Before `start`. Raises `SagaError` in a world of real processes."""
        raise SagaError("this world has no connector of its own: use it in the simulated world")

    def write(
        self,
        service: "Service[DataclassInstance | None]",
        key: str,
        document: "DataclassInstance",
        /,
        *,
        expires: timedelta | None = None,
    ) -> None:
        """Have an application write a document into the service's store, with its own driver and no library of ours;
        takes effect with `run_until_quiet`, in order with what is published. `expires`: after which the document is
        gone. Raises `SagaError` for a document that the service does not declare."""
        collection = _collection_of(service, type(document))
        self._change(service, DocumentWrite(collection, key, msgspec.json.encode(document), expires))

    def remove(self, service: "Service[DataclassInstance | None]", kind: type, key: str, /) -> None:
        """Have an application remove a document from the service's store; nothing happens if it is not there. As
        `write`."""
        self._change(service, DocumentWrite(_collection_of(service, kind), key, None, None))

    @abstractmethod
    def _change(self, service: "Service[DataclassInstance | None]", written: "DocumentWrite") -> None:
        """Have an application change a document. Raises `SagaError` if the service does not run."""

    @abstractmethod
    def publish(self, *events: Event, principal: str | None = None) -> None:
        """Publish as `Client.publish` does, by an application in this world; takes effect with `run_until_quiet`.
        `principal`: who begins the sagas."""

    def seal(self) -> None:
        """Have all processes of this world, the application too, seal sensitive values, as with `SAGA_KEYS`. Before
        `start`. Raises `SagaError` in a world of real processes: set `SAGA_KEYS` there."""
        raise SagaError("this world seals nothing by itself: set SAGA_KEYS, or seal in the simulated world")

    def forget(self, subject: str, /) -> None:
        """Have a person forget a subject, as `saga keys forget` does, at this moment. Raises `SagaError` in a world
        that seals nothing."""
        raise SagaError("nothing is sealed in this world, so nobody can be forgotten: world.seal() comes first")

    def replay(self, service: "Service[DataclassInstance | None]", saga_id: str, /) -> None:
        """Have a person replay the dead letter that blocks this saga in the service, as `saga dead replay` does; takes
        effect with `run_until_quiet`. Raises `SagaError` if none does."""
        self._wishes(service, "replay", saga_id)

    def discard(self, service: "Service[DataclassInstance | None]", saga_id: str, /) -> None:
        """Have a person discard it, as `saga dead discard` does, which the service may refuse. As `replay`."""
        self._wishes(service, "discard", saga_id)

    def release(self, service: "Service[DataclassInstance | None]", saga_id: str, /) -> None:
        """Have a person want what is parked of this saga tried at once, as `saga dead release` does. As `replay`;
        raises `SagaError` if nothing of it is parked."""
        self._wishes(service, "release", saga_id)

    def resolve(
        self,
        service: "Service[DataclassInstance | None]",
        saga_id: str,
        /,
        *,
        step: str,
        answered: object = None,
        raised: Exception | None = None,
    ) -> None:
        """Have a person say what the first call of `step` gave, or by which declared exception it answered, as `saga
        dead resolve` does, and try the dead letter again. As `replay`."""
        self._wishes(service, "resolve", saga_id, answer_of(step, answered, raised))

    def switch(
        self,
        service: "Service[DataclassInstance | None]",
        flag: str,
        /,
        *,
        percent: float = 100,
        saga: str | None = None,
    ) -> None:
        """Have a person set a flag of the service, as `saga control flag` does; takes effect with `run_until_quiet`,
        after five seconds at the latest."""
        self._has(service, Switch(flag=flag, percent=percent, saga=saga))

    def pause(
        self,
        service: "Service[DataclassInstance | None]",
        handler: str | None = None,
        /,
        *,
        time: timedelta | None = None,
    ) -> None:
        """Have a person pause a handler or compensation of the service, or all of it, as `saga control pause` does:
        from five seconds later on it begins nothing. `time`: after which the pause ends by itself; left out, when it is
        resumed: no world becomes quiet before."""
        until = None if time is None else iso(self._time_ms() + round(time / timedelta(milliseconds=1)))
        self._has(service, Switch(kind="pause", handler=handler, until=until))

    def resume(self, service: "Service[DataclassInstance | None]", handler: str | None = None, /) -> None:
        """Have a person end that pause, as `saga control resume` does: what waited goes on within a minute."""
        self._has(service, Switch(kind="pause", handler=handler, off=True))

    def limit(
        self,
        service: "Service[DataclassInstance | None]",
        /,
        *,
        resource: str | None = None,
        handler: str | None = None,
        at_once_max: int | None = None,
        rate_per_s: float | None = None,
    ) -> None:
        """Have a person limit a resource or a handler of the service in each of its workers, as `saga control limit`
        does; without a number, what is declared holds again."""
        off = at_once_max is None and rate_per_s is None
        limits = Switch(kind="limit", off=off, resource=resource, handler=handler)
        self._has(service, replace(limits, at_once_max=at_once_max, rate_per_s=rate_per_s))

    def route(
        self, service: "Service[DataclassInstance | None]", handler: str, /, *, to: Literal["dead"] | None
    ) -> None:
        """Have a person send a handler's messages to the dead letters, as `saga control route` does, or, with `None`,
        end that."""
        self._has(service, Switch(kind="route", handler=handler, off=to is None))

    def _has(self, service: "Service[DataclassInstance | None]", switch: Switch) -> None:
        name = service.declared.name
        self._tell(controls.control_to_record(name, switch, who="a test", why="to see", now_ms=self._time_ms()))

    def _wishes(
        self,
        service: "Service[DataclassInstance | None]",
        wanted: Wanted,
        saga: str,
        answered: StepAnswer | None = None,
    ) -> None:
        p = self._known(service, saga)
        self._tell(command(wanted, p, self._time_ms(), answered))

    @abstractmethod
    def _known(self, service: "Service[DataclassInstance | None]", saga: str) -> SagaProgress | None:
        """Progress of a saga in the service, if it has one. Raises `SagaError` if the service does not run."""

    @abstractmethod
    def _tell(self, record: Outgoing) -> None:
        """Have a person say this to a service."""

    @abstractmethod
    def _time_ms(self) -> int:
        """Time of day in this world."""

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


def check_fakes(services: Sequence[Declared], use: Sequence[object], real: Sequence[type]) -> None:
    """Check the fakes. Raises `DeclarationError` with all that is wrong: a fake that nothing uses; a resource that has
    no fake and that nobody has asked for as it is, by the type it gives in `real`; a type in `real` that no resource
    gives, or that has a fake."""
    if problems := list(_problems(services, use, real)):
        raise DeclarationError("; ".join(dict.fromkeys(problems)))


def _problems(services: Sequence[Declared], use: Sequence[object], real: Sequence[type]) -> Iterator[str]:
    resources = [(declared, resource) for declared in services for resource in declared.resources]
    names = ", ".join(repr(declared.name) for declared in services)
    for fake in use:
        if not any(isinstance(fake, resource.gives) for _, resource in resources):
            yield (
                f"no resource of {names} is what the fake {type(fake).__name__} stands for: a fake is an instance of a "
                "subclass of what the resource gives"
            )
    for declared, resource in resources:
        gives, faked = resource.gives.__name__, any(isinstance(fake, resource.gives) for fake in use)
        if not faked and resource.gives not in real:
            yield (
                f"{declared.name}.{resource.name} gives a {gives}, and nothing in use=[...] stands for it: give a "
                f"fake, an instance of a subclass of {gives}; or real=[{gives}], to have {resource.name} opened as it "
                "is"
            )
        if faked and resource.gives in real:
            yield f"{gives} is in real=[...], and use=[...] has a fake for it: keep one of the two"
    for kind in real:
        if not any(kind is resource.gives for _, resource in resources):
            yield f"no resource of {names} gives a {kind.__name__}, which is in real=[...]: leave it out"
