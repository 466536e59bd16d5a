"""Part q of the benchmarks: how long `saga check` takes, and how short its traces to violations are."""

from collections.abc import Sequence
from time import perf_counter

from benchmarks.parts import Figure
from saga.choreography.check.reports import format_trace
from saga.choreography.check.verdicts import check_manifests
from saga.choreography.manifest import Manifest, make_manifest
from services.inventory import inventory
from services.order import order
from services.payment import payment
from services.shipping import shipping
from tests.choreography.check.building import usual
from tests.choreography.check.defects import DEFECTS


def checks() -> list[Figure]:
    """(q) Measure `saga check`: the example, the usual style with 25 and 60 services, and single planted defects."""
    example = [make_manifest(each.declared) for each in (order, payment, inventory, shipping)]
    # Two more services decide and take notes. Each service has five events; there are a start and two outcomes, too.
    large, larger = usual(24, is_chained=True).manifests, usual(58, is_chained=True).manifests
    figures = [
        Figure("q the example is proved, limit 0.1", _prove(example), "s"),
        Figure(f"q {len(large)} services, {_count_events(large)} events, limit 0.2", _prove(large), "s"),
        Figure(f"q {len(larger)} services, {_count_events(larger)} events, limit 2", _prove(larger), "s"),
    ]
    slowest, longest = 0.0, 0
    for make in DEFECTS.values():
        planted = make()
        begin = perf_counter()
        (verdict,) = check_manifests(planted.manifests)
        slowest = max(slowest, perf_counter() - begin)
        found = next(each for each in verdict.findings if each.key == (planted.code, planted.subject))
        if found.trace is not None:
            longest = max(longest, len(format_trace(verdict.choreography, found.trace)))
    return [
        *figures,
        Figure("q kinds of planted defects, all of them found", len(DEFECTS), "kinds"),
        Figure("q the slowest of them, limit 1", slowest, "s"),
        Figure("q the longest sequence of events, limit 8", longest, "events"),
    ]


def _prove(manifests: Sequence[Manifest]) -> float:
    """Return the time that a check takes, in seconds. Raises `AssertionError` if the check does not prove all
    properties."""
    begin = perf_counter()
    verdicts = check_manifests(manifests)
    taken = perf_counter() - begin
    assert [each.status for each in verdicts] == ["proved"]
    return taken


def _count_events(manifests: Sequence[Manifest]) -> int:
    return len({each.contract for manifest in manifests for each in (*manifest.emits, *manifest.consumes)})
