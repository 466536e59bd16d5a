"""Generated handlers read no field that the analysis of their source has not found."""

import linecache
import re
from dataclasses import fields
from itertools import count
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saga.choreography.fields_read import find_fields_read
from tests.contracts.folders import field, generated, schema, write

NAMES = ("one", "two", "three", "four")
EVENT = st.sampled_from(["order", "a", "b"])
FIELD = st.sampled_from(NAMES)
_numbers = count()


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("any")
    write(folder, schema("Order", *(field(name, "string") for name in NAMES)))
    return generated(folder, "Order")


def line(template: str) -> st.SearchStrategy[list[str]]:
    """A statement, with events and fields by chance: E is a name that may hold the event, N another, F and G fields."""

    def filled(e: str, n: str, f: str, g: str) -> list[str]:
        given = {"E": e, "N": n, "F": f, "G": g}
        return re.sub(r"\b[ENFG]\b", lambda found: given[found[0]], template).split("~")

    return st.builds(filled, EVENT, EVENT, FIELD, FIELD)


STATEMENTS = st.one_of(
    *map(
        line,
        [
            "N = E",
            "N = E",
            "E.F",
            "E.F.upper().lower()",
            "getattr(E, 'F')",
            "getattr(E, 'F', E.G)",
            "x = E.F; x.upper()",
            "N = E.F",
            "E.F if E is not None else E.G",
            "'' if not E else E.F",
            "(lambda: E.F)()",
            "[E.F for _ in range(2)]",
            "[N.F for N in (E.G,) if isinstance(N, Order)]",
            "[N.F for N in (E,)]",
            "(N := E).F",
            "N = E if E is order else order",
            "N = E or order",
            "N, x = E, 1",
            "kept.append(E); kept[-1].F",
            "reads(E)",
            "reads(event=E)",
            "reads(E, 2)",
            "passes(1, E)",
            "passes(times=2, event=E)",
            "hides(E)",
            "starred(E)",
            "starred(named=E)",
            "f'{E.F!r}'",
            "isinstance(E, Order) and E.F",
            "isinstance(E, (Order, str))",
            "isinstance(E, Order | None)",
            "E is N",
            "E is None",
            "def inner(N=1):~    return E.F~inner()",
            "def inner(N):~    return N.F~inner(E)",
            "def reads_too():~    N = E~    return N.F~reads_too()",
            "for N in [E]:~    N.F",
            "for x in (1, 2):~    N = E~    N.F",
            "with holding(E) as N:~    N.F",
            "try:~    raise Holds(E)~except Holds as x:~    x.args[0].F",
            "match E:~    case Order(F=x) if E.G:~        x~    case N:~        N.F",
            "match E:~    case Order(F='no') | Order(G='no'):~        pass~    case Order() as N:~        N.G",
            "match E:~    case object(F=x):~        x",
            "match E:~    case None | _ if E.F:~        pass",
            "match E.F:~    case 'x':~        E.G",
            "match (E, 1):~    case (N, 1):~        N.F",
            "while not E:~    E.F",
            "class Inside:~    it = E.F~    whole = E",
            "x = {'k': E}; x['k'].F",
            "x = locals(); x['order'].F",
            "del x",
            "x = 1",
        ],
    )
)
BEFORE = """
from contextlib import nullcontext as holding
class Holds(Exception): ...
kept = []
def reads(event, times=1):
    for _ in range(times):
        again = event
    return again.one
def passes(times, event):
    return reads(event) if times < 2 else passes(times - 1, event=event)
def hides(event, other=lambda event: event.two):
    return other(event)
def starred(*events, **named):
    return [each.three for each in (*events, *named.values())]
"""


def made(statements: list[list[str]], events: ModuleType) -> Any:
    """A function of these statements; one that cannot go on is left out by itself, as `except` does."""
    number = next(_numbers)
    lines = ["def handler(order):", "    a = b = order"]
    for statement in statements:
        lines += ["    try:", *(f"        {each}" for each in statement), "    except Exception:", "        pass"]
    text = BEFORE + "\n".join(lines) + "\n"
    name = f"<made by chance {number}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    variables: dict[str, Any] = {"Order": events.Order, "__name__": f"made_{number}"}
    exec(compile(text, name, "exec", dont_inherit=True), variables)
    return variables["handler"]


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(statements=st.lists(STATEMENTS, min_size=1, max_size=5))
def test_a_run_reads_no_field_that_was_not_found(events: ModuleType, statements: list[list[str]]) -> None:
    handler = made(statements, events)
    [read] = find_fields_read(handler, "order", [events.Order]).values()
    seen: set[str] = set()

    class Spy(events.Order):  # type: ignore[misc, name-defined] # of a generated module
        __slots__ = ()

        def __getattribute__(self, name: str) -> object:
            if name in NAMES:
                seen.add(name)
            return super().__getattribute__(name)

    handler(Spy(**{each.name: "x" for each in fields(events.Order)}))
    assert read.whole or seen <= read.fields, f"{sorted(seen - read.fields)} are read, and not reported"


def test_single_fields_are_found_in_the_generated_kinds_of_code(events: ModuleType) -> None:
    handler = made([["a.one"], ["reads(b)"], ["match order:", "    case Order(three=x):", "        x"]], events)
    [read] = find_fields_read(handler, "order", [events.Order]).values()
    assert not read.whole
    assert read.fields == {"one", "three"}
