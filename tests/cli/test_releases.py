"""Another version deployed, in real processes: sagas that one release has begun go on in the next one, while both run.

The state has another version, and the new way of the handler, with a step more, lies behind a flag.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from saga.broker.port import partition_of
from saga.engine.service_runtime import READ_S
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery
from tests.cli.test_dead import until
from tests.cli.test_each_boundary import made_of
from tests.cli.test_missing_topics import Running, running
from tests.cli.test_parked import listed, publish

SOURCE = """
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from {module} import CupMade, CupOrdered, CupSold

from saga import Later, Retry, Saga, Service


@dataclass(frozen=True)
class CupV1:
    kilos: str = ""


@dataclass(frozen=True)
class Cup:
    grams: int = 0


RETRY = Retry(attempts_max=1000, delay_s_first=0.2, delay_s_max=0.5, in_place_s=0.3)
potter = Service("{service}", state={state}, retry=RETRY)


async def note(key: str, cup: str, what: str, kilos: str) -> str:
    if what == "fire" and cup not in Path("mended").read_text().split():
        raise RuntimeError("the kiln is cold")
    with Path("noted").open("a") as file:
        file.write(f"{{key}} {{cup}} {{what}} {{kilos}} {release}\\n")
    return what
{migration}

@potter.handler
async def make(ordered: CupOrdered, sold: CupSold | None, saga: Saga[{state}]) -> CupMade | Later[CupSold]:
    cup = ordered.cup_id
    if saga.state == {state}():
        await saga.step(note, saga.idempotency_key("throw"), cup, "throw", "0.25")
        saga.state = {thrown}
        return Later(until=CupSold, within=timedelta(days=1))
    kilos = {kilos}{glaze}
    await saga.step(note, saga.idempotency_key("carry"), cup, "carry", kilos)
    await saga.step(note, saga.idempotency_key("fire"), cup, "fire", kilos)
    return CupMade(cup_id=cup)
"""
MIGRATION = """
@potter.migrate(1)
def in_grams(old: CupV1) -> Cup:
    return Cup(grams=round(float(old.kilos or 0) * 1000))

"""
GLAZE = """
    if await saga.flag("glaze"):
        await saga.step(note, saga.idempotency_key("glaze"), cup, "glaze", kilos)"""
OLD = {"release": "old", "state": "CupV1", "thrown": 'CupV1("0.25")', "kilos": "saga.state.kilos"}
NEW = {"release": "new", "state": "Cup", "thrown": "Cup(250)", "kilos": "str(saga.state.grams / 1000)"}
BY_OLD, BY_NEW = {"fields": {"kilos": "0.25"}, "version": 1}, {"fields": {"grams": 250}, "version": 2}
BY = ("--who", "ada", "--why", "all have the new release", "--within", "30")


class Noted(NamedTuple):
    """Effect outside."""

    cup: str
    what: str
    kilos: str


class Shop:
    """Releases of a potter, each process with a place of its own in the group, which it keeps while it is dead."""

    def __init__(self, pottery: Pottery, saga: Call, processes: ExitStack, patch: pytest.MonkeyPatch) -> None:
        self.pottery, self.saga = pottery, saga
        self._processes, self._patch = processes, patch
        self._places: dict[str, Running] = {}

    def deploy(self, release: Mapping[str, str], place: str) -> Running:
        """Run a release in this place, instead of the process that is there: that is killed."""
        if place in self._places:
            self._places[place].kill()
            self._places[place].wait()
        self._patch.setenv("SAGA_KAFKA_INSTANCE", place)
        process = self._places[place] = self._processes.enter_context(running(self.written(release)))
        return process

    def written(self, release: Mapping[str, str]) -> str:
        name = f"{self.pottery.module}_{release['release']}"
        new = release is NEW
        more = {"migration": MIGRATION if new else "", "glaze": GLAZE if new else ""}
        source = SOURCE.format(module=self.pottery.module, service=self.pottery.service, **release, **more)
        (self.pottery.folder / f"{name}.py").write_text(source)
        return name

    def order(self, *cups: str) -> None:
        publish(self.saga, "CupOrdered", *cups)

    def sell(self, *cups: str) -> None:
        publish(self.saga, "CupSold", *cups)

    def waits(self, *cups: str) -> bool:
        """Return whether all of these wait to be sold."""
        seen = listed(self.saga, self.pottery.service)
        return all(cup in seen and seen[cup]["later"] for cup in cups)

    def is_parked(self, *cups: str) -> bool:
        """Return whether a run of each of these has failed half way, and is tried again."""
        failed = re.compile(r": make goes on with CupOrdered at .*, or with CupSold: [0-9]+ attempts? failed\n")
        return all(failed.search(self.saga("sagas", "show", cup).stdout) is not None for cup in cups)

    def shown(self, cup: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(self.saga("sagas", "show", cup, "--json").stdout)["services"][
            self.pottery.service
        ]
        return {name: found.get(name) for name in ("fields", "version")}

    def until(self, holds: Callable[[], bool]) -> None:
        until(holds, last=lambda: "\n".join(each.read_log()[-3000:] for each in self._places.values()))


@pytest.fixture
def shop(pottery_on: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    for file in ("noted", "mended"):
        (pottery_on.folder / file).write_text("")
    with ExitStack() as processes:
        shop = Shop(pottery_on, saga, processes, monkeypatch)
        applied = saga("topics", "apply", shop.written(OLD))
        assert applied.exit_code == 0, applied.output
        yield shop


def cups_of(kind: str) -> tuple[str, ...]:
    """Names of four cups, whose partitions take turns: so each process has some."""
    names = [f"{kind}-{n}" for n in range(40)]
    of = [[name for name in names if partition_of(name.encode(), 2) == number][:2] for number in range(2)]
    return tuple(chain(*zip(*of, strict=True)))


def noted() -> Mapping[str, set[Noted]]:
    """What was done outside, by key: of each one thing, however often it was tried."""
    found = defaultdict[str, set[Noted]](set)
    for line in Path("noted").read_text().splitlines():
        key, *thing, _ = line.split()
        found[key].add(Noted(*thing))
    return found


def by_release() -> set[tuple[str, str]]:
    """Cups, each with a release that did something for it."""
    return {(line.split()[1], line.split()[-1]) for line in Path("noted").read_text().splitlines()}


@pytest.mark.timeout(240)
def test_sagas_of_one_release_continue_in_the_next_one_while_both_run(shop: Shop) -> None:
    half_way, waiting, newer, both, late = map(cups_of, ("half", "wait", "new", "both", "late"))
    # The old release alone: some are parked half way through a run, with what it began on, and others wait.
    shop.deploy(OLD, "potter-0")
    shop.order(*half_way, *waiting)
    shop.until(lambda: shop.waits(*half_way, *waiting))
    shop.sell(*half_way)
    shop.until(lambda: shop.is_parked(*half_way))
    # The new release alone: its sagas have the new state, and one that waited begins a run, with the flag off.
    shop.deploy(NEW, "potter-0")
    shop.order(*newer)
    shop.sell(waiting[0])
    shop.until(lambda: shop.waits(*newer) and shop.is_parked(waiting[0]))
    assert {shop.shown(cup)["version"] for cup in newer} == {2}
    assert {shop.shown(cup)["version"] for cup in (*half_way, *waiting)} == {1}, "no run of theirs has ended"
    # Both, side by side: what the old one does not know waits, and it is reported; all else continues.
    old = shop.deploy(OLD, "potter-1")
    shop.sell(*newer)
    shop.until(lambda: "has version 2, and this version of" in old.read_log())
    shop.order(*both)
    shop.until(lambda: {release for cup, release in by_release() if cup in both} == {"old", "new"})
    Path("mended").write_text(" ".join(half_way[:2]))
    shop.sell(*both[:2])
    # The new one alone, in both places; then its new way is switched on.
    shop.deploy(NEW, "potter-1")
    shop.until(lambda: shop.is_parked(*newer, *both[:2]))
    switched = shop.saga("control", "flag", shop.pottery.service, "glaze", "--percent", "100", *BY)
    assert switched.exit_code == 0, switched.output
    everywhere_s = CLOCK.monotonic_s() + READ_S
    shop.order(*late)
    shop.until(lambda: shop.waits(*late) and CLOCK.monotonic_s() > everywhere_s)
    shop.sell(*waiting[1:], *both[2:], *late)
    cups = {*half_way, *waiting, *newer, *both, *late}
    Path("mended").write_text(" ".join(cups))
    shop.until(lambda: made_of(shop.pottery).keys() == cups)
    check_books(shop, cups, glazed={*waiting[1:], *both[2:], *late})
    shop.until(lambda: all(shop.shown(cup) in (BY_OLD, BY_NEW) for cup in cups))
    assert {cup for cup in cups if shop.shown(cup) == BY_OLD} <= set(half_way[:2]), "mended while both ran"


def check_books(shop: Shop, cups: set[str], glazed: set[str]) -> None:
    """Each effect was had once, under one key; a run has kept the way on which it began; nothing died."""
    for key, things in noted().items():
        assert len(things) == 1, f"{key} was used for {things}"
    done = sorted(thing for things in noted().values() for thing in things)
    steps = [(cup, what) for cup in cups for what in ("throw", "carry", "fire")] + [(cup, "glaze") for cup in glazed]
    assert done == sorted(Noted(cup, what, "0.25") for cup, what in steps)
    assert {len(ids) for ids in made_of(shop.pottery).values()} == {1}
    assert json.loads(shop.saga("dead", "list", "--json").stdout)["letters"] == []
    verified = shop.saga("sagas", "verify")
    assert verified.exit_code == 0, verified.output
