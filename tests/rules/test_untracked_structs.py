"""A struct that the garbage collector does not track (`gc=False`) contains no error.

An error holds the frames through which it was raised, and one of them may hold the struct. Such a cycle is freed only
if the collector can see all of it.
"""

import pkgutil
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Struct

import saga


def list_structs(kind: type[Struct] = Struct) -> Iterator[type[Struct]]:
    """Yield all structs of the package."""
    for each in kind.__subclasses__():
        if each.__module__.startswith("saga."):
            yield each
        yield from list_structs(each)


def has_error(annotation: Any) -> bool:
    """True if a value of this type may contain an error."""
    is_error = isinstance(annotation, type) and issubclass(annotation, BaseException)
    return is_error or any(has_error(each) for each in get_args(annotation))


def find_untracked_errors(kind: type[Struct]) -> list[str]:
    """Return the fields of an untracked struct that may contain an error."""
    if kind.__struct_config__.gc:
        return []
    return [f"{kind.__name__}.{name}" for name, annotation in get_type_hints(kind).items() if has_error(annotation)]


def test_no_untracked_struct_contains_an_error() -> None:
    for module in pkgutil.walk_packages(saga.__path__, "saga."):
        if "templates" not in module.name and not module.name.endswith("__main__"):
            pytest.importorskip(module.name)
    structs = set(list_structs())
    assert len(structs) > 100
    assert [field for kind in structs for field in find_untracked_errors(kind)] == []


def test_an_untracked_error_is_found() -> None:
    class Failed(Struct, gc=False):
        error: Exception | None

    assert find_untracked_errors(Failed) == ["Failed.error"]
