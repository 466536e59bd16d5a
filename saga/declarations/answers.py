"""Exceptions by which the outside answers: recorded as the name of a class and `args`, and made again from these.

An exception keeps as `args` what was handed to the `__init__` of `Exception`, or, if its own hands on nothing, what it
was made with. Made again from them it has to be the same: or a rerun would see another answer than the first run did.
"""

from collections.abc import Sequence
from inspect import Parameter, signature

import msgspec
from msgspec import Raw

from saga.declarations.annotations import spelt
from saga.errors import DeclarationError, Permanent

REMEDY = "hand all that its __init__ takes to super().__init__(...), by position and as it came"
_PROBES: tuple[Sequence[object], ...] = (("a", "b", "c", "d", "e", "f", "g", "h"), (1, 2, 3, 4, 5, 6, 7, 8))
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def check_made_again(answer: type[Exception], where: str) -> None:
    """Check that an answer can be made again from its `args`. Raises `DeclarationError` if it certainly cannot; an
    answer of which that shows only once it is raised is looked at then."""
    if (reason := _why_not(answer)) is not None:
        raise DeclarationError(
            f"{where}: the answer {spelt(answer)} cannot be made again from its args, with which it is recorded: "
            f"{reason}; {REMEDY}"
        )


def declared_answer(why: Exception, answers: tuple[type[Exception], ...]) -> type[Exception]:
    """The class under whose name an answer is recorded: the one that was declared, not a subclass of it."""
    return next(answer for answer in answers if isinstance(why, answer))


def check_recorded(answer: type[Exception], why: Exception, args: Raw, name: str) -> None:
    """Raises `Permanent` for an answer to `name` that its recorded `args` do not make again."""
    differs = difference(answer, why, msgspec.json.decode(args))
    if differs is not None:
        raise Permanent(
            f"{name!r} answered {answer.__name__}, which cannot be made again from its args, with which it is "
            f"recorded: {differs}; {REMEDY}"
        )


def difference(answer: type[Exception], raised: Exception, args: Sequence[object]) -> str | None:
    """Difference between `answer`, made from recorded `args`, and the one that was `raised`; `None` if they are the
    same."""
    try:
        again = answer(*args)
    except Exception as why:  # noqa: BLE001 - an `__init__` of anybody's may raise anything
        return f"{spelt(answer)}{_shown(args)} raises {type(why).__name__}: {why}"
    if len(again.args) != len(args) or any(not _equal(x, y) for x, y in zip(again.args, args, strict=True)):
        return f"{spelt(answer)}{_shown(args)} has other args: {_shown(again.args)}"
    if type(raised) is answer:
        had, has = vars(raised), vars(again)
        own = [name for name in had if not name.startswith("__")]
        lost = [name for name in own if name not in has or not _alike(has[name], had[name])]
        if lost:
            return f"its {' and '.join(lost)} would be lost, or another"
    return None


def _why_not(answer: type[Exception]) -> str | None:
    try:
        parameters = signature(answer).parameters.values()
    except (ValueError, TypeError):  # of a class in C nothing is known
        return None
    wanted = [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY and p.default is Parameter.empty]
    if wanted:
        return f"it takes {' and '.join(wanted)} by keyword only, and args hold what comes by position"
    count = sum(p.kind in _BY_POSITION for p in parameters)
    for probe in _PROBES:
        try:
            made = answer(*probe[:count])
        except Exception:  # noqa: BLE001 - it wants values of other types: it is looked at when it is raised
            continue
        return difference(answer, made, made.args)
    return None


def _alike(one: object, other: object) -> bool:
    """True if two values are equal, or of a type that cannot tell."""
    return type(one) is type(other) and (_equal(one, other) or type(one).__eq__ is object.__eq__)


def _equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - an `__eq__` of anybody's
        return False


def _shown(args: Sequence[object]) -> str:
    """Types of arguments, for a message: their values have no place in one."""
    return f"({', '.join(type(arg).__name__ for arg in args)})"
