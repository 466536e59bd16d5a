"""View of a saga that a handler gets: the abstract `Saga` that the runtime and plain calls in tests implement."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeAlias, Union
from uuid import UUID

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Recordable: TypeAlias = Union[
    bool, int, float, str, bytes, Decimal, UUID, date, timedelta, Enum,
    "DataclassInstance", Sequence["Recordable"], Mapping[str, "Recordable"], None,
]  # fmt: skip
"""Values that can be written into a progress and read back equal: the result of a step, of an update."""

_S = TypeVar("_S", bound="DataclassInstance | None", default=None)
_D = TypeVar("_D", bound="DataclassInstance")
_P = ParamSpec("_P")
_T = TypeVar("_T", bound=Recordable)
_R = TypeVar("_R", bound=Recordable, default=None)


class Saga(ABC, Generic[_S]):
    """Run of the business process, as one handler sees it. `Saga` alone where the service has no state."""

    __slots__ = ()

    @property
    @abstractmethod
    def state(self) -> _S:
        """State that this service keeps of this saga; `state()` of the service before the first handler.

        Assign a new value (`saga.state = replace(saga.state, paid=True)`); it is saved with the handler's transition,
        so only if the handler comes to its end, and a rerun begins with the value of before.
        """

    @state.setter
    @abstractmethod
    def state(self, state: _S, /) -> None: ...

    @property
    @abstractmethod
    def elapsed(self) -> timedelta:
        """Time since the handler's first look at its event: zero at the first, then not less than what its `Later`s
        asked for, when it was time that woke it. From recorded times: once a step has begun, a rerun sees the same."""

    @property
    @abstractmethod
    def principal(self) -> str | None:
        """Principal that began the saga, as the client or another sender of its start event said; `None` if nobody did.
        It is no proof: whoever may write to the topic may say so. The same in every handler and rerun."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Version of the handler under which this run began: `@payment.handler(version=2)` of the release of then, and
        1 where that said none. From its first step or update on a rerun sees the same, whichever release runs it, and
        so do all turns of a run that goes on later: `if saga.version >= 2: ...` beside the way of before."""

    @abstractmethod
    def idempotency_key(self, name: str, /) -> str:
        """Idempotency key to hand to the outside: the same for the same name in every rerun of this handler on this
        message, different for any other handler, message, turn (after a `Later`) or saga. At most 80 characters of
        ASCII letters, digits, `-` and `_`."""

    @abstractmethod
    async def step(self, call: Callable[_P, Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call an external system once.

            charge = await saga.step(bank.reserve, saga.idempotency_key("charge"), order.card, order.total)

        Promises: typed as the call itself. The result is durable before the next step or update begins, and a rerun
        gets it without calling. A crash between call and record calls again with equal arguments: hand over a
        `saga.idempotency_key` so that the outside sees one call. A step's name is the function's own, counted in order
        of calls.

        Raises what `call` raises. One of the `expected_errors` of this handler's resources is a result like any other.
        After any other exception, and after the `timeout_s` of the call itself (`saga.limited`) or of its resource,
        this attempt has failed even if the handler catches it: the handler runs again by its `retry`. A rerun that asks
        for other steps or arguments than recorded is a dead letter "not deterministic".
        """

    @abstractmethod
    def on_abort(self, call: Callable[_P, Awaitable[object]], /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Say how to take back what this handler did so far, in case it can never finish.

        Nothing is called now. Promises: when the saga fails while this handler is a dead letter half done, the calls
        said so far are made in place of its compensation, newest first, each as a step; when the handler comes to its
        end they are forgotten. What was begun and has no answer is shown to a person all the same.
        `call` is a method of a resource, or an `async def` at the top of the handler's module, or imported there by its
        name: another process, of a later version perhaps, finds it so. One that changes documents takes the saga:
        `saga.on_abort(give, saga, sku)`.

        Raises what nothing can be recorded of, as a step does: another function, an argument that is no plain value, a
        handler without a compensation.
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
        """Change one business document by a pure function: `await saga.update(Stock, sku, Stock.set_aside, quantity)`.

        `change` gets the document and the arguments, and returns the new document, or the new document and a result
        to hand back. It may be called several times, when others change the document too.
        An absent document: if `change` accepts `None` first (`Stock | None`) it is given `None` and what it returns is
        created; if not, a missing document is a permanent failure that says so.

        Promises: applied exactly once for each cause, without a transaction; durable when this returns; the result, or
        the refusal, is recorded, and a rerun gets it without applying again.

        Raises an exception declared in the document's `expected_errors` when `change` raises it: nothing was changed.
        """

    @abstractmethod
    async def flag(self, name: str, /) -> bool:
        """Ask whether a flag is on for this saga: `if await saga.flag("new_pricing"): ...`.

        People set it while services run, for a share of the sagas or for one: `saga control flag`. One that nobody has
        set is off. A saga that is in a share is in every larger one of that flag.

        Promises: recorded as `read` is. From the first step or update on, a rerun gets what this run got, whatever was
        set meanwhile: it takes the path that it began on. Off in a rerun of what began before the code asked for it.
        """

    @abstractmethod
    async def read(self, kind: type[_D], key: str, /) -> _D | None:
        """Read one business document as it is now, `None` if absent.

        Promises: no write of its own, but recorded with the next one: a rerun sees what this run saw. Others may change
        the document at any moment: what must hold is decided inside `update`.
        """
