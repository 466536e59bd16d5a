"""The dashboard for Grafana asks for metrics and labels that there are, in queries that Prometheus can read."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.markdown import ROOT
from tests.telemetry.promql import labels_in, names_in
from tests.telemetry.test_metrics import everything, read_samples

FILE = ROOT / "deploy" / "grafana" / "saga.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
VARIABLES = {"$__rate_interval": "5m", "$service": ".+"}
"""What Grafana puts in the place of its variables."""
NOT_SHOWN = {
    "saga_passed_over_records_total",
    *("saga_control", "saga_drained_seconds", "saga_partitions", "saga_recovery_seconds", "saga_redelivered_total"),
    *(
        "saga_fallbacks_total",
        "saga_replaced_logs_total",
        "saga_timers_lost_total",
        "saga_published_lost_total",
        "saga_replays_total",
        "saga_strangers_met_total",
        "saga_yielding_messages",
    ),
}
"""Metrics that are looked at when there is a reason to."""


def as_asked(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query, f"no such variable: {query}"
    return query


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[query for _, query in QUERIES])
def test_each_query_is_about_metrics_and_labels_that_there_are(title: str, query: str) -> None:
    samples = {name: {label for label, _ in labels} for name, labels in read_samples(everything())}
    used = names_in(as_asked(query))
    assert used, title
    assert used <= samples.keys(), f"{title}: no such metric: {used - samples.keys()}"
    assert labels_in(as_asked(query)) <= set.union(*(samples[name] for name in used)), title


def test_each_legend_names_labels_that_its_query_keeps() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert named <= labels_in(target["expr"]), panel["title"]


def test_prometheus_reads_each_query(promtool: Path, tmp_path: Path) -> None:
    rules = [{"record": f"query_{n}", "expr": as_asked(query)} for n, (_, query) in enumerate(QUERIES)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), "utf-8")
    done = subprocess.run([promtool, "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_is_on_it_or_left_out_on_purpose() -> None:
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for _, query in QUERIES for name in names_in(query)}
    names = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name, _ in read_samples(everything())}
    ours = {name for name in names if name.startswith("saga_")}
    assert ours - shown == NOT_SHOWN


def test_runbooks_that_panels_name_are_there_and_nothing_overlaps() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    for panel in PANELS:
        named = re.search(r"Runbooks?: ([a-z, -]+)\.$", panel["description"])
        assert named is None or set(named[1].split(", ")) <= pages, panel["title"]
    places = [
        {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        for at in (panel["gridPos"] for panel in DASHBOARD["panels"])
    ]
    assert len(set.union(*places)) == sum(map(len, places))
    assert {x for place in places for x, _ in place} == set(range(24))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_dashboard_names_no_host_and_has_a_data_source_variable() -> None:
    assert "http" not in FILE.read_text("utf-8")
    sources = {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]}
    assert sources == {"${source}"}
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"source", "service"}
