"""Upcasters as declared: what is refused of them, and of services that lack one."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from saga import DeclarationError, Service, upcast
from saga.engine.prepared_service import prepare
from tests.contracts.folders import field, generated, schema, write


@pytest.fixture
def made(tmp_path: Path) -> ModuleType:
    """Three versions of a contract, of which the newest upcasts both others; and another contract."""
    for number, upcasts in enumerate(([], [1], [1, 2]), 1):
        more = {"upcasts": upcasts} if upcasts else {}
        write(tmp_path, schema("Said", field(f"f{number}", "int"), **more), version=number)
    write(tmp_path, schema("Heard", starts=True), version=1)
    write(tmp_path, schema("Heard", field("more", "int", default=0), starts=True), version=2)
    return generated(tmp_path, "Said", "Said.v1", "Said.v2", "Said.v3", "Heard", "Heard.v1")


def function(takes: Any, gives: Any) -> Callable[[Any], Any]:
    def from_old(old: Any) -> Any: ...

    from_old.__annotations__ = {"old": takes, "return": gives}
    return from_old


def refused(event: Any, version: Any, given: Any) -> list[str]:
    """Problems with which a declaration is refused."""
    with pytest.raises(DeclarationError) as caught:
        upcast(event, version)(given)
    return str(caught.value).split(": ", 1)[1].split("; ")


def test_an_upcaster_takes_an_older_version_and_returns_a_newer_one(made: ModuleType) -> None:
    one, two = function(made.SaidV1, made.SaidV2), function(made.SaidV2, made.Said)
    assert upcast(made.Said, 1)(one) is one
    assert upcast(made.Said, 2)(two) is two


def test_an_upcaster_of_a_class_that_is_no_event_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"upcast\(<class 'int'>, 1\): it is no event: give the class"):
        upcast(int, 1)  # type: ignore[arg-type] # the mistake


@pytest.mark.parametrize("version", [0, -1, 3, 4, True, "1", None])
def test_the_version_that_an_upcaster_takes_must_exist(made: ModuleType, version: object) -> None:
    first, *_ = refused(made.Said, version, function(made.SaidV1, made.Said))
    assert first == (
        f"the class is of orders/Said.v3, and there is no older version {version!r} of it" if version != 3 else first
    )
    assert "there is no older version" in first


def test_a_first_version_has_no_upcaster(made: ModuleType) -> None:
    with pytest.raises(DeclarationError, match="no older version 1 of it; there is none"):
        upcast(made.SaidV1, 1)(function(made.SaidV1, made.SaidV1))
    with pytest.raises(DeclarationError, match="no older version 2 of it; there is version 1"):
        upcast(made.SaidV2, 2)(function(made.SaidV1, made.SaidV2))


def test_the_schema_marks_a_version_as_upcast(made: ModuleType) -> None:
    assert refused(made.Heard, 1, function(made.HeardV1, made.Heard)) == [
        "orders/Heard.v2.avsc does not say so, and other services would read version 1 by resolution: write "
        '"upcasts": [1] there, or leave the upcaster out'
    ]


def test_a_version_has_one_upcaster(made: ModuleType) -> None:
    upcast(made.Said, 1)(function(made.SaidV1, made.Said))
    (problem,) = refused(made.Said, 1, function(made.SaidV1, made.Said))
    assert problem == f"{__name__}.function.<locals>.from_old takes that version already: keep one"
    upcast(made.SaidV2, 1)(function(made.SaidV1, made.SaidV2))  # another class, as another release has


async def later(old: Any) -> Any: ...


def one_by_one(old: Any) -> Any:
    yield old


@pytest.mark.parametrize("given", [later, one_by_one, 7])
def test_an_upcaster_is_a_plain_function(made: ModuleType, given: object) -> None:
    assert refused(made.Said, 1, given) == [
        "it is no plain function: write `def`, without `async` and `yield`",
        "it may make no calls",
    ]


def test_all_that_is_wrong_with_it_is_reported_at_once(made: ModuleType) -> None:
    def bare(old, more): ...  # type: ignore[no-untyped-def] # the mistake

    assert refused(made.Said, 7, bare) == [
        "the class is of orders/Said.v3, and there is no older version 7 of it",
        "there is version 1 to 2",
        "it takes 2 parameters: let it take one, the event as it was",
        "what it returns is not annotated: write the class of the event",
    ]
    assert refused(made.Said, 1, function(int, str)) == [
        "it takes int, which is no event",
        "it returns str, which is no event",
    ]
    assert refused(made.Said, 1, function(made.Heard, made.HeardV1)) == [
        "it takes Heard: let it take SaidV1",
        "saga contracts generate writes that for Said.v1",
        "it returns HeardV1: let it return Said, or a version between",
    ]


def test_an_upcaster_takes_the_version_that_it_is_declared_for(made: ModuleType) -> None:
    assert refused(made.Said, 1, function(made.SaidV2, made.Said)) == [
        "it takes SaidV2: let it take SaidV1",
        "saga contracts generate writes that for Said.v1",
    ]


def test_an_upcaster_returns_a_newer_version_up_to_that_of_its_class(made: ModuleType) -> None:
    assert refused(made.Said, 2, function(made.SaidV2, made.SaidV1)) == [
        "it returns SaidV1, version 1, which is no newer one: it would never come to its end"
    ]
    assert refused(made.SaidV2, 1, function(made.SaidV1, made.Said)) == [
        "it returns Said, version 3, and the class is of version 2"
    ]
    assert refused(made.Said, 1, function(made.SaidV1, made.SaidV3)) == [
        "it returns another class of version 3: let it return Said, as it is given above"
    ]


def test_a_service_without_an_upcaster_for_each_version_that_is_upcast_does_not_start(made: ModuleType) -> None:
    service = Service("listener")

    async def listen(event: Any, heard: Any) -> None: ...

    listen.__annotations__ = {"event": made.Said, "heard": made.Heard, "return": None}
    service.handler(listen)
    with pytest.raises(DeclarationError) as caught:
        prepare(service.declared)
    assert str(caught.value) == "the events that 'listener' takes: " + "; ".join(
        f"orders/Said.v3 reads version {n} by an upcaster, and there is none: declare it where Said is used, "
        f"@upcast(Said, {n}) above a function that takes a SaidV{n} (saga contracts generate writes that class: "
        f"Said.v{n})"
        for n in (1, 2)
    )
    upcast(made.Said, 2)(function(made.SaidV2, made.Said))
    with pytest.raises(DeclarationError, match="reads version 1 by an upcaster") as caught:
        prepare(service.declared)
    assert "version 2 by" not in str(caught.value)
    upcast(made.Said, 1)(function(made.SaidV1, made.SaidV2))
    prepare(service.declared)


def test_a_service_that_only_emits_an_event_or_reads_an_older_version_needs_no_upcaster(made: ModuleType) -> None:
    service = Service("order")

    async def speak(heard: Any) -> Any: ...

    async def listen(event: Any) -> None: ...

    speak.__annotations__ = {"heard": made.Heard, "return": made.Said}
    listen.__annotations__ = {"event": made.SaidV1, "return": None}
    service.handler(speak)
    service.handler(listen)
    prepare(service.declared)
