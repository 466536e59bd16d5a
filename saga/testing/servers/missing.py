"""Skip tests that need servers if there are none, with a reason that says what to install."""

import os
from typing import NoReturn

import pytest

from saga.errors import SagaError

MISSING = "servers are missing"
"""Beginning of the skip reason of each skipped test, by which the plugin recognises these tests for its summary."""
REQUIRED = "SAGA_SERVERS"
"""Environment variable. With the value `required` it makes such tests fail instead of skipping them."""


class ServersMissing(SagaError):
    """Error for servers that cannot be started on this machine. The message says what to install."""


def skip_without_servers(why: ServersMissing) -> NoReturn:
    """Skip the running test, or let it fail if the environment has `SAGA_SERVERS=required`."""
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{MISSING}: {why}", pytrace=False)
    pytest.skip(f"{MISSING}: {why}")
