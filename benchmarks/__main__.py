"""`make bench`: measure the toolkit and its limit in one run. The figures are also written to
build/figures/bench.jsonl.

Each part runs in a process of its own, so that the memory that one part has used does not influence another.
"""

import json
import os
import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks import (
    checks,
    compaction,
    deadlines,
    failing,
    instructions,
    many_contracts,
    message_path,
    monitor,
    outages,
    parts,
    published_transitions,
    sealed,
    traces,
)
from benchmarks.parts import Figure
from saga.configuration import wiring

FIGURES = Path("build/figures/bench.jsonl")
PARTS = (
    parts.messages,
    parts.chain,
    parts.example,
    parts.one_at_a_time,
    parts.memory,
    parts.hot_saga,
    failing.failing_sagas,
    deadlines.deadlines,
    parts.whole_example,
    outages.breaker,
    compaction.compaction,
    many_contracts.contracts,
    sealed.sealing,
    monitor.monitor,
    published_transitions.transitions,
    traces.traces,
    instructions.instructions,
    message_path.message_path,
    checks.checks,
)


def main() -> None:
    """Run the parts that are named as arguments, or all of them. Print each figure as soon as it is measured, and write
    all to the file."""
    names = {part.__name__ for part in PARTS}
    if set(sys.argv[1:]) - names:
        raise SystemExit(f"usage: python -m benchmarks [PART ...]; parts: {', '.join(part.__name__ for part in PARTS)}")
    chosen = [part for part in PARTS if len(sys.argv) == 1 or part.__name__ in sys.argv[1:]]
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}; fsync as the disk keeps it"
    )
    figures: list[Figure] = []
    for part in chosen:
        print(f"\n{(part.__doc__ or '').splitlines()[0]}")
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            process.submit(wiring.tune_collector).result()  # as `saga run` does
            for figure in process.submit(part).result():
                value = f"{figure.value:,.0f}" if figure.value >= 100_000 else f"{figure.value:,.5g}"
                print(f"  {figure.name:<58} {value:>10} {figure.unit}")
                figures.append(figure)
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"name": f.name, "value": f.value, "unit": f.unit}) for f in figures)
    FIGURES.write_text("\n".join(lines) + "\n")
    print(f"\nwritten to {FIGURES}")


if __name__ == "__main__":
    main()
