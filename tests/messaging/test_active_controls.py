"""Pauses, limits and routes read from a control log: the last entry counts, until it expires; and which entries are
refused."""

import msgspec
import pytest
from msgspec import Raw, Struct

from saga.errors import BadInput
from saga.messaging import controls
from saga.messaging.controls import (
    ActiveControls,
    Control,
    ControlEntry,
    ControlLog,
    DeclaredNames,
    Switch,
    active_entries,
    control_to_record,
    describe_entry,
    find_mistakes,
    find_pause,
    find_route,
    read_controls,
    why_refused,
)
from saga.support.clock import iso

NOW_MS = 1_800_000_000_000
NAMES = DeclaredNames(
    handlers=["reserve", "capture"],
    compensations=["release"],
    deadlines=["expire"],
    resources=["bank"],
    events={"OrderPlaced": ("reserve",), "OrderCancelled": ()},
)


def pause(handler: str | None = None, *, off: bool = False, until: str | None = None) -> Switch:
    return Switch(kind="pause", handler=handler, off=off, until=until)


def book_of(*switches: Switch, refused: str | None = None) -> ControlLog:
    book = ControlLog(service="payment")
    for n, switch in enumerate(switches):
        wish = Control(
            id=f"c{n}", type=controls.TYPE, schema="", saga="payment", source="ada", time=iso(NOW_MS + n), value=b"",
            switch=switch, who="ada", why="to see",
        )  # fmt: skip
        book = controls.append_control(book, wish, refused) or book
    return book


def paused(now: ActiveControls, at_ms: int = NOW_MS) -> list[str]:
    return [name for name in ("reserve", "release") if find_pause(now, "payment", name, at_ms)]


def test_a_handler_pause_spares_its_compensation_and_a_service_pause_does_not() -> None:
    assert paused(read_controls(book_of())) == []
    assert paused(read_controls(book_of(pause("reserve")))) == ["reserve"]
    assert paused(read_controls(book_of(pause()))) == ["reserve", "release"]


def test_the_last_control_for_each_target_counts() -> None:
    assert paused(read_controls(book_of(pause("reserve"), pause("reserve", off=True)))) == []
    assert paused(read_controls(book_of(pause("reserve"), pause(), pause(off=True)))) == ["reserve"]
    assert paused(read_controls(book_of(pause("reserve", off=True), pause("reserve")))) == ["reserve"]


def test_a_redelivered_pause_after_its_end_has_no_effect() -> None:
    book = book_of(pause("reserve"), pause("reserve", off=True))
    again = controls.entries_of(book)[0]
    wish = Control(
        id=again.id, type=controls.TYPE, schema="", saga="payment", source="ada", time=again.time, value=b"",
        switch=again.switch, who="ada", why="to see",
    )  # fmt: skip
    assert controls.append_control(book, wish) is None


def test_a_control_ends_at_its_time_and_a_refused_one_has_no_effect() -> None:
    now = read_controls(book_of(pause("reserve", until=iso(NOW_MS + 1000))))
    assert (paused(now, NOW_MS + 999), paused(now, NOW_MS + 1000)) == (["reserve"], [])
    assert (len(active_entries(now, NOW_MS + 999)), len(active_entries(now, NOW_MS + 1000))) == (1, 0)
    assert paused(read_controls(book_of(pause("reserve"), refused="there is no such handler"))) == []


def test_a_pause_is_described_with_its_operator_reason_and_end() -> None:
    (entry,) = read_controls(book_of(pause(until=iso(NOW_MS)))).others.values()
    assert describe_entry("payment", entry) == f"payment is paused by ada: to see, until {iso(NOW_MS)}"
    (entry,) = read_controls(book_of(Switch(kind="route", event="OrderPlaced"))).others.values()
    assert describe_entry("payment", entry) == "OrderPlaced is routed to the dead letters by ada: to see"


def test_a_route_applies_to_a_handler_or_to_an_event() -> None:
    of_handler = read_controls(book_of(Switch(kind="route", handler="reserve")))
    of_event = read_controls(book_of(Switch(kind="route", event="OrderPlaced")))
    for now in (of_handler, of_event):
        assert find_route(now, "reserve", ["OrderPlaced"], NOW_MS)
        assert not find_route(now, "capture", ["OrderConfirmed"], NOW_MS)
    assert find_route(of_event, "tally", ["Q", "OrderPlaced"], NOW_MS)


class EarlierSwitch(Struct, frozen=True, kw_only=True):
    """Switch of the version that knew flags alone."""

    flag: str
    percent: float
    saga: str | None = None
    until: str | None = None


class EarlierEntry(Struct, frozen=True, kw_only=True):
    switch: EarlierSwitch


def test_an_earlier_version_reads_an_unknown_control_as_an_unused_flag() -> None:
    raw = book_of(pause("reserve")).entries[0]
    assert msgspec.json.decode(raw, type=EarlierEntry).switch == EarlierSwitch(flag="", percent=0)


def test_a_control_of_an_unknown_kind_is_kept_and_reported_without_effect() -> None:
    book = book_of(pause("reserve"))
    later = msgspec.json.decode(book.entries[0], type=dict)
    later["switch"] = {"flag": "", "percent": 0, "kind": "drain", "how": "slowly"}
    raw = Raw(msgspec.json.encode(later))
    book = ControlLog(service="payment", entries=(*book.entries, raw))
    now = read_controls(book)
    assert (now.unknown, paused(now), now.flags.for_all) == (("drain",), ["reserve"], {})
    more = controls.append_control(book, Control(
        id="c9", type=controls.TYPE, schema="", saga="payment", source="ada", time=iso(NOW_MS), value=b"",
        switch=pause("reserve", off=True), who="ada", why="to see",
    ))  # fmt: skip
    assert more is not None
    assert bytes(more.entries[1]) == bytes(raw)
    with pytest.raises(BadInput, match="of the kind 'drain' is of a later version"):
        control_to_record("payment", Switch(kind="drain"), who="ada", why="to see", now_ms=0)


@pytest.mark.parametrize(
    ("switch", "mistakes"),
    [
        (pause(), []),
        (pause("reserve", off=True), []),
        (Switch(kind="limit", resource="bank", rate_per_s=2), []),
        (Switch(kind="limit", resource="bank", off=True), []),
        (Switch(kind="route", event="OrderPlaced"), []),
        (Switch(kind="pause", resource="bank"), ["a pause is for no resource"]),
        (pause(" "), ["the handler of a pause is a name of at most 100 characters"]),
        (pause(until="soon"), ["a pause holds until an RFC 3339 time, not until 'soon'"]),
        (Switch(kind="route"), ["a route needs its handler or its event: name it"]),
        (
            Switch(kind="limit", resource="bank", handler="reserve", at_once_max=0, rate_per_s=-1),
            [
                "a limit is for one thing, not for handler and resource together",
                "a limit lets at least one through at once, not 0: to stop it, pause it",
                "a limit lets more than 0 a second through, not -1.0: to stop it, pause it",
                "a handler is limited in its runs at once; what is limited a second is a resource",
            ],
        ),
        (
            Switch(kind="limit"),
            [
                "a limit needs its resource or its handler: name it",
                "a limit says how many at once, or how many a second",
            ],
        ),
    ],
)
def test_all_problems_of_a_control_are_reported_at_once(switch: Switch, mistakes: list[str]) -> None:
    assert find_mistakes(msgspec.convert(msgspec.to_builtins(switch), Switch, strict=False)) == mistakes


@pytest.mark.parametrize(
    ("switch", "refused"),
    [
        (Switch(flag="new", percent=1), None),
        (pause("release"), None),
        (pause("expire"), None),
        (Switch(kind="limit", resource="bank", at_once_max=1), None),
        (Switch(kind="route", handler="reserve"), None),
        (pause("reserv"), "there is no handler 'reserv'; there are capture, expire, release, reserve"),
        (Switch(kind="limit", resource="bnk", at_once_max=1), "there is no resource 'bnk'; there are bank"),
        (Switch(kind="route", event="Q"), "it takes no event 'Q'; it takes OrderCancelled, OrderPlaced"),
        (
            Switch(kind="route", handler="release"),
            "release is a compensation: what it undoes would stand; pause it, if it must not run",
        ),
        (
            Switch(kind="route", handler="expire"),
            "expire is a deadline: its saga might have no end; pause it, if it must not run",
        ),
        (
            Switch(kind="route", event="OrderCancelled"),
            "no handler takes OrderCancelled, only compensations or deadlines: pause these, one by one",
        ),
        (pause("capture", off=True), None),
        (pause(off=True), "there is no pause of payment to be ended; there are capture"),
        (Switch(kind="limit", resource="bank", off=True), "there is no limit of bank to be ended; there are none"),
    ],
)
def test_a_control_that_a_service_cannot_apply_is_refused_with_what_it_has(switch: Switch, refused: str | None) -> None:
    assert why_refused("payment", switch, NAMES, read_controls(book_of(pause("capture")))) == refused


def test_an_entry_of_earlier_versions_is_read_as_it_is() -> None:
    raw = b'{"id":"a","time":"2026-01-01T00:00:00Z","who":"ada","why":"b",'
    raw += b'"switch":{"flag":"new","percent":10.0},"previous":"c"}'
    entry = msgspec.json.decode(raw, type=ControlEntry)
    assert (entry.switch, entry.refused) == (Switch(flag="new", percent=10), None)
    assert msgspec.json.encode(entry) == raw


def test_an_unused_flag_is_refused_with_the_names_of_used_ones() -> None:
    asked, typed = Switch(flag="new_pricing", percent=10), Switch(flag="new_prcing", percent=10)
    names = NAMES._replace(flags={"new_pricing", "gold"})
    assert why_refused("payment", asked, names, read_controls(book_of())) is None
    why = why_refused("payment", typed, names, read_controls(book_of()))
    assert why is not None
    assert why.startswith("no code here reads the flag 'new_prcing'; there are gold, new_pricing: a flag is off until")
    assert why_refused("payment", typed, NAMES, read_controls(book_of())) is None, "what is asked for cannot be known"
    for there in (typed, Switch(flag="new_prcing", percent=100, saga="order-1")):
        assert why_refused("payment", typed, names, read_controls(book_of(there))) is None, (
            "it is set, and can be ended"
        )


@pytest.mark.parametrize("switch", [pause(until=iso(NOW_MS)), Switch(flag="new", until=iso(NOW_MS - 1))])
def test_a_control_that_has_expired_already_is_not_sent(switch: Switch) -> None:
    with pytest.raises(BadInput, match="it would expire at once"):
        control_to_record("payment", switch, who="ada", why="to see", now_ms=NOW_MS)
    control_to_record("payment", switch, who="ada", why="to see", now_ms=NOW_MS - 2)
