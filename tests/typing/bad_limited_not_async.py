"""Limits of what is no async function, without parentheses, or of a text. Rejected by: mypy, basedpyright."""

from saga import limited


@limited(timeout_s=2)  # bad
def statement(account: str) -> str:
    return account


async def balance(account: str) -> str:
    return account


limited(balance)  # bad


limited(at_once_max="1")  # bad
