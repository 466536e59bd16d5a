"""`python -m verification [--deep] [--seeds COUNT] [PART]`: explore scenarios.

Explores the scenarios whose name contains PART, then COUNT random ones, on all cores.
"""

import argparse
import sys

from verification.parallel import explore_all, search_seeds, searched

DEEP_SEEDS = 3000


def main() -> int:
    """Print a line for each scenario, and one for all random scenarios together. Return 1 if there is a violation."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("part", nargs="?", default="", help="of the names of scenarios; a seed's name is `seed 17`")
    arguments.add_argument("--deep", action="store_true", help=f"one more fault of each kind, and {DEEP_SEEDS} seeds")
    arguments.add_argument("--seeds", type=int, help="how many scenarios are made by chance")
    arguments.add_argument("--first", type=int, default=1, help="the first seed; the others follow it")
    given = arguments.parse_args()
    if given.part.startswith("seed "):
        report, code = searched(int(given.part.removeprefix("seed ")))
        sys.stdout.write(f"{report}\n{code}\n" if code else f"{report}\n")
        return report.loss is not None
    losses = _scenarios(given.part, deep=given.deep)
    count = given.seeds if given.seeds is not None else DEEP_SEEDS if given.deep and not given.part else 0
    return bool(losses + _seeds(given.first, count))


def _scenarios(part: str, *, deep: bool) -> int:
    count = states = losses = 0
    for report in explore_all(part, deep=deep):
        sys.stdout.write(f"{report}\n")
        sys.stdout.flush()
        count += 1
        states += report.states
        losses += report.loss is not None
    sys.stdout.write(f"{count} scenarios, {states:,} states, {losses} losses\n")
    return losses


def _seeds(first: int, count: int) -> int:
    states = ends = whole = losses = 0
    for report, code in search_seeds(first, count) if count else ():
        states += report.states
        ends += report.ends
        whole += report.exhausted
        if code:
            losses += 1
            sys.stdout.write(f"{report}\n{code}\n")
            sys.stdout.flush()
    if count:
        sys.stdout.write(
            f"{count} scenarios made by chance (seeds {first} to {first + count - 1}), {whole} of them whole, "
            f"{states:,} states, {ends:,} ends, {losses} losses\n"
        )
    return losses


if __name__ == "__main__":
    sys.exit(main())
