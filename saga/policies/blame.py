"""Class of a failure: who can mend it. Pure, from the kind of the exception alone."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from saga.errors import BadInput, KeyMissing, UnknownSchema, UpcasterFailed

Blame: TypeAlias = Literal["data", "code", "outside", "person"]
BLAMES: Mapping[Blame, str] = {"data": "their data", "code": "our code", "outside": "the outside", "person": "a person"}
"""Each class in the words of people: what a sender said, what this service does with it, what it calls;
or nobody's failure: a person had it sent there."""

_DEFECTS = (TypeError, AttributeError, NameError, ImportError, AssertionError, NotImplementedError, RecursionError)
"""Exceptions of code that is wrong, whoever raises them: a call to the outside with arguments that it does not take."""


def blame_of(kind: type[BaseException], *, called: bool) -> Blame:
    """Class of a failure of this kind. `called`: true if what the handler called outside raised it, or gave no answer.

    >>> blame_of(BadInput, called=False), blame_of(ZeroDivisionError, called=False), blame_of(ValueError, called=True)
    ('data', 'code', 'outside')
    >>> blame_of(ConnectionResetError, called=False), blame_of(TypeError, called=True)
    ('outside', 'code')
    """
    if issubclass(kind, UnknownSchema | UpcasterFailed | KeyMissing):  # it is for us to deploy, to mend, or to restore
        return "code"
    if issubclass(kind, BadInput):
        return "data"
    if issubclass(kind, _DEFECTS):
        return "code"
    return "outside" if called or issubclass(kind, OSError) else "code"
