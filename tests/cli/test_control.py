"""`saga control`, and `saga audit` of it: flags are set while a service runs, and the audit tells by whom."""

import json
import os
import sqlite3
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from saga.messages import Outgoing, Record
from saga.messaging import controls
from saga.store.sqlite.documents import checksum
from saga.support.clock import SystemClock
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery
from tests.cli.test_dead import kiln as kiln
from tests.cli.test_dead import mend, outcomes, until
from tests.cli.test_missing_topics import running

BY = ("--who", "ada", "--why", "to see")


def test_flags_are_set_and_the_audit_names_who_did_it(pottery_on: Pottery, kiln: str, saga: Call) -> None:
    service = pottery_on.service
    with running(kiln):
        first = saga("control", "flag", service, "blue", "--percent", "12.5", *BY, "--within", "30")
        assert (first.exit_code, first.stdout) == (0, f"{service}  flag blue for 12.5 % of the sagas\n"), first.output
        one = saga("control", "flag", service, "blue", "--for", "cup-1", "--until", "2h", *BY, "--within", "30")
        assert one.exit_code == 0, one.output
        typed = saga("control", "flag", service, "bleu", "--percent", "1", *BY, "--within", "30")
        assert typed.exit_code == 2, typed.output
        assert f"{service} refuses it: no code here reads the flag 'bleu'; there are blue" in typed.stderr
        for until_ in ("2020-01-01T00:00:00Z", "0s"):
            gone = saga("control", "flag", service, "blue", "--percent", "1", "--until", until_, *BY)
            assert (gone.exit_code, "it would expire at once" in gone.stderr) == (2, True), gone.output
    shown = saga("control", "show", service)
    assert [line.partition(" until ")[0] for line in shown.stdout.splitlines()] == [
        f"{service}  flag blue for 12.5 % of the sagas", f"{service}  flag blue on for cup-1"
    ]  # fmt: skip
    assert [json.loads(line)["saga"] for line in saga("control", "show", service, "--json").stdout.splitlines()] == [
        None, "cup-1"
    ]  # fmt: skip
    audited = saga("audit", service)
    assert audited.exit_code == 0, audited.output
    *lines, last = audited.stdout.splitlines()
    assert [line.split("  ")[2] for line in lines] == ["ada: to see"] * 3
    assert [line.split("  ")[3].partition(":")[0] for line in lines] == ["switched (book)"] * 2 + ["refused"]
    assert last.startswith("the control log has 3 entries, the last digest is ")
    entries = [json.loads(line) for line in saga("audit", service, "--json").stdout.splitlines()]
    assert [entry["switch"]["flag"] for entry in entries] == ["blue", "blue", "bleu"]


@pytest.mark.slow
def test_a_paused_handler_begins_nothing_even_after_a_crash_and_then_runs_once(
    pottery_on: Pottery, kiln: str, saga: Call
) -> None:
    service = pottery_on.service
    mend(pottery_on, "cup-1", "cup-2")
    with running(kiln) as process:
        wanted = ("control", "pause", service, "--handler", "make", "--for", "2m", *BY, "--within", "30")
        paused = saga(*wanted)
        assert paused.exit_code == 0, paused.output
        assert paused.stdout.startswith(f"{service}  pause of handler make until ")
        refused = saga("control", "pause", service, "--handler", "bake", *BY, "--within", "30")
        assert refused.exit_code == 2, refused.output
        assert f"{service} refuses it: there is no handler 'bake'; there are " in refused.stderr
        publish(saga, "cup-1")
        until(lambda: "retrying" in saga("sagas", "list", "--open").stdout)
        assert "retrying (make is paused by ada: to see, until " in saga("sagas", "list", "--open").stdout
        assert "; last error: make is paused by ada: to see, until " in saga("sagas", "show", "cup-1").stdout
        if "SAGA_BROKER" in os.environ:  # Kafka leaves a dead member its partitions for ten seconds
            process.terminate()
            process.wait()
    publish(saga, "cup-2")
    with running(kiln):
        until(lambda: states_of(saga, "cup-1", "cup-2") == ["retrying"] * 2)
        ended = saga("control", "resume", service, "--handler", "make", *BY, "--within", "30")
        assert ended.exit_code == 0, ended.output
        until(lambda: "no sagas" in saga("sagas", "list", "--open").stdout)
    assert [outcomes(saga, cup) for cup in ("cup-1", "cup-2")] == [["retrying", "handled"]] * 2
    audited = saga("audit", service)
    assert audited.exit_code == 0, audited.output
    assert "refused: there is no handler 'bake'" in audited.stdout
    assert "no pause any more of handler make" in audited.stdout


def states_of(saga: Call, *cups: str) -> list[str | None]:
    """State of each of these sagas; `None` while no service knows it."""
    listed = json.loads(saga("sagas", "list", "--json").stdout)["sagas"]
    states = {each["saga"]: each["state"] for each in listed}
    return [states.get(cup) for cup in cups]


def publish(saga: Call, cup: str) -> None:
    assert saga("publish", "CupOrdered", stdin=json.dumps({"cup_id": cup})).exit_code == 0


def test_limits_and_routes_are_shown_with_who_and_why(pottery_on: Pottery, kiln: str, saga: Call) -> None:
    service = pottery_on.service
    with running(kiln):
        for wish in (("limit", "--handler", "make", "--at-once", "2"), ("route", "--event", "CupSold", "--to", "dead")):
            done = saga("control", wish[0], service, *wish[1:], *BY, "--within", "30")
            assert done.exit_code == 0, done.output
        cold = saga("control", "limit", service, "--resource", "kiln", "--rate", "1", *BY, "--within", "30")
        assert "there is no resource 'kiln'; there are none" in cold.stderr
    shown = saga("control", "show", service).stdout.splitlines()
    assert [line.partition("  ")[2].partition(" at 2")[0] for line in shown] == [
        "limit of handler make to 2 at once  ada", "route of event CupSold  ada"
    ]  # fmt: skip
    listed = [json.loads(line) for line in saga("control", "show", service, "--json").stdout.splitlines()]
    assert [(each["kind"], each["who"], each["why"]) for each in listed] == [
        ("limit", "ada", "to see"), ("route", "ada", "to see")
    ]  # fmt: skip


def test_a_wish_waits_for_a_service_that_does_not_run(pottery_on: Pottery, kiln: str, saga: Call) -> None:
    service = pottery_on.service
    with running(kiln):
        assert saga("control", "flag", service, "blue", "--percent", "1", *BY, "--within", "30").exit_code == 0
    late = saga("control", "flag", service, "blue", "--percent", "50", *BY, "--within", "0")
    assert (late.exit_code, late.stdout) == (1, "")
    assert f"{service} has not applied it yet: does it run?" in late.stderr


def test_a_changed_control_log_is_found(shop: Path, saga: Call) -> None:
    book = controls.ControlLog(service="payment")
    for n in range(3):
        switch = controls.Switch(flag="new", percent=n)
        record = controls.control_to_record("payment", switch, who="ada", why="to see", now_ms=n)
        more = controls.append_control(book, controls.parse_control(_lies(record)))
        assert more is not None
        book = more
    put(shop, book)
    assert saga("topics", "apply", "services.payment").exit_code == 0
    assert saga("audit", "payment").exit_code == 0
    put(shop, controls.ControlLog(service="payment", entries=book.entries[1:]))
    forged = saga("audit", "payment")
    assert forged.exit_code == 1
    assert "entry 0 does not follow the one before it" in forged.stderr


def test_a_flag_is_shown_until_its_time_whatever_the_zone_of_that_time_is(shop: Path, saga: Call) -> None:
    book: controls.ControlLog | None = controls.ControlLog(service="payment")
    now_ms = SystemClock().now_ms()
    for flag, hours in (("past", -1), ("active", 1)):  # as other clients may write it
        until = datetime.fromtimestamp(now_ms / 1000 + hours * 3600, timezone(timedelta(hours=-5 * hours)))
        switch = controls.Switch(flag=flag, percent=100.0, until=until.isoformat())
        record = controls.control_to_record("payment", switch, who="ada", why="to see", now_ms=now_ms - 7_200_000)
        assert book is not None
        book = controls.append_control(book, controls.parse_control(_lies(record)))
    assert book is not None
    put(shop, book)
    shown = saga("control", "show", "payment", "--json")
    assert [json.loads(line)["flag"] for line in shown.stdout.splitlines()] == ["active"]


def _lies(record: Outgoing) -> Record:
    return Record(record.topic, 0, 0, record.key, record.value, record.headers, 0)


def put(folder: Path, book: controls.ControlLog) -> None:
    key, content = controls.control_log_key("payment"), controls.encode(book)
    with sqlite3.connect(folder / ".saga" / "payment.db") as connection:
        connection.execute(
            "INSERT OR REPLACE INTO documents (collection, key, cas, sum, content) VALUES (?, ?, 1, ?, ?)",
            ("saga-archive", key, checksum("saga-archive", key, content), content),
        )
    connection.close()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("flag", "payment", "new", *BY), "give --percent, or --for SAGA"),
        (("flag", "payment", "new", "--percent", "101", *BY), "is not in the range"),
        (("flag", "payment", "new", "--percent", "10", "--for", "order-3", *BY), "on or off for one saga: 100 or 0"),
        (("flag", "payment", "new", "--percent", "1", "--until", "soon", *BY), "--until soon: give a time as"),
        (("flag", "payment", "new", "--percent", "1", "--who", "ada", "--why", " "), "--why is needed for the audit"),
        (("flag", "payment", " ", "--percent", "1", *BY), "a flag's name is a string"),
        (("pause", "payment", "--for", "soon", *BY), "--until soon: give a time as"),
        (("pause", "payment", "--who", " ", "--why", "b"), "--who is needed for the audit"),
        (("limit", "payment", "--resource", "bank", *BY), "a limit says how many at once, or how many a second"),
        (
            ("limit", "payment", "--handler", "reserve", "--rate", "-1", "--at-once", "0", *BY),
            "not 0: to stop it, pause it; a limit lets more than 0 a second through, not -1.0: to stop it, pause it; "
            "a handler is limited in its runs at once",
        ),
        (("limit", "payment", "--resource", "b", "--none", "--rate", "1", *BY), "--none ends a limit: leave out"),
        (("route", "payment", "--handler", "reserve", *BY), "give --to dead, or --off"),
        (("route", "payment", "--to", "dead", *BY), "a route needs its handler or its event: name it"),
        (("route", "payment", "--event", "A", "--off", "--for", "1h", *BY), "--off ends a route: leave out --for"),
        (("pause", "payment", "--for", "0s", *BY), "it would expire at once"),
        (("pause", "paymnet", *BY), "no service 'paymnet' has ever run here"),
        (("show", "nobody"), "no service nobody is known here, there are: "),
    ],
)
def test_a_wish_is_asked_for_in_full(saga: Call, shop: Path, args: tuple[str, ...], message: str) -> None:
    result = saga("control", *args)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
