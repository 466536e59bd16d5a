"""Retries of a failed handler: which rules apply, how many attempts there are, and the delay before each. Also the
class of a failure, which says who can fix it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isfinite
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias, TypeGuard

from saga.errors import BadInput, DeclarationError, KeyMissing, UnknownSchema, UpcasterFailed

_DOUBLINGS_MAX = 64
"""Maximum number of doublings of a delay. After these the delay has long reached its maximum, and floats would
overflow."""
DELAY_S_LONGEST = 365 * 86_400
"""Largest delay that may be declared, in seconds: a later time could not be stored or written as a date."""
ENDLESS_S_MIN = 1.0
"""Minimum first delay, in seconds, of a run that is retried without limit, once it has used up its attempts."""

Blame: TypeAlias = Literal["data", "code", "outside", "person"]
BLAMES: Mapping[Blame, str] = {"data": "their data", "code": "our code", "outside": "the outside", "person": "a person"}
"""Text for each class of failure: the sender's data, this service's code, or an external system. `person` is not a
failure: an operator sent the message to the dead letters."""
_DEFECTS = (TypeError, AttributeError, NameError, ImportError, AssertionError, NotImplementedError, RecursionError)
"""Exceptions that mean a defect in the service's code, even if an external call raised them, because it was called with
wrong arguments."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Rules for retrying a failed handler: first in memory, then parked, always in the order of the saga.

    Delays double from `delay_s_first` to `delay_s_max`, in seconds, and each is shortened by up to a half at random.
    While the delays add up to no more than `in_place_s` seconds, the run waits in memory, and so do the saga's other
    messages. After that the run is parked: this is recorded in the progress, and only this saga waits. After
    `attempts_max` attempts, or at once for an exception in `never`, the message becomes a dead letter and the saga
    waits for an operator. The defaults outlive an outage of an hour.

    `by` gives other rules for some exceptions, as in `by={RateLimited: Retry(delay_s_first=30)}`. The nearest class of
    the exception decides, and its attempts are counted separately.

    Exactly one `Retry` applies, as a whole: the handler's own; otherwise, if a step on a resource failed, the
    resource's; otherwise the service's; otherwise the defaults. Within it, `never` comes first, then `by`, then the
    rest.

    Compensations are retried without limit. After `attempts_max` attempts they are escalated, and their delays then
    begin at one second or more, so that they grow.

    Raises `DeclarationError` for less than one attempt; a negative delay, or one of more than a year; a `never` that is
    not a tuple of exception classes; a `by` that is not a mapping from exception classes to rules, has a class that is
    also in `never`, has two classes with the same name, or has rules with a `never` or `by` of their own.
    """

    attempts_max: int = 17
    delay_s_first: float = 0.2
    delay_s_max: float = 3600
    in_place_s: float = 2
    never: tuple[type[Exception], ...] = ()
    by: Mapping[type[Exception], "Retry"] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not _is_number(self.attempts_max) or self.attempts_max != int(self.attempts_max) or self.attempts_max < 1:
            raise DeclarationError(
                f"Retry(attempts_max={self.attempts_max!r}): the first attempt counts; give a whole number from 1 on"
            )
        for name in ("delay_s_first", "delay_s_max"):
            delay: object = getattr(self, name)
            if not _is_number(delay) or not 0 <= delay <= DELAY_S_LONGEST:
                raise DeclarationError(f"Retry({name}={delay!r}): give seconds, from 0 to {DELAY_S_LONGEST}, a year")
        if not _is_number(self.in_place_s) or self.in_place_s < 0:
            raise DeclarationError(f"Retry(in_place_s={self.in_place_s!r}): give seconds, 0 or more")
        if not is_exceptions(self.never):
            raise DeclarationError(
                f"Retry(never={self.never!r}): give a tuple of exception classes; of one it is (KeyError,)"
            )
        _check_kinds(self)
        object.__setattr__(self, "by", MappingProxyType(dict(self.by)))

    @property
    def names(self) -> tuple[type[Exception], ...]:
        """Return the exception classes in `never` and `by`."""
        return (*self.never, *self.by)


class FailureRule(NamedTuple):
    """The rule that applies to one failure."""

    name: str
    """Name under which the rule's attempts are counted; empty if they are counted with all failures that have no rule
    of their own."""
    retry: Retry


def choose_rule(
    why: Exception, handler: Retry | None, resource: FailureRule | None, service: Retry | None
) -> FailureRule:
    """Find the rule for a failure. `resource`: rule of the resource that a failed step called, with its name.

    >>> slow, bank = Retry(delay_s_first=9), FailureRule("bank", Retry(by={OSError: Retry(attempts_max=3)}))
    >>> choose_rule(KeyError(), slow, bank, None).retry == slow
    True
    >>> choose_rule(ConnectionError(), None, bank, slow)[0], choose_rule(KeyError(), None, bank, slow)[0]
    ('bank/OSError', 'bank')
    """
    if handler is not None:
        rule = FailureRule("", handler)
    elif resource is not None:
        rule = resource
    else:
        rule = FailureRule("", service or RETRY)
    if not rule.retry.by or isinstance(why, rule.retry.never):
        return rule
    return next(
        (
            FailureRule(f"{rule.name}/{kind.__name__}", rule.retry.by[kind])
            for kind in type(why).__mro__
            if kind in rule.retry.by
        ),
        rule,
    )


def count_attempts(before: Mapping[str, int], rules: Iterable[str]) -> dict[str, int]:
    """Add these failures to the counts of failed attempts by rule name. Rules without a name are not counted here.

    >>> count_attempts({"bank": 2}, ["bank", "", "/OSError"])
    {'bank': 3, '/OSError': 1}
    """
    named = [name for name in rules if name]
    return dict(Counter(before) + Counter(named)) if named else dict(before)


def attempts_under(name: str, attempts: int, named: Mapping[str, int]) -> int:
    """Return how many of the `attempts` failed attempts failed under the rule with this name. `named`: counts from
    `count_attempts`.

    >>> attempts_under("", 5, {}), attempts_under("", 5, {"bank": 3}), attempts_under("bank", 5, {"bank": 3})
    (5, 2, 3)
    """
    return named.get(name, 0) if name else attempts - sum(named.values())


def delay_s(retry: Retry, attempt: int, chance: float) -> float:
    """Return the seconds to wait after the `attempt`-th attempt has failed; `chance`, from 0 to 1, shortens it by up to
    a half.

    >>> [delay_s(Retry(), attempt, chance=0) for attempt in (1, 2, 3, 8, 1000)]
    [0.2, 0.4, 0.8, 25.6, 3600.0]
    >>> delay_s(Retry(), 2, chance=1)
    0.2
    >>> delay_s(Retry(delay_s_max=1), 5, chance=0.5)
    0.75
    """
    doubled = retry.delay_s_first * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX)
    return min(doubled, retry.delay_s_max) * (1 - chance / 2)


def without_end(retry: Retry) -> Retry:
    """Return the rule for a run that is retried without limit and has used up its attempts. Its delays are never zero,
    so they grow.

    >>> once = without_end(Retry(delay_s_first=0))
    >>> [delay_s(once, attempt, chance=0) for attempt in (1, 5, 17)]
    [1.0, 16.0, 3600.0]
    """
    first_s = max(retry.delay_s_first, ENDLESS_S_MIN)
    return replace(retry, delay_s_first=first_s, delay_s_max=max(retry.delay_s_max, ENDLESS_S_MIN))


def parks(retry: Retry, attempt: int) -> bool:
    """Return whether a run is parked after its `attempt`-th attempt, because all its delays together are too long for
    waiting in memory.

    >>> [parks(Retry(), attempt) for attempt in (1, 3, 4, 16)]
    [False, False, True, True]
    >>> parks(Retry(in_place_s=0, delay_s_first=0), 5)
    False
    """
    return _total_wait_s(retry.delay_s_first, retry.delay_s_max, attempt) > retry.in_place_s


@lru_cache(maxsize=1024)  # there are few rules, and most runs fail only a few times
def _total_wait_s(first_s: float, max_s: float, attempts: int) -> float:
    doubled = min(attempts, _DOUBLINGS_MAX)
    longest_s = min(first_s * 2.0**_DOUBLINGS_MAX, max_s)  # all further delays are equal, so they need no loop
    return sum(min(first_s * 2.0**before, max_s) for before in range(doubled)) + (attempts - doubled) * longest_s


def is_exceptions(value: object) -> TypeGuard[tuple[type[Exception], ...]]:
    """Return whether `value` is a tuple of exception classes.

    >>> is_exceptions((KeyError, OSError)), is_exceptions(KeyError), is_exceptions((KeyboardInterrupt,))
    (True, False, False)
    """
    return isinstance(value, tuple) and all(isinstance(e, type) and issubclass(e, Exception) for e in value)


def _check_kinds(retry: Retry) -> None:
    """Check the rules for kinds of failures. Raises `DeclarationError`."""
    by: object = retry.by
    if not (isinstance(by, Mapping) and is_exceptions(tuple(by)) and all(isinstance(r, Retry) for r in by.values())):
        raise DeclarationError(f"Retry(by={by!r}): give exception classes with rules, as in {{OSError: Retry(...)}}")
    names = Counter(kind.__name__ for kind in by)
    for kind, rules in retry.by.items():
        where = f"Retry(by=...): {kind.__name__}"
        if rules.never or rules.by:
            raise DeclarationError(f"{where} has a never= or by= of its own: write it beside, there is one level")
        if issubclass(kind, retry.never):
            raise DeclarationError(f"{where} is never tried again, says never={retry.never!r}: leave it out of one")
        if names[kind.__name__] > 1:
            raise DeclarationError(f"{where} is the name of two classes, and attempts are counted by it: rename one")


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, int):
        return not isinstance(value, bool)
    return isinstance(value, float) and isfinite(value)


RETRY = Retry()
"""Rules that apply if none are declared."""


# -------------------------------------------------------------------- blame


def classify_failure(kind: type[BaseException], *, called: bool) -> Blame:
    """Return the class of a failure, which says who can fix it.

    Args:
        called: True if an external call raised it, or gave no answer.

    >>> classify_failure(BadInput, called=False), classify_failure(ZeroDivisionError, called=False)
    ('data', 'code')
    >>> classify_failure(ValueError, called=True)
    'outside'
    >>> classify_failure(ConnectionResetError, called=False), classify_failure(TypeError, called=True)
    ('outside', 'code')
    """
    if issubclass(kind, UnknownSchema | UpcasterFailed | KeyMissing):  # we have to deploy, fix or restore something
        return "code"
    if issubclass(kind, BadInput):
        return "data"
    if issubclass(kind, _DEFECTS):
        return "code"
    return "outside" if called or issubclass(kind, OSError) else "code"
