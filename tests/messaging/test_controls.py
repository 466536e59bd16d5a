"""Controls: the switches of operators, the control log that stores them, and which sagas a flag is on for."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from saga.errors import BadInput, SagaError
from saga.messages import Outgoing, Record
from saga.messaging import controls
from saga.messaging.controls import (
    Control,
    ControlEntry,
    ControlLog,
    Flags,
    Switch,
    bucket_of,
    control_to_record,
    flags_of,
    is_on,
    parse_control,
)

NOW_MS = 1_795_270_000_000
SAGAS = [f"order-{n}" for n in range(2000)]


def control_record(switch: Switch, **changes: Any) -> Outgoing:
    return control_to_record("payment", switch, **{"who": "ada", "why": "to see", "now_ms": NOW_MS, **changes})


def lies(outgoing: Outgoing, **changes: Any) -> Record:
    topic, key, value, headers, _ = outgoing
    return Record(topic, 0, 7, key, value, headers, NOW_MS)._replace(**changes)


def wish(n: int, switch: Switch) -> Control:
    return parse_control(lies(control_record(switch, now_ms=NOW_MS + n)))


def book_of(*switches: Switch) -> ControlLog:
    book = ControlLog(service="payment")
    for n, switch in enumerate(switches):
        more = controls.append_control(book, wish(n, switch))
        assert more is not None
        book = more
    return book


def test_what_is_encoded_comes_back() -> None:
    switch = Switch(flag="new", percent=100, saga="order-1", until="2027-01-01T00:00:00.000Z")
    record = control_record(switch)
    assert (record.topic, record.key) == ("payment.commands", b"payment")
    control = parse_control(lies(record))
    assert (control.type, control.saga, control.switch, control.who, control.why) == (
        "saga.control", "payment", switch, "ada", "to see"
    )  # fmt: skip
    assert control.id == parse_control(lies(control_record(switch))).id
    assert control.id != parse_control(lies(control_record(switch, now_ms=NOW_MS + 1))).id


@pytest.mark.parametrize(
    ("switch", "more", "message"),
    [
        (Switch(flag=" ", percent=1), {}, "a flag's name"),
        (Switch(flag="x" * 101, percent=1), {}, "a flag's name"),
        (Switch(flag="x", percent=101), {}, "0 to 100 percent"),
        (Switch(flag="x", percent=float("nan")), {}, "0 to 100 percent"),
        (Switch(flag="x", percent=0, saga=""), {}, "a saga id"),
        (Switch(flag="x", percent=10, saga="order-1"), {}, "on or off for one saga: 100 or 0 percent, not 10"),
        (Switch(flag="x", percent=1, until="soon"), {}, "RFC 3339"),
        (Switch(flag="x", percent=1), {"who": ""}, "'who'"),
        (Switch(flag="x", percent=1), {"why": "x" * 501}, "'why'"),
    ],
)
def test_an_invalid_control_is_bad_input(switch: Switch, more: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        control_record(switch, **more)


@pytest.mark.parametrize("value", [b"{}", b"[", b"\xff", b"[" * 100_000, b'{"who":"a","why":"b","switch":[]}'])
def test_an_undecodable_control_is_bad_input(value: bytes) -> None:
    with pytest.raises(BadInput, match="it is no control"):
        parse_control(lies(control_record(Switch(flag="x", percent=1)), value=value))


def test_each_control_is_appended_once_and_none_is_removed() -> None:
    book = book_of(Switch(flag="a", percent=10), Switch(flag="a", percent=20))
    assert controls.append_control(book, wish(1, Switch(flag="a", percent=20))) is None
    assert [entry.switch.percent for entry in controls.entries_of(book)] == [10, 20]
    assert controls.decode_control_log("payment", controls.encode(book)) == book
    assert controls.decode_control_log("payment", None) == ControlLog(service="payment")
    with pytest.raises(SagaError, match="the control log of payment cannot be read"):
        controls.decode_control_log("payment", b"{")


@pytest.mark.parametrize("change", [(b'"who":"ada"', b'"who":17'), (b'"until":"2', b'"until":"x')])
def test_a_control_log_with_an_unreadable_entry_is_reported_as_such(change: tuple[bytes, bytes]) -> None:
    switch = Switch(kind="pause", until="2026-11-25T18:00:00.000Z")
    book = controls.append_control(ControlLog(service="payment"), wish(1, switch))
    assert book is not None
    content = controls.encode(book)
    assert controls.decode_control_log("payment", content) == book
    with pytest.raises(SagaError, match="the control log of payment cannot be read"):
        controls.decode_control_log("payment", content.replace(*change))


def test_a_full_control_log_refuses_further_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "ENTRIES_MAX", 1)
    with pytest.raises(BadInput, match="the control log is full: it has 1 entries"):
        controls.append_control(book_of(Switch(flag="a", percent=10)), wish(5, Switch(flag="a", percent=20)))


def test_any_change_of_a_control_log_by_hand_is_found() -> None:
    book = book_of(*(Switch(flag="a", percent=n) for n in range(4)))
    assert controls.verify_control_log(book) is None
    assert controls.verify_control_log(ControlLog(service="payment")) is None
    entries = book.entries
    first = msgspec.json.decode(entries[1], type=ControlEntry)
    forged = Raw(msgspec.json.encode(replace(first, who="mallory")))
    for wrong in (
        (entries[0], forged, *entries[2:]),
        entries[1:],
        (entries[0], *entries[2:]),
        (entries[1], entries[0], *entries[2:]),
    ):
        assert "does not follow the one before it" in (controls.verify_control_log(replace(book, entries=wrong)) or "")
    assert controls.verify_control_log(replace(book, service="order")) is not None
    cut = replace(book, entries=entries[:3])
    assert controls.verify_control_log(cut) is None
    assert controls.digest_of(cut) != controls.digest_of(book), "the last digest tells"


def test_a_flag_that_was_never_set_is_off() -> None:
    assert not is_on(Flags(), "new", "order-1", NOW_MS)


def test_a_percentage_flag_selects_that_share_and_a_larger_one_includes_it() -> None:
    shares = [
        {saga for saga in SAGAS if is_on(flags_of(book_of(Switch(flag="new", percent=p))), "new", saga, NOW_MS)}
        for p in (0, 10, 50, 100)
    ]
    assert [len(share) for share in (shares[0], shares[-1])] == [0, len(SAGAS)]
    assert 0.07 < len(shares[1]) / len(SAGAS) < 0.13
    assert shares[0] < shares[1] < shares[2] < shares[3]
    other = {s for s in SAGAS if is_on(flags_of(book_of(Switch(flag="other", percent=10))), "other", s, NOW_MS)}
    assert other != shares[1], "another flag divides them otherwise"


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_saga_is_always_in_the_same_share_of_a_flag(flag: str, saga: str) -> None:
    part = controls.bucket_of(flag, saga)
    assert part == controls.bucket_of(flag, saga)
    assert 0 <= part < controls.PARTS


def test_a_flag_for_one_saga_overrides_the_percentage_and_the_last_one_counts() -> None:
    flags = flags_of(
        book_of(
            Switch(flag="new", percent=100),
            Switch(flag="new", percent=100, saga="order-1"),
            Switch(flag="new", percent=0, saga="order-1"),
        )
    )
    assert not is_on(flags, "new", "order-1", NOW_MS)
    assert is_on(flags, "new", "order-2", NOW_MS)


def test_an_expired_flag_is_off() -> None:
    until = "2026-11-21T14:06:41.000Z"  # a second later
    flags = flags_of(
        book_of(Switch(flag="new", percent=100), Switch(flag="new", percent=0, saga="order-1", until=until))
    )
    assert not is_on(flags, "new", "order-1", NOW_MS + 999)
    assert is_on(flags, "new", "order-1", NOW_MS + 1000)


def test_a_flag_for_zero_percent_is_on_for_no_saga() -> None:
    first = next(saga for n in range(1_000_000) if bucket_of("f", saga := f"s-{n}") == 0)
    flags = Flags(for_all={"f": Switch(flag="f", percent=0)})
    assert not is_on(flags, "f", first, 0)
    assert is_on(Flags(for_all={"f": Switch(flag="f", percent=0.01)}), "f", first, 0)
