"""Classes of failures: their data, our code, the outside."""

import pytest

from saga.errors import BadInput, Permanent, StoreUnavailable, UnknownSchema
from saga.policies.retry import BLAMES, Blame, classify_failure


class Declined(Exception):
    """Refusal of a bank."""


@pytest.mark.parametrize(
    ("kind", "called", "blame"),
    [
        (BadInput, False, "data"),
        (BadInput, True, "data"),
        (UnknownSchema, False, "code"),
        (Permanent, False, "code"),
        (Permanent, True, "outside"),
        (ZeroDivisionError, False, "code"),
        (Declined, True, "outside"),
        (Declined, False, "code"),
        (AttributeError, True, "code"),
        (TypeError, False, "code"),
        (TimeoutError, False, "outside"),
        (ConnectionRefusedError, False, "outside"),
        (StoreUnavailable, True, "outside"),
    ],
)
def test_a_failure_is_of_the_class_of_who_can_mend_it(kind: type[Exception], called: bool, blame: Blame) -> None:
    assert classify_failure(kind, called=called) == blame


def test_each_class_has_words() -> None:
    assert BLAMES == {"data": "their data", "code": "our code", "outside": "the outside", "person": "a person"}
