"""`python -m saga.testing.exploration [--deep] [PART]`: explore the scenarios whose name holds PART, on all cores."""

import argparse
import sys

from saga.testing.exploration.side_by_side import explore_all


def main() -> int:
    """Print a line for each scenario; 1 if one of them has a loss."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("part", nargs="?", default="")
    arguments.add_argument("--deep", action="store_true", help="one more fault of each kind")
    given = arguments.parse_args()
    count = states = losses = 0
    for report in explore_all(given.part, deep=given.deep):
        sys.stdout.write(f"{report}\n")
        sys.stdout.flush()
        count += 1
        states += report.states
        losses += report.loss is not None
    sys.stdout.write(f"{count} scenarios, {states:,} states, {losses} losses\n")
    return bool(losses)


if __name__ == "__main__":
    sys.exit(main())
