"""Patches that know whether they were used: a mutant whose function is never called proves nothing."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import pytest


class PlantedCalls:
    """Counts the calls of each function and property that a monkeypatch puts in place."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}

    def never_called(self) -> list[str]:
        """Return the patched functions that were never called."""
        return [name for name, count in self._calls.items() if not count]

    def count(self, name: str, value: Any) -> Any:
        """Return a patched value that counts its calls, if it is a function or a property."""
        if isinstance(value, property) and value.fget is not None:
            return property(self._counted(name, value.fget))
        return self._counted(name, value) if isinstance(value, FunctionType) else value

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        self._calls.setdefault(name, 0)

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._calls[name] += 1
            return function(*args, **kwargs)

        return counted


@contextmanager
def planted() -> Iterator[tuple[pytest.MonkeyPatch, PlantedCalls]]:
    """Yield a monkeypatch, undone at the end, and the counts of what it puts in place."""
    calls = PlantedCalls()
    with pytest.MonkeyPatch.context() as patch:
        replace = patch.setattr

        def counting(target: Any, name: Any, *value: Any, raising: bool = True) -> None:
            if value:
                owner = getattr(target, "__name__", target)
                replace(target, name, calls.count(f"{owner}.{name}", value[0]), raising=raising)
            else:
                replace(target, calls.count(str(target), name), raising=raising)

        vars(patch)["setattr"] = counting
        yield patch, calls
