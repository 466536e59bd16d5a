"""Fields that a handler reads, found in its source: never fewer than it reads when it runs."""

import ast
import asyncio
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from types import ModuleType
from typing import Any

import pytest

from saga.choreography.fields_read import CodeCalls, FieldsRead, find_calls, find_fields_read, is_bound_once
from saga.contracts.codegen import generate
from saga.contracts.library import Library
from saga.declarations.annotations import split_union
from saga.messages import Event
from tests.choreography.readers import ELSEWHERE, ORDER, READERS, REFUSED
from tests.contracts.folders import decimal, field, schema, write

PLACE = {
    "type": "record",
    "name": "Place",
    "fields": [{"name": "street", "type": "string"}, {"name": "city", "type": "string"}],
}
LINE = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of the functions, beside generated classes."""
    folder = tmp_path_factory.mktemp("readers")
    order = schema(
        "Order",
        field("note", "string"),
        field("total", decimal()),
        field("address", PLACE),
        field("billing", ["null", "Place"], default=None),
        field("lines", {"type": "array", "items": LINE}),
    )
    write(folder, order, schema("Refused", field("note", "string"), field("reason", "string")))
    (folder / "events.py").write_text(generate(Library.load(folder / "contracts"), ["Order", "Refused"]), "utf-8")
    (folder / "elsewhere.py").write_text(ELSEWHERE, "utf-8")
    (folder / "readers_for_a_test.py").write_text(READERS, "utf-8")
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("readers_for_a_test")
    finally:
        sys.path.remove(str(folder))
        for name in ("elsewhere", "events", "readers_for_a_test"):
            sys.modules.pop(name, None)


def read_by(readers: ModuleType, name: str) -> dict[str, FieldsRead]:
    """Reads of a function by the name of the class, of all its parameters that are events."""
    function: Callable[..., object] = getattr(readers, name)
    found: dict[str, FieldsRead] = {}
    for parameter, annotation in taken(function).items():
        found |= {event.__name__: read for event, read in find_fields_read(function, parameter, annotation).items()}
    return found


def taken(function: Callable[..., object]) -> dict[str, list[type[Event]]]:
    """Classes of events by parameter; of a wrapper without annotations those of what it wraps."""
    hints = inspect.get_annotations(function) or {"order": sys.modules["events"].Order}
    classes = {
        name: [o for o in split_union(hint) if isinstance(o, type) and issubclass(o, Event)]
        for name, hint in hints.items()
    }
    return {name: events for name, events in classes.items() if events}


def fields_or_reason(read: FieldsRead) -> object:
    return read.whole or set(read.fields)


@pytest.mark.parametrize("name", sorted(ORDER))
def test_fields_are_found_in_the_source(readers: ModuleType, name: str) -> None:
    found = read_by(readers, name)
    assert fields_or_reason(found["Order"]) == ORDER[name]
    assert {event: fields_or_reason(read) for event, read in found.items() if event == "Refused"} == (
        {"Refused": REFUSED[name]} if name in REFUSED else {}
    )


def test_each_function_of_the_module_has_expected_fields(readers: ModuleType) -> None:
    handlers = {name for name, value in vars(readers).items() if inspect.iscoroutinefunction(value)}
    of_sagas = {name for name in handlers if {"saga", "context"} & {*inspect.signature(vars(readers)[name]).parameters}}
    assert handlers - of_sagas - {"later_noted", "calls"} == set(ORDER) - {
        "wrapped",
        "wrapped_without_saying",
    }


@pytest.mark.parametrize("name", sorted(ORDER))
def test_a_run_reads_no_field_that_was_not_found(readers: ModuleType, name: str) -> None:
    events, function = sys.modules["events"], getattr(readers, name)
    usage = read_by(readers, name)
    for cls in ("Order", "Refused"):
        seen: set[str] = set()
        given = [
            spy(event_of(events, c.__name__), seen if c.__name__ == cls else set()) for c in first_of(function, cls)
        ]
        if not any(isinstance(each, getattr(events, cls)) for each in given):
            continue
        returned = function(*given)
        if inspect.iscoroutine(returned):
            asyncio.run(returned)
        fields = {path.partition(".")[0] for path in usage[cls].fields}
        assert usage[cls].whole or seen <= fields, f"{cls}: {seen - fields} are read, and not reported"


def first_of(function: Callable[..., object], cls: str) -> list[type[Event]]:
    """Class of each argument: `cls`, where the parameter takes it."""
    return [next((c for c in classes if c.__name__ == cls), classes[0]) for classes in taken(function).values()]


def event_of(events: ModuleType, name: str) -> Any:
    place = events.Place(street="Kanda 1", city="Tokyo")
    if name == "Refused":
        return events.Refused(order_id="o-1", note="x", reason="no")
    return events.Order(
        order_id="o-1", note="x", total=None, address=place, billing=place, lines=(events.Line(sku="tea"),)
    )


def spy(event: Any, seen: set[str]) -> Any:
    """The same event, of a class that notes which fields are read."""
    names = {each.name for each in fields(event)}

    class Spy(type(event)):  # type: ignore[misc] # of whichever class
        __slots__ = ()

        def __getattribute__(self, name: str) -> object:
            if name in names:
                seen.add(name)
            return super().__getattribute__(name)

    return Spy(**{name: getattr(event, name) for name in names})


def test_code_that_is_not_in_its_file_any_more_counts_as_reading_all(
    readers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = READERS.replace("return order.order_id, order.total", "return order.order_id, order.note ")
    monkeypatch.setattr("saga.choreography.fields_read.linecache.getlines", lambda *_: text.splitlines(keepends=True))
    assert fields_or_reason(read_by(readers, "attributes")["Order"]) == "the source of attributes is not known"
    assert fields_or_reason(read_by(readers, "alias")["Order"]) == {"note"}


@pytest.mark.parametrize("text", ["", "def broken(:"])
def test_code_without_a_file_counts_as_reading_all(
    readers: ModuleType, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("saga.choreography.fields_read.linecache.getlines", lambda *_: [text] if text else [])
    assert fields_or_reason(read_by(readers, "alias")["Order"]) == "the source of alias is not known"


@pytest.mark.parametrize(
    "text",
    [
        "helper = 1",
        "def g():\n    global helper",
        "from elsewhere import helper",
        "from elsewhere import *",
        "import helper.inside",
        "class helper: ...",
        "def g(helper): ...",
        "for helper in (): ...",
        "try: ...\nexcept ValueError as helper: ...",
        "match 1:\n    case helper: ...",
        "match [1]:\n    case [*helper]: ...",
        "match {}:\n    case {**helper}: ...",
        "del helper",
    ],
)
def test_a_name_that_may_mean_something_else_is_not_followed(text: str) -> None:
    assert is_bound_once("helper", ast.parse("def helper(): ..."))
    assert not is_bound_once("helper", ast.parse(f"def helper(): ...\n{text}"))


def test_keys_are_those_that_stand_in_the_code_as_text() -> None:
    from services.payment import reserve

    found = find_calls(reserve, frozenset({"saga"}))
    assert found == CodeCalls(keys=("charge",), steps=("bank.reserve",), updates=())
    assert find_calls(len, frozenset({"saga"})) is None


def test_keys_of_functions_that_are_called_count(readers: ModuleType) -> None:
    found = find_calls(readers.asks_for_keys, frozenset({"saga"}))
    assert found is not None
    assert found.keys == ("elsewhere in the module", "here")
    assert (found.steps, found.updates) == (None, None), "`noted_elsewhere` is in another module"


def test_steps_and_updates_are_found_in_functions_that_are_called(readers: ModuleType) -> None:
    found = find_calls(readers.uses_the_saga, frozenset({"saga"}))
    assert found == CodeCalls(keys=(), steps=("bank.take",), updates=("Stock",))


def test_the_saga_is_followed_under_other_names(readers: ModuleType) -> None:
    found = find_calls(readers.uses_it_under_other_names, frozenset({"saga"}))
    assert found == CodeCalls(keys=(), steps=("bank.take",), updates=())


@pytest.mark.parametrize(
    "name",
    [
        "hands_it_on_under_another_name",
        "lets_a_helper_hand_it_on",
        "hands_it_on_among_others",
        "hands_a_method_on",
        "gives_a_method_a_name",
        "puts_it_into_an_object",
    ],
)
def test_a_saga_that_gets_where_nothing_follows_it_may_do_anything(readers: ModuleType, name: str) -> None:
    found = find_calls(getattr(readers, name), frozenset({"saga"}))
    assert found is not None
    assert (found.steps, found.updates) == (None, None)
