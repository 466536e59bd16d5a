"""`Service` and its decorators, with which a service is declared. The types of the decorated functions are the
declaration.
"""

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
    check_deadline,
    check_grace,
    check_opener,
    check_single_compensation,
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
"""Bounds of `retention`: expiry is given in whole seconds, and on Couchbase in seconds since 1970 with 32 bits, so
until 2106.
"""
_TAKEN = {"client": "clients publish under that name", OURS: "the toolkit's own topics and documents are called so"}

Repeating: TypeAlias = type[Event] | type[Change[Any]] | UnionType
"""Annotation of a parameter whose event may come several times: `OrderNote`, `A | B` or `Change[Order]`."""
_Emitted: TypeAlias = Event | Sequence[Event | None] | None
_Reaction: TypeAlias = Event | Later[Event | None] | Sequence[Event | Later[Event | None] | None] | None
_S_co = TypeVar("_S_co", bound="DataclassInstance | None", default=None, covariant=True)
_D = TypeVar("_D", bound="DataclassInstance")
# `Never` as a parameter: any type will do, but there has to be one. A compensation has two at least.
_Handler = TypeVar("_Handler", bound=Callable[Concatenate[Never, ...], Awaitable[_Reaction]])
_Compensation = TypeVar("_Compensation", bound=Callable[Concatenate[Never, Never, ...], Awaitable[_Emitted]])
_Deadline = TypeVar("_Deadline", bound=Callable[Concatenate[Never, ...], Awaitable[_Emitted]])
_Migration = TypeVar("_Migration", bound=Callable[[Never], "DataclassInstance"])
_Opener = TypeVar("_Opener", bound=Callable[[], AsyncIterator[object]])


class Service(Generic[_S_co]):
    """An independently deployed participant of sagas, with its handlers, one store and one consumer group, for one kind
    of saga.

    The types are the declaration. A parameter annotated with an event, or a union of events, says what is consumed;
    `Saga` is the saga as this run sees it; `Change[D]` is a change of a document that is declared above the handler.
    Any other type must be the type of a resource that is declared above it. The return annotation says what may be
    emitted: `A | B` one of them, `tuple[A, B]` both, `list[A]` many, `| None` possibly nothing; `Later` means that the
    handler may run again later. Names and order of parameters do not matter.

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

        `name`: part of document keys, topics, ids and idempotency keys; at most 64 lower case letters, digits and `-`.
        A new name without `was` makes a new service: it handles everything again, with other idempotency keys. `state`:
        the class of `saga.state`: a frozen dataclass in which every field has a default, because a saga begins with
        `state()`. A field with a default may be added at any time. Left out: no state, plain `Saga`. `retention`: how
        long a saga is kept after its last message when nothing of it is open. A duplicate is recognised for that long,
        and all waits of a handler together may not be longer. Open sagas are kept without limit. From one second to 50
        years, because Couchbase has no times after 2106. `retry`: how often and when a failure is retried, if neither
        the handler nor the resource declares it. It also applies to compensations and deadlines. `start`: where to
        begin in a topic that the service has never read: `"beginning"`, at the oldest record; `"now"`, at what is
        published after its first start; or at a time, a `datetime` with a time zone. It is decided once, and kept in
        the store. Left out, it begins at the oldest record, and `saga doctor` asks whether that is intended. `was`: the
        name under which the service ran first, if `name` is a new one. Progress, group, topics, ids, idempotency keys,
        metrics and the owner in its contracts keep that name for ever, so nothing is done twice, and releases with
        either name can run side by side.

        Raises `DeclarationError`: a name with other characters; an invalid start; a state that is no frozen dataclass
        of plain fields, or has a field without a default; an invalid retention or retry.
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
        version: int = 1,
    ) -> _Handler | Callable[[_Handler], _Handler]:
        """Declare the reaction to an event, to several events (fan-in: it runs when all of them have come), or to a
        `Change`.

        Promises: for each saga it runs to its end once, despite crashes and duplicates. Its state and its events are
        saved in one write; then the events are published in order. After a crash or a failure it runs again with the
        same input; steps and updates that are already recorded return their results at once. An event parameter `E |
        None` is not waited for: it has the event or `None`. It goes with `Later[E]` in the return annotation.

        `repeats`: the event that may come several times in a saga, written as its parameter is annotated
        (`repeats=OrderNote`, `repeats=A | B`, `repeats=Change[Order]`); the handler runs for each. A handler of several
        events uses the same other events in each run. The event that starts the saga comes once, so it cannot repeat
        beside others. Without `repeats`, a second event with the same content is ignored, with a log line, and one with
        other content becomes a dead letter; of the changes of a document all after the first are ignored, with a log
        line. `retry`: how often and when it is retried, for all failures. Left out: as the resource declares on which a
        step failed, else as the service declares. See `Retry` for which rules apply. `timeout_s`: seconds that one
        attempt may take. `low_priority`: it may wait. While the worker has much in flight, a message for such handlers
        only is delayed in favour of others, for half a minute at most, and never behind a later message of its own
        saga. `version`: version of what the handler does; raise it by one with a release whose handler makes other
        steps. A run keeps the version under which it began, which `saga.version` returns: keep the old code beside the
        new until no run of the old version is open. A process of the previous release does not continue a run that
        began under a newer version; it leaves it waiting for a process that can.

        Raises `DeclarationError`: a function that is not `async`; a parameter without annotation, or of a type that
        nothing provides; no event among the parameters, or one in two of them; one event handled by two handlers that
        take it alone; `Saga[X]` where X is not the service's state; an event of another owner returned; events of two
        kinds of saga; `repeats` that names no parameter, names the event that starts the saga beside others, or is used
        with `E | None`; `E | None` without `Later[E]`, or the other way round; a version that is no whole number from 1
        on.
        """

        options = HandlerOptions(
            repeats=repeats, retry=retry, timeout_s=timeout_s, low_priority=low_priority, version=version
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
        """Declare what undoes `original`, a handler of this service.

        Its parameters: the outcome `failure` that it reacts to (or a union of them); the result of `original` that it
        undoes (an event that `original` may return, or a union; its other results have nothing to undo); events that
        `original` took, with the same types (they are stored with the result by releases that declare them; for older
        results the parameter is `None` if it is `E | None`, and otherwise the compensation fails); resources, `Saga`.

        Promises: it runs once for each recorded result, newest first: the parameter is one event, with `repeats` too.
        If `original` has begun, it is finished first; if not, it will never run in this saga. A failing compensation is
        retried with growing delays and escalated, never dropped. `version`: its own version, as that of a handler.

        Raises `DeclarationError`: `original` is no handler of this service, or already has a compensation; the result
        parameter is nothing that `original` returns, or an outcome `success`; the other event is no `failure` outcome,
        or one that `original` itself reacts to; a further event that `original` does not take; it returns an outcome.
        """

        undone = find_original(self._declared, original)  # at once: `@service.compensation` alone would declare nothing

        def declare(function: _Compensation) -> _Compensation:
            check_single_compensation(self._declared, undone)
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
        """Declare what happens if the saga has not ended here within a time after an event, its only event parameter.

        Promises: it is durable and runs once, at most a second after `within` has passed since the event's recorded
        time, and after this service has handled everything that the log held by then, in the saga's partitions of all
        topics that the service consumes. So an answer that came in time counts, however long the service was down or
        behind. It never runs once an outcome, or an event of `unless`, was emitted or received here, before its event
        or after it. It waits while another handler of the saga has begun and has not finished, behind a dead letter,
        and while a message that may end the saga is delayed by a pause, a limit or an open breaker. If it fails it is
        retried as any handler, and blocks nothing until it has begun. A saga whose event was handled before the
        deadline was declared gets no deadline. For an event that neither a service nor a `Client` published, the time
        counts from when it is first seen here, unless its contract says `"trusted_time": true`. `grace`: time after
        which it runs although the log has not been handled that far; left out, it waits as long as that takes.
        `version`: its own version, as that of a handler.

        Raises `DeclarationError`: several event parameters, or an outcome; `within` zero, negative or longer than the
        retention; something in `unless` that is no event; an invalid `grace`.
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
        """Declare an external system (a bank, a carrier): an async generator that yields its client once, as a pytest
        fixture.

        Promises: it is opened at start and closed after the last handler. Parameters annotated with the type that it
        yields get it. In tests an instance of a subclass in `use=` takes its place, and the generator is not called.

        `timeout_s`: seconds that one call through `saga.step` may take; a longer one is a transient failure.
        `expected_errors`: exceptions that are answers of the system: `saga.step` records them (class and `args`, plain
        values) and raises them, and a rerun raises them again without a call. All other exceptions are failures.
        `retry`: how often and when an attempt is retried that failed because of a step on this resource, in a handler
        that declares no `retry` itself, in a compensation or in a deadline. `breaker`: when calls stop for a time
        because many failed. An attempt that meets an open breaker is not counted; it is repeated after a minute at
        most. With `BreakerOpen` in `expected_errors` the handler gets the exception instead. `at_once_max`,
        `rate_per_s`: most calls under way at once, and most calls begun per second. Other calls wait for their turn as
        long as that leaves time for the call; an attempt that gets no turn in time is not counted, and is repeated. All
        limits are those of one process, and apply to calls through `saga.step`; a call may have limits of its own, see
        `saga.limited`.

        Raises `DeclarationError`: two resources of one type; the yielded type is missing; an expected error that cannot
        be created again from its `args`; a retry that names an expected error; an invalid limit.
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
        """Declare how a state of this version is converted to the next version.

        The function takes the class that the state was, and returns the class that it became. Versions count from 1;
        the version of the state is one more than the number of migrations.

            @order.migrate(1)
            def cents(old: OrderStateV1) -> OrderState:
                return OrderState(total_cents=round(old.total * 100))

        Promises: open sagas continue. A handler sees the migrated state; the transition that ends its run stores the
        new version, once, despite crashes and duplicates. From then on processes of the previous release decide nothing
        about that saga. A run that began before continues with the state that it saw.

        Raises `DeclarationError`: a service without state; a version that has a migration already; something else than
        a plain function of one state; a state before or after that is no frozen dataclass with defaults. A chain with a
        gap, or one that does not end with the state of the service, is refused when the service is started, tried or
        tested.
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
        """Declare a business document: instances of the frozen dataclass `kind` are the JSON documents of `collection`.

        The key of a document is the string given to `saga.update` and `saga.read`, unchanged. Fields of the JSON that
        `kind` does not know are kept; fields that the JSON lacks need a default.

        `expected_errors`: exceptions with which a pure function refuses a change. They are recorded, and raised again
        by a rerun, as those of a resource. `saga`: for handlers of `Change[kind]` the field that holds the saga id.
        Left out, the saga id is the document's key.

        Raises `DeclarationError`: no frozen dataclass of plain fields; two kinds for one collection; an expected error
        that cannot be created again from its `args`; a `saga` that is no field of `kind`.
        """
        self._declared.documents.append(make_document_kind(self._declared, kind, collection, expected_errors, saga))


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{where}: a name is at most 64 lower case letters, digits and `-`, and begins with a letter"
        )
    if name in _TAKEN:
        raise DeclarationError(f"{where}: {_TAKEN[name]}; choose another name")
