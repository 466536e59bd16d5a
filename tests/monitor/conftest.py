"""Fixtures of the commands' tests, for the monitor: a folder, a shop that has run, a potter that can be started."""

from tests.cli.conftest import built, embedded_pottery, folder, kafka_pottery, pottery_on, saga, shop
from tests.cli.test_dead import dead, kiln
from tests.cli.test_dead_resolve import dead as baking

__all__ = [
    "baking",
    "built",
    "dead",
    "embedded_pottery",
    "folder",
    "kafka_pottery",
    "kiln",
    "pottery_on",
    "saga",
    "shop",
]
