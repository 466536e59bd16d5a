"""Answers of the outside that are exceptions: which one was declared, and that a rerun will see the same."""

import msgspec
from msgspec import Raw

from saga.declarations.answers import REMEDY, difference
from saga.errors import Permanent


def declared_answer(why: Exception, answers: tuple[type[Exception], ...]) -> type[Exception]:
    """The class under whose name an answer is recorded: the one that was declared, not a subclass of it."""
    return next(answer for answer in answers if isinstance(why, answer))


def check_made_again(answer: type[Exception], why: Exception, args: Raw, name: str) -> None:
    """Raises `Permanent` for an answer to `name` that its recorded `args` do not make again."""
    differs = difference(answer, why, msgspec.json.decode(args))
    if differs is not None:
        raise Permanent(
            f"{name!r} answered {answer.__name__}, which cannot be made again from its args, with which it is "
            f"recorded: {differs}; {REMEDY}"
        )
