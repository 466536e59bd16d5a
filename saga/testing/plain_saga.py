"""A saga for plain calls of handlers in tests: steps are called, updates applied in memory, nothing is recorded."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, overload

from typing_extensions import TypeVar

from saga.declarations.annotations import accepts_none
from saga.errors import Permanent
from saga.progress import ids
from saga.view import Recordable, Saga

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_S = TypeVar("_S", bound="DataclassInstance | None", default=None)
_D = TypeVar("_D", bound="DataclassInstance")
_P = ParamSpec("_P")
_T = TypeVar("_T", bound=Recordable)
_R = TypeVar("_R", bound=Recordable, default=None)

_NONE: "Mapping[str, DataclassInstance]" = MappingProxyType({})


@overload
def a_saga(
    *,
    elapsed: timedelta = ...,
    documents: "Mapping[str, DataclassInstance]" = ...,
    flags: Collection[str] = ...,
    principal: str | None = ...,
    version: int = ...,
) -> Saga: ...
@overload
def a_saga(
    *,
    state: _S,
    elapsed: timedelta = ...,
    documents: "Mapping[str, DataclassInstance]" = ...,
    flags: Collection[str] = ...,
    principal: str | None = ...,
    version: int = ...,
) -> Saga[_S]: ...
def a_saga(
    *,
    state: _S | None = None,
    elapsed: timedelta = timedelta(0),
    documents: "Mapping[str, DataclassInstance]" = _NONE,
    flags: Collection[str] = (),
    principal: str | None = None,
    version: int = 1,
) -> Saga[_S] | Saga[_S | None]:
    """A saga for a plain call: `assert await reserve(an_order(), FakeBank(), a_saga()) == PaymentReserved(...)`.

    Promises: steps are called, updates applied to `documents` (key to document); nothing is recorded or retried. The
    mapping itself stays as it is: afterwards look at `.state` and at `await saga.read(...)`. `key` gives the same for
    the same name, in every saga made here. `elapsed` is what `saga.elapsed` says; `flags` are on, all others off.
    `principal` is who began it, `version` that of the handler under which this run began. Raises `Permanent` for what a
    running service could not do either.
    """
    return PlainSaga(state, elapsed, documents, frozenset(flags), principal, version)


class PlainSaga(Saga[_S]):
    """See `a_saga`."""

    def __init__(
        self,
        state: _S,
        elapsed: timedelta,
        documents: "Mapping[str, DataclassInstance]",
        flags: Collection[str] = (),
        principal: str | None = None,
        version: int = 1,
    ) -> None:
        self._state, self._elapsed, self._flags, self._principal = state, elapsed, flags, principal
        self._version = version
        self._documents: dict[tuple[type, str], DataclassInstance] = {
            (type(document), key): document for key, document in documents.items()
        }

    @property
    def state(self) -> _S:
        return self._state

    @state.setter
    def state(self, state: _S, /) -> None:
        if type(state) is not type(self._state):
            raise Permanent(
                f"saga.state is a {type(self._state).__name__} here and is assigned a {type(state).__name__}: "
                "begin with a_saga(state=...) as the service does"
            )
        self._state = state

    @property
    def elapsed(self) -> timedelta:
        return self._elapsed

    @property
    def principal(self) -> str | None:
        return self._principal

    @property
    def version(self) -> int:
        return self._version

    def idempotency_key(self, name: str, /) -> str:
        return ids.idempotency_key(name, "a_saga", "", "", "")

    async def step(self, call: Callable[_P, Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await call(*args, **kwargs)

    def on_abort(self, call: Callable[_P, Awaitable[object]], /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Nothing is left half done in a plain call."""

    async def update(
        self,
        kind: type[_D],
        key: str,
        change: Callable[Concatenate[_D, _P], _D | tuple[_D, _R]],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R:
        document = self._document(kind, key)
        name = getattr(change, "__name__", repr(change))
        if document is None and not accepts_none(change):
            raise Permanent(
                f"there is no {kind.__name__} {key!r}: give it to a_saga(documents={{{key!r}: ...}}), "
                f"or let the first parameter of {name} be `{kind.__name__} | None`"
            )
        returned = change(document, *args, **kwargs)  # type: ignore[arg-type] # it accepts None, as was just seen
        changed, result = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        if not isinstance(changed, kind):
            raise Permanent(
                f"{name} returned a {type(changed).__name__}: it must return the new {kind.__name__}, "
                "or that and a result"
            )
        self._documents[kind, key] = changed
        return result  # type: ignore[return-value] # without a result _R is None, its default

    async def flag(self, name: str, /) -> bool:
        return name in self._flags

    async def read(self, kind: type[_D], key: str, /) -> _D | None:
        return self._document(kind, key)

    def _document(self, kind: type[_D], key: str) -> _D | None:
        document = self._documents.get((kind, key))
        assert document is None or isinstance(document, kind)
        return document
