"""A call limited by nothing. Rejected by: DeclarationError "no limit is given: give timeout_s=, at_once_max="."""

from saga import limited


@limited()  # bad
async def statement(account: str) -> str:
    return account
