"""Declare a service's resources, state and business documents, and the limits of single calls (`limited`).

Expected errors are recorded as their class and `args`, and a rerun creates them again from these. So this module also
checks, where an expected error is declared, that it can be created from its `args`.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, isfunction, signature
from math import isfinite
from typing import Any, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from msgspec import Raw

from saga.declarations.annotations import read_hints, spell
from saga.declarations.values import Declared, DocumentKind, Resource
from saga.errors import BreakerOpen, DeclarationError, Permanent
from saga.messages import Event
from saga.messaging.names import is_reserved_collection
from saga.policies.breaker import Breaker, LastGood
from saga.policies.retry import Retry, is_exceptions
from saga.view import Saga

_COLLECTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
MARKERS = "_saga"
"""Field of a business document in which the toolkit stores the markers of document updates."""

REMEDY = "hand all that its __init__ takes to super().__init__(...), by position and as it came"
_PROBES: tuple[Sequence[object], ...] = (("a", "b", "c", "d", "e", "f", "g", "h"), (1, 2, 3, 4, 5, 6, 7, 8))
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
MARK = "__saga_limits__"
"""Attribute of a function that holds its limits. A method that overrides a limited one has no limits unless it declares
them itself."""
Other: TypeAlias = Callable[..., Coroutine[Any, Any, object]]
"""Fallback function that is called instead of another function."""
_Function = TypeVar("_Function", bound=Callable[..., object])
_Call = TypeVar("_Call", bound=Callable[..., Coroutine[Any, Any, object]])


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOptions:
    """Options of a resource, as given to its decorator: see `Service.resource`."""

    timeout_s: float
    expected_errors: tuple[type[Exception], ...]
    retry: Retry | None
    breaker: Breaker | None
    at_once_max: int | None
    rate_per_s: float | None


def make_resource(
    declared: Declared, opener: Callable[[], AsyncIterator[object]], options: ResourceOptions
) -> Resource:
    """Return the resource that a generator function declares. Raises `DeclarationError` if it cannot work."""
    name = getattr(opener, "__name__", repr(opener))
    where = f"{declared.name}.{name}"
    if not isasyncgenfunction(opener):
        raise DeclarationError(
            f"{where} is no async generator: write `async def {name}() -> AsyncIterator[...]` and yield the resource "
            "once; what stands after the `yield` closes it"
        )
    if signature(opener).parameters:
        raise DeclarationError(f"{where} takes parameters, but is opened without: read settings inside it")
    check_seconds(options.timeout_s, "timeout_s", where)
    _check_answers(declared, options.expected_errors, where)
    check_retry(options.retry, where)
    _check_limits(options.breaker, options.at_once_max, options.rate_per_s, options.expected_errors, where)
    for kind in () if options.retry is None else options.retry.names:
        if issubclass(kind, options.expected_errors):
            raise DeclarationError(
                f"{where}: {kind.__name__} is an expected error, so it is never tried again: leave it out of "
                "expected_errors= or out of retry="
            )
    gives = _yielded_type(read_hints(opener, where).get("return"), where)
    for other in declared.resources:
        if other.name == name:
            raise DeclarationError(
                f"{declared.name!r} has two resources called {name}: limits, remembered results and calls of on_abort "
                "are found by that name; rename one"
            )
        # Compares `__mro__`, because a resource may yield a protocol, and `issubclass` fails on protocols.
        if other.gives in gives.__mro__ or gives in other.gives.__mro__:
            raise DeclarationError(
                f"{where} gives {spell(gives)} and {other.name} gives {spell(other.gives)}: the type of a parameter "
                "selects the resource, so two resources of a service may not give one type, or one a subclass of the "
                "other's; keep one, or wrap one in a class of its own"
            )
    return Resource(
        name=name,
        opener=opener,
        gives=gives,
        timeout_s=options.timeout_s,
        expected_errors=options.expected_errors,
        retry=options.retry,
        breaker=options.breaker,
        at_once_max=options.at_once_max,
        rate_per_s=options.rate_per_s,
    )


def make_document_kind(
    declared: Declared,
    kind: type,
    collection: str,
    expected_errors: tuple[type[Exception], ...],
    saga: str | None = None,
) -> DocumentKind:
    """Return the kind of business document that is declared. Raises `DeclarationError` if it cannot work."""
    where = f"{declared.name}.document({spell(kind)}, {collection!r})"
    check_dataclass(kind, where)
    if not _COLLECTION.fullmatch(collection):
        raise DeclarationError(f"{where}: name the collection with at most 80 letters, digits, `-` and `_`")
    if is_reserved_collection(collection):
        raise DeclarationError(f"{where}: the toolkit keeps its own documents there; choose another collection")
    if any(f.name == MARKERS for f in fields(kind)):
        raise DeclarationError(f"{where}: the field {MARKERS!r} belongs to the toolkit; rename it")
    for other in declared.documents:
        if other.kind is kind:
            raise DeclarationError(f"{where}: {spell(kind)} is already declared, in {other.collection!r}; keep one")
        if other.collection == collection:
            raise DeclarationError(
                f"{where}: the documents of {collection!r} are {spell(other.kind)} already; choose another collection"
            )
    _check_answers(declared, expected_errors, where)
    if saga is not None:
        _check_saga_field(kind, saga, where)
    return DocumentKind(kind=kind, collection=collection, expected_errors=expected_errors, saga=saga)


def _check_saga_field(kind: type, name: str, where: str) -> None:
    """Check that a document class has a field of this name whose values may be saga ids: strings or whole numbers in
    JSON. Raises `DeclarationError`."""
    from msgspec import inspect  # imported here, because only services with states or documents need it

    info = inspect.type_info(kind)
    assert isinstance(info, inspect.DataclassType)
    found = next((each.type for each in info.fields if each.name == name), None)
    if found is None:
        raise DeclarationError(f"{where}: saga={name!r} is no field of {spell(kind)}: name the one with the saga id")
    if isinstance(found, inspect.Metadata):  # of `Annotated`
        found = found.type
    values = (inspect.NoneType, inspect.BoolType, inspect.FloatType)
    groups = (inspect.CollectionType, inspect.TupleType, inspect.DictType, inspect.DataclassType, inspect.StructType)
    if all(isinstance(each, values + groups) for each in getattr(found, "types", (found,))):
        raise DeclarationError(
            f"{where}: saga={name!r} never holds a saga id, which is a string or a whole number: each change would be "
            "a dead letter; name a field of type str"
        )


def check_state(state: object, where: str) -> type:
    """Check that a state's class is a frozen dataclass of plain fields with defaults, and return it. Raises
    `DeclarationError`.
    """
    kind = check_dataclass(state, where)
    for field in fields(kind):
        if field.default is MISSING and field.default_factory is MISSING:
            raise DeclarationError(
                f"{where}: the field {field.name!r} of {spell(kind)} has no default, but a saga begins with "
                f"{spell(kind)}(): give it one"
            )
    _check_first_state(kind, where)
    return kind


def _check_first_state(kind: type, where: str) -> None:
    """Check that `kind()`, with which each saga begins, can be made and is the same each time. Otherwise each run that
    comes before the first change of the state would see another one, and so would a rerun. Raises `DeclarationError`.
    """
    try:
        one, other = (msgspec.to_builtins(kind(), str_keys=True) for _ in range(2))
    except Exception as why:  # `__post_init__` may be user code and raise anything
        raise DeclarationError(
            f"{where}: a saga begins with {spell(kind)}(), and that raises {type(why).__name__}: {why}"
        ) from why
    if one != other:
        names = " and ".join(repr(field.name) for field in fields(kind) if one.get(field.name) != other.get(field.name))
        raise DeclarationError(
            f"{where}: a saga begins with {spell(kind)}(), whose {names} differs each time, so a rerun would see "
            "another state: give it a constant default, and let a handler set it"
        )


def check_dataclass(kind: object, where: str) -> type:
    """Check that a class is a frozen dataclass of plain fields, and return it. Raises `DeclarationError`."""
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise DeclarationError(f"{where}: {spell(kind)} is no dataclass; write @dataclass(frozen=True) above its class")
    if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined] # typeshed leaves it out
        raise DeclarationError(
            f"{where}: {spell(kind)} can be changed in place, which would be lost; write @dataclass(frozen=True)"
        )
    try:
        odd = next(_unreadable_types(kind), None)
    except (TypeError, NameError) as why:
        raise DeclarationError(f"{where}: {spell(kind)} cannot be written and read back: {why}") from why
    if odd is not None:
        raise DeclarationError(
            f"{where}: {spell(kind)} holds a {spell(odd)}, which cannot be written and read back; use plain types "
            "(numbers, strings, Decimal, datetime, UUID, Enum), tuples, mappings and frozen dataclasses of them"
        )
    return kind


def check_seconds(value: object, name: str, where: str) -> None:
    """Check that a time is a positive number. Raises `DeclarationError`."""
    if not _is_positive(value):
        raise DeclarationError(f"{where}: {name}={value!r} is no time; give seconds, more than 0")


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0


def check_retry(value: object, where: str) -> None:
    """Check that this is a `Retry` or `None`. Raises `DeclarationError`."""
    if value is not None and not isinstance(value, Retry):
        raise DeclarationError(f"{where}: retry={value!r}: give a Retry(...)")


def _check_limits(
    breaker: object, at_once_max: object, rate_per_s: object, expected_errors: tuple[type[Exception], ...], where: str
) -> None:
    """Check the limits of a resource. Raises `DeclarationError`."""
    if breaker is not None and not isinstance(breaker, Breaker):
        raise DeclarationError(f"{where}: breaker={breaker!r}: give a Breaker(...)")
    if breaker is None and BreakerOpen in expected_errors:
        raise DeclarationError(f"{where}: BreakerOpen is raised by a breaker only: give the resource one, breaker=...")
    check_turns(at_once_max, rate_per_s, where)


def check_turns(at_once_max: object, rate_per_s: object, where: str) -> None:
    """Check the limits for concurrent calls and for calls per second. Raises `DeclarationError`."""
    if at_once_max is not None and (
        isinstance(at_once_max, bool) or not isinstance(at_once_max, int) or at_once_max < 1
    ):
        raise DeclarationError(f"{where}: at_once_max={at_once_max!r}: give a whole number of calls, from 1 on")
    if rate_per_s is not None and not _is_positive(rate_per_s):
        raise DeclarationError(f"{where}: rate_per_s={rate_per_s!r} is no number of calls a second; give one above 0")


def _yielded_type(annotation: object, where: str) -> type:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin not in (AsyncIterator, AsyncGenerator, AsyncIterable) or not args:
        raise DeclarationError(f"{where} does not say what it gives: annotate it with `-> AsyncIterator[TheType]`")
    gives = args[0]
    if not isinstance(gives, type) or get_origin(gives) is not None:
        raise DeclarationError(f"{where} gives {spell(gives)}, which cannot select a parameter: yield a class of yours")
    if gives in (object, Any) or issubclass(gives, Event | Saga):
        raise DeclarationError(
            f"{where} gives {spell(gives)}, which means something else already: yield a class of yours"
        )
    return gives


def _check_answers(declared: Declared, answers: object, where: str) -> None:
    """Check the expected errors of a declaration. They are recorded by class name, so each name must be unique in a
    service."""
    if not is_exceptions(answers):
        raise DeclarationError(
            f"{where}: expected_errors={answers!r}: give a tuple of exception classes; of one it is (Declined,)"
        )
    if Exception in answers:
        raise DeclarationError(
            f"{where}: expected_errors= names results of the business, and Exception is every failure: name the "
            "exception classes that are results"
        )
    lists = (*(r.expected_errors for r in declared.resources), *(d.expected_errors for d in declared.documents))
    known = {answer.__name__: answer for list_ in lists for answer in list_}
    for answer in answers:
        check_reconstructible(answer, where)
        if known.setdefault(answer.__name__, answer) is not answer:
            raise DeclarationError(
                f"{where}: two answers of {declared.name!r} are called {answer.__name__}, and they are recorded by "
                "their names; rename one"
            )


def _unreadable_types(kind: type) -> Iterator[object]:
    """Yield the types inside a class that msgspec cannot decode."""
    from msgspec import inspect  # imported here, because only services with states or documents need it

    seen: set[type] = set()

    def walk(info: inspect.Type) -> Iterator[object]:
        match info:
            case inspect.CustomType(cls=odd):
                yield odd
            case inspect.DataclassType(cls=cls, fields=inside) if cls not in seen:
                seen.add(cls)
                for field in inside:
                    yield from walk(field.type)
            case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
                for type_ in types:
                    yield from walk(type_)
            case inspect.CollectionType(item_type=item):
                yield from walk(item)
            case inspect.DictType(key_type=key, value_type=value):
                yield from walk(key)
                yield from walk(value)
            case _:
                pass

    yield from walk(inspect.type_info(kind))


# -------------------------------------------------------------------- answers


def check_reconstructible(answer: type[Exception], where: str) -> None:
    """Check that an expected error can be created again from its `args`.

    Raises `DeclarationError` if it certainly cannot. If this cannot be decided here, the error is checked again when a
    call raises it.
    """
    if (reason := _why_not(answer)) is not None:
        raise DeclarationError(
            f"{where}: the answer {spell(answer)} cannot be made again from its args, with which it is recorded: "
            f"{reason}; {REMEDY}"
        )


def find_declared_error(why: Exception, answers: tuple[type[Exception], ...]) -> type[Exception]:
    """Return the declared class under whose name an expected error is recorded: the nearest one, in whatever order they
    are declared. The error may be an instance of a subclass."""
    nearest = next((kind for kind in type(why).__mro__ if kind in answers), None)
    return nearest or next(answer for answer in answers if isinstance(why, answer))  # a metaclass may decide, too


def check_recorded(answer: type[Exception], why: Exception, args: Raw, name: str) -> None:
    """Check that a rerun can raise the expected error again: `answer(*args)`, with the recorded `args`, has to be equal
    to `why`, which the call `name` raised. Raises `Permanent` if it is not.
    """
    differs = describe_difference(answer, why, msgspec.json.decode(args))
    if differs is not None:
        raise Permanent(
            f"{name!r} answered {answer.__name__}, which cannot be made again from its args, with which it is "
            f"recorded: {differs}; {REMEDY}"
        )


def describe_difference(answer: type[Exception], raised: Exception, args: Sequence[object]) -> str | None:
    """Return how an error created from recorded `args` differs from the one that was raised; `None` if it does not
    differ."""
    try:
        again = answer(*args)
    except Exception as why:  # noqa: BLE001 - `__init__` may be user code and raise anything
        return f"{spell(answer)}{_show_types(args)} raises {type(why).__name__}: {why}"
    if len(again.args) != len(args) or any(not _equal(x, y) for x, y in zip(again.args, args, strict=True)):
        return f"{spell(answer)}{_show_types(args)} has other args: {_show_types(again.args)}"
    if type(raised) is answer:
        had, has = vars(raised), vars(again)
        own = [name for name in had if not name.startswith("__")]
        lost = [name for name in own if name not in has or not _look_equal(has[name], had[name])]
        if lost:
            return f"its {' and '.join(lost)} would be lost, or another"
    return None


def _why_not(answer: type[Exception]) -> str | None:
    try:
        parameters = signature(answer).parameters.values()
    except (ValueError, TypeError):  # classes written in C have no signature
        return None
    wanted = [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY and p.default is Parameter.empty]
    if wanted:
        return f"it takes {' and '.join(wanted)} by keyword only, and args hold what comes by position"
    count = sum(p.kind in _BY_POSITION for p in parameters)
    for probe in _PROBES:
        try:
            made = answer(*probe[:count])
        except Exception:  # noqa: BLE001 - it takes values of other types: the error is checked when it is raised
            continue
        return describe_difference(answer, made, made.args)
    return None


def _look_equal(one: object, other: object) -> bool:
    """Return whether two values are equal, or have the same type and that type does not define equality."""
    return type(one) is type(other) and (_equal(one, other) or type(one).__eq__ is object.__eq__)


def _equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - `__eq__` may be user code and raise anything
        return False


def _show_types(args: Sequence[object]) -> str:
    """Return the types of arguments as text for error messages, which must not show the values."""
    return f"({', '.join(type(arg).__name__ for arg in args)})"


# -------------------------------------------------------------------- limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What `@limited` declares for one function: the timeout of a call, limits on concurrent calls and calls per
    second, and the fallback for refused calls."""

    call: str
    """Module and qualified name of the function. They identify the function even if it is defined again in each run."""
    timeout_s: float | None = None
    at_once_max: int | None = None
    rate_per_s: float | None = None
    fallback: LastGood | Other | None = None
    """Where the answer to a refused call comes from; `None` if the attempt waits instead."""

    @property
    def has_turns(self) -> bool:
        """Return whether calls may have to wait because too many run at once or begin per second."""
        return self.at_once_max is not None or self.rate_per_s is not None


def limited(
    *,
    timeout_s: float | None = None,
    at_once_max: int | None = None,
    rate_per_s: float | None = None,
    fallback: LastGood | Other | None = None,
) -> Callable[[_Call], _Call]:
    """Declare the limits of one function that handlers call through `saga.step`: a method of a resource, or a function
    outside of any resource.

        class Bank:
            @limited(timeout_s=2, at_once_max=1, rate_per_s=5)
            async def statement(self, account: str) -> Statement: ...

    `timeout_s`: seconds that one call may take. It replaces the timeout of the resource or, for a function outside of
    any resource, of the handler. `at_once_max`, `rate_per_s`: largest number of such calls that run at once, and that
    begin per second. They apply in addition to the limits of the resource. A call first waits for its own limits; if it
    cannot begin in time, the attempt is not counted and is repeated, as with the limits of a resource.

    `fallback`: where the answer comes from if a call is refused, because a breaker is open or the call could not begin
    in time. `LastGood(for_s=600)` gives the last answer for the same arguments. Another `async def` with the same
    parameters and result, in the same class or module, is called instead. The answer is recorded together with its
    origin, so a rerun gets the same one. A call that has begun never gets an answer from the fallback, because it may
    have taken effect: the attempt waits. It also waits if the fallback has no answer.

    Guarantees:
    - The decorator returns the function itself, so type checkers see its own type, and a direct call is not limited.
    - The limits apply in each process, and separately to each resource that has the method.
    - A method that overrides a limited one, in a test fake for example, has no limits unless it declares them itself.

    Raises `DeclarationError` if there is no limit, or an invalid one; for anything other than an `async def`; for a
    function that is limited already; and for a fallback that is neither `LastGood` nor an `async def`, has other
    parameters, or could never be used.
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


def check_may_refuse(resource: Resource, where: str) -> None:
    """Check that calls of a method with a fallback can be refused at all. Raises `DeclarationError` if they cannot."""
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
    """Return the limits that a function declares; `None` if it declares none."""
    limits: Limits | None = getattr(call, MARK, None)
    return limits


def with_limits(call: _Function, limits: Limits | None) -> _Function:
    """Set the limits of a function, and return it."""
    setattr(call, MARK, limits)
    return call


def check_not_limited(function: object, where: str) -> None:
    """Check that a handler is not decorated with `@limited`, which would have no effect. Raises `DeclarationError`."""
    if limits_of(function) is not None:
        raise DeclarationError(
            f"{where}: @limited is for what is called by saga.step, and this is called by the toolkit: leave it out, "
            "and limit what it calls"
        )
