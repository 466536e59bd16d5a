"""Many runs without saying how many, or with faults that are none. Rejected by: mypy, basedpyright."""

from saga.testing import faults, simulate

simulate()  # bad
simulate(20)  # bad
simulate(seeds=20, faults="crash")  # bad
simulate(seeds=20, faults=faults.everything)  # bad
