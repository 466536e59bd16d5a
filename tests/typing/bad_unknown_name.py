"""A name that the front door does not have. Rejected by: mypy, basedpyright."""

import saga

saga.Srevice  # bad
