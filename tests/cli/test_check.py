"""`saga check`: what it prints, how it ends, and what it accepts."""

import json
from pathlib import Path

import pytest

from saga.choreography.check.accepted import FILE, check_folder
from saga.choreography.check.verdicts import ADVICE
from saga.choreography.manifest import Manifest, format_manifest
from saga.errors import ConfigurationError
from saga.support.documentation import WHERE_TO_FIND
from tests.choreography.check.building import compensation, handler, usual
from tests.choreography.check.defects import DEFECTS, shop
from tests.cli.conftest import ROOT, Call

NOT_UNDONE = "a compensation on one of two failure outcomes"


def write(folder: Path, manifests: list[Manifest]) -> Path:
    folder.mkdir(exist_ok=True)
    for each in manifests:
        (folder / f"{each.service}.json").write_text(format_manifest(each), "utf-8")
    return folder


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return write(tmp_path / "broken", DEFECTS[NOT_UNDONE]().manifests)


def test_the_manifests_beside_the_contracts_are_proved(saga: Call) -> None:
    done = saga("check")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("sagas by order_id: 4 services, 15 events: proved\n")
    assert done.stdout.count("\n  proved  ") == 10


def test_the_services_of_modules_are_checked_as_they_are_in_the_code(saga: Call) -> None:
    done = saga("check", "services.order", "services.payment", "services.inventory")
    assert done.exit_code == 1
    assert "no-producer (ShipmentBooked): order waits for it, and no service emits it" in done.stdout
    assert saga("check", "manifests/shipping.json", "services.order", "services.payment", "services.inventory")


def test_a_finding_comes_with_its_events_and_a_test(saga: Call, broken: Path) -> None:
    done = saga("check", str(broken))
    assert done.exit_code == 1
    assert "finding 1: not-undone (payment.reserve): " in done.stdout
    assert "  1. Placed comes from outside\n" in done.stdout
    assert "  3. payment.reserve takes Placed, and emits Reserved\n" in done.stdout
    lines = done.stdout.split("a test that fails until it is fixed:\n\n")[1].splitlines()
    code = "\n".join(line.removeprefix("    ") for line in lines)
    names: dict[str, object] = {}
    exec(compile(code, "printed", "exec"), names)
    printed = names["test_not_undone_payment_reserve"]
    assert callable(printed)
    with pytest.raises(AssertionError, match=r"not-undone \(payment\.reserve\): outcomes Expired; effects that stand"):
        printed()
    write(broken, shop(failure=("Cancelled", "Expired"), payment_release=compensation(
        "release", "reserve", "Cancelled / Expired + Reserved"
    ), order_expire=None).manifests)  # fmt: skip
    printed()


def test_json_has_the_verdict_and_the_events(saga: Call, broken: Path) -> None:
    (verdict,) = json.loads(saga("check", "--json", str(broken)).stdout)
    assert (verdict["kind"], verdict["status"], verdict["services"]) == (
        "order_id", "found", ["order", "payment", "shipping"],
    )  # fmt: skip
    (finding,) = verdict["findings"]
    assert (finding["code"], finding["subject"], len(finding["events"])) == ("not-undone", "payment.reserve", 3)
    assert finding["diagram"].startswith("sequenceDiagram\n    participant p0 as from outside\n")
    assert {each["status"] for each in verdict["properties"]} == {"proved", "found"}


def test_sarif_names_the_manifest_and_the_events(saga: Call, broken: Path) -> None:
    written = json.loads(saga("check", "--sarif", str(broken)).stdout)
    (run,) = written["runs"]
    (result,) = run["results"]
    assert (written["version"], result["ruleId"], result["level"]) == ("2.1.0", "not-undone", "error")
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"].endswith("broken/payment.json")
    assert location["logicalLocations"] == [{"fullyQualifiedName": "payment.reserve"}]
    assert len(result["codeFlows"][0]["threadFlows"][0]["locations"]) == 3
    assert {each["id"] for each in run["tool"]["driver"]["rules"]} >= {"not-undone", "no-outcome"}


def accepted(code: str, subject: str, reason: str = "We call the bank.") -> str:
    return f'[[finding]]\ncode = "{code}"\nsubject = "{subject}"\nreason = "{reason}"\n'


def test_a_finding_is_accepted_with_a_reason(saga: Call, broken: Path) -> None:
    (broken / FILE).write_text(accepted("not-undone", "payment.reserve"), "utf-8")
    done = saga("check", str(broken))
    assert done.exit_code == 0, done.output
    assert (
        "  accepted  a failure leaves nothing done that can be undone\n            We call the bank.\n" in done.stdout
    )
    assert done.stdout.endswith("accepted: not-undone (payment.reserve): We call the bank.\n")
    assert check_folder(broken).is_proved
    (broken / FILE).write_text(accepted("not-undone", "shipping.book"), "utf-8")
    done = saga("check", str(broken))
    assert done.exit_code == 1
    assert "no longer found: not-undone (shipping.book): remove it from " in done.stdout
    assert "not-undone (payment.reserve)" in check_folder(broken).report


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[finding]", "it cannot be read"),
        ('[[finding]]\ncode = "not-undone"\n', "entry 1: give it code, subject and reason, and nothing else"),
        (accepted("not-undone", "a", " "), "entry 1: code, subject and reason must be strings that are not empty"),
        (accepted("unknown", "a"), "entry 1: there is no code 'unknown'; there are two-outcomes, "),
        ("findings = 1\n", "it has 'findings': write [[finding]] entries only"),
        ("finding = 1\n", "entry 1: give it code"),
    ],
)
def test_a_file_of_accepted_findings_that_cannot_be_used_is_refused(
    saga: Call, broken: Path, text: str, problem: str
) -> None:
    (broken / FILE).write_text(text, "utf-8")
    done = saga("check", str(broken))
    assert done.exit_code == 2
    assert problem in done.output


def test_manifests_that_contradict_each_other_are_found(saga: Call, tmp_path: Path) -> None:
    folder = write(tmp_path / "shop", shop().manifests)
    text = (folder / "payment.json").read_text("utf-8").replace("topic-of-Confirmed", "elsewhere")
    (folder / "payment.json").write_text(text, "utf-8")
    done = saga("check", str(folder))
    assert done.exit_code == 1
    assert "contradiction (Confirmed): the manifests of order and payment differ in its topic, key," in done.stdout


def test_asked_wrongly(saga: Call, tmp_path: Path) -> None:
    for args, problem in (
        (["--json", "--sarif"], "--json and --sarif are two formats"),
        (["no_such_module"], "no_such_module: cannot be imported"),
        ([str(tmp_path)], "there is no manifest"),
        ([str(tmp_path), "services.order"], "there is no manifest"),
        (["--during", str(tmp_path), str(ROOT / "manifests")], f"{tmp_path} has none"),
        (["--during", str(ROOT / "manifests"), str(tmp_path)], f"{tmp_path} has none"),
        (["--during", str(tmp_path), str(tmp_path), "services.order"], "--during names the folders of all manifests"),
    ):
        done = saga("check", *args)
        assert done.exit_code == 2, args
        assert problem in done.output
    folder = write(tmp_path / "old", shop().manifests)
    text = (folder / "payment.json").read_text("utf-8").replace('"format": 2', '"format": 1')
    (folder / "payment.json").write_text(text, "utf-8")
    done = saga("check", str(folder))
    assert done.exit_code == 2
    assert "payment: its manifest has format 1; write it again" in done.output
    with pytest.raises(ConfigurationError, match="there is no manifest"):
        check_folder(tmp_path)


def test_an_undecided_search_is_no_proof(saga: Call, tmp_path: Path) -> None:
    # Without a deadline the end of a saga follows from no rule, and there are more services than are explored.
    manifests = usual(9).manifests
    decider = manifests[-1]
    kept = tuple(each for each in decider.reactions if each.name != "expire")
    values = {name: getattr(decider, name) for name in decider.__struct_fields__}
    manifests[-1] = Manifest(**{**values, "reactions": kept})
    done = saga("check", "--walks", "5", str(write(tmp_path / "many", manifests)))
    assert done.exit_code == 1
    assert (
        "not decided  every saga ends in exactly one outcome\n               nothing found in 5 random runs\n"
        in done.stdout
    )


# ---------------------------------------------------------------- deployments


def during(saga: Call, folder: Path, old: list[Manifest], new: list[Manifest]) -> tuple[int, str]:
    done = saga("check", "--during", str(write(folder / "old", old)), str(write(folder / "new", new)))
    return done.exit_code, done.stdout


def test_a_deployment_of_what_only_returns_something_else_is_proved(saga: Call, tmp_path: Path) -> None:
    new = shop(payment_reserve=handler("reserve", "Placed", "Reserved | Declined | -", effects=True))
    code, printed = during(saga, tmp_path, shop().manifests, new.manifests)
    assert code == 0, printed


def test_a_compensation_that_only_new_processes_have_leaves_effects_undone_meanwhile(
    saga: Call, tmp_path: Path
) -> None:
    old = shop(shipping_unbook=None, shipping_book=handler("book", "Placed + Reserved", "Booked | Refused"))
    assert saga("check", str(write(tmp_path / "before", old.manifests))).exit_code == 0, "it had no effects"
    code, printed = during(saga, tmp_path, old.manifests, shop().manifests)
    assert code == 1, printed
    assert "not-undone (shipping.book)" in printed


def test_an_outcome_that_old_processes_do_not_undo_is_found(saga: Call, tmp_path: Path) -> None:
    both = "Cancelled / Expired"
    changes = {
        "failure": ("Cancelled", "Expired"),
        "shipping_unbook": compensation("unbook", "book", f"{both} + Booked"),
    }
    old = shop(**changes)
    new = shop(**changes, payment_release=compensation("release", "reserve", f"{both} + Reserved"))
    code, printed = during(saga, tmp_path, old.manifests, new.manifests)
    assert (code, "not-undone (payment.reserve)" in printed) == (1, False), "nothing emits Expired yet"


def test_the_example_may_be_deployed_over_itself(saga: Call) -> None:
    done = saga("check", "--during", str(ROOT / "manifests"), str(ROOT / "manifests"))
    assert done.exit_code == 0, done.output


def test_each_code_has_a_section_in_the_documents() -> None:
    page = (ROOT / "docs/guides/check.md").read_text("utf-8")
    assert [code for code in ADVICE if f"\n### {code}\n" not in page] == []
    assert page.count("\n### ") == len(ADVICE)


def test_the_page_shows_what_the_command_prints(saga: Call, broken: Path) -> None:
    page = (ROOT / "docs/guides/check.md").read_text("utf-8")
    assert saga("check").stdout in page
    printed = saga("check", str(broken)).stdout
    begin, end = printed.index("finding 1:"), printed.index("  as a sequence diagram:")
    assert printed[begin:end] in page


def test_findings_refer_to_the_published_documentation_or_say_where_the_files_are(
    saga: Call, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = saga("check", str(broken))
    assert "; see docs/guides/check.md#" in named.stdout
    assert named.stderr == f"{WHERE_TO_FIND}\n"
    assert saga("check").stderr == "", "nothing is named"
    monkeypatch.setenv("SAGA_DOCS", "https://docs.example/{page}.html")
    linked = saga("check", str(broken))
    assert "; see https://docs.example/guides/check.html#" in linked.stdout
    assert linked.stderr == ""
    [run] = json.loads(saga("check", str(broken), "--sarif").stdout)["runs"]
    rules = {rule["id"]: rule["helpUri"] for rule in run["tool"]["driver"]["rules"]}
    assert rules["not-undone"] == "https://docs.example/guides/check.html#not-undone"
    monkeypatch.setenv("SAGA_HOOK", "nonsense")
    assert saga("check").exit_code == 0, "a setting that it does not need is wrong"


def test_old_processes_leave_sagas_with_an_open_deadline_of_the_new_release(saga: Call, tmp_path: Path) -> None:
    code, printed = during(saga, tmp_path, shop(order_expire=None).manifests, shop().manifests)
    assert code == 0, printed
