"""Alerts fire on the trouble that they name and on no other, are inhibited by a bigger one, and have a runbook."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from saga.monitor.web.app import OPEN_DEAD_LETTERS, OPEN_ESCALATIONS
from tests.docs.markdown import ROOT
from tests.telemetry.promql import labels_in, names_in
from tests.telemetry.test_metrics import everything, read_samples

FOLDER = ROOT / "deploy" / "prometheus"
ALERTS, HELD_BACK = FOLDER / "alerts.yml", FOLDER / "alertmanager.yml"
SERIES = Path(__file__).with_name("alerts.yml")
HELD = {"SagaStuck", "SagaNobodyWorks"}
"""Alerts that need a person and are held back all the same: without store or broker they say nothing new."""


def rules() -> dict[str, dict[str, Any]]:
    [group] = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    found = {rule["alert"]: rule for rule in group["rules"]}
    assert len(found) == len(group["rules"]), "two alerts of one name"
    return found


def test_promtool_accepts_the_alert_rules(promtool: Path) -> None:
    done = subprocess.run([promtool, "check", "rules", ALERTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_on_the_series_that_it_is_for_and_on_no_other(promtool: Path) -> None:
    done = subprocess.run([promtool, "test", "rules", SERIES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("interval_s", [15, 30])
def test_alerts_hold_whenever_prometheus_looks(promtool: Path, tmp_path: Path, interval_s: int) -> None:
    """Sample the same story at each phase of a scrape interval. A breaker probes for 5 s of each minute; the processes
    of a service are replaced within 45 s; one message is given up; another service is killed."""
    tests = []
    for phase_s in range(0, interval_s, 5):
        at = [phase_s + n * interval_s for n in range(1200 // interval_s)]
        series: dict[str, list[int | None]] = {
            'saga_breaker_state{service="a",resource="bank"}': [1 if t % 60 < 5 else 2 for t in at],
            'saga_partitions{service="a"}': [None if 300 <= t < 345 else 12 for t in at],
            'saga_partitions{service="b"}': [12 if t < 300 else None for t in at],
            'saga_dead_letters_total{service="a",type="A"}': [int(t >= 400) for t in at],
        }
        tests.append(
            {
                "interval": f"{interval_s}s",
                "input_series": [{"series": name, "values": spelt(values)} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname, service) (ALERTS{alertstate="firing"}) * 0',
                        "eval_time": "15m",
                        "exp_samples": [
                            {"labels": f'{{alertname="{alert}",service="{service}"}}', "value": 0}
                            for alert, service in FIRING
                        ],
                    }
                ],
            }
        )
    file = tmp_path / "phases.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "30s", "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


FIRING = (("SagaBreakerOpen", "a"), ("SagaDeadLetters", "a"), ("SagaNobodyWorks", "b"))


def spelt(values: list[int | None]) -> str:
    """Samples as promtool reads them; `None`: the series is not there."""
    return " ".join("stale" if value is None else str(value) for value in values)


def test_each_alert_has_series_on_which_it_fires_and_series_on_which_it_does_not() -> None:
    looks = [look for test in yaml.safe_load(SERIES.read_text("utf-8"))["tests"] for look in test["alert_rule_test"]]
    for expects in (True, False):
        assert {look["alertname"] for look in looks if bool(look["exp_alerts"]) is expects} == rules().keys()


def test_alerts_are_about_metrics_and_labels_that_there_are() -> None:
    samples = {name: {label for label, _ in labels} for name, labels in read_samples(everything())}
    samples |= {name: {"service"} for name in (OPEN_DEAD_LETTERS, OPEN_ESCALATIONS)}
    for alert, rule in rules().items():
        used = names_in(rule["expr"])
        assert used, alert
        assert used <= samples.keys(), f"{alert}: no such metric: {used - samples.keys()}"
        assert labels_in(rule["expr"]) <= set.union(*(samples[name] for name in used)), alert


def test_each_alert_has_a_severity_and_a_runbook_that_names_it() -> None:
    for alert, rule in rules().items():
        assert rule["labels"]["severity"] in ("person", "look"), alert
        page = ROOT / rule["annotations"]["runbook"]
        assert page.parent == ROOT / "docs" / "runbooks", alert
        assert f"`{alert}`" in page.read_text("utf-8"), alert
        assert f"`{alert}`" in (page.parent / "README.md").read_text("utf-8"), alert
        assert f"`{alert}`" in (ROOT / "docs" / "operating" / "alerts.md").read_text("utf-8"), alert


# -------------------------------------------------------------------- Alertmanager


@pytest.mark.parametrize("severity", ["person", "look"])
def test_amtool_accepts_the_configuration_and_routes_each_severity(amtool: Path, severity: str) -> None:
    for words in (
        ["check-config", HELD_BACK],
        [
            "config",
            "routes",
            "test",
            f"--config.file={HELD_BACK}",
            f"--verify.receivers={severity}",
            f"severity={severity}",
        ],
    ):
        done = subprocess.run([amtool, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_one_notification_lists_all_services_that_cannot_reach_the_broker() -> None:
    routes = yaml.safe_load(HELD_BACK.read_text("utf-8"))["route"]["routes"]
    [of_broker] = [route for route in routes if route["matchers"] == ['alertname="SagaBrokerDown"']]
    assert routes.index(of_broker) == 0, "the first that matches counts"
    assert (of_broker["receiver"], of_broker["group_by"]) == ("person", ["alertname"])


def test_inhibition_rules_name_existing_alerts() -> None:
    for rule in yaml.safe_load(HELD_BACK.read_text("utf-8"))["inhibit_rules"]:
        [source], [target] = rule["source_matchers"], rule["target_matchers"]
        bigger, smaller = (set(matcher.split('"')[1].split("|")) for matcher in (source, target))
        assert bigger | smaller <= rules().keys()
        assert not bigger & smaller
        assert not {name for name in smaller if rules()[name]["labels"]["severity"] == "person"} - HELD
        assert rule["equal"] == ["service"]
