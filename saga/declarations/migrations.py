"""Migrations of a service's state: each function by itself, and all of them as a chain up to the state of now."""

from collections.abc import Callable, Iterator
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from itertools import pairwise

from saga.declarations.annotations import hints_of, spelt
from saga.declarations.resources import check_state
from saga.declarations.values import Declared, Migration
from saga.errors import DeclarationError

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def migration_of(declared: Declared, version: object, function: Callable[..., object]) -> Migration:
    """Make a migration of its function. Raises `DeclarationError` with all that is wrong of it."""
    name = getattr(function, "__name__", repr(function))
    where = f"{declared.name}.migrate({version!r}), {name}"
    problems = list(_odd(declared, version))
    takes: type = object
    gives: type = object
    if not callable(function) or any(
        is_one(function) for is_one in (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)
    ):
        problems.append(
            "it is no plain function: write `def`, without `async` and `yield`; it asks nobody, for it may run again"
        )
    else:
        hints = hints_of(function, where)
        parameters = list(signature(function).parameters.values())
        if len(parameters) != 1 or parameters[0].kind not in _BY_POSITION:
            problems.append(f"it takes {len(parameters)} parameters: let it take one, the state as it was")
        else:
            takes = _state(hints.get(parameters[0].name), "what it takes", problems)
        gives = _state(hints.get("return"), "what it returns", problems)
        if takes is gives is not object:
            problems.append(f"it takes and returns {spelt(takes)}: keep the class of before under another name")
    if problems:
        raise DeclarationError(f"{where}: {'; '.join(problems)}")
    assert isinstance(version, int)
    return Migration(name=name, version=version, function=function, takes=takes, gives=gives)


def _odd(declared: Declared, version: object) -> Iterator[str]:
    if declared.state is None:
        yield f"the service has no state: Service({declared.name!r}, state=...)"
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        yield "versions are counted from 1 on: give the one that it takes"
    other = next((m for m in declared.migrations if m.version == version), None)
    if other is not None:
        yield f"{other.name} takes that version already: keep one, or give the next number"


def _state(annotation: object, what: str, problems: list[str]) -> type:
    """Class of a state, as annotated; of anything else the problem is added."""
    if annotation is None:
        problems.append(f"{what} is not annotated: write the class of the state, a frozen dataclass")
        return object
    try:
        return check_state(annotation, what)
    except DeclarationError as why:
        problems.append(str(why))
        return object


def whole_chain(declared: Declared) -> tuple[Migration, ...]:
    """Migrations, oldest first. Raises `DeclarationError` with all gaps, and all that do not fit."""
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
                f"{two.name} takes {spelt(two.takes)}, but version {two.version} is {spelt(one.gives)}, which "
                f"{one.name} returns: let both name one class"
            )
    last = chain[-1]
    if last.gives is not declared.state:
        problems.append(
            f"{last.name} returns {spelt(last.gives)}, but the state of the service is {spelt(declared.state)}: let it "
            f"return that, or declare migrate({last.version + 1})"
        )
    if problems:
        raise DeclarationError(f"the migrations of {declared.name!r}: {'; '.join(problems)}")
    return tuple(chain)
