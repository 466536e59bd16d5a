"""Calls that undo a run, as `saga.on_abort` records them.

A call is recorded by its name, so that another process, perhaps of a later version, can find it. The name is looked up
in the service's declarations and never imported. Otherwise anyone who can write a document to the store could make the
service run any code.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import iscoroutinefunction, isfunction, isroutine, signature, unwrap
from typing import Any

import msgspec
from msgspec import Raw

from saga.declarations.annotations import is_async, parameter_type_at, return_type_of
from saga.declarations.resources import limits_of
from saga.encryption import sensitive_fields
from saga.encryption.sensitive_fields import find_marks, unwrap_marked
from saga.engine.recorded_values import encode_recorded
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Permanent
from saga.progress.document import AbortAction
from saga.view import Saga


class NotFound(Exception):
    """Raised for a recorded call that this version does not have, or whose arguments it cannot read."""


def record_action(
    service: ServiceRuntime,
    saga: Saga[Any],
    call: Callable[..., Awaitable[object]],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> AbortAction:
    """Make the record of a call. Raises `Permanent` for a call that could not be found again or repeated after a
    crash."""
    name = _name(service, call)
    return_type_of(call)  # its result has to be recorded, like that of a step
    if not is_async(call):  # an abort is retried without limit, and would repeat its effect
        raise Permanent(f"{name} is no `async def`: make it one, or wrap it in one")
    places = {**{str(i): value for i, value in enumerate(args)}, **kwargs}
    mine = tuple(place for place, value in places.items() if value is saga)
    if mine and limits_of(call) is not None:
        raise Permanent(f"{name} takes the saga, so it is no step, and its limits would not hold: limit what it calls")
    values = {
        place: Raw(b"null")
        if place in mine
        else encode_recorded(value, name, f"argument {place} of", parameter_type_at(call, place))
        for place, value in places.items()
    }
    return AbortAction(
        call=name,
        args=tuple(values[str(i)] for i in range(len(args))),
        named={place: values[place] for place in kwargs},
        saga=mine,
    )


def find_call(
    service: ServiceRuntime, saga: Saga[Any], back: AbortAction
) -> tuple[Callable[..., Awaitable[object]], list[object], dict[str, object]]:
    """Return the recorded call and its arguments, as this version declares the call. Raises `NotFound`."""
    call = _of_name(service, back.call)
    if call is None:
        raise NotFound(f"{back.call} is not there any more")

    def given(place: str, value: Raw) -> object:
        if place in back.saga:
            return saga
        try:
            type_ = parameter_type_at(call, place)
            if type_ is None:
                return msgspec.json.decode(value)
            if find_marks(type_) is not None:
                return msgspec.convert(unwrap_marked(msgspec.json.decode(value)), type_, strict=False)
            return msgspec.json.decode(value, type=type_)
        except (msgspec.ValidationError, TypeError, Permanent) as why:
            raise NotFound(f"{back.call} takes other arguments now: {why}") from why

    args = [given(str(i), value) for i, value in enumerate(back.args)]
    named = {name: given(name, value) for name, value in back.named.items()}
    try:
        signature(call).bind(*args, **named)
    except TypeError as why:
        raise NotFound(f"{back.call} takes other arguments now: {why}") from why
    return call, args, named


def secrets_in(action: AbortAction) -> list[str]:
    """Return the strings of the sensitive arguments of a call."""
    return [
        text
        for value in (*action.args, *action.named.values())
        for text in sensitive_fields.find_secrets(msgspec.json.decode(value))
    ]


def _name(service: ServiceRuntime, call: Callable[..., Awaitable[object]]) -> str:
    bound, function = getattr(call, "__self__", None), getattr(call, "__func__", call)
    own = getattr(function, "__name__", type(call).__name__)
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', own)}"
    for resource in service.declared.resources if bound is not None else ():
        if service.resources.get(resource.gives) is bound and getattr(bound, own, None) == call:
            name = f"{resource.name}.{own}"
    if _of_name(service, name) == call:
        return name
    raise Permanent(
        f"{own} could not be found again after a crash: on_abort takes a method of a resource of this service, or "
        "an `async def` at the top of a module in which a handler of it is declared, or that is imported there by its "
        "name; hand over all that it needs, the saga too if it changes documents"
    )


def _of_name(service: ServiceRuntime, name: str) -> Callable[..., Awaitable[object]] | None:
    """Return the call with this name in the service's declarations; `None` if there is none.

    Names come from stored documents, which others may be able to write. So nothing is imported, and a name is looked up
    nowhere else.
    """
    if ":" in name:
        return _function(service, name)
    resource, _, method = name.partition(".")
    declared = next((each for each in service.declared.resources if each.name == resource), None)
    given = None if declared is None else service.resources.get(declared.gives)
    if declared is None or method.startswith("_"):
        return None
    if not any(isroutine(getattr(kind, method, None)) for kind in (declared.gives, type(given))):
        return None
    found: Callable[..., Awaitable[object]] | None = getattr(given, method, None)
    return found


def _function(service: ServiceRuntime, name: str) -> Callable[..., Awaitable[object]] | None:
    """Return an `async def` at the top of a module that declares a handler, or one that is imported there by name;
    `None` if there is none.

    Functions of Python's standard library are left out, because none of them undoes a run.
    """
    module, _, own = name.partition(":")
    if module.partition(".")[0] in sys.stdlib_module_names:
        return None
    for reaction in service.handlers.values():
        for function in (reaction.function, unwrap(reaction.function)):
            there = getattr(function, "__globals__", {}).get(own)
            if (
                isfunction(there)
                and iscoroutinefunction(there)
                and (there.__module__, there.__qualname__) == (module, own)
            ):
                return there
    return None
