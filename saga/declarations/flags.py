"""Names of the flags for which the code of a service's handlers asks, found in its bytecode without running it.

For telling a person that a flag is misspelt. Where a name cannot be told, as of `saga.flag(name)`, anything may be one.
"""

import dis
import sys
from collections.abc import Callable, Iterator
from inspect import getmro, isfunction, ismodule, unwrap
from types import CodeType, FunctionType

from saga.declarations.values import Declared

_PADDING = ("CACHE", "PRECALL", "PUSH_NULL", "NOP", "EXTENDED_ARG")
"""Instructions that may stand between a method and its first argument, in one version of Python or another."""
_FOREIGN = sys.stdlib_module_names | {"saga"}
"""Packages whose code asks for no flag of a service."""


def flags_asked(declared: Declared) -> frozenset[str] | None:
    """Names of all flags for which the code of a service may ask; `None` if one of them cannot be told."""
    found, seen = set[str](), set[CodeType]()
    roots: list[object] = [reaction.function for reaction in declared.reactions]
    roots += [each for resource in declared.resources for each in (resource.opener, resource.gives)]
    left = [function for root in roots for function in _functions_in(root)]
    while left:
        function = left.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        names = set[str]()
        for code in _codes(function.__code__):
            names |= {*code.co_names}
            for flag in _flags_in(code):
                if flag is None:
                    return None
                found.add(flag)
        left += [each for there in _named(function, names) for each in _functions_in(there)]
    return frozenset(found)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _flags_in(code: CodeType) -> Iterator[str | None]:
    """Arguments of all calls of a method `flag`; `None` for one that is no plain text."""
    left = (each for each in dis.get_instructions(code) if each.opname not in _PADDING)
    for instruction in left:
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval == "flag":
            argument, call = next(left, None), next(left, None)
            is_plain = argument is not None and argument.opname == "LOAD_CONST" and isinstance(argument.argval, str)
            is_called = call is not None and call.opname.startswith("CALL")
            yield argument.argval if argument is not None and is_plain and is_called else None


def _named(function: FunctionType, names: set[str]) -> Iterator[object]:
    """Things outside a function that its code names: of its module, of modules that it names, and of what it is in."""
    for name in names & function.__globals__.keys():
        there = function.__globals__[name]
        yield there
        if ismodule(there) and not _is_foreign(there.__name__):
            yield from (vars(there)[each] for each in names & vars(there).keys())
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is empty as yet
            continue


def _functions_in(there: object) -> Iterator[FunctionType]:
    """A function itself; of a class, or of an object's class, the methods."""
    if callable(there) and isfunction(inner := _unwrapped(there)):
        yield from (
            each for each in (there, inner) if isinstance(each, FunctionType) and not _is_foreign(each.__module__)
        )
        return
    kind_of: type = there if isinstance(there, type) else type(there)
    for kind in getmro(kind_of):
        if not _is_foreign(kind.__module__):
            yield from (each for each in vars(kind).values() if isinstance(each, FunctionType))


def _unwrapped(there: Callable[..., object]) -> object:
    try:
        return unwrap(there)
    except ValueError:  # it wraps itself
        return there


def _is_foreign(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in _FOREIGN
