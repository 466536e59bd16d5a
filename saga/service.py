"""The class `Service`, whose decorators declare what a service does. The types in the signatures of the decorated
functions are the declaration."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from types import UnionType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Never, TypeAlias, overload

from typing_extensions import TypeVar

from saga.change import Change
from saga.declarations.handlers import (
    TIMEOUT_S,
    HandlerOptions,
    check_alone,
    check_can_be_compensated,
    check_deadline,
    check_grace,
    check_opener,
    find_original,
    make_compensation,
    make_handler,
)
from saga.declarations.migrations import make_migration
from saga.declarations.resources import (
    ResourceOptions,
    check_may_refuse,
    check_retry,
    check_seconds,
    check_state,
    make_document_kind,
    make_resource,
)
from saga.declarations.values import Declared, DocumentKind, Parameter, Reaction, Resource, Start
from saga.errors import DeclarationError
from saga.messages import Event
from saga.messaging.names import OURS
from saga.policies.breaker import Breaker
from saga.policies.retry import Retry
from saga.view import Later

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Declared", "DocumentKind", "Parameter", "Reaction", "Resource", "Service"]

_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
_RETENTION_MIN, _RETENTION_MAX = timedelta(seconds=1), timedelta(days=50 * 365)
"""Bounds of `retention`. The minimum is one second because expiry is given in whole seconds. The maximum is 50 years
because Couchbase stores expiry as seconds since 1970 with 32 bits, which end in 2106."""
_TAKEN = {"client": "clients publish under that name", OURS: "the toolkit's own topics and documents are called so"}

Repeating: TypeAlias = type[Event] | type[Change[Any]] | UnionType
"""Annotation of a parameter whose event may come several times: `OrderNote`, `A | B` or `Change[Order]`."""
_Emitted: TypeAlias = Event | Sequence[Event | None] | None
_Reaction: TypeAlias = Event | Later[Event | None] | Sequence[Event | Later[Event | None] | None] | None
_S_co = TypeVar("_S_co", bound="DataclassInstance | None", default=None, covariant=True)
_D = TypeVar("_D", bound="DataclassInstance")
# `Never` as a parameter: it may have any type, but there has to be one. A compensation has at least two.
_Handler = TypeVar("_Handler", bound=Callable[Concatenate[Never, ...], Awaitable[_Reaction]])
_Compensation = TypeVar("_Compensation", bound=Callable[Concatenate[Never, Never, ...], Awaitable[_Emitted]])
_Deadline = TypeVar("_Deadline", bound=Callable[Concatenate[Never, ...], Awaitable[_Emitted]])
_Migration = TypeVar("_Migration", bound=Callable[[Never], "DataclassInstance"])
_Opener = TypeVar("_Opener", bound=Callable[[], AsyncIterator[object]])


class Service(Generic[_S_co]):
    """An independently deployed participant of sagas. It has handlers, one store and one consumer group, and takes part
    in one kind of saga.

    The types in signatures are the declaration:
    - A parameter annotated with an event, or a union of events, declares what is consumed.
    - A parameter of type `Saga` receives the saga as this run sees it.
    - A parameter of type `Change[D]` receives a change of a document that is declared above the handler.
    - Any other parameter must have the type of a resource that is declared above the handler.
    - The return annotation declares what may be emitted: `A | B` one of the two, `tuple[A, B]` both, `list[A]` many,
      `| None` possibly nothing. `Later` means that the handler may run again later.

    The names and the order of parameters do not matter.

    Every decorator returns its function unchanged, so type checkers see its own type, and a test can call it directly.
    Mistakes that types cannot show raise a `DeclarationError` while the module is imported.
    """

    def __init__(
        self,
        name: str,
        *,
        state: Callable[[], _S_co] | None = None,
        retention: timedelta = timedelta(days=30),
        retry: Retry | None = None,
        start: Start | None = None,
        was: str = "",
    ) -> None:
        """Begin the declaration of a service.

        Args:
            name: part of document keys, topics, ids and idempotency keys. At most 64 lower case letters, digits and
                `-`. A new name without `was` makes a new service, which handles everything again, with other
                idempotency keys.
            state: the class of `saga.state`: a frozen dataclass in which every field has a default, because a saga
                begins with `state()`, which has to be the same each time. A field with a default may be added at any
                time. If it is left out, the service has no state, and handlers use plain `Saga`.
            retention: how long a saga is kept after its last message if it has no open work, from one second to 50
                years (Couchbase cannot store times after 2106). Duplicates are recognized for this long, and all waits
                of one run together (see `Later`) may not be longer. Open sagas are kept without limit.
            retry: how often and when a failure is retried, if neither the handler nor the resource declares it. It also
                applies to compensations and deadlines.
            start: where to begin in a topic that the service has never read. `"beginning"`: at the oldest record.
                `"now"`: at the first record published after the first start of the service. A `datetime` with a time
                zone: at that time. The position is decided once and kept in the store. If it is left out, the service
                begins at the oldest record, and `saga doctor` asks whether that is intended.
            was: the first name of the service, if `name` is a new one. Progress, group, topics, ids, idempotency keys,
                metrics and the owner in contracts keep the first name for ever. So nothing is done twice, and releases
                with either name can run side by side.

        Raises `DeclarationError` for a name with other characters, an invalid start, retention or retry, and a state
        that is not a frozen dataclass of plain fields, has a field without a default, or begins differently each time.
        """
        for each in (name, was) if was else (name,):
            _check_name(each, f"Service({name!r}" + (f", was={was!r})" if was else ")"))
        if was == name:
            raise DeclarationError(f"Service({name!r}, was={was!r}): that is its name; leave `was` out")
        if start not in (None, "beginning", "now") and not (isinstance(start, datetime) and start.tzinfo):
            raise DeclarationError(
                f'Service({name!r}, start={start!r}): give "beginning", "now", or a datetime with a time zone'
            )
        kind = None if state is None else check_state(state, f"Service({name!r}, state=...)")
        if not isinstance(retention, timedelta) or not _RETENTION_MIN <= retention <= _RETENTION_MAX:
            raise DeclarationError(
                f"Service({name!r}, retention={retention!r}): give a timedelta, from 1 second to 50 years"
            )
        check_retry(retry, f"Service({name!r})")
        stored, renamed = (was, name) if was else (name, "")
        self._declared = Declared(
            name=stored, renamed=renamed, start=start, state=kind, retention=retention, retry=retry
        )

    @property
    def declared(self) -> Declared:
        """Return the declarations made so far."""
        return self._declared

    def __repr__(self) -> str:
        return f"Service({self._declared.title!r})"

    @overload
    def handler(self, handler: _Handler, /) -> _Handler: ...
    @overload
    def handler(
        self,
        /,
        *,
        repeats: Repeating | None = None,
        retry: Retry | None = None,
        timeout_s: float = TIMEOUT_S,
        low_priority: bool = False,
        irreversible: bool = False,
        version: int = 1,
    ) -> Callable[[_Handler], _Handler]: ...
    def handler(
        self,
        handler: _Handler | None = None,
        /,
        *,
        repeats: Repeating | None = None,
        retry: Retry | None = None,
        timeout_s: float = TIMEOUT_S,
        low_priority: bool = False,
        irreversible: bool = False,
        version: int = 1,
    ) -> _Handler | Callable[[_Handler], _Handler]:
        """Declare the reaction to an event, to several events (fan-in: it runs when all of them have come), or to a
        `Change`.

        Guarantees:
        - In a saga the handler runs to its end once (with `repeats`, once per event), despite crashes and duplicates.
        - Its state and its events are saved in one write; then the events are published in order.
        - After a crash or a failure the handler runs again with the same input. Steps and updates that are already
          recorded return their results at once.

        A handler does not wait for an event parameter `E | None`: the parameter receives the event or `None`. Such a
        parameter is used together with `Later[E]` in the return annotation.

        Args:
            repeats: the event that may come several times in a saga, written as its parameter is annotated
                (`repeats=OrderNote`, `repeats=A | B`, `repeats=Change[Order]`). The handler runs for each of them. A
                handler of several events uses the same other events in each run. The event that starts the saga comes
                once, so a handler of several events cannot repeat it. Without `repeats`, a second event with the same
                content is ignored and logged, and a second event with other content becomes a dead letter; all changes
                of a document after the first are ignored and logged.
            retry: how often and when the handler is retried, for all failures. If it is left out, the rules of the
                resource on which a step failed apply, or else the rules of the service. See `Retry` for the precedence.
            timeout_s: seconds that one attempt may take.
            low_priority: true if the handler may wait. While the worker has many messages in flight, messages that only
                such handlers take are delayed in favour of others. The delay is at most half a minute, and a message
                never waits behind a later message of its own saga.
            irreversible: true if what the handler does cannot be undone, such as a letter that is sent. `saga check`
                then proves that it does not run before the success of the saga is certain.
            version: version of the handler's behaviour. Raise it by one in a release whose handler makes different
                steps. A run keeps the version under which it began, and `saga.version` returns it. So keep the old code
                beside the new code until no run of the old version is open. A process of the previous release does not
                continue a run that began under a newer version; it leaves the run to a process that can.

        Raises `DeclarationError` for a function that is not `async`; a parameter without annotation, or of a type that
        nothing provides; no event among the parameters, or one event in two of them; an event that is the only event of
        two handlers; `Saga[X]` where X is not the service's state; a returned event that another service owns; events
        of two kinds of saga; `repeats` that names no parameter, is used with `E | None`, or names the event that starts
        the saga in a handler of several events; `E | None` without `Later[E]`, or the other way round; a version that
        is not a whole number from 1 on.
        """
        options = HandlerOptions(
            repeats=repeats,
            retry=retry,
            timeout_s=timeout_s,
            low_priority=low_priority,
            irreversible=irreversible,
            version=version,
        )

        def declare(function: _Handler) -> _Handler:
            where = f"{self._declared.name}.{getattr(function, '__name__', function)}"
            check_seconds(timeout_s, "timeout_s", where)
            check_retry(retry, where)
            found = make_handler(self._declared, function, options)
            check_alone(self._declared, found)
            self._declared.reactions.append(found)
            return function

        return declare if handler is None else declare(handler)

    def compensation(
        self, original: Callable[..., Awaitable[_Reaction]], /, *, version: int = 1
    ) -> Callable[[_Compensation], _Compensation]:
        """Declare how `original`, a handler of this service, is undone.

        The compensation may have these parameters:
        - the failure outcome to which it reacts, or a union of outcomes;
        - the result of `original` that it undoes: an event that `original` may return, or a union of such events. Other
          results of `original` need no undoing;
        - events that `original` took, with the same types. A release that declares them here stores them with each
          result. For a result that an older release stored without them, a parameter `E | None` is `None`; with any
          other annotation the compensation fails;
        - resources and `Saga`.

        Guarantees:
        - The compensation runs once for each recorded result, newest first. Each run gets one result event, even if
          `original` has `repeats`.
        - If `original` has begun, it is finished first; if it has not begun, it will never run in this saga.
        - A failing compensation is retried with growing delays and escalated, never dropped.

        `version` is the compensation's own version, with the same meaning as for a handler.

        Raises `DeclarationError` if `original` is not a handler of this service, already has a compensation, or is
        declared `irreversible`; if the result parameter is an event that `original` does not return, or a success
        outcome; if the other event is not a failure outcome, or is one to which `original` itself reacts; if there is a
        further event that `original` does not take; or if the compensation returns an outcome.
        """

        undone = find_original(
            self._declared, original
        )  # `@service.compensation` without arguments would declare nothing

        def declare(function: _Compensation) -> _Compensation:
            check_can_be_compensated(self._declared, undone)
            found = make_handler(self._declared, function, HandlerOptions(undoes=undone.name, version=version))
            self._declared.reactions.append(make_compensation(self._declared, undone, found))
            return function

        return declare

    def deadline(
        self,
        /,
        *,
        within: timedelta,
        unless: tuple[type[Event], ...] = (),
        grace: timedelta | None = None,
        version: int = 1,
    ) -> Callable[[_Deadline], _Deadline]:
        """Declare what to do if the saga has not ended in this service within a given time after an event. The
        function's only event parameter takes this event.

        Guarantees:
        - The deadline is durable and runs once, at most a second after two conditions are met. First, `within` has
          passed since the event's recorded time. Second, this service has handled everything that the log contained at
          that time, in the saga's partitions of all topics that the service consumes. So an answer that came in time
          counts, however long the service was down or behind.
        - It never runs if an outcome, or an event of `unless`, was emitted or received here, whether before or after
          its own event.
        - It waits while another handler of the saga has begun and has not finished, and while a dead letter blocks the
          saga. It also waits while a message that may end the saga is delayed by a pause, a limit or an open breaker.
        - If it fails, it is retried like any handler. Until it has begun, it delays no message.

        A saga whose event was handled before the deadline was declared gets no deadline. For an event that neither a
        service nor a `Client` published, the time counts from when the event is first seen here, unless its contract
        says `"trusted_time": true`.

        Args:
            within: time after the event at which the deadline is due.
            unless: events that cancel the deadline, in addition to outcomes.
            grace: time after the due time at which the deadline runs even if the log has not been handled up to the due
                time. If it is left out, the deadline waits until the log has been handled, however long that takes.
            version: the deadline's own version, with the same meaning as for a handler.

        Raises `DeclarationError` for several event parameters, or an outcome as parameter; `within` that is zero,
        negative or longer than the retention; something in `unless` that is not an event; an invalid `grace`.
        """

        def declare(function: _Deadline) -> _Deadline:
            where = f"{self._declared.name}.{getattr(function, '__name__', function)}"
            check_deadline(self._declared, within, unless, where)
            check_grace(grace, where)
            options = HandlerOptions(within=within, unless=unless, grace=grace, version=version)
            found = make_handler(self._declared, function, options)
            check_opener(found)
            self._declared.reactions.append(found)
            return function

        return declare

    @overload
    def resource(self, opener: _Opener, /) -> _Opener: ...
    @overload
    def resource(
        self,
        /,
        *,
        timeout_s: float = 10,
        expected_errors: tuple[type[Exception], ...] = (),
        retry: Retry | None = None,
        breaker: Breaker | None = None,
        at_once_max: int | None = None,
        rate_per_s: float | None = None,
    ) -> Callable[[_Opener], _Opener]: ...
    def resource(  # each keyword is an option of the public decorator
        self,
        opener: _Opener | None = None,
        /,
        *,
        timeout_s: float = 10,
        expected_errors: tuple[type[Exception], ...] = (),
        retry: Retry | None = None,
        breaker: Breaker | None = None,
        at_once_max: int | None = None,
        rate_per_s: float | None = None,
    ) -> _Opener | Callable[[_Opener], _Opener]:
        """Declare an external system (a bank, a carrier): an async generator that yields its client once, like a pytest
        fixture.

        Guarantees:
        - The resource is opened at start and closed after the last handler.
        - Parameters annotated with the yielded type receive the client.
        - In tests an instance of a subclass in `use=` replaces it, and the generator is not called.

        Args:
            timeout_s: seconds that one call through `saga.step` may take. A longer call is a transient failure, and
                never an expected error, because it may have had its effect.
            expected_errors: exceptions that are answers of the system. `saga.step` records them (the nearest class
                declared, and `args`, plain values) and raises them; a rerun raises them again without a call. All other
                exceptions are failures.
            retry: how often and when an attempt is retried that failed because of a step on this resource. It applies
                to handlers that declare no `retry` themselves, and to compensations and deadlines.
            breaker: rules for a circuit breaker, which refuses calls for a time after many have failed. An attempt that
                meets an open breaker is not counted, and is repeated after at most a minute. If `BreakerOpen` is in
                `expected_errors`, the handler gets this exception instead.
            at_once_max: largest number of calls that run at once.
            rate_per_s: largest number of calls that begin per second.

        Calls beyond `at_once_max` or `rate_per_s` wait, provided that this leaves enough time for the call itself. An
        attempt whose call could not begin in time is not counted, and is repeated. All limits are those of one process,
        and apply to calls through `saga.step`. A single method or function may have limits of its own: see
        `saga.limited`.

        Raises `DeclarationError` for a second resource of the same type or name; a missing yielded type; an expected
        error that cannot be created again from its `args`; a retry that names an expected error; an invalid limit.
        """

        options = ResourceOptions(
            timeout_s=timeout_s,
            expected_errors=expected_errors,
            retry=retry,
            breaker=breaker,
            at_once_max=at_once_max,
            rate_per_s=rate_per_s,
        )

        def declare(function: _Opener) -> _Opener:
            found = make_resource(self._declared, function, options)
            check_may_refuse(found, f"{self._declared.name}.{found.name}")
            self._declared.resources.append(found)
            return function

        return declare if opener is None else declare(opener)

    def migrate(self, version: int, /) -> Callable[[_Migration], _Migration]:
        """Declare how a state of version `version` is converted to the next version.

        The function takes the older class of the state and returns the newer one. Versions count from 1; the current
        version of the state is one more than the number of migrations.

            @order.migrate(1)
            def cents(old: OrderStateV1) -> OrderState:
                return OrderState(total_cents=round(old.total * 100))

        Guarantees:
        - Open sagas continue. A handler sees the migrated state, and the transition that ends its run stores the new
          version. This happens once, despite crashes and duplicates.
        - From then on processes of the previous release do not handle that saga.
        - A run that began before the migration continues with the state that it saw.

        Raises `DeclarationError` for a service without state; a version that has a migration already; anything other
        than a plain function of one state; an older or newer class that is not a frozen dataclass with defaults. A
        chain of migrations that has a gap, or does not end with the state of the service, is refused when the service
        is started, tried or tested.
        """

        def declare(function: _Migration) -> _Migration:
            self._declared.migrations.append(make_migration(self._declared, version, function))
            return function

        return declare

    def document(
        self,
        kind: type[_D],
        collection: str,
        /,
        *,
        expected_errors: tuple[type[Exception], ...] = (),
        saga: str | None = None,
    ) -> None:
        """Declare a kind of business document: the JSON documents in `collection` are instances of the frozen dataclass
        `kind`.

        The key of a document is the string given to `saga.update` and `saga.read`, unchanged. Fields of the JSON that
        `kind` does not have are kept; fields that the JSON lacks need a default.

        Args:
            kind: the class of the documents.
            collection: the collection that contains them.
            expected_errors: exceptions with which a pure function refuses a change. They are recorded, and raised again
                by a rerun, like the expected errors of a resource.
            saga: for handlers of `Change[kind]`, the field that holds the saga id. If it is left out, the saga id is
                the document's key.

        Raises `DeclarationError` for a class that is not a frozen dataclass of plain fields; a second kind for the same
        collection, or a second collection for the same kind; an expected error that cannot be created again from its
        `args`; a `saga` that is not a field of `kind`, or one that never holds a string or a whole number.
        """
        self._declared.documents.append(make_document_kind(self._declared, kind, collection, expected_errors, saga))


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{where}: a name is at most 64 lower case letters, digits and `-`, and begins with a letter"
        )
    if name in _TAKEN:
        raise DeclarationError(f"{where}: {_TAKEN[name]}; choose another name")
