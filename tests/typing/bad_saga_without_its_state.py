"""`Saga` alone has no state. Rejected by: mypy, basedpyright."""

from saga import Saga


async def credit(saga: Saga) -> int:
    return saga.state.paid  # bad
