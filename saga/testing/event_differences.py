"""Explain failed assertions on events: which event of a list differs, and in which field."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import TypeGuard

from saga.messages import Event, name_of


def explain_difference(left: object, right: object) -> list[str] | None:
    """Return the lines that pytest prints for `left == right`; `None` unless both are events, or lists of events."""
    if isinstance(left, Event) and isinstance(right, Event):
        return [f"{name_of(type(left))} == {name_of(type(right))}", *_compare(left, right)]
    if _is_list_of_events(left) and _is_list_of_events(right) and (left or right):
        return list(_compare_lists(left, right))
    return None


def _is_list_of_events(value: object) -> TypeGuard[Sequence[Event]]:
    return isinstance(value, list | tuple) and all(isinstance(each, Event) for each in value)


def _compare_lists(left: Sequence[Event], right: Sequence[Event]) -> Iterator[str]:
    yield f"{_list_names(left)} == {_list_names(right)}"
    if list(left) == list(right):
        yield f"the same events, but a {type(left).__name__} never equals a {type(right).__name__}"
        return
    if len(left) == len(right) and all(left.count(each) == right.count(each) for each in left):
        yield "the same events in another order"
        return
    for number, (one, other) in enumerate(zip_longest(left, right), 1):
        if one == other:
            continue
        if one is None or other is None:
            yield f"event {number} is only on the {'right' if one is None else 'left'}: {one or other!r}"
        else:
            yield from (f"event {number}, {line}" for line in _compare(one, other))


def _list_names(events: Sequence[Event]) -> str:
    return f"[{', '.join(name_of(type(each)) for each in events)}]"


def _compare(one: Event, other: Event) -> Iterator[str]:
    """Yield a line for each field that differs. Values that the class hides from `repr` are not shown."""
    if type(one) is not type(other):
        yield f"{one!r} is not {other!r}"
        return
    for part in fields(one):  # type: ignore[arg-type] # all events are dataclasses
        first, then = getattr(one, part.name), getattr(other, part.name)
        if first != then:
            shown = f"{first!r} != {then!r}" if part.repr else "differs, and is hidden as a sensitive value"
            yield f"{name_of(type(one))}.{part.name}: {shown}"
