"""Faults that there are not. Rejected by: mypy, basedpyright."""

from datetime import timedelta

from saga.testing import faults

faults.of("crush")  # bad
faults.of("crash", chance=0.1)  # bad
faults.of("crash", window=(0, 60))  # bad
faults.of("crash", window=timedelta(seconds=60))  # bad
faults.everything() | "crash"  # bad
