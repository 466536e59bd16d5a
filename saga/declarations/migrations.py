"""Declare migrations of a service's state and upcasters of events (`upcast`). A migration is checked by itself, and all
migrations are checked as a chain up to the current state."""

from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from itertools import pairwise
from typing import Never

from typing_extensions import TypeVar

from saga.contracts.contract import Version
from saga.contracts.library import version_at_import
from saga.contracts.upcasters import Upcaster, register_upcaster, upcaster_of
from saga.declarations.annotations import read_hints, spell
from saga.declarations.resources import check_state
from saga.declarations.values import Declared, Migration
from saga.errors import DeclarationError
from saga.messages import Event

_POSITIONAL_KINDS = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

_Upcaster = TypeVar("_Upcaster", bound=Callable[[Never], Event])
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def make_migration(declared: Declared, version: object, function: Callable[..., object]) -> Migration:
    """Return the migration that a function declares. Raises `DeclarationError` with all problems of the function."""
    name = getattr(function, "__name__", repr(function))
    where = f"{declared.name}.migrate({version!r}), {name}"
    problems = list(_find_migration_problems(declared, version))
    takes: type = object
    gives: type = object
    if not callable(function) or any(
        is_one(function) for is_one in (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)
    ):
        problems.append(
            "it is no plain function: write `def`, without `async` and `yield`; it may make no calls, as it may rerun"
        )
    else:
        hints = read_hints(function, where)
        parameters = list(signature(function).parameters.values())
        if len(parameters) != 1 or parameters[0].kind not in _POSITIONAL_KINDS:
            problems.append(f"it takes {len(parameters)} parameters: let it take one, the state as it was")
        else:
            takes = _state(hints.get(parameters[0].name), "what it takes", problems)
        gives = _state(hints.get("return"), "what it returns", problems)
        if takes is gives is not object:
            problems.append(f"it takes and returns {spell(takes)}: keep the class of before under another name")
    if problems:
        raise DeclarationError(f"{where}: {'; '.join(problems)}")
    assert isinstance(version, int)
    return Migration(name=name, version=version, function=function, takes=takes, gives=gives)


def _find_migration_problems(declared: Declared, version: object) -> Iterator[str]:
    if declared.state is None:
        yield f"the service has no state: Service({declared.name!r}, state=...)"
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        yield "versions are counted from 1 on: give the one that it takes"
    other = next((m for m in declared.migrations if m.version == version), None)
    if other is not None:
        yield f"{other.name} takes that version already: keep one, or give the next number"


def _state(annotation: object, what: str, problems: list[str]) -> type:
    """Return the annotated class of a state. If the annotation is not such a class, add the problem to `problems`."""
    if annotation is None:
        problems.append(f"{what} is not annotated: write the class of the state, a frozen dataclass")
        return object
    try:
        return check_state(annotation, what)
    except DeclarationError as why:
        problems.append(str(why))
        return object


def check_chain(declared: Declared) -> tuple[Migration, ...]:
    """Return the migrations, oldest first. Raises `DeclarationError` with all gaps in their versions, and all
    migrations that do not fit the next one."""
    chain = sorted(declared.migrations, key=lambda m: m.version)
    if not chain:
        return ()
    problems = [
        f"nothing takes version {version}: declare migrate({version})"
        for version in sorted(set(range(1, chain[-1].version)) - {m.version for m in chain})
    ]
    for one, two in pairwise(chain):
        if two.version == one.version + 1 and two.takes is not one.gives:
            problems.append(
                f"{two.name} takes {spell(two.takes)}, but version {two.version} is {spell(one.gives)}, which "
                f"{one.name} returns: let both name one class"
            )
    last = chain[-1]
    if last.gives is not declared.state:
        problems.append(
            f"{last.name} returns {spell(last.gives)}, but the state of the service is {spell(declared.state)}: let it "
            f"return that, or declare migrate({last.version + 1})"
        )
    if problems:
        raise DeclarationError(f"the migrations of {declared.name!r}: {'; '.join(problems)}")
    return tuple(chain)


# -------------------------------------------------------------------- upcasting


def upcast(event: type[Event], version: int, /) -> Callable[[_Upcaster], _Upcaster]:
    """Declare how an older version of an event is converted to this class, if schema resolution cannot do it. The
    decorated function is a plain function that takes the class of the older version, which `saga contracts generate`
    writes for `OrderPlaced.v1`.

        @upcast(OrderPlaced, 1)
        def from_v1(old: OrderPlacedV1) -> OrderPlaced:
            return OrderPlaced(order_id=old.order_id, total=Decimal(old.cents) / 100)

    The schema of the class must declare it with `"upcasts": [1]`. The function may also return a version between the
    two. That version is then converted further by its own upcaster, or by schema resolution if the schema does not list
    it.

    Guarantees:
    - The decorator returns the function itself, so a test can call it directly.
    - The function runs wherever a message of the older version is decoded: when it arrives, when a pending, queued or
      replayed message is read, when the service reads its own events or results, and in the test kit's `trial` and
      worlds. The message itself is not changed and is upcast again each time it is read. So the function must be fast
      and deterministic, and must use nothing but its argument: no I/O, no clock, no random numbers.
    - If the function raises, the message becomes a dead letter, which can be replayed after the function has been
      fixed.

    Raises `DeclarationError` if the schema does not list the version in `"upcasts"`; if the version has an upcaster
    already; or if the function is not a plain `def`, takes anything other than that version, or returns anything other
    than a newer version up to this class. A service that takes the event refuses to start unless each version listed in
    the schema has an upcaster.
    """
    if not (isinstance(event, type) and issubclass(event, Event)):
        raise DeclarationError(f"upcast({event!r}, {version!r}): it is no event: give the class that is to be made")
    newer = version_at_import(event)

    def declare_it(function: _Upcaster) -> _Upcaster:
        name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
        where = f"upcast({event.__name__}, {version!r}), {name}"
        problems = list(_find_upcast_problems(event, newer, version))
        takes, gives = _signature(function, where, problems)
        if takes is not None:
            problems += _check_taken(newer, version, takes)
        if gives is not None:
            problems += _check_returned(event, newer, version, gives)
        if problems or takes is None or gives is None:
            raise DeclarationError(f"{where}: {'; '.join(problems)}")
        register_upcaster(event, Upcaster(name=name, version=version, function=function, takes=takes, gives=gives))
        return function

    return declare_it


def _find_upcast_problems(event: type[Event], newer: Version, version: object) -> Iterator[str]:
    """Yield the problems of the version number."""
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < newer.number:
        older = f"version 1 to {newer.number - 1}" if newer.number > 2 else "version 1" if newer.number == 2 else "none"
        yield f"the class is of {newer.path}, and there is no older version {version!r} of it; there is {older}"
    elif version not in newer.upcasts:
        named = sorted({*newer.upcasts, version})
        yield (
            f"{newer.path}.avsc does not say so, and other services would read version {version} by resolution: write "
            f'"upcasts": {named} there, or leave the upcaster out'
        )
    else:
        other = upcaster_of(event, version)
        if other is not None:
            yield f"{other.name} takes that version already: keep one"


def _signature(
    function: Callable[..., object], where: str, problems: list[str]
) -> tuple[type[Event] | None, type[Event] | None]:
    """Return the classes that the function takes and returns. Problems of the signature, and of a function that is not
    plain, are added to `problems`."""
    if not callable(function) or any(
        is_one(function) for is_one in (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)
    ):
        problems.append("it is no plain function: write `def`, without `async` and `yield`; it may make no calls")
        return None, None
    hints = read_hints(function, where)
    parameters = list(signature(function).parameters.values())
    takes = None
    if len(parameters) != 1 or parameters[0].kind not in _POSITIONAL:
        problems.append(f"it takes {len(parameters)} parameters: let it take one, the event as it was")
    else:
        takes = _check_event(hints, parameters[0].name, "takes", problems)
    return takes, _check_event(hints, "return", "returns", problems)


def _check_event(hints: Mapping[str, object], name: str, does: str, problems: list[str]) -> type[Event] | None:
    """Return the event class with which a parameter, or the return value, is annotated. If there is no annotation,
    or it is not an event class, add the problem to `problems` and return `None`.

    `name`: name of the parameter, or `return`. `does`: verb for the text of the problem, `takes` or `returns`.
    """
    if name not in hints:
        problems.append(f"what it {does} is not annotated: write the class of the event")
        return None
    annotation = hints[name]
    if not (isinstance(annotation, type) and issubclass(annotation, Event)):
        problems.append(f"it {does} {spell(annotation)}, which is no event")
        return None
    return annotation


def _check_taken(newer: Version, version: int, takes: type[Event]) -> Iterator[str]:
    """Yield the problems of the class that the function takes."""
    old = _version_of_class(newer, takes)
    if old is None or old.number != version:
        name = f"{newer.name}V{version}"
        yield (
            f"it takes {spell(takes)}: let it take {name}; saga contracts generate writes that for "
            f"{newer.name}.v{version}"
        )


def _check_returned(event: type[Event], newer: Version, version: int, gives: type[Event]) -> Iterator[str]:
    """Yield the problems of the class that the function returns."""
    new = _version_of_class(newer, gives)
    if new is None:
        yield f"it returns {spell(gives)}: let it return {event.__name__}, or a version between"
    elif new.number > newer.number:
        yield f"it returns {spell(gives)}, version {new.number}, and the class is of version {newer.number}"
    elif new.number == newer.number and gives is not event:
        yield f"it returns another class of version {new.number}: let it return {event.__name__}, as it is given above"
    elif isinstance(version, int) and new.number <= version:
        yield f"it returns {spell(gives)}, version {new.number}, which is no newer one: it would never come to its end"


def _version_of_class(newer: Version, event: type[Event]) -> Version | None:
    """Return the version of an event class; `None` if the class belongs to another contract."""
    version = version_at_import(event)
    return version if version.name == newer.name else None
