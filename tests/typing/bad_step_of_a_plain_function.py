"""A step of a function that is not async. Rejected by: mypy, basedpyright."""

from saga import Saga


def send(text: str) -> int:
    return len(text)


async def remind(saga: Saga) -> None:
    await saga.step(send, "pay!")  # bad
