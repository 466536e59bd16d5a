"""`saga dead replay --dry-run --code`: today's code runs on a copy, and nothing comes of it."""

import dataclasses
import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from saga.cli import dead as cli
from saga.ops import rehearsal
from saga.ops.rehearsal import RehearsalResult, RehearsalStopped, make_stand_in
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery
from tests.cli.test_dead import BY, blocked, outcomes, until
from tests.cli.test_missing_topics import Running, running
from tests.cli.test_showing import edit

SOURCE = """
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from {module} import CupMade, CupOrdered, CupSold

from saga import Retry, Saga, Service


@dataclass(frozen=True)
class Notes:
    cups: int = 0
    glaze: str = "none"


@dataclass(frozen=True)
class Shelf:
    cups: int = 0


def add(shelf: Shelf | None) -> Shelf:
    return Shelf(cups=1 if shelf is None else shelf.cups + 1)


potter = Service("{service}", state=Notes)
potter.document(Shelf, "shelves")


class Kiln(ABC):
    @abstractmethod
    async def bake(self, key: str, degrees: int) -> str: ...

    @abstractmethod
    async def paint(self, colour: str) -> str: ...


class RealKiln(Kiln):
    def __init__(self) -> None:
        self.heat = 1000

    async def bake(self, key: str, degrees: int) -> str:
        with Path("baked").open("a") as baked:
            baked.write(f"{{degrees + self.heat * 0}} ")
        return "white"

    async def paint(self, colour: str) -> str:
        raise RuntimeError("out of paint")


@potter.resource()
async def kiln() -> AsyncIterator[Kiln]:
    yield RealKiln()


@potter.handler(retry=Retry(attempts_max=1))
async def make(ordered: CupOrdered, kiln: Kiln, saga: Saga[Notes]) -> CupMade:
    glaze = await saga.step(kiln.bake, saga.idempotency_key("bake"), 900)
    {body}
    await saga.update(Shelf, "left", add)
    saga.state = replace(saga.state, cups=saga.state.cups + 1, glaze=glaze)
    return CupMade(cup_id=ordered.cup_id)


@potter.handler
async def forget(sold: CupSold) -> None:
    return None
"""
BODIES = {
    "broken": 'raise RuntimeError("the kiln is cold")',
    "mended": "pass",
    "worse": 'raise LookupError("no such cup")',
    "painting": 'glaze = await saga.step(kiln.paint, "blue")',
    "careless": "glaze = str(kiln.heat)",
}


@pytest.fixture
def dead(pottery_on: Pottery, saga: Call) -> Iterator[Running]:
    """A potter runs, and a cup has died behind its first step; modules of mended potters lie beside it."""
    for name, body in BODIES.items():
        source = SOURCE.format(module=pottery_on.module, service=pottery_on.service, body=body)
        (pottery_on.folder / f"{pottery_on.module}_{name}.py").write_text(source)
    name = f"{pottery_on.module}_broken"
    assert saga("topics", "apply", name).exit_code == 0
    with running(name) as process:
        assert saga("publish", "CupOrdered", stdin=json.dumps({"cup_id": "cup-1"})).exit_code == 0
        until(lambda: blocked(saga) == {"cup-1"})
        yield process


def test_a_rehearsal_shows_what_the_current_code_would_do_and_does_nothing(
    dead: Running, saga: Call, pottery_on: Pottery
) -> None:
    baked = (pottery_on.folder / "baked").read_text()

    def rehearsed(name: str, *more: str) -> tuple[int, list[str]]:
        code = f"{pottery_on.module}_{name}"
        done = saga("dead", "replay", pottery_on.service, "--all", *BY, "--dry-run", "--code", code, *more)
        return done.exit_code, [line.strip() for line in done.stdout.splitlines()]

    assert rehearsed("mended") == (
        0,
        [
            f"{pottery_on.service}  cup-1  make",
            "make would be replayed: ada wants it: the kiln is hot",
            "make would be handled",
            "state    cups: null -> 1",
            'state    glaze: null -> "white"',
            'emits    CupMade {"cup_id": "cup-1"}',
            "changes  shelves/left",
        ],
    )
    code, lines = rehearsed("worse")
    assert (code, lines[-1]) == (1, "make would be dead: LookupError: no such cup")
    assert rehearsed("painting")[1][1:] == [
        "make would be replayed: ada wants it: the kiln is hot",
        'stops    make would call Kiln.paint("blue")',
    ]
    assert rehearsed("careless")[1][-1] == "stops    Kiln.heat is used outside of a step"
    [report] = [json.loads(line) for line in rehearsed("mended", "--json")[1]]
    assert (report["before"], report["after"], report["stops"]) == ({}, {"cups": 1, "glaze": "white"}, None)
    assert [event["fields"] for event in report["emitted"]] == [{"cup_id": "cup-1"}]
    assert (pottery_on.folder / "baked").read_text() == baked, "what is recorded is not asked for again"
    assert outcomes(saga, "cup-1") == ["dead"], "nothing was written"
    assert json.loads(saga("dead", "list", "--json").stdout)["letters"][0]["now"] == "blocks"


class Needy:
    def __init_subclass__(cls, *, given: str) -> None: ...

    def execute(self) -> None: ...


class Closing:
    def __init__(self) -> None:
        self.file = open(__file__)  # noqa: SIM115 - it is never opened

    def __del__(self) -> None:
        self.file.close()

    def execute(self) -> None: ...


@pytest.mark.parametrize(
    ("gives", "name"),
    [(Closing, "execute"), (Needy, "execute"), (sqlite3.Connection, "execute"), (dict, "get"), (re.Pattern, "match")],
)
def test_every_resource_has_a_stub_with_named_methods(gives: type, name: str) -> None:
    made = make_stand_in(gives)
    assert getattr(made, name).__name__ == name
    with pytest.raises(RehearsalStopped, match=rf"{gives.__name__}\.heat is used outside of a step"):
        _ = made.heat  # type: ignore[attr-defined]  # what it does not have
    del made


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--code", "services.payment"), "--code needs --dry-run"),
        (("--code", "services.order", "--dry-run"), "none of these modules declares 'payment'"),
    ],
)
def test_a_rehearsal_needs_dry_run_and_the_module_of_the_service(
    saga: Call, shop: Path, args: tuple[str, ...], message: str
) -> None:
    result = saga("dead", "replay", "payment", "--all", *BY, *args)
    assert result.exit_code == 2
    assert message in result.stderr


def test_the_example_is_rehearsed_up_to_the_call_of_its_bank(saga: Call, shop: Path) -> None:
    done = saga("dead", "replay", "payment", "--all", *BY, "--dry-run", "--code", "services.payment")
    assert done.exit_code == 0, done.output
    assert "stops    reserve would call Bank.reserve(" in done.stdout


def test_a_replay_that_would_be_refused_is_no_success(saga: Call, shop: Path) -> None:
    p = edit(shop, "payment", "order-3")
    [dead, *others] = p.queue
    edit(shop, "payment", "order-3", queue=(replace(dead, message=replace(dead.message, value=b"")), *others))
    done = saga("dead", "replay", "payment", "--all", *BY, "--dry-run", "--code", "services.payment")
    assert (done.exit_code, "would be ignored: not replayed: " in done.stdout) == (1, True), done.output


def test_a_replay_that_would_be_retried_is_no_success(saga: Call, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compensation that fails again is never given up."""

    async def rehearse(*args: Any) -> RehearsalResult:
        done = await rehearsal.rehearse(*args)
        return dataclasses.replace(done, did=(*done.did, ("release", "retrying", "the bank is closed")))

    monkeypatch.setattr(cli, "rehearse", rehearse)
    done = saga("dead", "replay", "payment", "--all", *BY, "--dry-run", "--code", "services.payment")
    assert (done.exit_code, "release would be retrying: the bank is closed" in done.stdout) == (1, True), done.output
