"""`saga describe`: a service in the words of its manifest."""

import json
from pathlib import Path

from saga.choreography.manifest import format_manifest
from saga.cli.describe import format_service
from tests.choreography.check.building import START, Choreo, deadline, handler
from tests.cli.conftest import Call


def test_a_service_is_described_from_its_manifest(saga: Call) -> None:
    done = saga("describe", "payment")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "payment"
    assert "  OrderPlaced      version 1, topic orders, starts a saga, produced externally: reserve" in lines
    assert "  reserve  takes OrderPlaced; calls bank.reserve; returns PaymentReserved, or PaymentDeclined" in lines
    release = "undoes reserve on OrderCancelled and PaymentReserved; calls bank.release; returns PaymentReleased"
    assert f"  release  {release}" in lines
    assert lines[-2:] == ["uses", "  bank  Bank"]


def test_a_module_is_described_as_it_is_in_the_code(saga: Call) -> None:
    done = saga("describe", "services.order")
    assert "  expire  15 minutes after OrderPlaced; returns OrderCancelled\n" in done.stdout
    assert json.loads(saga("describe", "--json", "services.order").stdout)[0]["service"] == "order"


def test_a_folder_and_a_file_are_read(saga: Call, tmp_path: Path) -> None:
    (made,) = Choreo().service("decider", handler("decide", START, "Confirmed")).manifests
    (tmp_path / "decider.json").write_text(format_manifest(made), "utf-8")
    for source in (tmp_path, tmp_path / "decider.json"):
        assert saga("describe", "decider", str(source)).stdout.startswith("decider\n\nconsumes\n  Placed  ")


def test_everything_that_a_reaction_may_do_is_named() -> None:
    (made,) = (
        Choreo()
        .service(
            "many",
            handler("send", START, "-", irreversible=True),
            handler("tick", "Confirmed", "Ticked* | @later | -", repeats="Confirmed"),
            deadline("expire", START, "Cancelled", unless="Confirmed"),
        )
        .manifests
    )
    text = "\n".join(format_service(made))
    assert "  send  takes Placed; cannot be undone; returns nothing" in text
    assert "runs for every Confirmed; returns any number of Ticked, or goes on later, or nothing" in text
    assert "  expire  15 minutes after Placed unless Confirmed; returns Cancelled" in text


def test_an_unknown_service_is_refused_with_those_that_there_are(saga: Call) -> None:
    done = saga("describe", "nothing")
    assert done.exit_code == 2
    assert "there is no service 'nothing'; there are inventory, order, payment, shipping" in done.output
