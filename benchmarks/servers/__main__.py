"""`make bench-servers`: measure the toolkit and the plain clients on Kafka and Couchbase, in one run.

The figures are also written to build/figures/bench-servers.jsonl. Each part starts and stops its own servers, because
the chain and the example have services and topics with the same names.
"""

import json
import os
import platform
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.parts import Figure
from benchmarks.servers.ground import servers
from benchmarks.servers.latency import latency
from benchmarks.servers.messages import memory, messages, missing
from benchmarks.servers.restart import restart
from benchmarks.servers.sagas import chain, example
from benchmarks.servers.sharing import sharing
from saga.testing.servers.missing import ServersMissing

FIGURES = Path("build/figures/bench-servers.jsonl")
PARTS = (messages, latency, chain, example, restart, sharing, memory, missing)


def main() -> None:
    """Run the parts. Print each figure as soon as it is measured, and write all to the file."""
    chosen = [part for part in PARTS if len(sys.argv) == 1 or part.__name__ in sys.argv[1:]]
    began = time.monotonic()
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}, ", end="")
    print("shared by services, driver, Kafka (one node) and CouchbaseMock (in memory)")
    figures: list[Figure] = []
    for part in chosen:
        print(f"\n{(part.__doc__ or '').splitlines()[0]}", flush=True)
        with TemporaryDirectory() as folder, servers(Path(folder)) as ground:
            for figure in part(ground):
                print(f"  {figure.name:<58} {figure.value:>10,.5g} {figure.unit}", flush=True)
                figures.append(figure)
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"name": f.name, "value": f.value, "unit": f.unit}) for f in figures)
    FIGURES.write_text("\n".join(lines) + "\n")
    print(f"\nwritten to {FIGURES}, after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except ServersMissing as why:
        sys.exit(str(why))
