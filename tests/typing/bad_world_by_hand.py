"""A world of no kind: it is a fixture. Rejected by: mypy, basedpyright."""

from saga.testing import World

World()  # bad
