"""Prints which seed finds which mutant, then plays all seeds without one: `python -m tests.mutants`."""

import sys

import click
import pytest

from saga.support.clock import SystemClock
from tests.mutants.catalogue import MUTANTS
from tests.mutants.scenarios import SCENARIOS, SEEDS, first_failing


def main() -> int:
    """The number of mutants that were not found, and of scenarios that fail without one."""
    clock, wrong = SystemClock(), 0
    click.echo("| mutant | scenario | seeds | seconds | what is seen |\n|---|---|---|---|---|")
    for mutant in MUTANTS:
        began = clock.monotonic_s()
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            found = first_failing(SCENARIOS[mutant.scenario])
        wrong += found is None
        seeds, seen = (str(found[0] + 1), str(found[1])[:60].split("\n")[0]) if found else ("-", "NOT FOUND")
        took_s = clock.monotonic_s() - began
        click.echo(f"| `{mutant.plant.__name__}` | {mutant.scenario} | {seeds} | {took_s:.1f} | {seen} |")
    for name, scenario in SCENARIOS.items():
        failed = first_failing(scenario)
        wrong += failed is not None
        click.echo(f"without a mutant, {name}: " + (f"{SEEDS} seeds are well" if failed is None else f"FAILS {failed}"))
    return wrong


if __name__ == "__main__":
    sys.exit(main())
