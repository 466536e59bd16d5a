"""Exceptions by which the outside answers: refused where they are declared if they cannot be made again as recorded."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from saga import Service
from saga.declarations.resources import describe_difference
from saga.errors import DeclarationError


class Bank:
    """Outside."""


@dataclass(frozen=True)
class Account:
    left: int = 0


class Plain(Exception):
    """Exception as most are."""


class HandsOn(Exception):
    def __init__(self, code: str, left: str = "none") -> None:
        super().__init__(code, left)
        self.code, self.left = code, left


class Keeps(Exception):
    """Hands on nothing: then `args` are what it was made with."""

    def __init__(self, code: str, left: str) -> None:
        self.code, self.left = code, left


class Numbers(Exception):
    def __init__(self, left: int) -> None:
        super().__init__(left)
        self.words = f"{left:05d} left"


class Formats(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(f"declined: {code}")
        self.code = code


class FormatsTwo(Exception):
    def __init__(self, code: str, left: str) -> None:
        super().__init__(f"declined: {code}, {left}")


class Constant(Exception):
    def __init__(self) -> None:
        super().__init__("declined")


class Loses(Exception):
    def __init__(self, code: str, left: str = "none") -> None:
        super().__init__(code)
        self.left = left


class ByName(Exception):
    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)
        self.code = code


class MayByName(Exception):
    def __init__(self, text: str, *, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Demanding(Exception):
    def __init__(self, account: Account) -> None:
        super().__init__(account.left)


def refusal(answer: type[Exception]) -> str:
    """Refusal of it, alike for a resource and a document."""
    payment, messages = Service("payment"), []

    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    with pytest.raises(DeclarationError) as of_resource:
        payment.resource(expected_errors=(answer,))(bank)
    with pytest.raises(DeclarationError) as of_document:
        payment.document(Account, "accounts", expected_errors=(answer,))
    assert (payment.declared.resources, payment.declared.documents) == ([], [])
    for where, refused in (("payment.bank", of_resource), ("payment.document(Account, 'accounts')", of_document)):
        head, _, text = str(refused.value).partition(": the answer ")
        assert head == where
        messages.append(text)
    assert messages[0] == messages[1]
    assert messages[0].startswith(f"{answer.__name__} cannot be made again from its args, with which it is recorded: ")
    assert messages[0].endswith(
        "; hand all that its __init__ takes to super().__init__(...), by position and as it came"
    )
    return messages[0].split(": ", 1)[1].rpartition("; ")[0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Formats, "Formats(str) has other args: (str)"),
        (FormatsTwo, "FormatsTwo(str) raises TypeError: FormatsTwo.__init__() missing 1 required positional argument"),
        (Constant, "Constant(str) raises TypeError: Constant.__init__() takes 1 positional argument but 2 were given"),
        (Loses, "its left would be lost, or another"),
        (ByName, "it takes code by keyword only, and args hold what comes by position"),
    ],
)
def test_an_answer_that_cannot_be_made_again_is_refused_with_the_way_out(answer: type[Exception], reason: str) -> None:
    assert refusal(answer).startswith(reason)


@pytest.mark.parametrize("answer", [Plain, HandsOn, Keeps, Numbers, MayByName, Demanding, KeyError, OSError])
def test_an_answer_that_can_be_made_again_or_that_cannot_be_judged_is_accepted(answer: type[Exception]) -> None:
    payment = Service("payment")
    payment.document(Account, "accounts", expected_errors=(answer,))
    assert payment.declared.documents[0].expected_errors == (answer,)


def test_an_exception_rebuilt_from_recorded_arguments_is_compared_with_the_raised_one() -> None:
    noted = Plain("no")
    noted.add_note("seen by the fake")
    assert describe_difference(Plain, noted, ["no"]) is None
    assert describe_difference(HandsOn, HandsOn("51", "3"), ["51", "3"]) is None
    assert describe_difference(MayByName, MayByName("no"), ["no"]) is None
    assert describe_difference(MayByName, MayByName("no", code=5), ["no"]) == "its code would be lost, or another"
    assert str(describe_difference(Demanding, Demanding(Account(left=3)), [3])).startswith(
        "Demanding(int) raises Attribute"
    )
    assert describe_difference(Numbers, Numbers(3), [3]) is None
    later = Plain("no")
    later.retry_after = 5  # type: ignore[attr-defined] # as drivers do
    assert describe_difference(Plain, later, ["no"]) == "its retry_after would be lost, or another"
    assert describe_difference(Exception, later, ["no"]) is None  # declared as its base, of which it is asked no more
