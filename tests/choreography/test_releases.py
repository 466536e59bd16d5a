"""A release beside the one before: what strands sagas is refused, with the way out; the rest is reported."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from saga.choreography.manifest import (
    FORMAT,
    ConsumedContract,
    DeclaredReaction,
    DeclaredState,
    EmittedContract,
    Manifest,
)
from saga.choreography.releases import ReleaseDifference, check_new_service, compare_releases

RESERVE = DeclaredReaction(
    name="reserve",
    kind="handler",
    ids="payment|reserve",
    takes=(("OrderPlaced",),),
    emits=("PaymentReserved", "PaymentDeclined"),
    keys=("charge",),
    resources=("bank",),
    version=2,
)
CAPTURE = DeclaredReaction(
    name="capture",
    kind="handler",
    ids="payment|capture",
    takes=(("OrderConfirmed", "OrderForced"), ("PaymentReserved",)),
    optional=("CardChanged",),
    emits=("PaymentCaptured",),
    repeats=("OrderConfirmed", "OrderForced"),
)
RELEASE = DeclaredReaction(
    name="release",
    kind="compensation",
    ids="payment|release",
    takes=(("OrderCancelled",), ("PaymentReserved",)),
    undoes="reserve",
    emits=("PaymentReleased",),
)
EXPIRE = DeclaredReaction(
    name="expire",
    kind="deadline",
    ids="payment|expire",
    takes=(("OrderPlaced",),),
    within_s=60.0,
    unless=("CardChanged",),
)


def consumed(contract: str, topic: str = "orders") -> ConsumedContract:
    return ConsumedContract(contract=contract, version=1, topic=topic, key="order_id", fields=("order_id",))


def emitted(contract: str, topic: str = "payments") -> EmittedContract:
    return EmittedContract(contract=contract, version=1, topic=topic, key="order_id")


OLD = Manifest(
    format=FORMAT,
    service="payment",
    kind="order_id",
    retention_s=60.0,
    consumes=(
        *map(consumed, ("CardChanged", "OrderCancelled", "OrderConfirmed", "OrderForced", "OrderPlaced")),
        consumed("PaymentReserved", "payments"),
    ),
    emits=tuple(map(emitted, ("PaymentCaptured", "PaymentDeclined", "PaymentReleased", "PaymentReserved"))),
    reactions=(CAPTURE, EXPIRE, RELEASE, RESERVE),
    state=DeclaredState(type="PaymentState", version=2, fields={"cents": "int", "note": "str"}),
    resources={"bank": "Bank"},
    documents={"accounts": "Account"},
)
ORDER = Manifest(
    format=FORMAT,
    service="order",
    kind="order_id",
    retention_s=60.0,
    consumes=(consumed("PaymentDeclined", "payments"),),
    emits=tuple(emitted(name, "orders") for name in ("OrderConfirmed", "OrderCancelled")),
    reactions=(),
)


def with_(old: DeclaredReaction, **changes: object) -> Manifest:
    """The release before, with one reaction changed."""
    return replace(OLD, reactions=tuple(replace(r, **changes) if r is old else r for r in OLD.reactions))


def without(old: DeclaredReaction) -> Manifest:
    return replace(OLD, reactions=tuple(r for r in OLD.reactions if r is not old))


def with_state(**changes: object) -> Manifest:
    assert OLD.state is not None
    return replace(OLD, state=replace(OLD.state, **changes))


def silent(contract: str) -> Manifest:
    return replace(OLD, emits=tuple(e for e in OLD.emits if e.contract != contract))


def deaf(contract: str) -> Manifest:
    return replace(OLD, consumes=tuple(e for e in OLD.consumes if e.contract != contract))


def moved(contract: str, **changes: object) -> Manifest:
    return replace(OLD, emits=tuple(replace(e, **changes) if e.contract == contract else e for e in OLD.emits))


def found(new: Manifest, consumed_externally: tuple[str, ...] = ()) -> list[ReleaseDifference]:
    return compare_releases(OLD, new, [ORDER], consumed_externally)


REFUSED: dict[str, tuple[Manifest, str, str, str]] = {
    "a handler renamed": (
        with_(RESERVE, name="hold", ids="payment|hold"),
        "reserve",
        "handler renamed to hold?",
        "keep the name reserve",
    ),
    "a handler gone": (without(RESERVE), "reserve", "handler was removed", "keep the name reserve"),
    "a compensation gone": (without(RELEASE), "release", "compensation was removed", "keep the name release"),
    "a deadline gone": (without(EXPIRE), "expire", "deadline was removed", "keep the name expire"),
    "a compensation of another handler": (
        with_(RELEASE, undoes="capture"),
        "release",
        "was the compensation of reserve and is the compensation of capture",
        "keep release as it was",
    ),
    "a handler that is a deadline": (
        with_(RESERVE, kind="deadline"),
        "reserve",
        "was a handler and is a deadline",
        "keep reserve as it was",
    ),
    "a part of a fan-in less": (
        with_(CAPTURE, takes=(("OrderConfirmed", "OrderForced"),)),
        "capture",
        "no longer takes PaymentReserved: one that is pending",
        "keep PaymentReserved among its parameters",
    ),
    "one of a union less": (
        with_(CAPTURE, takes=(("OrderConfirmed",), ("PaymentReserved",))),
        "capture",
        "no longer takes OrderForced",
        "keep OrderForced",
    ),
    "an optional event less": (
        with_(CAPTURE, optional=()),
        "capture",
        "no longer takes CardChanged",
        "keep CardChanged",
    ),
    "a result that is undone no more": (
        with_(RELEASE, takes=(("OrderCancelled",),)),
        "release",
        "no longer takes PaymentReserved: work with that result would not be compensated",
        "keep PaymentReserved",
    ),
    "a compensation that takes more of what its handler took": (
        with_(RELEASE, took=(("OrderPlaced",),)),
        "release",
        "takes OrderPlaced, which reserve took: earlier results do not contain it",
        "take OrderPlaced | None",
    ),
    "another key": (
        with_(RESERVE, keys=("money",)),
        "reserve",
        "no longer uses the key 'charge'",
        "behind a flag",
    ),
    "another event that repeats": (
        with_(CAPTURE, takes=(("PaymentReserved",), ("OrderConfirmed", "OrderForced")), repeats=("PaymentReserved",)),
        "capture",
        "ran once for each OrderConfirmed or OrderForced and runs once for each PaymentReserved",
        "keep repeats=OrderConfirmed | OrderForced",
    ),
    "an older version of a handler": (
        with_(RESERVE, version=1),
        "reserve",
        "was version 2 and is 1: runs that began under the newer one wait",
        "keep version=2",
    ),
    "once instead of many times": (
        with_(CAPTURE, repeats=()),
        "capture",
        "no longer has repeats=",
        "keep repeats=OrderConfirmed | OrderForced",
    ),
    "an event that a neighbour hears is no longer emitted": (
        silent("PaymentDeclined"),
        "PaymentDeclined",
        "is no longer emitted, but is consumed by order",
        "keep emitting it",
    ),
    "an event that it hears itself is no longer emitted": (
        silent("PaymentReserved"),
        "PaymentReserved",
        "is consumed by payment itself (capture) and payment itself (release)",
        "keep emitting it",
    ),
    "another key of its sagas": (
        replace(OLD, kind="customer_id"),
        "payment",
        "were known by 'order_id', now by 'customer_id'",
        "keep 'order_id'",
    ),
    "another key of an event": (
        moved("PaymentReserved", key="charge_id"),
        "PaymentReserved",
        "its key was 'order_id' and is 'charge_id'",
        "another name",
    ),
    "another topic of an event": (
        moved("PaymentReserved", topic="money"),
        "PaymentReserved",
        "its topic was 'payments' and is 'money'",
        "another name",
    ),
    "a field of the state with another type": (
        with_state(fields={"cents": "Decimal", "note": "str"}),
        "state.cents",
        "was int and is Decimal, and the state is still version 2",
        "declare @payment.migrate(2) from PaymentState as it was",
    ),
    "a field of the state renamed": (
        with_state(fields={"cents": "int", "remark": "str"}),
        "state.note",
        "was removed while remark was added",
        "declare @payment.migrate(2)",
    ),
    "a migration less": (with_state(version=1), "state", "was version 2 and is 1", "keep all migrations"),
    "no state any more": (replace(OLD, state=None), "state", "PaymentState was removed", "keep state=PaymentState"),
    "a resource renamed": (
        replace(OLD, resources={"acquirer": "Bank"}),
        "bank",
        "the resource (Bank) was removed or renamed",
        "keep the name bank",
    ),
    "a collection renamed": (
        replace(OLD, documents={"ledger": "Account"}),
        "accounts",
        "the collection of Account was removed or renamed",
        "keep the collection accounts",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_release_that_strands_something_is_refused_with_the_way_out(case: str) -> None:
    new, where, what, way_out = REFUSED[case]
    refused = [each for each in found(new) if each.verdict == "refused"]
    assert [each.where for each in refused] == [where]
    assert what in refused[0].what
    assert way_out in refused[0].way_out
    assert refused[0].service == "payment"


def test_an_event_for_consumers_outside_is_not_dropped() -> None:
    assert [each.verdict for each in found(silent("PaymentReleased"))] == ["harmless"]
    [refused] = found(silent("PaymentReleased"), consumed_externally=("PaymentReleased",))
    assert refused.verdict == "refused"
    assert "but is consumed by external consumers" in refused.what


HARMLESS: dict[str, tuple[Manifest, list[tuple[str, str]]]] = {
    "nothing": (OLD, []),
    "a new handler": (
        replace(
            OLD,
            reactions=(
                *OLD.reactions,
                DeclaredReaction(name="note", kind="handler", ids="payment|note", takes=(("X",),)),
            ),
        ),
        [("note", "is new: a handler")],
    ),
    "a new deadline": (
        replace(OLD, reactions=(*OLD.reactions, replace(EXPIRE, name="remind", ids="payment|remind"))),
        [("remind", "is new: a deadline; sagas in which its event was handled before do not get it")],
    ),
    "a newer version of a handler": (
        with_(RESERVE, version=3),
        [
            (
                "reserve",
                "is version 3; runs that have begun keep their version, and runs of the new one wait while a "
                "process of the previous release has them",
            )
        ],
    ),
    "code that cannot be seen any more": (
        with_(RESERVE, keys=None),
        [("payment", "differs in texts, times or fields read")],
    ),
    "an event more": (
        replace(
            OLD,
            consumes=(*OLD.consumes, consumed("OrderNoted"), consumed("PaymentReleased", "payments")),
            emits=(*OLD.emits, emitted("PaymentNoted")),
        ),
        [
            ("OrderNoted", "is consumed from now on; no manifest emits it yet"),
            ("PaymentReleased", "is consumed from now on"),
            ("PaymentNoted", "is emitted from now on"),
        ],
    ),
    "an event without consumers less": (
        silent("PaymentReleased"),
        [("PaymentReleased", "is no longer emitted, and has no consumer")],
    ),
    "an event that others still emit has no consumer": (
        deaf("OrderCancelled"),
        [("OrderCancelled", "has no consumer any more, but order still emits it")],
    ),
    "newer versions": (
        replace(
            moved("PaymentReserved", version=2),
            consumes=tuple(replace(e, version=2) if e.contract == "OrderPlaced" else e for e in OLD.consumes),
        ),
        [
            ("OrderPlaced", "is read as version 2, before as 1"),
            ("PaymentReserved", "is emitted as version 2, before as 1: its consumers need that schema first"),
        ],
    ),
    "a part of a fan-in more": (
        with_(RESERVE, takes=(("OrderPlaced",), ("CardChanged",))),
        [("reserve", "also waits for CardChanged; open sagas in which it has run already do not")],
    ),
    "a migration more": (
        with_state(version=3, fields={"euros": "Decimal"}),
        [("state", "is version 3; open sagas are migrated when their next run ends")],
    ),
    "a field of the state more": (
        with_state(fields={"cents": "int", "note": "str", "more": "int"}),
        [("payment", "differs in texts, times or fields read")],
    ),
    "a field of the state less": (
        with_state(fields={"cents": "int"}),
        [("state.note", "was removed; its values stay in the history")],
    ),
    "other texts and times": (
        replace(OLD, doc="Payment.", retention_s=90.0),
        [("payment", "differs in texts, times or fields read")],
    ),
}


@pytest.mark.parametrize("case", sorted(HARMLESS))
def test_a_harmless_difference_is_reported(case: str) -> None:
    new, expected = HARMLESS[case]
    assert [(each.where, each.what) for each in found(new)] == expected
    assert {each.verdict for each in found(new)} <= {"harmless"}


def test_a_service_without_state_may_get_one() -> None:
    old = replace(OLD, state=None)
    assert [each.verdict for each in compare_releases(old, OLD, [])] == ["harmless"]


def test_refused_changes_are_listed_first() -> None:
    new = replace(without(RESERVE), consumes=(*OLD.consumes, consumed("OrderNoted")))
    assert [each.verdict for each in found(new)] == ["refused", "harmless"]


@pytest.mark.parametrize("change", [without, lambda old: with_(old, name="other", ids="payment|other")])
@pytest.mark.parametrize("old", OLD.reactions, ids=lambda r: r.name)
def test_no_reaction_goes_unnoticed(old: DeclaredReaction, change: Callable[[DeclaredReaction], Manifest]) -> None:
    assert old.name in {each.where for each in found(change(old)) if each.verdict == "refused"}


# -------------------------------------------------------------------- a service that was not there before


def test_a_new_service_that_reacts_like_a_known_one_is_refused_until_it_declares_which_it_is() -> None:
    renamed = replace(OLD, service="pay-ments")
    (refused,) = check_new_service(renamed, [OLD])
    assert refused.verdict == "refused"
    assert "reacts as payment does" in refused.what
    assert 'pay_ments = Service("pay-ments", was="payment")' in refused.way_out
    assert 'Service("pay-ments", start="now")' in refused.way_out
    assert check_new_service(replace(renamed, start="beginning"), [OLD]) == []
    (refused,) = check_new_service(renamed, [replace(OLD, service="paid", was="payment")])
    assert 'was="payment"' in refused.way_out, "the name of the first release"


def test_another_new_service_is_reported_to_handle_all_history() -> None:
    mailer = replace(OLD, service="mailer", reactions=(replace(RESERVE, name="tell"),))
    sayer = replace(OLD, service="order", reactions=(), emits=(emitted("OrderConfirmed", "orders"),))
    (finding,) = check_new_service(mailer, [sayer])
    assert finding.verdict == "harmless"
    assert "all that lies in orders, whatever its age" in finding.what
    assert check_new_service(mailer, [replace(sayer, emits=())]) == []
    assert check_new_service(replace(mailer, start="now"), [sayer]) == []


def test_another_name_is_reported_and_harms_nothing() -> None:
    (finding,) = compare_releases(OLD, replace(OLD, service="payments", was="payment"), [])
    assert (finding.verdict, finding.where) == ("harmless", "payments")
    assert "was called payment; stored, in topics, keys and metrics it stays payment" in finding.what
    (finding,) = compare_releases(OLD, replace(OLD, start="now"), [])
    assert finding.what == "begins in topics that are new to it at now; where it has begun it stays"
