"""`saga dead resolve`: a person answers a step in the place of the outside, and closes what an escalation tells of."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery
from tests.cli.test_dead import BY, blocked, letters, outcomes, until, with_letters
from tests.cli.test_missing_topics import Running, running

SOURCE = """
from collections.abc import AsyncIterator
from pathlib import Path

from {module} import CupMade, CupOrdered, CupSold

from saga import Retry, Saga, Service

potter = Service("{service}")


class Cracked(Exception):
    pass


class Kiln:
    async def bake(self, key: str) -> str:
        with Path("baked").open("a") as baked:
            baked.write(key + " ")
        raise RuntimeError("nobody knows what became of it")


@potter.resource(expected_errors=(Cracked,))
async def kiln() -> AsyncIterator[Kiln]:
    yield Kiln()


@potter.handler(retry=Retry(attempts_max=1))
async def make(ordered: CupOrdered, kiln: Kiln, saga: Saga) -> CupMade:
    try:
        glaze = await saga.step(kiln.bake, saga.idempotency_key("bake"))
    except Cracked as why:
        glaze = str(why)
    Path("glazes").open("a").write(glaze + " ")
    return CupMade(cup_id=ordered.cup_id)


@potter.handler
async def forget(sold: CupSold) -> None:
    return None
"""


@pytest.fixture
def dead(pottery_on: Pottery, saga: Call) -> Iterator[Running]:
    """A potter runs, and two cups have died in the kiln."""
    name = f"{pottery_on.module}_baking"
    (pottery_on.folder / f"{name}.py").write_text(SOURCE.format(module=pottery_on.module, service=pottery_on.service))
    assert saga("topics", "apply", name).exit_code == 0
    with running(name) as process:
        lines = "\n".join(json.dumps({"cup_id": f"cup-{n}"}) for n in (1, 2))
        assert saga("publish", "CupOrdered", stdin=lines).exit_code == 0
        until(lambda: len(with_letters(saga)) == 2)
        yield process


def test_an_operator_enters_the_answer_of_the_external_system_and_the_saga_continues(
    dead: Running, saga: Call, pottery_on: Pottery
) -> None:
    baked = (pottery_on.folder / "baked").read_text()
    shown = saga("dead", "show", "cup-1").stdout
    assert "  class    the outside" in shown.splitlines()
    done = saga("dead", "resolve", "cup-1", "--step", "bake", "--answered", '"blue"', *BY)
    assert (done.exit_code, done.stdout) == (
        0,
        f"{pottery_on.service}  cup-1  make  resolved, then handled: ada wants it: the kiln is hot\n",
    )
    assert outcomes(saga, "cup-1") == ["dead", "resolved", "handled"]
    assert "bake according to ada" in saga("sagas", "show", "cup-1").stdout
    raised = saga(
        "dead", "resolve", "cup-2", "--step", "bake", "--raised", "Cracked", "--args", '["cracked"]', *BY, "--json"
    )
    assert json.loads(raised.stdout)["state"] == "resolved, then handled"
    assert (pottery_on.folder / "glazes").read_text() == "blue cracked "
    assert (pottery_on.folder / "baked").read_text() == baked, "the outside was not asked again"
    assert blocked(saga) == set()
    assert saga("dead", "resolve", "cup-2", "--step", "bake", "--answered", "1", *BY).exit_code == 1
    assert saga("sagas", "verify", "cup-1").exit_code == 0


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("--step", "baek", "--answered", '"blue"'), "make has not asked for step 'baek' (number 1); it waits for an "),
        (("--step", "bake", "--number", "2", "--answered", '"blue"'), "make has not asked for step 'bake' (number 2)"),
        (("--step", "bake", "--raised", "Craked"), "make has no declared exception 'Craked'; its resources declare "),
    ],
)
def test_a_misspelt_resolution_is_refused_without_another_external_call(
    dead: Running, saga: Call, pottery_on: Pottery, given: tuple[str, ...], why: str
) -> None:
    baked = (pottery_on.folder / "baked").read_text()
    refused = saga("dead", "resolve", "cup-1", *given, *BY)
    assert (refused.exit_code, f"refused: not resolved: {why}" in refused.stdout) == (1, True), refused.output
    assert (pottery_on.folder / "baked").read_text() == baked
    assert blocked(saga) == {"cup-1", "cup-2"}


def test_an_escalation_is_closed_by_who_has_put_it_right(dead: Running, saga: Call, pottery_on: Pottery) -> None:
    assert saga("dead", "discard", pottery_on.service, "--saga", "cup-1", *BY).exit_code == 0

    def escalations() -> dict[str, str]:
        return {letter["id"]: letter["now"] for letter in letters(saga) if letter["what"] == "escalation"}

    until(lambda: list(escalations().values()) == ["-"], last=escalations)
    [id_] = escalations()
    one = saga("dead", "resolve", "cup-1", "--escalation", "dead-0", *BY)
    assert (one.exit_code, "no open escalation dead-0" in one.stderr) == (1, True), one.output
    closed = saga("dead", "resolve", "cup-1", "--escalation", id_, *BY)
    assert closed.exit_code == 0, closed.output
    assert closed.stdout.endswith("make  resolved: ada wants it: the kiln is hot\n")
    until(lambda: escalations() == {id_: "resolved"}, last=escalations)
    again = saga("dead", "resolve", "cup-1", "--escalation", id_, *BY)
    assert again.exit_code == 1
    assert f"refused: not resolved: escalation {id_} is closed already" in again.stdout
    assert saga("dead", "resolve", "cup-1", "--escalation", "dead-0", *BY).exit_code == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "give --step with its result, or --escalation"),
        (("--step", "bake", "--escalation", "dead-1"), "give --step with its result, or --escalation"),
        (("--escalation", "dead-1", "--answered", "1"), "are the result of a --step: an escalation has none"),
        (("--step", "bake"), "give what the step returned, --answered JSON, or what it raised, --raised NAME"),
        (("--step", "bake", "--answered", "1", "--raised", "Cracked"), "give what the step returned"),
        (("--step", "bake", "--answered", "blue"), "--answered blue: give JSON, including its quotes"),
        (("--step", "bake", "--answered", "1", "--args", "[]"), "--args are the arguments of the exception"),
        (("--step", "bake", "--raised", "Cracked", "--args", '"blue"'), "give a list"),
    ],
)
def test_an_answer_is_asked_for_in_full(saga: Call, shop: Path, args: tuple[str, ...], message: str) -> None:
    result = saga("dead", "resolve", "order-3", *args, *BY)
    assert result.exit_code == 2
    assert message in result.stderr


def test_nothing_is_sent_if_it_is_not_clear_which_dead_letter_is_meant(saga: Call, shop: Path) -> None:
    meant = ("--step", "reserve", "--answered", "1", *BY)
    for args in (("order-1",), ("order-3", "--service", "order"), ("order-3", "--handler", "capture")):
        result = saga("dead", "resolve", *args, *meant)
        assert result.exit_code == 1, args
        assert "has nothing to resolve" in result.stderr
