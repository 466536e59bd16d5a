"""A witness alone: histories from published transitions in any order, of sagas that expired or were rebuilt."""

from msgspec.structs import replace

from saga.messaging.transition_events import TransitionCause, TransitionEvent
from saga.ops.history_verifier import CLOCKS_MS, HistoryId, HistoryVerifier
from saga.support.clock import from_iso, iso

TIME = "2026-11-21T14:06:40.123Z"
MEMORY_S = 86_400
OF = HistoryId("payment", "order-1")


def transition_event(
    number: int, hash_: str, *, time: str = TIME, kept_s: int | None = MEMORY_S, rebuilt_at: str | None = None
) -> TransitionEvent:
    return TransitionEvent(
        service="payment",
        saga="order-1",
        number=number,
        time=time,
        handler="reserve",
        outcome="handled",
        message=TransitionCause(id="1", type="OrderPlaced", source="order"),
        open=kept_s is None,
        kept_s=kept_s,
        hash=hash_,
        previous="",
        rebuilt_at=rebuilt_at,
    )


def heard(*all_: TransitionEvent) -> HistoryVerifier:
    witness = HistoryVerifier()
    for each in all_:
        witness.add(each)
    return witness


def test_a_history_that_may_have_expired_is_not_reported_as_removed() -> None:
    witness, until_ms = heard(transition_event(0, "a")), from_iso(TIME) + MEMORY_S * 1000
    assert witness.find_removed(OF, until_ms - CLOCKS_MS) is not None
    assert witness.find_removed(OF, until_ms - CLOCKS_MS + 1) is None


def test_a_history_of_an_open_saga_never_expires() -> None:
    removed = heard(transition_event(0, "a", kept_s=None)).find_removed(OF, from_iso(TIME) + 10**12)
    assert removed is not None
    assert removed.broken.what.endswith("it is open, and never expires")


def test_the_last_transition_decides_whether_it_expires_in_whatever_order_they_were_published() -> None:
    late = from_iso(TIME) + 10**12
    assert heard(transition_event(1, "b"), transition_event(0, "a", kept_s=None)).find_removed(OF, late) is None
    assert (
        heard(transition_event(0, "a"), transition_event(1, "b", kept_s=None), transition_event(0, "a")).find_removed(
            OF, late
        )
        is not None
    )


def test_an_id_that_is_used_again_after_it_was_forgotten_is_no_fork() -> None:
    later = iso(from_iso(TIME) + MEMORY_S * 1000)
    restarted = heard(transition_event(0, "a"), transition_event(1, "b"), transition_event(0, "c", time=later))
    assert (restarted.histories[OF].forked, restarted.histories[OF].last) == (None, 0)
    sooner = heard(transition_event(0, "a"), transition_event(1, "b"), transition_event(0, "c"))
    assert sooner.histories[OF].forked == 0
    still_open = heard(transition_event(0, "a", kept_s=None), transition_event(0, "c", time=later))
    assert still_open.histories[OF].forked == 0


def test_the_first_number_with_two_transitions_is_named() -> None:
    witness = heard(
        *(transition_event(n, hash_) for n, hash_ in ((2, "x"), (2, "y"), (1, "b"), (1, "c"), (0, "a"), (0, "a")))
    )
    contradiction = witness.compare(OF, ())
    assert contradiction is not None
    assert contradiction.broken.n == 1


def test_a_witness_knows_nothing_about_other_services_and_sagas() -> None:
    witness = heard(
        transition_event(0, "a"),
        replace(transition_event(0, "a"), saga="order-2"),
        replace(transition_event(0, "a"), service="shop"),
    )
    assert list(witness.histories_of(["payment"], None)) == [OF, HistoryId("payment", "order-2")]
    assert list(witness.histories_of(["payment", "shop"], "order-1")) == [OF, HistoryId("shop", "order-1")]
    assert witness.is_published(HistoryId("payment", "order-3"), 1) is None


def test_a_rebuilt_history_replaces_the_earlier_one_and_repeated_reports_are_ignored() -> None:
    once = transition_event(0, "c", rebuilt_at="2026-11-22T14:06:40.000Z")
    witness = heard(
        transition_event(0, "a"),
        transition_event(1, "b"),
        transition_event(2, "b"),
        once,
        transition_event(1, "d"),
        transition_event(0, "c"),
        once,
        transition_event(1, "d"),
    )
    assert (witness.histories[OF].forked, witness.histories[OF].last, witness.is_rebuilt(OF)) == (None, 1, True)
    again = heard(
        transition_event(0, "a"),
        once,
        transition_event(1, "d"),
        replace(once, rebuilt_at="2026-11-23T14:06:40.000Z"),
        transition_event(1, "e"),
    )
    assert (again.histories[OF].forked, again.is_rebuilt(OF)) == (None, True)
    assert heard(transition_event(0, "a"), transition_event(0, "c")).histories[OF].forked == 0, (
        "a worker that tells another one"
    )
    assert heard(once, transition_event(0, "a")).histories[OF].forked == 0
    assert not heard(transition_event(0, "a")).is_rebuilt(OF)
