"""Contracts of these tests are found from their modules, whatever the environment says."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _no_contracts_from_the_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SAGA_CONTRACTS", raising=False)
        yield
