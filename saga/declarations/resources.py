"""Resources, state and business documents of a service: all that it uses beside events."""

import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from inspect import isasyncgenfunction, signature
from math import isfinite
from typing import Any, get_args, get_origin

from saga.declarations.annotations import hints_of, spelt
from saga.declarations.answers import check_made_again
from saga.declarations.values import Declared, DocumentKind, Resource
from saga.errors import BreakerOpen, DeclarationError
from saga.messages import Event
from saga.messaging.names import is_ours
from saga.policies.breaker import Breaker
from saga.policies.retry import Retry, is_exceptions
from saga.view import Saga

_COLLECTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
MARKERS = "_saga"
"""Field of a business document in which the toolkit notes which updates were made."""


def resource_of(  # what a resource consists of
    declared: Declared,
    opener: Callable[[], AsyncIterator[object]],
    *,
    timeout_s: float,
    expected_errors: tuple[type[Exception], ...],
    retry: Retry | None = None,
    breaker: Breaker | None = None,
    at_once_max: int | None = None,
    rate_per_s: float | None = None,
) -> Resource:
    """Make a resource of its opener, as the signature says. Raises `DeclarationError`."""
    name = getattr(opener, "__name__", repr(opener))
    where = f"{declared.name}.{name}"
    if not isasyncgenfunction(opener):
        raise DeclarationError(
            f"{where} is no async generator: write `async def {name}() -> AsyncIterator[...]` and yield the resource "
            "once; what stands after the `yield` closes it"
        )
    if signature(opener).parameters:
        raise DeclarationError(f"{where} takes parameters, but is opened without: read settings inside it")
    check_seconds(timeout_s, "timeout_s", where)
    _check_answers(declared, expected_errors, where)
    check_retry(retry, where)
    _check_limits(breaker, at_once_max, rate_per_s, expected_errors, where)
    for kind in () if retry is None else retry.names:
        if issubclass(kind, expected_errors):
            raise DeclarationError(
                f"{where}: {kind.__name__} is an expected error, so it is never tried again: leave it out of "
                "expected_errors= or out of retry="
            )
    gives = _yielded(hints_of(opener, where).get("return"), where)
    for other in declared.resources:
        # By `__mro__`, for a resource may give a protocol, and `issubclass` fails on those.
        if other.gives in gives.__mro__ or gives in other.gives.__mro__:
            raise DeclarationError(
                f"{where} gives {spelt(gives)} and {other.name} gives {spelt(other.gives)}: parameters are told apart "
                "by their types, so no two resources of a service may give one type, or one a subclass of the other's; "
                "keep one, or wrap one in a class of its own"
            )
    return Resource(
        name=name,
        opener=opener,
        gives=gives,
        timeout_s=timeout_s,
        expected_errors=expected_errors,
        retry=retry,
        breaker=breaker,
        at_once_max=at_once_max,
        rate_per_s=rate_per_s,
    )


def document_of(
    declared: Declared,
    kind: type,
    collection: str,
    expected_errors: tuple[type[Exception], ...],
    saga: str | None = None,
) -> DocumentKind:
    """Declare a kind of business document. Raises `DeclarationError`."""
    where = f"{declared.name}.document({spelt(kind)}, {collection!r})"
    check_dataclass(kind, where)
    if not _COLLECTION.fullmatch(collection):
        raise DeclarationError(f"{where}: name the collection with at most 80 letters, digits, `-` and `_`")
    if is_ours(collection):
        raise DeclarationError(f"{where}: the toolkit keeps its own documents there; choose another collection")
    if any(f.name == MARKERS for f in fields(kind)):
        raise DeclarationError(f"{where}: the field {MARKERS!r} belongs to the toolkit; rename it")
    for other in declared.documents:
        if other.kind is kind:
            raise DeclarationError(f"{where}: {spelt(kind)} is already declared, in {other.collection!r}; keep one")
        if other.collection == collection:
            raise DeclarationError(
                f"{where}: the documents of {collection!r} are {spelt(other.kind)} already; choose another collection"
            )
    _check_answers(declared, expected_errors, where)
    if saga is not None and saga not in [each.name for each in fields(kind)]:
        raise DeclarationError(f"{where}: saga={saga!r} is no field of {spelt(kind)}: name the one with the saga id")
    return DocumentKind(kind=kind, collection=collection, expected_errors=expected_errors, saga=saga)


def check_state(state: object, where: str) -> type:
    """Check that a state's class is a frozen dataclass of plain fields, all with defaults, and return it. Raises
    `DeclarationError`."""
    kind = check_dataclass(state, where)
    for field in fields(kind):
        if field.default is MISSING and field.default_factory is MISSING:
            raise DeclarationError(
                f"{where}: the field {field.name!r} of {spelt(kind)} has no default, but a saga begins with "
                f"{spelt(kind)}(): give it one"
            )
    return kind


def check_dataclass(kind: object, where: str) -> type:
    """Check that a class is a frozen dataclass of plain fields, and return it. Raises `DeclarationError`."""
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise DeclarationError(f"{where}: {spelt(kind)} is no dataclass; write @dataclass(frozen=True) above its class")
    if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined] # typeshed leaves it out
        raise DeclarationError(
            f"{where}: {spelt(kind)} can be changed in place, which nobody would notice; write @dataclass(frozen=True)"
        )
    try:
        odd = next(_odd(kind), None)
    except (TypeError, NameError) as why:
        raise DeclarationError(f"{where}: {spelt(kind)} cannot be written and read back: {why}") from why
    if odd is not None:
        raise DeclarationError(
            f"{where}: {spelt(kind)} holds a {spelt(odd)}, which cannot be written and read back; use plain types "
            "(numbers, texts, Decimal, datetime, UUID, Enum), tuples, mappings and frozen dataclasses of them"
        )
    return kind


def check_seconds(value: object, name: str, where: str) -> None:
    """Check that a time is a positive number. Raises `DeclarationError`."""
    if not _is_positive(value):
        raise DeclarationError(f"{where}: {name}={value!r} is no time; give seconds, more than 0")


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0


def check_retry(value: object, where: str) -> None:
    """Check that rules for failed attempts are some, or none. Raises `DeclarationError`."""
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
    """Check how many calls may be made at once, and a second. Raises `DeclarationError`."""
    if at_once_max is not None and (
        isinstance(at_once_max, bool) or not isinstance(at_once_max, int) or at_once_max < 1
    ):
        raise DeclarationError(f"{where}: at_once_max={at_once_max!r}: give a whole number of calls, from 1 on")
    if rate_per_s is not None and not _is_positive(rate_per_s):
        raise DeclarationError(f"{where}: rate_per_s={rate_per_s!r} is no number of calls a second; give one above 0")


def _yielded(annotation: object, where: str) -> type:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin not in (AsyncIterator, AsyncGenerator, AsyncIterable) or not args:
        raise DeclarationError(f"{where} does not say what it gives: annotate it with `-> AsyncIterator[TheType]`")
    gives = args[0]
    if not isinstance(gives, type) or get_origin(gives) is not None:
        raise DeclarationError(
            f"{where} gives {spelt(gives)}, by which no parameter can be told: yield a class of yours"
        )
    if gives in (object, Any) or issubclass(gives, Event | Saga):
        raise DeclarationError(
            f"{where} gives {spelt(gives)}, which means something else already: yield a class of yours"
        )
    return gives


def _check_answers(declared: Declared, answers: object, where: str) -> None:
    """Check a declaration's answers: they are recorded by the name of their class, so within a service a name must tell
    them apart."""
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
        check_made_again(answer, where)
        if known.setdefault(answer.__name__, answer) is not answer:
            raise DeclarationError(
                f"{where}: two answers of {declared.name!r} are called {answer.__name__}, and they are recorded by "
                "their names; rename one"
            )


def _odd(kind: type) -> Iterator[object]:
    """Types inside a class that msgspec has to be told about: nobody could read their values back."""
    from msgspec import inspect  # only services with states or documents pay for it

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
