"""Choice of the rules under which what failed is tried again, and the count of attempts under each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga import DeclarationError, Retry
from saga.policies.retry import RETRY, FailureRule, attempts_under, choose_rule, count_attempts

OWN, BANK, SERVICE = Retry(attempts_max=2), FailureRule("bank", Retry(attempts_max=3)), Retry(attempts_max=4)
FEW = Retry(attempts_max=5)
FAILURES: list[Exception] = [KeyError(), IndexError(), LookupError(), ConnectionError(), TimeoutError(), ValueError()]
KINDS: list[type[Exception]] = [Exception, LookupError, KeyError, OSError, ConnectionError, TimeoutError]
PLAIN = st.builds(Retry, attempts_max=st.integers(1, 50))


@st.composite
def retries(draw: st.DrawFn) -> Retry:
    """Rules with any that can stand beside each other."""
    never = tuple(draw(st.lists(st.sampled_from(KINDS[1:]), max_size=2, unique=True)))
    kinds = [kind for kind in KINDS if not issubclass(kind, never)]
    by = draw(st.dictionaries(st.sampled_from(kinds), PLAIN, max_size=3))
    return Retry(attempts_max=draw(st.integers(1, 50)), never=never, by=by)


LEVELS = st.one_of(st.none(), retries())


@given(st.sampled_from(FAILURES), LEVELS, LEVELS, LEVELS)
def test_the_rule_of_the_handler_precedes_that_of_the_resource_and_of_the_service(
    why: Exception, own: Retry | None, bank: Retry | None, service: Retry | None
) -> None:
    level = own or bank or service or RETRY
    name, found = choose_rule(why, own, None if bank is None else FailureRule("bank", bank), service)
    assert found is level or found in level.by.values()
    assert name.startswith("bank") == (own is None and bank is not None)


@given(st.sampled_from(FAILURES), retries())
def test_never_comes_first_and_then_the_nearest_class(why: Exception, retry: Retry) -> None:
    name, found = choose_rule(why, retry, None, None)
    fitting = [kind for kind in retry.by if isinstance(why, kind)]
    if isinstance(why, retry.never) or not fitting:
        assert (name, found) == ("", retry)
        return
    nearest = next(kind for kind in retry.by if name == f"/{kind.__name__}")
    assert found is retry.by[nearest]
    assert nearest in fitting
    assert all(issubclass(nearest, kind) for kind in fitting), "no other is nearer"


def test_each_level_gives_way_to_the_one_before() -> None:
    why = OSError()
    assert choose_rule(why, OWN, BANK, SERVICE) == FailureRule("", OWN)
    assert choose_rule(why, None, BANK, SERVICE) == BANK
    assert choose_rule(why, None, None, SERVICE) == FailureRule("", SERVICE)
    assert choose_rule(why, None, None, None) == FailureRule("", Retry())


def test_rules_for_a_kind_hold_at_their_own_level_alone() -> None:
    service = Retry(by={OSError: FEW})
    assert choose_rule(OSError(), None, BANK, service) == BANK
    assert choose_rule(ConnectionError(), None, None, service) == FailureRule("/OSError", FEW)
    assert choose_rule(OSError(), None, FailureRule("bank", service), None) == FailureRule("bank/OSError", FEW)
    assert choose_rule(KeyError(), service, BANK, None) == FailureRule("", service)


# ---------------------------------------------------------------- counted apart

NAMES = st.sampled_from(["", "bank", "bank/OSError", "/KeyError"])


@given(st.lists(NAMES, max_size=30), st.integers(0, 30))
def test_attempts_under_all_names_together_are_all_wherever_they_are_cut(names: list[str], cut: int) -> None:
    before = count_attempts({}, names[:cut])
    named = count_attempts(before, names[cut:])
    assert named == count_attempts({}, names)
    for name in {*names, ""}:
        assert attempts_under(name, len(names), named) == names.count(name)
    assert attempts_under("never seen", len(names), named) == 0


# ---------------------------------------------------------------- refused


def test_rules_for_kinds_are_rules_for_exceptions() -> None:
    for by in ({OSError: 3}, {"OSError": FEW}, {KeyboardInterrupt: FEW}, [OSError], None):
        with pytest.raises(DeclarationError, match=r"Retry\(by=.*give exception classes with rules"):
            Retry(by=by)  # type: ignore[arg-type] # the mistake


def test_retry_rules_by_kind_have_one_level() -> None:
    for deeper in (Retry(never=(KeyError,)), Retry(by={KeyError: FEW})):
        with pytest.raises(DeclarationError, match=r"LookupError has a never= or by= of its own: write it beside"):
            Retry(by={LookupError: deeper})


def test_a_failure_that_is_never_retried_has_no_rule() -> None:
    for kind in (LookupError, KeyError):
        with pytest.raises(DeclarationError, match=rf"{kind.__name__} is never tried again, says never="):
            Retry(never=(LookupError,), by={kind: FEW})
    assert Retry(never=(KeyError,), by={LookupError: FEW}).names == (KeyError, LookupError), "that is an exception"


def test_two_kinds_of_one_name_are_refused_for_attempts_are_counted_by_it() -> None:
    other = type("OSError", (Exception,), {})
    with pytest.raises(DeclarationError, match="OSError is the name of two classes"):
        Retry(by={OSError: FEW, other: FEW})


def test_rules_do_not_change_with_the_mapping_they_were_given_and_have_a_hash() -> None:
    given_: dict[type[Exception], Retry] = {OSError: FEW}
    retry = Retry(by=given_)
    given_.clear()
    assert dict(retry.by) == {OSError: FEW}
    assert hash(retry) == hash(Retry(by={OSError: FEW}))
