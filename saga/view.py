"""The saga as a handler sees it, and how a handler continues later: `Saga`, which the engine and the test kit
implement, and `Later`, which a handler returns."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeAlias, Union, overload
from uuid import UUID

from typing_extensions import TypeVar

from saga.messages import Event

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Recordable: TypeAlias = Union[
    bool, int, float, str, bytes, Decimal, UUID, date, timedelta, Enum,
    "DataclassInstance", Sequence["Recordable"], Mapping[str, "Recordable"], None,
]  # fmt: skip
"""Types of values that can be written into a progress and read back equal: results of steps and updates."""

_S = TypeVar("_S", bound="DataclassInstance | None", default=None)
_D = TypeVar("_D", bound="DataclassInstance")
_P = ParamSpec("_P")
_T = TypeVar("_T", bound=Recordable)
_R = TypeVar("_R", bound=Recordable, default=None)


class Saga(ABC, Generic[_S]):
    """The saga as one run of a handler sees it. Annotate the parameter as `Saga[State]`, or as plain `Saga` if the
    service has no state."""

    __slots__ = ()

    @property
    @abstractmethod
    def state(self) -> _S:
        """Return the state that this service keeps for this saga. Before the first handler has finished, it is the
        default `state()`.

        Assign a new value to change it (`saga.state = replace(saga.state, paid=True)`). The new value is saved with the
        handler's transition, which means only if the handler finishes. A rerun begins with the previous value.
        """

    @state.setter
    @abstractmethod
    def state(self, state: _S, /) -> None: ...

    @property
    @abstractmethod
    def elapsed(self) -> timedelta:
        """Return the time since this handler was first called for its event.

        It is zero in the first turn. After a `Later` whose time has passed, it is at least the requested time. It is
        computed from recorded times, so once a step has begun, a rerun sees the same value.
        """

    @property
    @abstractmethod
    def principal(self) -> str | None:
        """Return the principal that began the saga, as given by the sender of its start event; `None` if none was
        given.

        It proves nothing, because anyone who may write to the topic may claim any principal. It is the same in every
        handler and rerun.
        """

    @property
    @abstractmethod
    def version(self) -> int:
        """Return the version of the handler under which this run began.

        It is the version that the handler had when the run began, as in `@payment.handler(version=2)`, or 1 if it
        declared none. From its first step or update on, a rerun sees the same version under any release, and so do all
        turns of a run that returned `Later`. Write `if saga.version >= 2: ...` and keep the old code in the other
        branch.
        """

    @abstractmethod
    def idempotency_key(self, name: str, /) -> str:
        """Return an idempotency key for calls to external systems.

        In every rerun of this handler on this message, the key is the same for the same name. It differs for any other
        handler, message, turn (after a `Later`) or saga. It has at most 80 characters: ASCII letters, digits, `-` and
        `_`.
        """

    @abstractmethod
    async def step(self, call: Callable[_P, Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call an external system and record its answer.

            charge = await saga.step(bank.reserve, saga.idempotency_key("charge"), order.card, order.total)

        Guarantees:
        - The result has the type of the call itself.
        - It is durable before the next step or update begins, and a rerun gets it without another call.
        - After a crash between the call and the record, the call is repeated with equal arguments. So pass a
          `saga.idempotency_key`; with it the external system treats both calls as one.

        A step is identified by the name of the function and by its number among the calls of that function.

        Raises what `call` raises. An exception in the `expected_errors` of this handler's resources is recorded like
        any other result. After any other exception, and after the `timeout_s` of the call itself (`saga.limited`) or of
        its resource, the attempt has failed even if the handler catches the exception, and the handler is retried
        according to its `retry`. A rerun whose steps or arguments differ from the recorded ones becomes a dead letter
        "not deterministic".
        """

    @abstractmethod
    def on_abort(self, call: Callable[_P, Awaitable[object]], /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Register a call that undoes what this handler has done so far, in case the handler can never finish. Nothing
        is called now.

        Guarantees:
        - The registered calls are made, newest first and each as a step, if the run can never finish: if the saga fails
          while the run is a dead letter or suspended, or if an operator discards its dead letter. They take the place
          of the compensation, which undoes only recorded results.
        - If the handler finishes, the registered calls are dropped.
        - A step that began and has no recorded answer is reported to an operator in any case.

        `call` must be a method of a resource, or an `async def` that is defined or imported at the top level of the
        handler's module, because another process, perhaps of a later version, has to find it by its name. A call that
        changes documents takes the saga: `saga.on_abort(give, saga, sku)`.

        If the call cannot be recorded, this raises an error and the attempt fails, as with a step: if `call` is another
        kind of function, if an argument is not a plain value, or if the handler has no compensation.
        """

    @abstractmethod
    async def update(
        self,
        kind: type[_D],
        key: str,
        change: Callable[Concatenate[_D, _P], _D | tuple[_D, _R]],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R:
        """Change one business document with a pure function:
        `await saga.update(Stock, sku, Stock.set_aside, quantity)`.

        `change` receives the document and the arguments. It returns the new document, or the new document and a result,
        which `update` then returns. It may be called several times if others change the document at the same time.

        If the document does not exist and the first parameter of `change` accepts `None` (`Stock | None`), `change`
        receives `None`, and the document that it returns is created. Otherwise a missing document is a permanent
        failure.

        Guarantees:
        - The change is applied exactly once for each cause, without a transaction, and is durable when this returns.
        - The result, or the expected error, is recorded. A rerun gets it without applying the change again.

        Raises an exception declared in the document's `expected_errors` when `change` raises it; then nothing was
        changed.
        """

    @abstractmethod
    async def flag(self, name: str, /) -> bool:
        """Return whether a flag is on for this saga: `if await saga.flag("new_pricing"): ...`.

        Operators set flags while services run, for a share of the sagas or for one saga: `saga control flag`. A flag
        that was never set is off. A saga that belongs to a share also belongs to every larger share of the same flag.

        Guarantees:
        - The answer is recorded like the answer of `read`. From the first step or update on, a rerun gets the same
          answer, even if the flag was changed meanwhile, so it takes the same path.
        - If a run began before the code read this flag, the flag is off in its reruns.
        """

    @abstractmethod
    async def read(self, kind: type[_D], key: str, /) -> _D | None:
        """Return one business document as it is now; `None` if it does not exist.

        Guarantees:
        - Reading causes no write of its own, but the document is recorded with the next write. So a rerun sees the same
          document as this run.

        Others may change the document at any moment, so make decisions that depend on it inside `update`.
        """


# ---------------------------------------------------------------- continue later


E_co = TypeVar("E_co", bound=Event | None, default=None, covariant=True)
_NOW = timedelta(0)


class Later(Generic[E_co]):
    """Return value of a handler: the run is saved now, and continued later for the same event.

    Return it alone (`Later`), with events (`tuple[Reminded, Later]`), or to wait for an event:
    `Later[AddressCorrected]`, in a handler that also has a parameter `corrected: AddressCorrected | None`. State,
    events and the wait are saved in one transition.

    Meanwhile the message waits in the progress and blocks no other message. When the wait is over, the same handler
    runs again, with the same event and the current state.

    Use `Later` for long jobs (with the state as cursor), reminders, polling and missing data. A compensation of the
    handler ends the wait. Compensations and deadlines cannot return `Later`.
    """

    __slots__ = ("after", "until")

    @overload
    def __init__(self: "Later[None]", *, after: timedelta = ...) -> None: ...
    @overload
    def __init__(self, *, until: type[E_co], within: timedelta) -> None: ...
    def __init__(
        self, *, after: timedelta | None = None, until: type[E_co] | None = None, within: timedelta | None = None
    ) -> None:
        """Create a wait for a time, or for an event.

        `Later(after=timedelta(days=7))` runs the handler again when that time has passed. Without `after` it runs again
        at once, in a turn of its own.

        `Later(until=E, within=timedelta(days=3))` runs the handler again as soon as there is an E that no earlier turn
        has seen; the parameter `E | None` then holds the event. It also runs again when `within` has passed; the
        parameter is then `None`, and `saga.elapsed` has grown by at least `within`.

        Raises:
            ValueError: The time is negative or no `timedelta`; `until` is no event class; or `until` is given without
                `within`, `within` without `until`, or `until` with `after`.

        If all waits of a run together are longer than the service's retention, the run fails permanently.
        """
        if (until is None) != (within is None) or (until is not None and after is not None):
            raise ValueError("Later(after=...) waits for a time, Later(until=..., within=...) for an event: give these")
        if until is not None and not (isinstance(until, type) and issubclass(until, Event)):
            raise ValueError(f"Later(until={until!r}): give the class of the event that it waits for")
        wait = within if within is not None else _NOW if after is None else after
        if not isinstance(wait, timedelta) or wait < _NOW:
            name = "after" if within is None else "within"
            raise ValueError(f"Later({name}={wait!r}): give a timedelta, zero or more")
        self.until: type[E_co] | None = until
        self.after: timedelta = wait

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Later) and (self.until, self.after) == (other.until, other.after)

    def __hash__(self) -> int:
        return hash((self.until, self.after))

    def __repr__(self) -> str:
        """Return the call that creates this value.

        >>> Later(after=timedelta(days=7)), Later()
        (Later(after=datetime.timedelta(days=7)), Later())
        """
        if self.until is not None:
            return f"Later(until={self.until.__name__}, within={self.after!r})"
        return f"Later(after={self.after!r})" if self.after else "Later()"
