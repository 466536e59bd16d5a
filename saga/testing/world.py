"""Test worlds: environments in which the services of a choreography run together while a test sends events and injects
faults.

The same test runs in more than one kind of world: `saga.testing.simulation` runs the services in one thread on a
virtual clock, `saga.testing.processes` runs them as real processes on the embedded adapters or on servers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from saga.declarations.values import Declared
from saga.engine.ports import ExternalCall
from saga.errors import DeclarationError, SagaError
from saga.messages import Event, Outgoing, name_of
from saga.messaging import controls
from saga.messaging.controls import Switch
from saga.messaging.envelope import type_of
from saga.messaging.operator_commands import CommandValue, StepAnswer, Wanted, command_to_record
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


def check_sent(pending: "Sequence[Event | DocumentWrite | Outgoing]", deployed: Sequence[str] = ()) -> None:
    """Raise `SagaError` if something that the test published, wrote, commanded or deployed still waits for the world to
    run."""
    if pending:
        first = pending[0]
        match first:
            case Outgoing():
                name = type_of(first) or first.topic
            case DocumentWrite():
                name = f"the document {first.collection}/{first.key}"
            case _:
                name = name_of(type(first))
        more = f" (and {len(pending) - 1} more)" if len(pending) > 1 else ""
        raise SagaError(
            f"{name}{more} was published, written or commanded in this world and never sent, so the test shows "
            "nothing about it: world.run_until_quiet() comes after it"
        )
    if deployed:
        raise SagaError(
            f"a release of {deployed[0]} was deployed in this world, which has not run since, so the test shows "
            "nothing about it: world.run_until_quiet() comes after it"
        )


def check_time(time: timedelta) -> None:
    """Raise `SagaError` if a test lets a negative time pass, in which nothing would happen."""
    if time < timedelta(0):
        raise SagaError(f"{time.total_seconds():g} s: time does not go back, so nothing would run")


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
NO_DOCUMENTS: "Mapping[str, DataclassInstance]" = MappingProxyType({})


def make_command(wanted: Wanted, p: SagaProgress | None, now_ms: int, answered: StepAnswer | None = None) -> Outgoing:
    """Return the record of an operator command for a saga. The command is about the dead letter that blocks the saga
    or, for `release`, about the saga's first parked run.

    `p`: the service's progress of the saga, if it has one. `answered`: the answer of a step, for `resolve`. Raises
    `SagaError` if there is no such dead letter or parked run.
    """
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
        wanted,
        CommandValue(dead=about, who="a test", why="its cause is fixed", answered=answered),
        now_ms,
    )


def encode_answer(step: str, answered: object, raised: Exception | None) -> StepAnswer:
    """Encode the answer that an operator supplies for a step: the value `answered`, or the exception `raised` unless it
    is `None`.
    """
    if raised is not None:
        return StepAnswer(step=step, value=msgspec.json.encode(raised.args).decode(), raised=type(raised).__name__)
    return StepAnswer(step=step, value=msgspec.json.encode(answered).decode())


class DocumentWrite(NamedTuple):
    """A write of a document by an application that does not use the toolkit."""

    collection: str
    key: str
    content: bytes | None
    """JSON of the document; `None` to remove the document."""
    expires: timedelta | None


def keep_markers(before: bytes, content: bytes) -> bytes:
    """Return the new JSON of a document together with the toolkit's markers from the previous version `before`.

    A real store keeps the markers in the same way when another program writes the document.

    >>> keep_markers(b'{"_saga":{"markers":{}},"n":1}', b'{"n":2}')
    b'{"_saga":{"markers":{}},"n":2}'
    """
    marks = _fields.decode(before).get("_saga")
    return content if marks is None else msgspec.json.encode({"_saga": marks, **_fields.decode(content)})


def _find_collection(service: "Service[DataclassInstance | None]", kind: type) -> str:
    collection = next((d.collection for d in service.declared.documents if d.kind is kind), None)
    if collection is None:
        raise SagaError(f"{service.declared.name!r} declares no document {kind.__name__}")
    return collection


class CheckFailed(AssertionError):
    """Raised when an invariant does not hold."""

    def __init__(self, invariant: str, what: str, saga: str | None = None) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant, self.saga = invariant, saga


class World(ABC):
    """A test world, available as a pytest fixture: several services on the real runtime, with injected faults.

    Guarantees of the simulated world:
    - The same seed gives the same run, byte for byte.
    - A year passes in seconds.
    - Nothing is patched. If a service uses real time, randomness, threads or the network, a `SagaError` names the line
      of code that is responsible.
    - After each test the kit checks its invariants. A failing schedule is first shrunk, then reported with its seed,
      the broken invariant and the saga's timeline.
    """

    has_commanded = False
    """True if the test has sent an operator command (replay, discard, resolve or release). Such a test expects dead
    letters or parked runs.
    """

    @abstractmethod
    def start(
        self,
        *services: "Service[DataclassInstance | None]",
        use: Sequence[object] = (),
        real: Sequence[type] = (),
        documents: "Mapping[str, DataclassInstance]" = NO_DOCUMENTS,
    ) -> None:
        """Start two workers of each service.

        `use`, `real` and `documents` are as in `trial` and apply to all the services. Each document is stored in those
        services that declare its kind.

        Raises `DeclarationError` for a fake that nothing uses, and for a resource that has no fake and is not in
        `real`; `SagaError` for a document that no service declares.
        """

    def deploy(self, service: "Service[DataclassInstance | None]", /, *, use: Sequence[object] = ()) -> None:
        """Deploy another release of a service that was started.

        Its workers are restarted gracefully, one after another, while the world runs, so old and new releases run side
        by side. To roll back, deploy an earlier release again. The deployment takes effect with `run_until_quiet`. With
        the fault `deploy`, workers also switch between releases at random.

        `use`: fakes that this release needs in addition to those that the service was started with.

        Raises `SagaError` for a service that was not started, and always in the world of real processes, which has no
        releases; otherwise the same errors as `start`.
        """
        raise SagaError("this world has one release of each service: deploy others in the simulated world")

    @abstractmethod
    def read(self, service: "Service[DataclassInstance | None]", kind: type[_D], key: str, /) -> _D | None:
        """Return the current content of a service's document; `None` if it does not exist."""

    def use_connector(self) -> None:
        """Deliver document changes through a simulated Kafka connector, as on Couchbase. Call this method before
        `start`.

        The connector may merge rapid writes of one document into the last of them, does not deliver the previous
        content, and may deliver a range of changes again. Without a connector the services' stores record the changes
        themselves, as on SQLite. Raises `SagaError` in a world of real processes.
        """
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
        """Write a document into the service's store as an application would: with a driver of its own, without this
        toolkit.

        The write takes effect during `run_until_quiet`, in order with published events. `expires`: time after which the
        document expires.

        Raises `SagaError` if the service was not started or does not declare the document. In a world of real processes
        it also raises `SagaError` for `expires`, and always if the world uses servers.
        """
        collection = _find_collection(service, type(document))
        self._write_document(service, DocumentWrite(collection, key, msgspec.json.encode(document), expires))

    def remove(self, service: "Service[DataclassInstance | None]", kind: type, key: str, /) -> None:
        """Remove a document from the service's store as an application would. Do nothing if it does not exist.
        Everything else is as for `write`.
        """
        self._write_document(service, DocumentWrite(_find_collection(service, kind), key, None, None))

    @abstractmethod
    def _write_document(self, service: "Service[DataclassInstance | None]", written: "DocumentWrite") -> None:
        """Write or remove a document as an application would. Raises `SagaError` if the service does not run."""

    @abstractmethod
    def publish(self, *events: Event, principal: str | None = None) -> None:
        """Publish events as an application does with `Client.publish`. They are sent during `run_until_quiet`.

        `principal`: the user or system on whose behalf the sagas are started.
        """

    def seal(self) -> None:
        """Encrypt sensitive values in all processes of this world, including the application, as with the setting
        `SAGA_KEYS`. Call this method before `start`.

        Raises `SagaError` in a world of real processes, where you set `SAGA_KEYS` instead.
        """
        raise SagaError("this world seals nothing by itself: set SAGA_KEYS, or seal in the simulated world")

    def forget(self, subject: str, /) -> None:
        """Erase the key of a subject now, as `saga keys forget` does.

        Raises `SagaError` in a world without encryption.
        """
        raise SagaError("nothing is encrypted in this world, so no key can be erased: call world.seal() first")

    def replay(self, service: "Service[DataclassInstance | None]", saga_id: str, /) -> None:
        """Replay the dead letter that blocks this saga in the service, as an operator does with `saga dead replay`.

        The command takes effect with `run_until_quiet`. Raises `SagaError` if no dead letter blocks the saga.
        """
        self._send_command(service, "replay", saga_id)

    def discard(self, service: "Service[DataclassInstance | None]", saga_id: str, /) -> None:
        """Discard the dead letter that blocks this saga, as an operator does with `saga dead discard`. The service may
        refuse the command. Everything else is as for `replay`.
        """
        self._send_command(service, "discard", saga_id)

    def release(self, service: "Service[DataclassInstance | None]", saga_id: str, /) -> None:
        """Retry the parked run of this saga at once, as an operator does with `saga dead release`.

        The command takes effect with `run_until_quiet`. Raises `SagaError` if no run of the saga is parked.
        """
        self._send_command(service, "release", saga_id)

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
        """Supply the result of a step and replay the dead letter, as an operator does with `saga dead resolve`.

        The first call of `step` then returns `answered`, or raises `raised` (a declared exception) if it is given.
        Everything else is as for `replay`.
        """
        self._send_command(service, "resolve", saga_id, encode_answer(step, answered, raised))

    def switch(
        self,
        service: "Service[DataclassInstance | None]",
        flag: str,
        /,
        *,
        percent: float = 100,
        saga: str | None = None,
    ) -> None:
        """Set a flag of the service, as an operator does with `saga control flag`.

        The flag changes during `run_until_quiet`, within five seconds. `percent`: share of all sagas for which it is
        on. `saga`: id of the only saga for which the flag changes; `percent` is then 0 or 100.
        """
        self._set_control(service, Switch(flag=flag, percent=percent, saga=saga))

    def pause(
        self,
        service: "Service[DataclassInstance | None]",
        handler: str | None = None,
        /,
        *,
        time: timedelta | None = None,
    ) -> None:
        """Pause a handler, compensation or deadline of the service, or the whole service, as an operator does with
        `saga control pause`.

        Within five seconds no more runs begin; a run in progress finishes. `time`: how long the pause lasts. Without
        it, the pause lasts until `resume`, and the world does not become quiet before then.
        """
        until = None if time is None else iso(self._time_ms() + round(time / timedelta(milliseconds=1)))
        self._set_control(service, Switch(kind="pause", handler=handler, until=until))

    def resume(self, service: "Service[DataclassInstance | None]", handler: str | None = None, /) -> None:
        """End a pause, as an operator does with `saga control resume`. Waiting messages continue within a minute."""
        self._set_control(service, Switch(kind="pause", handler=handler, off=True))

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
        """Limit a resource or a handler of the service in each of its workers, as an operator does with `saga control
        limit`.

        If neither `at_once_max` nor `rate_per_s` is given, the declared limits apply again.
        """
        off = at_once_max is None and rate_per_s is None
        limits = Switch(kind="limit", off=off, resource=resource, handler=handler)
        self._set_control(service, replace(limits, at_once_max=at_once_max, rate_per_s=rate_per_s))

    def route(
        self, service: "Service[DataclassInstance | None]", handler: str, /, *, to: Literal["dead"] | None
    ) -> None:
        """Send a handler's messages to the dead letters (`to="dead"`), as an operator does with `saga control route`.
        With `to=None`, the handler gets its messages again.
        """
        self._set_control(service, Switch(kind="route", handler=handler, off=to is None))

    def _set_control(self, service: "Service[DataclassInstance | None]", switch: Switch) -> None:
        name = service.declared.name
        self._send_record(controls.control_to_record(name, switch, who="a test", why="to see", now_ms=self._time_ms()))

    def _send_command(
        self,
        service: "Service[DataclassInstance | None]",
        wanted: Wanted,
        saga: str,
        answered: StepAnswer | None = None,
    ) -> None:
        p = self._find_progress(service, saga)
        self.has_commanded = True
        self._send_record(make_command(wanted, p, self._time_ms(), answered))

    @abstractmethod
    def _find_progress(self, service: "Service[DataclassInstance | None]", saga: str) -> SagaProgress | None:
        """Return the service's progress of a saga; `None` if it has none. Raises `SagaError` if the service does not
        run.
        """

    @abstractmethod
    def _send_record(self, record: Outgoing) -> None:
        """Send a record with an operator command or a control to a service."""

    @abstractmethod
    def _time_ms(self) -> int:
        """Return the time of day in this world."""

    @abstractmethod
    def run_until_quiet(self) -> None:
        """Run the world and advance its clock until nothing is in progress and nothing waits.

        Raises `SagaError` if nothing was started in the world, or if it does not become quiet; the message then lists
        what is still in progress.
        """

    @abstractmethod
    def run_for(self, time: timedelta, /) -> None:
        """Advance the clock by `time`, and run everything that becomes due meanwhile. Raises `SagaError` for a negative
        time.
        """

    @abstractmethod
    def outcome(self, saga_id: str) -> type[Event] | None:
        """Return the class of the saga's outcome, as recorded by the service that decides it; `None` if the saga has
        not ended.
        """

    @abstractmethod
    def always(self, what: str, holds: Callable[[], bool]) -> None:
        """Add an invariant of your own. It is checked after every event in the world and at the end.

        `what` describes the invariant: `world.always("no customer is charged twice", lambda: len(bank.taken) <= 1)`.
        """

    @abstractmethod
    def verify(self) -> None:
        """Check the invariants of the kit, and those that were added with `always`. Call this method once the world is
        quiet. The kit also calls it after each test.

        Raises `AssertionError` for a broken invariant. Raises `SagaError` if no service was started, because then the
        check would show nothing.
        """

    @abstractmethod
    def save_schedule(self) -> Path:
        """Write this run's schedule as a regression test, next to the file of the test that ran it. Return the new
        file's path.
        """


def is_call_of(step: ExternalCall, fakes: Iterable[object]) -> bool:
    """Return True if a step calls a method of one of these fakes."""
    owner = getattr(step.call, "__self__", None)
    return any(owner is fake for fake in fakes)


def check_fakes(services: Sequence[Declared], use: Sequence[object], real: Sequence[type]) -> None:
    """Check that each fake replaces a resource, and that each resource has a fake or may be opened for real.

    Raises `DeclarationError` with all problems: a fake that no resource uses; a resource that has no fake and whose
    type is not in `real`; a type in `real` that no resource provides, or that has a fake.
    """
    if problems := list(_find_problems(services, use, real)):
        raise DeclarationError("; ".join(dict.fromkeys(problems)))


def _find_problems(services: Sequence[Declared], use: Sequence[object], real: Sequence[type]) -> Iterator[str]:
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
