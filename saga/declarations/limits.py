"""Limits that a call of the outside has of its own: where one method of a resource, or one function, takes less than
the rest."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from inspect import iscoroutinefunction, isfunction, signature
from typing import Any, TypeAlias, TypeVar

from saga.declarations.resources import check_seconds, check_turns
from saga.declarations.values import Resource
from saga.errors import DeclarationError
from saga.policies.last_good import LastGood

MARK = "__saga_limits__"
"""Attribute in which a function has its limits: so a subclass that overrides it has none, unless it says so."""

Other: TypeAlias = Callable[..., Coroutine[Any, Any, object]]
"""Function that is called in the place of another."""
_Function = TypeVar("_Function", bound=Callable[..., object])
_Call = TypeVar("_Call", bound=Callable[..., Coroutine[Any, Any, object]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one call."""

    call: str
    """Module and name of the function: one that is made anew in each run is the same call."""
    timeout_s: float | None = None
    at_once_max: int | None = None
    rate_per_s: float | None = None
    fallback: LastGood | Other | None = None
    """Way to an answer while the call is refused; `None`: it waits."""

    @property
    def has_turns(self) -> bool:
        """True if not every call is made at once."""
        return self.at_once_max is not None or self.rate_per_s is not None


def limited(
    *,
    timeout_s: float | None = None,
    at_once_max: int | None = None,
    rate_per_s: float | None = None,
    fallback: LastGood | Other | None = None,
) -> Callable[[_Call], _Call]:
    """Declare the limits of one call that handlers make by `saga.step`: a method of a resource, or a function alone.

        class Bank:
            @limited(timeout_s=2, at_once_max=1, rate_per_s=5)
            async def statement(self, account: str) -> Statement: ...

    `timeout_s`: seconds that the call may take, in the place of the resource's; for a function alone, of the handler's.
    `at_once_max`, `rate_per_s`: such calls under way at once, and begun a second, at most, beside the limits of the
    resource. A call has its own turn first; one that has none in time is no attempt, as at a resource.

    `fallback`: an answer for a call that is refused, by an open breaker or without a turn in time: what it gave last
    for the same arguments, `LastGood(for_s=600)`, or another `async def` with the same parameters and result, of the
    same class or beside it, which is called in its place. The answer is recorded, with the way it came: a rerun sees
    the same. A call that has begun is never given another way, for it may have happened: it waits. Without an answer
    it waits, too.

    Promises: returns the function itself, so checkers see its own type, and a plain call is not limited. The limits are
    those of one process, and of each resource whose method it is. A method that overrides it has none, unless it says
    so; a fake does not either.

    Raises `DeclarationError`: no limit, or one that is none; what is no `async def`; the same function twice; a
    fallback that is none, that has other parameters, or for which there never is a reason.
    """

    def declare(call: _Call) -> _Call:
        name = getattr(call, "__qualname__", repr(call))
        where = f"{name}, limited"
        if not (isfunction(call) and iscoroutinefunction(call)):
            raise DeclarationError(f"{where}: it is no `async def`: write @limited(...) directly above one")
        if limits_of(call) is not None:
            raise DeclarationError(f"{where}: it is so already: give all of its limits in one @limited(...)")
        limits = Limits(
            call=f"{call.__module__}.{name}",
            timeout_s=timeout_s,
            at_once_max=at_once_max,
            rate_per_s=rate_per_s,
            fallback=fallback,
        )
        if timeout_s is None and not limits.has_turns and fallback is None:
            raise DeclarationError(f"{where}: no limit is given: give timeout_s=, at_once_max= or rate_per_s=")
        if timeout_s is not None:
            check_seconds(timeout_s, "timeout_s", where)
        check_turns(at_once_max, rate_per_s, where)
        _check_fallback(call, limits, where)
        return with_limits(call, limits)

    return declare


def _check_fallback(call: Callable[..., object], limits: Limits, where: str) -> None:
    other = limits.fallback
    if other is None:
        return
    is_alone = "." not in call.__qualname__.rpartition("<locals>.")[2]
    if is_alone and not limits.has_turns:
        raise DeclarationError(
            f"{where}: nothing ever refuses a function alone that has no at_once_max= or rate_per_s="
        )
    if isinstance(other, LastGood):
        return
    if not (isfunction(other) and iscoroutinefunction(other)):
        raise DeclarationError(f"{where}: fallback={other!r}: give LastGood(for_s=...), or an `async def`")
    if signature(other) != signature(call):
        raise DeclarationError(
            f"{where}: its fallback {other.__name__} is called with the same arguments and answers for it: give it the "
            f"same parameters and the same result, {signature(call)}, not {signature(other)}"
        )


def check_refused(resource: Resource, where: str) -> None:
    """Check that a method with a fallback may be refused at all. Raises `DeclarationError`."""
    if resource.is_limited:
        return
    for kind in resource.gives.__mro__:
        for name, method in vars(kind).items():
            limits = limits_of(method)
            if limits is not None and limits.fallback is not None and not limits.has_turns:
                raise DeclarationError(
                    f"{where}: {name} has a fallback, and nothing ever refuses it: give the resource a breaker=, "
                    "at_once_max= or rate_per_s=, or leave the fallback out"
                )


def limits_of(call: object) -> Limits | None:
    """Limits that a call has of its own."""
    limits: Limits | None = getattr(call, MARK, None)
    return limits


def with_limits(call: _Function, limits: Limits | None) -> _Function:
    """The call itself, with these limits in the place of those that it has."""
    setattr(call, MARK, limits)
    return call


def check_not_limited(function: object, where: str) -> None:
    """Check that a handler has no limits as a call: they would never hold. Raises `DeclarationError`."""
    if limits_of(function) is not None:
        raise DeclarationError(
            f"{where}: @limited is for what is called by saga.step, and this is called by the toolkit: leave it out, "
            "and limit what it calls"
        )
