"""Skipping of tests that need servers where there are none, with a reason that says what to install."""

import os
from typing import NoReturn

import pytest

from saga.errors import SagaError

MISSING = "servers are missing"
"""Beginning of the reason of each skipped test. The plugin finds them by it for the summary."""
REQUIRED = "SAGA_SERVERS"
"""Variable that makes such tests fail if it is `required`."""


class ServersMissing(SagaError):
    """Error for servers that cannot be started on this machine. The message says what to install."""


def skip_without_servers(why: ServersMissing) -> NoReturn:
    """Skip the running test, or let it fail if the environment says `SAGA_SERVERS=required`."""
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{MISSING}: {why}", pytrace=False)
    pytest.skip(f"{MISSING}: {why}")
