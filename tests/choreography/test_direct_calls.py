"""Calls of resources beside `saga.step` are found in the source, and noted by `saga check`."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from saga.choreography.check.accepted import AcceptedFinding, accept
from saga.choreography.check.verdicts import check_manifests
from saga.choreography.fields_read import find_direct_calls
from saga.choreography.manifest import Manifest, format_manifest, make_manifest, parse_manifest
from saga.cli.main import main
from services.inventory import inventory
from services.order import order
from services.payment import payment
from services.shipping import shipping
from tests.choreography import calling_handlers
from tests.choreography.calling_handlers import Bank

FILE = "tests/choreography/calling_handlers.py"


@pytest.mark.parametrize(
    ("function", "call", "at"),
    [
        (calling_handlers.awaits_it, "bank.charge", calling_handlers.awaits_it),
        (calling_handlers.awaits_a_part_of_it, "bank.account.charge", calling_handlers.awaits_a_part_of_it),
        (calling_handlers.gathers, "bank.charge", calling_handlers.gathers),
        (calling_handlers.awaits_under_another_name, "client.charge", calling_handlers.awaits_under_another_name),
        (calling_handlers.lets_a_function_await, "client.charge", calling_handlers.helper),
    ],
)
def test_a_call_beside_a_step_is_found_once_with_its_function_and_file(
    function: Callable[..., object], call: str, at: Callable[..., object]
) -> None:
    assert find_direct_calls(function, {"bank": Bank}) == (f"{call} (in {at.__name__}, {FILE})",)


@pytest.mark.parametrize(
    "function",
    [
        calling_handlers.calls_through_a_step,
        calling_handlers.gives_a_step_something_around_it,
        calling_handlers.uses_it_as_context,
    ],
)
def test_a_call_through_a_step_and_a_resource_that_only_gives_context_are_not_found(
    function: Callable[..., object],
) -> None:
    assert find_direct_calls(function, {"bank": Bank}) == ()


def test_only_resources_of_the_handler_count() -> None:
    assert find_direct_calls(calling_handlers.has_an_object_of_its_own, {}) == ()
    assert find_direct_calls(len, {"bank": Bank}) == ()


def noted() -> list[Manifest]:
    """The example, with a payment that calls its bank beside a step."""
    made = [make_manifest(each.declared) for each in (order, payment, inventory, shipping)]
    call = f"bank.capture (in capture, {FILE})"
    return [
        each
        if each.service != "payment"
        else msgspec.structs.replace(
            each,
            reactions=tuple(
                msgspec.structs.replace(r, direct=(call,)) if r.name == "capture" else r for r in each.reactions
            ),
        )
        for each in made
    ]


def test_a_manifest_has_the_calls() -> None:
    manifest = make_manifest(calling_handlers.payment.declared)
    (reaction,) = manifest.reactions
    assert reaction.direct == (f"bank.charge (in decline, {FILE})",)
    assert parse_manifest(format_manifest(manifest), "here") == manifest


def test_a_call_is_noted_and_the_choreography_stays_proved() -> None:
    (verdict,) = check_manifests(noted())
    (finding,) = verdict.findings
    assert finding.key == ("direct-call", "payment.capture")
    assert f"it calls bank.capture (in capture, {FILE}) beside saga.step" in finding.text
    assert (verdict.status, verdict.properties[-1].status) == ("proved", "noted")


def test_a_call_is_accepted_with_a_reason() -> None:
    entry = AcceptedFinding("direct-call", "payment.capture", "it only reads")
    result = accept(check_manifests(noted()), [entry])
    assert result.unused == ()
    assert result.verdicts[0].findings == ()
    assert (result.verdicts[0].properties[-1].status, result.verdicts[0].properties[-1].how) == (
        "accepted",
        "it only reads",
    )


def test_the_command_prints_the_note_and_ends_well(tmp_path: Path) -> None:
    for each in noted():
        (tmp_path / f"{each.service}.json").write_text(format_manifest(each), "utf-8")
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    done = CliRunner().invoke(main, ["check", *files])
    assert done.exit_code == 0, done.output
    assert f"direct-call (payment.capture): it calls bank.capture (in capture, {FILE}) beside saga.step" in done.output
    assert '"level":"warning"' in CliRunner().invoke(main, ["check", "--sarif", *files]).output.replace(": ", ":")
