"""A schedule in another form. Rejected by: mypy, basedpyright."""

from saga.testing import replay

replay(faults=["payment-1#12 crash after"])  # bad
replay(seed=1, faults=[("payment-1", 12, "crash")])  # bad
replay(seed=1, without=["order-17"])  # bad
