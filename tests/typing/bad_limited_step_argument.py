"""A step on a limited call, with an argument of the wrong type. Rejected by: mypy, basedpyright."""

from saga import Saga, limited


class Bank:
    @limited(timeout_s=2, at_once_max=1, rate_per_s=5)
    async def statement(self, account: str) -> str:
        return account


@limited(timeout_s=30)
async def send_mail(to: str) -> None: ...


async def ask(bank: Bank, saga: Saga) -> None:
    await saga.step(bank.statement, 1)  # bad
    await saga.step(send_mail, 1)  # bad
    await saga.step(send_mail)  # bad
