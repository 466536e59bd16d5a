"""Reading commands on stores that real services have written: `saga sagas list`, `saga sagas show` and `saga sagas
verify`."""

import asyncio
import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from saga.errors import SagaError, StoreUnavailable
from saga.ops.histories import TimelineEntry
from saga.ops.sagas import follow_saga, wait_for_end
from saga.ops.selection import Deployment
from saga.ops.sources import open_stores
from saga.progress.document import decode_progress, decode_transition, encode
from saga.progress.history import decode_archive
from saga.store.port import Document
from saga.store.sqlite.adapter import files_of
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from tests.cli.conftest import Call
from tests.cli.example_runs import ShopClock, an_order, open_shop

ALL = ["inventory", "order", "payment", "shipping", "tally"]


def change(file: Path, collection: str, key: str, how: Callable[[bytes], bytes]) -> None:
    """Change a document, as a person with access to the file can do."""

    async def changed() -> None:
        async with SqliteStore(file, clock=SystemClock()) as store:
            document = await store.get(collection, key)
            assert document is not None
            new = how(document.content)
            assert new != document.content
            await store.replace(collection, key, new, cas=document.cas, keep_expiry=True)

    asyncio.run(changed())


# ---------------------------------------------------------------- list


def test_sagas_are_listed_newest_first_with_their_state_in_each_service(shop: Path, saga: Call) -> None:
    listed = saga("sagas", "list", "--json")
    assert listed.exit_code == 0
    found = json.loads(listed.stdout)
    outcomes = {each["saga"]: each["outcome"] for each in found["sagas"]}
    assert outcomes == {"order-1": "OrderConfirmed", "order-2": "OrderCancelled", "order-3": None, "order-4": None}
    [cancelled] = [each for each in found["sagas"] if each["saga"] == "order-2"]
    states = {service: kept["state"] for service, kept in cancelled["services"].items()}
    assert states == dict(zip(ALL, ["compensated", "handled", "compensated", "compensated", "handled"], strict=True))
    begins = [each["started"] for each in found["sagas"]]
    assert begins == sorted(begins, reverse=True)
    assert all(each["started"] <= each["changed"] for each in found["sagas"])


def test_the_limit_keeps_the_newest_and_shows_that_there_are_more(shop: Path, saga: Call) -> None:
    found = json.loads(saga("sagas", "list", "--json", "--limit", "2").stdout)
    everything = json.loads(saga("sagas", "list", "--json", "--limit", "4").stdout)
    assert found["sagas"] == everything["sagas"][:2]
    assert (found["more"], everything["more"]) == (True, False)
    assert saga("sagas", "list", "--limit", "2").stdout.endswith("and more: raise --limit to see them\n")


def test_only_what_is_open_or_dead_is_listed_when_asked_for(shop: Path, saga: Call) -> None:
    [dead] = json.loads(saga("sagas", "list", "--json", "--dead").stdout)["sagas"]
    assert dead["saga"] == "order-3"
    assert dead["open"] == {"waiting": 2, "intents": 1, "deadlines": 1, "dead": 1}
    assert dead["services"]["payment"]["state"] == "quarantined"
    [still_open] = json.loads(saga("sagas", "list", "--json", "--open").stdout)["sagas"]
    assert still_open == dead


def test_the_table_for_people_has_the_same_content(shop: Path, saga: Call) -> None:
    heading, *rows = saga("sagas", "list").stdout.splitlines()
    assert heading.split() == ["SAGA", "KIND", "STATE", "OUTCOME", "STARTED", "CHANGED", "OPEN", "SERVICES"]
    assert len(rows) == 4
    [dead] = [row for row in rows if row.startswith("order-3 ")]
    assert "waiting:2 intents:1 deadlines:1 dead:1" in dead
    assert "payment:quarantined" in dead
    told = [" ".join(row.split()) for row in sorted(rows)]
    assert told[0].startswith("order-1 OrderPlaced ended OrderConfirmed 20")
    assert told[1].startswith("order-2 OrderPlaced ended OrderCancelled (failure) 20")
    assert told[2].startswith("order-3 OrderPlaced dead - 20")


def test_a_progress_that_cannot_be_read_is_listed_as_damaged_and_the_others_are_listed(shop: Path, saga: Call) -> None:
    change(shop / ".saga" / "payment.db", "saga", "payment::order-1", lambda _: b'{"service": 7}')
    listed = saga("sagas", "list", "--json")
    assert listed.exit_code == 0
    assert "saga order-1 in payment (document payment::order-1): it cannot be read" in listed.stderr
    [first] = [each for each in json.loads(listed.stdout)["sagas"] if each["saga"] == "order-1"]
    assert first["services"]["payment"]["state"] == "damaged"
    assert first["services"]["payment"]["key"] == "payment::order-1"
    assert first["services"]["order"]["state"] == "handled"
    assert "payment:damaged" in saga("sagas", "list").stdout


def test_several_services_in_one_file_are_distinguished(folder: Path, saga: Call) -> None:
    asyncio.run(_shared(folder / "all.db"))
    found = json.loads(saga("sagas", "list", "--json", "--store", "sqlite:///all.db").stdout)["sagas"]
    assert {each["saga"]: sorted(each["services"]) for each in found} == {"a": ["x", "y"], "b::c": ["x", "y"]}
    assert saga("sagas", "verify", "--store", "sqlite:///all.db", "b::c").stdout.startswith("0 transitions in 2 ")


async def _shared(file: Path) -> None:
    async with SqliteStore(file, clock=SystemClock()) as store:
        for service in ("x", "y"):
            for id_ in ("b::c", "a"):
                content = msgspec.json.encode({"service": service, "saga": id_})
                await store.insert("saga", f"{service}::{id_}", content)


# ---------------------------------------------------------------- which stores


@pytest.mark.parametrize("command", [["sagas", "list"], ["sagas", "show", "order-1"], ["sagas", "verify"]])
def test_without_a_store_the_exit_code_is_2_and_what_to_do_is_printed(
    folder: Path, saga: Call, command: list[str]
) -> None:
    result = saga(*command)
    assert result.exit_code == 2
    assert "there is no store to be read" in result.stderr
    assert "--store" in result.stderr
    missing = saga(*command, "--store", "sqlite:///missing.db")
    assert missing.exit_code == 2
    assert "missing.db: there is no such file" in missing.stderr


def test_files_of_others_beside_the_stores_are_passed_over_unless_they_are_named(shop: Path, saga: Call) -> None:
    with sqlite3.connect(shop / ".saga" / "bank.db") as connection:
        connection.execute("CREATE TABLE calls (key TEXT)")
    connection.close()
    assert saga("sagas", "list").exit_code == 0
    named = saga("sagas", "list", "--store", "sqlite:///.saga/bank.db")
    assert named.exit_code == 2
    assert "something else made" in named.stderr


def test_a_store_of_a_newer_version_is_not_passed_over(shop: Path, saga: Call) -> None:
    with sqlite3.connect(shop / ".saga" / "payment.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    listed = saga("sagas", "list")
    assert listed.exit_code == 2
    assert "format 99" in listed.stderr


def test_all_problems_of_the_settings_are_reported_at_once(
    shop: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_STORE", "couch://x")
    monkeypatch.setenv("SAGA_DRAIN_S", "long")
    listed = saga("sagas", "list")
    assert listed.exit_code == 2
    assert "SAGA_STORE" in listed.stderr
    assert "SAGA_DRAIN_S" in listed.stderr
    assert "Traceback" not in listed.output


def test_a_pattern_finds_the_service_of_each_file(folder: Path) -> None:
    for name in ("a/order-1.db", "b/order-1.db", "a/Not a service.db", "[x]/payment.db"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert files_of("sqlite:///a/{service}.db") == [(Path("a/order-1.db"), "order-1")]
    assert files_of("sqlite:///[x]/{service}.db") == [(Path("[x]/payment.db"), "payment")]
    assert files_of("sqlite:///a/order-1.db") == [(Path("a/order-1.db"), None)]
    (folder / "order" / "x").mkdir(parents=True)
    (folder / "order" / "order.db").touch()
    (folder / "order" / "payment.db").touch()
    assert files_of("sqlite:///{service}/{service}.db") == [(Path("order/order.db"), "order")]
    (folder / "stores" / "backups").mkdir(parents=True)
    (folder / "stores" / "payment").touch()
    assert files_of("sqlite:///stores/{service}") == [(Path("stores/payment"), "payment")], "a folder is no store"


async def test_reading_changes_nothing(shop: Path) -> None:
    before = {path.name: path.read_bytes() for path in (shop / ".saga").glob("*.db")}
    async with open_stores([], SystemClock()) as sources:
        assert [source.service for source in sources] == ALL
        with pytest.raises(SagaError, match="for reading only"):
            await sources[0].store.insert("saga", "x", b"{}")
    assert {path.name: path.read_bytes() for path in (shop / ".saga").glob("*.db")} == before


# ---------------------------------------------------------------- show


def test_a_saga_is_one_timeline_over_all_services(shop: Path, saga: Call) -> None:
    shown = saga("sagas", "show", "order-1", "--json")
    assert shown.exit_code == 0
    lines = json.loads(shown.stdout)["timeline"]
    summary = [(line["service"], line["handler"], line["outcome"], line["emitted"]) for line in lines]
    assert summary[:2] == [("order", "", "noted", []), ("payment", "reserve", "handled", ["PaymentReserved"])]
    assert ("shipping", "book", "waiting", []) in summary
    assert summary.index(("shipping", "book", "handled", ["ShipmentBooked"])) < summary.index(
        ("order", "confirm", "handled", ["OrderConfirmed"])
    )
    assert sorted({line["service"] for line in lines}) == ALL
    assert [line["steps"] for line in lines if line["handler"] in ("reserve", "set_aside")] == [
        ["reserve"],
        ["update set_aside stock/tea"],
    ]
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)


def test_the_timeline_for_people_shows_what_is_open_and_why(shop: Path, saga: Call) -> None:
    text = saga("sagas", "show", "order-3").stdout
    assert text.startswith("saga order-3: no outcome yet; known to inventory, order, payment, shipping, tally\n")
    assert "(Permanent: the bank does not know such cards)" in text
    still_open = text.partition("still open:\n")[2]
    assert "payment: OrderPlaced for reserve is a dead letter and blocks the saga: dead-" in still_open
    assert "shipping: InventoryReserved for book is waiting" in still_open
    assert re.search(r"^  order: .*expire.*", still_open, re.MULTILINE), still_open
    assert "still open" not in saga("sagas", "show", "order-1").stdout


def test_one_service_is_shown_alone_when_asked_for(shop: Path, saga: Call) -> None:
    lines = json.loads(saga("sagas", "show", "order-2", "--service", "payment", "--json").stdout)["timeline"]
    assert [(line["handler"], line["outcome"]) for line in lines] == [
        ("reserve", "handled"),
        ("release", "compensated"),
    ]


def test_an_unknown_saga_is_a_no(shop: Path, saga: Call) -> None:
    shown = saga("sagas", "show", "order-99")
    assert shown.exit_code == 1
    assert shown.stdout == ""
    assert "no service knows saga order-99" in shown.stderr
    assert saga("sagas", "show", "order-4", "--service", "order").exit_code == 1


def test_the_state_is_shown_as_it_was_after_a_transition(shop: Path, saga: Call) -> None:
    def state(n: int) -> object:
        shown = saga("sagas", "show", "order-1", "--service", "tally", "--transition", str(n), "--json")
        return json.loads(shown.stdout)["state"]

    assert [state(0), state(1)] == [{"seen": 1, "last": "tea"}, {"seen": 2, "last": "tea"}]
    beyond = saga("sagas", "show", "order-1", "--service", "tally", "--transition", "2")
    assert beyond.exit_code == 1
    assert "it has 0 to 1" in beyond.stderr


def test_archived_transitions_are_shown_and_their_state_too(shop: Path, saga: Call) -> None:
    shown = json.loads(saga("sagas", "show", "order-4", "--service", "tally", "--json").stdout)
    assert [line["transition"] for line in shown["timeline"]] == list(range(71))
    early = saga("sagas", "show", "order-4", "--service", "tally", "--transition", "3", "--json")
    assert json.loads(early.stdout)["state"]["seen"] == 4
    assert shown["services"]["tally"]["fields"]["seen"] == 71


def test_a_transition_needs_a_service_when_several_know_the_saga(shop: Path, saga: Call) -> None:
    shown = saga("sagas", "show", "order-1", "--transition", "0")
    assert shown.exit_code == 2
    assert "name one of inventory, order, payment, shipping, tally with --service" in shown.stderr
    assert saga("sagas", "show", "order-1", "--follow", "--transition", "0").exit_code == 2


class Interrupted(Exception):
    """The person has seen enough."""


class Paced(ShopClock):
    """Does the next thing whenever the follower sleeps."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self.sleeps = folder, 0

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        match self.sleeps:
            case 2:
                async with open_shop(self._folder) as shop:
                    await shop.settle(an_order("order-9"))
            case 4:
                async with open_shop(self._folder, "payment") as shop:
                    await shop.again(an_order("order-9"), 70)
            case 6:
                raise Interrupted


async def test_following_waits_for_the_saga_and_prints_each_transition_once(folder: Path) -> None:
    seen: list[TimelineEntry] = []
    warned = list[object]()
    clock = Paced(folder / ".saga")
    with suppress(Interrupted):
        async for lines in follow_saga("order-9", Deployment(clock=clock, warn=warned.append)):
            seen += lines
    assert (clock.sleeps, warned) == (6, [])
    of_payment = [line.transition for line in seen if line.service == "payment"]
    assert of_payment == list(range(72))
    assert sorted({line.service for line in seen}) == ALL


async def test_waiting_for_a_saga_ends_when_it_has_ended_and_does_not_warn_meanwhile(folder: Path) -> None:
    warned = list[object]()
    clock = Paced(folder / ".saga")
    left = await wait_for_end("order-9", Deployment(clock=clock, warn=warned.append), {}, 600)
    assert (left, clock.sleeps, warned) == ([], 2, []), "at the first two looks there was no store, then all had ended"


class Recovering(ShopClock):
    """Brings the store back when it sleeps for the second time."""

    def __init__(self, come_back: Callable[[], object], last: int) -> None:
        super().__init__()
        self._come_back, self._last, self.sleeps = come_back, last, 0

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        if self.sleeps == 2:
            self._come_back()
        if self.sleeps == self._last:
            raise Interrupted


async def test_following_goes_on_when_the_store_does_and_warns_once(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(put, shop / ".saga" / "payment.db", "payment::order-1", b"rubbish")
    warned, seen, read = list[object](), list[TimelineEntry](), SqliteStore.get
    clock = Recovering(lambda: monkeypatch.setattr(SqliteStore, "get", read), last=5)

    async def away(self: SqliteStore, collection: str, key: str) -> Document | None:
        raise StoreUnavailable("the store is away")

    with suppress(Interrupted):
        async for lines in follow_saga("order-1", Deployment(clock=clock, warn=warned.append)):
            seen += lines
            monkeypatch.setattr(SqliteStore, "get", away)
    assert clock.sleeps == 5
    assert sorted({line.service for line in seen}) == [name for name in ALL if name != "payment"]
    assert [str(why) for why in warned if "away" in str(why)] == ["the store is away"]
    assert len(warned) == 2, "and the damaged progress once"


async def test_waiting_goes_on_while_the_store_is_unavailable(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = SqliteStore.get

    async def away(self: SqliteStore, collection: str, key: str) -> Document | None:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(SqliteStore, "get", away)
    clock = Recovering(lambda: monkeypatch.setattr(SqliteStore, "get", read), last=9)
    assert await wait_for_end("order-1", Deployment(clock=clock, warn=print), {}, 600) == []
    assert clock.sleeps == 2
    monkeypatch.setattr(SqliteStore, "get", away)
    with pytest.raises(StoreUnavailable, match="the store is away"):
        await wait_for_end("order-1", Deployment(clock=clock, warn=print), {}, 0)


def test_following_ends_well_with_ctrl_c_and_prints_what_it_saw_at_once(shop: Path) -> None:
    # As the shell starts it, save that Ctrl-C reaches it whatever the process that runs the tests does with it.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from saga.cli.main import main; main(['sagas', 'show', 'order-1', '--follow', '--json'])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert json.loads(following.stdout.readline())["outcome"] == "noted"
        following.send_signal(signal.SIGINT)
        assert following.wait(timeout=60) == 0
        assert following.stderr.read() == b""


# ---------------------------------------------------------------- verify


def test_histories_as_they_were_written_are_counted(shop: Path, saga: Call) -> None:
    verified = saga("sagas", "verify", "--json")
    assert verified.exit_code == 0
    counts = json.loads(verified.stdout)
    assert counts["services"] == ALL
    assert counts["histories"] == 5 + 5 + 5 + 2
    assert counts["broken"] == []
    of_one = saga("sagas", "verify", "order-4")
    counted, alone = of_one.stdout.splitlines()
    assert counted == "142 transitions in 2 histories of inventory, order, payment, shipping, tally: all unchanged"
    assert alone == (
        "without a witness (no file .saga/broker.db: say with SAGA_BROKER where the log is): an earlier version of a "
        "whole progress would not be found"
    )


def test_a_transition_that_was_changed_is_named(shop: Path, saga: Call) -> None:
    change(
        shop / ".saga" / "payment.db",
        "saga",
        "payment::order-1",
        lambda content: content.replace(b'"handler":"reserve","message"', b'"handler":"reverse","message"'),
    )
    verified = saga("sagas", "verify")
    assert verified.exit_code == 1
    assert "saga order-1 in payment: transition 1 does not follow what is before it" in verified.stdout
    assert "1 histories are not as they were written" in verified.stdout
    assert saga("sagas", "verify", "order-2").exit_code == 0
    assert saga("sagas", "verify", "order-1").exit_code == 1


def test_with_more_broken_histories_than_are_shown_their_number_is_printed(
    shop: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for order in ("order-1", "order-2", "order-3"):
        change(shop / ".saga" / "payment.db", "saga", f"payment::{order}", lambda content: content[:-1])

    def shown() -> tuple[int, bool]:
        lines = saga("sagas", "verify").stdout.splitlines()
        return sum(" in payment: " in line for line in lines), "and 1 more: --json shows all" in lines

    assert shown() == (3, False)
    monkeypatch.setattr("saga.cli.sagas.BROKEN_SHOWN_MAX", 2)
    assert shown() == (2, True)
    assert len(json.loads(saga("sagas", "verify", "--json").stdout)["broken"]) == 3


def test_a_state_that_no_transition_made_is_found(shop: Path, saga: Call) -> None:
    def richer(content: bytes) -> bytes:
        p = decode_progress(content)
        return encode(replace(p, state={**p.state, "seen": 100}))

    change(shop / ".saga" / "tally.db", "saga", "tally::order-1", richer)
    [broken] = json.loads(saga("sagas", "verify", "--json").stdout)["broken"]
    assert (broken["saga"], broken["service"]) == ("order-1", "tally")
    assert broken["what"] == "the state is not what the transitions make of it"


def test_a_transition_that_was_left_out_of_an_archive_is_found(shop: Path, saga: Call) -> None:
    def shorter(content: bytes) -> bytes:
        archive = decode_archive(content)
        kept = (*archive.transitions[:7], *archive.transitions[8:])
        return encode(replace(archive, transitions=kept))

    change(shop / ".saga" / "payment.db", "saga-archive", "payment::order-4::000000000", shorter)
    [broken] = json.loads(saga("sagas", "verify", "--json").stdout)["broken"]
    assert broken == {
        "saga": "order-4",
        "service": "payment",
        "transition": 7,
        "what": "transition 7 is missing: 8 follows",
        "todo": "",
    }


def test_an_unreadable_progress_is_reported_as_broken_without_a_crash(shop: Path, saga: Call) -> None:
    change(shop / ".saga" / "order.db", "saga", "order::order-1", lambda _: b"{}")
    change(
        shop / ".saga" / "payment.db",
        "saga",
        "payment::order-2",
        lambda content: content.replace(b'"outcome":"compensated"', b'"outcome":"enjoyed"'),
    )
    change(shop / ".saga" / "tally.db", "saga-archive", "tally::order-4::000000000", lambda _: b"{}")
    verified = saga("sagas", "verify", "--json")
    assert verified.exit_code == 1
    broken = {(each["saga"], each["service"]) for each in json.loads(verified.stdout)["broken"]}
    assert broken == {("order-1", "order"), ("order-2", "payment"), ("order-4", "tally")}
    shown = saga("sagas", "show", "order-2")
    assert shown.exit_code == 2
    assert "`saga sagas verify order-2` shows where it was changed" in shown.stderr


def test_a_progress_under_the_key_of_another_saga_is_found(shop: Path, saga: Call) -> None:
    change(
        shop / ".saga" / "payment.db",
        "saga",
        "payment::order-1",
        lambda content: encode(replace(decode_progress(content), saga="order-2")),
    )
    [broken] = json.loads(saga("sagas", "verify", "--json").stdout)["broken"]
    assert broken["what"] == "it is of saga order-2 in payment, under the key of another"


def put(file: Path, key: str, content: bytes) -> None:
    """In the place of what stands under that key."""
    change(file, "saga", key, lambda _: content)


def content_of(file: Path, key: str) -> bytes:
    async def read() -> bytes:
        async with SqliteStore(file, clock=SystemClock(), readonly=True) as store:
            document = await store.get("saga", key)
            assert document is not None
            return document.content

    return asyncio.run(read())


def test_another_sagas_document_under_this_id_is_found_though_it_names_this_one(shop: Path, saga: Call) -> None:
    file = shop / ".saga" / "payment.db"
    p = decode_progress(content_of(file, "payment::order-2"))
    put(file, "payment::order-1", encode(replace(p, saga="order-1")))
    [broken] = json.loads(saga("sagas", "verify", "--json").stdout)["broken"]
    assert (broken["saga"], broken["service"], broken["transition"]) == ("order-1", "payment", 0)
    assert "transition 0 was not written for saga order-1 in payment" in broken["what"]


@pytest.mark.parametrize("says", ["inventory", "payment"])
def test_a_progress_under_the_key_of_another_service_is_found_whatever_it_claims(
    shop: Path, saga: Call, says: str
) -> None:
    p = decode_progress(content_of(shop / ".saga" / "inventory.db", "inventory::order-1"))
    put(shop / ".saga" / "payment.db", "payment::order-1", encode(replace(p, service=says)))
    [broken] = json.loads(saga("sagas", "verify", "--json").stdout)["broken"]
    assert (broken["saga"], broken["service"]) == ("order-1", "payment")


def test_a_history_whose_end_was_cut_off_is_found_though_its_count_and_hash_fit(shop: Path, saga: Call) -> None:
    def shorter(content: bytes) -> bytes:
        p = decode_progress(content)
        last, n = decode_transition(p.transitions[-1]), p.n - 1
        left = p.transitions[:-1]
        return encode(replace(p, n=n, published=n - 1, hash=last.previous, transitions=left))

    change(shop / ".saga" / "payment.db", "saga", "payment::order-2", shorter)
    [broken] = json.loads(saga("sagas", "verify", "--json").stdout)["broken"]
    assert broken["what"].startswith("not what the transitions make of it, in the snapshot: closed, failed, inbox")


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("order::order-2", "outcome", "OrderConfirmed"),
        ("payment::order-1", "results", ()),
        ("payment::order-1", "inbox", {}),
        ("payment::order-2", "closed", ()),
        ("payment::order-3", "queue", ()),
    ],
)
def test_an_edited_snapshot_is_found_and_the_field_named(
    shop: Path, saga: Call, key: str, field: str, value: object
) -> None:
    service = key.partition("::")[0]
    p = decode_progress(content_of(shop / ".saga" / f"{service}.db", key))
    put(shop / ".saga" / f"{service}.db", key, encode(replace(p, **{field: value})))
    [broken] = json.loads(saga("sagas", "verify", "--json").stdout)["broken"]
    assert broken["what"] == f"not what the transitions make of it, in the snapshot: {field}"


def test_a_history_of_an_older_format_is_counted_as_not_bound_to_its_saga(shop: Path, saga: Call) -> None:
    def older(content: bytes) -> bytes:
        p, previous, made = decode_progress(content), "", list[msgspec.Raw]()
        for raw in p.transitions:
            made.append(msgspec.Raw(encode(replace(decode_transition(raw), previous=previous, changes={}))))
            previous = sha256(bytes(made[-1])).hexdigest()
        return encode(replace(p, transitions=tuple(made), hash=previous))

    change(shop / ".saga" / "payment.db", "saga", "payment::order-1", older)
    verified = saga("sagas", "verify")
    assert verified.exit_code == 0
    assert verified.stdout.splitlines()[2:] == [
        "1 in an older format: not bound to their saga, and only their state is compared"
    ]
    assert json.loads(saga("sagas", "verify", "--json").stdout)["older"] == 1


def test_the_help_names_what_is_not_found(saga: Call) -> None:
    output = saga("sagas", "verify", "--help").stdout
    for what in (
        "intents",
        "(own)",
        "with a result",
        "(heard)",
        "times of inbox",
        "time 0",
        "(published)",
        "earlier version of a whole progress",
    ):
        assert what in output.partition("Not found")[2]


def test_verifying_an_unknown_saga_exits_with_1(shop: Path, saga: Call) -> None:
    verified = saga("sagas", "verify", "order-99")
    assert verified.exit_code == 1
    assert "no service knows saga order-99" in verified.stderr
