"""`saga sagas list`: its costs, damaged documents, its count of open sagas, and all that `--dead` shows."""

import asyncio
import json
import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga import Event
from saga.broker.embedded.broker import EmbeddedBroker
from saga.contracts import codec
from saga.contracts.library import contract_of
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.lifecycle import open_resources
from saga.engine.persistence import dead_letters
from saga.engine.prepared_service import prepare
from saga.engine.service_runtime import make_service_runtime
from saga.messages import Message, Outgoing, Position, Record, Topic
from saga.ops import histories, sagas
from saga.ops.dead_letters import decode_dead_letter
from saga.ops.histories import ServiceStatus, compute_status, decode_summary
from saga.ops.sagas import UNSTARTED, ListedSaga, SagaSummary, describe_open_work
from saga.ops.sources import ServiceStore
from saga.progress.document import DeadLetterRecord, SagaProgress, decode_progress, decode_transition, encode
from saga.store.port import Store
from saga.store.sqlite.documents import checksum
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock, iso
from saga.testing.trials import trial_ports
from services.order.events import OrderPlaced
from tests.cli.conftest import Call
from tests.cli.example_runs import ShopClock, ShopLog, an_order, open_shop
from tests.progress.pieces import a_message, blank, kept, ran
from tests.service.test_on_abort import CANCELLED, PLACED, Hotel, reserve, service_of

NOW_MS = SystemClock().now_ms()


def put(file: Path, *documents: tuple[str, object], collection: str = "saga") -> None:
    """Put contents of any sort under new keys, as a person with access to the file can do."""
    with sqlite3.connect(file) as connection:
        connection.executemany(
            "INSERT OR REPLACE INTO documents (collection, key, cas, sum, content) VALUES (?, ?, 1, ?, ?)",
            [
                (collection, key, checksum(collection, key, content) if isinstance(content, bytes) else 7, content)
                for key, content in documents
            ],
        )
    connection.close()


@pytest.fixture
def file(folder: Path) -> Path:
    """The store of one service `svc`, empty."""

    async def make() -> None:
        async with SqliteStore(folder / ".saga" / "svc.db", clock=SystemClock()):
            pass

    asyncio.run(make())
    return folder / ".saga" / "svc.db"


def a_saga(number: int, **fields: object) -> tuple[str, bytes]:
    p = replace(blank(iso(1_795_000_000_000 + number)), saga=f"s-{number:05}")
    return f"svc::s-{number:05}", encode(replace(p, **fields))


# ---------------------------------------------------------------- cost


@pytest.fixture
def glanced(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every progress that was looked at."""
    seen: list[bytes] = []

    def counting(content: bytes) -> object:
        seen.append(content)
        return decode_summary(content)

    monkeypatch.setattr(sagas, "decode_summary", counting)
    return seen


def test_a_list_costs_what_it_prints_and_not_what_the_store_holds(file: Path, saga: Call, glanced: list[bytes]) -> None:
    put(file, *(a_saga(number) for number in range(3000)))
    found = json.loads(saga("sagas", "list", "--json", "--limit", "7").stdout)
    assert [each["saga"] for each in found["sagas"]] == [f"s-{2999 - i:05}" for i in range(7)]
    assert found["more"] is True
    assert len(glanced) <= 9


def test_blocked_sagas_are_found_without_reading_expiring_progresses(
    file: Path, saga: Call, glanced: list[bytes]
) -> None:
    dead = (kept("reserve", a_message("A"), dead="dead-1"),)
    put(file, *(a_saga(number) for number in range(300)), a_saga(7, queue=dead))
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE documents SET expires_at_ms = 9e15, expiry_hour = 7 WHERE key <> 'svc::s-00007'")
    connection.close()
    found = json.loads(saga("sagas", "list", "--json", "--dead").stdout)
    assert [letter["id"] for letter in found["letters"]] == ["dead-1"]
    assert len(glanced) == 1


def test_only_ids_that_begin_so_are_listed(file: Path, saga: Call, glanced: list[bytes]) -> None:
    put(file, *(a_saga(number) for number in range(300)))
    found = json.loads(saga("sagas", "list", "--json", "--prefix", "s-0012").stdout)
    assert [each["saga"] for each in found["sagas"]] == [f"s-{129 - i:05}" for i in range(10)]
    assert len(glanced) == 10


def test_only_what_a_service_knows_is_listed(shop: Path, saga: Call) -> None:
    found = json.loads(saga("sagas", "list", "--json", "--service", "order").stdout)["sagas"]
    assert sorted(each["saga"] for each in found) == ["order-1", "order-2", "order-3"]
    assert {name for each in found for name in each["services"]} == {"order"}


def test_only_sagas_of_a_principal_are_listed_and_the_principal_is_shown(file: Path, saga: Call) -> None:
    hostile = "ada'; known to nobody\x1b[2J"
    began = {1: "user:4711", 2: "user:4712", 4: "user:4711", 5: hostile}
    put(file, *(a_saga(number, principal=began.get(number)) for number in range(6)))
    found = json.loads(saga("sagas", "list", "--json", "--principal", "user:4711").stdout)["sagas"]
    assert [(each["saga"], each["principals"]) for each in found] == [(f"s-{n:05}", ["user:4711"]) for n in (4, 1)]
    assert saga("sagas", "list", "--principal", "user:47").stdout == "no sagas\n"
    assert "give one of them" in saga("sagas", "list", "--dead", "--principal", "user:4711").stderr
    assert saga("sagas", "show", "s-00001").stdout.startswith(
        "saga s-00001: no outcome yet; started by 'user:4711'; known to svc\n"
    )
    assert saga("sagas", "show", "s-00000").stdout.startswith("saga s-00000: no outcome yet; known to svc\n")
    assert r"started by 'ada'; known to nobody\x1b[2J'; known to svc" in saga("sagas", "show", "s-00005").stdout
    assert json.loads(saga("sagas", "show", "s-00005", "--json").stdout)["services"]["svc"]["principal"] == hostile


def test_services_that_know_different_principals_of_a_saga_are_shown_with_both(
    file: Path, folder: Path, saga: Call
) -> None:
    put(file, a_saga(1, principal="user:4711"))
    (folder / ".saga" / "other.db").write_bytes(file.read_bytes())
    key, content = a_saga(1, service="other", principal="user:4712")
    put(folder / ".saga" / "other.db", (key.replace("svc", "other"), content))
    assert "; started by 'user:4712' and 'user:4711'; known to other, svc" in saga("sagas", "show", "s-00001").stdout
    for who in ("user:4711", "user:4712"):
        assert "s-00001" in saga("sagas", "list", "--principal", who).stdout


def test_a_damaged_progress_may_be_of_any_principal_but_that_of_another_service(
    file: Path, folder: Path, saga: Call
) -> None:
    put(file, ("svc::s-00001", b"rubbish"), ("svc::s-00002", b"rubbish"))
    (folder / ".saga" / "other.db").write_bytes(file.read_bytes())
    key, content = a_saga(1, service="other", principal="user:1")
    put(folder / ".saga" / "other.db", (key.replace("svc", "other"), content))
    for who, expected in (("user:1", ["s-00001", "s-00002"]), ("user:2", ["s-00002"])):
        found = json.loads(saga("sagas", "list", "--json", "--principal", who).stdout)["sagas"]
        assert sorted(each["saga"] for each in found) == expected


def test_a_store_that_knows_no_order_of_time_is_looked_at_within_a_bound(
    shop: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sagas, histories):
        monkeypatch.setattr(module, "NewestFirst", type(None))
    everything = json.loads(saga("sagas", "list", "--json").stdout)["sagas"]
    begins = [each["started"] for each in everything]
    assert len(everything) == 4
    assert begins == sorted(begins, reverse=True)
    monkeypatch.setattr(sagas, "LOOKED_AT_MAX", 1)
    listed = saga("sagas", "list", "--json")
    assert "name the beginning of an id with --prefix" in listed.stderr
    assert {each["saga"] for each in json.loads(listed.stdout)["sagas"]} == {"order-1"}


# ---------------------------------------------------------------- damage


def damaged(content: bytes) -> Iterator[object]:
    """A progress after accidents of many sorts, and what never was one."""
    yield from (b"", b"{}", b"7", b"null", b'{"service": 7}', b"\xff\xfe", content[: len(content) // 2], b"[" * 10_000)
    yield from (7, 7.5, content.decode(), "\udc80".encode("utf-8", "surrogatepass"))
    yield content.replace(b'"outcome":"', b'"outcome":"\xff')
    yield content.replace(b'{"service"', b'{"format":99,"service"')
    yield content.replace(b'{"service"', b'{"deep":%b,"service"' % (b"[" * 10_000 + b"]" * 10_000))
    for i in range(200):
        changed = bytearray(content)
        for j in range((1, 1, 3, 20)[i % 4]):
            changed[(i * 7919 + j * 104_729) % len(changed)] = (i * 31 + j * 17) % 256
        yield bytes(changed)


@pytest.mark.parametrize("options", [(), ("--open",), ("--dead",)], ids=" ".join)
def test_no_damaged_document_ends_a_list(shop: Path, saga: Call, options: tuple[str, ...]) -> None:
    file = shop / ".saga" / "payment.db"
    with sqlite3.connect(file) as connection:
        [(content,)] = connection.execute("SELECT content FROM documents WHERE key = 'payment::order-3'").fetchall()
    connection.close()
    put(file, *((f"payment::bad-{i:04}", value) for i, value in enumerate(damaged(content))))
    listed = saga("sagas", "list", "--json", "--limit", "1000", *options)
    assert listed.exit_code == 0
    found = {each["saga"]: each for each in json.loads(listed.stdout)["sagas"]}
    assert "order-3" in found
    if not options:
        assert len(found) == 4 + sum(1 for _ in damaged(content))
        assert found["bad-0000"]["services"]["payment"]["state"] == "damaged"
        assert found["bad-0000"]["services"]["payment"]["key"] == "payment::bad-0000"
    assert all(line.startswith(("saga: ", "  ")) for line in listed.stderr.splitlines())


@pytest.mark.parametrize("column", ["content", "sum", "cas", "expires_at_ms"])
@pytest.mark.parametrize(
    "command", ["sagas list", "sagas list --open", "sagas list --dead", "sagas verify", "sagas show order-1"]
)
@pytest.mark.parametrize("text", ["x'ff'", "'x'"])
def test_no_column_that_became_text_ends_a_command(
    shop: Path, saga: Call, column: str, command: str, text: str
) -> None:
    """A damaged bit makes text of a document's bytes, and text that is none is an error of the whole query."""
    file = shop / ".saga" / "payment.db"
    with sqlite3.connect(file) as connection:
        update = f"UPDATE documents SET {column} = CAST({text} AS TEXT) WHERE key = 'payment::order-3'"
        connection.execute(update)
    connection.close()
    result = saga(*command.split())
    assert result.exit_code in (0, 1), result.stderr
    assert "Traceback" not in result.stderr
    if command == "list":
        assert all(f"order-{n} " in result.stdout for n in (1, 2, 3))


def test_no_damaged_document_ends_a_verification(shop: Path, saga: Call) -> None:
    file = shop / ".saga" / "payment.db"
    with sqlite3.connect(file) as connection:
        [(content,)] = connection.execute("SELECT content FROM documents WHERE key = 'payment::order-3'").fetchall()
    connection.close()
    put(file, *((f"payment::bad-{i:04}", value) for i, value in enumerate(damaged(content))))
    verified = saga("sagas", "verify", "--json")
    assert verified.exit_code == 1
    found = json.loads(verified.stdout)
    assert {each["saga"] for each in found["broken"]} == {f"bad-{i:04}" for i, _ in enumerate(damaged(content))}
    assert verified.stderr == ""


# ---------------------------------------------------------------- open


def parts(*, decides: bool = False, **fields: object) -> SagaProgress:
    waits = replace(kept("both", a_message("A")), decides=decides)
    return replace(blank(), waiting=(waits,), **fields)


@pytest.mark.parametrize(
    ("p", "waiting", "left"),
    [
        (parts(), 1, 0),
        (parts(closed=("both",)), 0, 1),
        (parts(completed_runs=(ran("both", a_message("B"), "x"),)), 0, 1),
        (parts(outcome="Cancelled"), 1, 0),
        (parts(outcome="Cancelled", decides=True), 0, 1),
        (parts(decides=True), 1, 0),
    ],
)
def test_a_part_is_open_until_its_handler_can_never_run(p: SagaProgress, waiting: int, left: int) -> None:
    for each in (compute_status(p), compute_status(decode_summary(encode(p)))):
        assert (each.waiting, each.left) == (waiting, left)
        assert each.is_open == bool(waiting)


DUE = replace(kept("both", a_message("A")), due_ms=1)


@pytest.mark.parametrize(
    ("p", "state"),
    [
        (blank(), "idle"),
        (replace(blank(), outcome="Confirmed"), "ended"),
        (replace(blank(), failed=("Cancelled",)), "ended"),
        (parts(), "open"),
        (parts(outcome="Confirmed"), "ended"),
        (replace(blank(), outcome="Confirmed", deadlines=(DUE,)), "open"),
        (replace(blank(), queue=(DUE,)), "retrying"),
        (replace(blank(), queue=(DUE, replace(DUE, dead="dead-1"))), "dead"),
    ],
)
def test_the_state_of_a_saga_is_one_word(p: SagaProgress, state: str) -> None:
    other = replace(blank(), service="other")
    assert ListedSaga("s", (compute_status(other), compute_status(p))).state == state
    damaged = SagaSummary(ServiceStore("other", cast(Store, None)), "s", None)
    assert ListedSaga("s", (compute_status(p),), (damaged,)).state == ("dead" if state == "dead" else "damaged")


def test_the_kind_of_a_saga_is_the_type_of_the_first_message_that_any_service_handled() -> None:
    def heard(service: str, second: int, type_: str, **fields: object) -> ServiceStatus:
        entry = {"time": f"2026-01-01T00:00:{second:02}.000Z", "outcome": "handled", "type": type_}
        return compute_status(replace(blank(), service=service, transitions=(Raw(encode(entry)),), **fields))

    later, first = heard("order", 2, "PaymentReserved"), heard("payment", 1, "OrderPlaced")
    assert ListedSaga("s", (later, first)).kind == "OrderPlaced"
    assert ListedSaga("s", (later, heard("payment", 1, "OrderPlaced", first=7))).kind == "PaymentReserved"
    unreadable = compute_status(replace(blank(), transitions=(Raw(b"{}"), Raw(b'{"time": "", "outcome": "handled"}'))))
    assert ListedSaga("s", (unreadable,)).kind is None


def test_parts_of_a_saga_that_is_over_are_open_nowhere_after_an_hour(shop: Path, saga: Call) -> None:
    """`order-2` was cancelled: what another service then still waits for will never be emitted."""
    p = replace(decode_progress(content_of(shop, "tally", "order-2")), waiting=(kept("both", a_message("A")),))

    def is_open() -> bool:
        found = json.loads(saga("sagas", "list", "--json", "--open").stdout)["sagas"]
        return "order-2" in {each["saga"] for each in found}

    put(shop / ".saga" / "tally.db", ("tally::order-2", encode(p)))
    assert is_open(), "what it waits for may be on its way"
    for name in ("order", "payment", "inventory", "shipping", "tally"):
        long_ago = encode(p if name == "tally" else decode_progress(content_of(shop, name, "order-2")))
        put(shop / ".saga" / f"{name}.db", (f"{name}::order-2", earlier(long_ago)))
    assert not is_open()
    [found] = [
        each for each in json.loads(saga("sagas", "list", "--json").stdout)["sagas"] if each["saga"] == "order-2"
    ]
    assert (found["open"], found["left"]) == ({}, 1)
    order = replace(decode_progress(content_of(shop, "order", "order-2")), outcome=None)
    put(shop / ".saga" / "order.db", ("order::order-2", encode(order)))
    assert not is_open(), "others know that it failed, when who ended it has forgotten it"
    put(shop / ".saga" / "tally.db", ("tally::order-2", earlier(encode(replace(p, started=None)))))
    assert is_open(), "it waits to hear when its saga began, however long"
    [found] = [
        each for each in json.loads(saga("sagas", "list", "--json").stdout)["sagas"] if each["saga"] == "order-2"
    ]
    assert found["open"] == {"unstarted": 1}


def test_an_outcome_of_a_saga_without_a_start_is_shown_apart_with_what_it_waits_for() -> None:
    p = replace(blank(), started=None, compensating=(kept("reserve", a_message("Cancelled")),))
    for each in (compute_status(p), compute_status(decode_summary(encode(p)))):
        assert (each.unstarted, each.compensating, each.is_open) == (1, 0, True)
    assert describe_open_work(p, compute_status(p), {}) == [
        f"Cancelled waits {UNSTARTED}: whether reserve did something to be undone is not known"
    ]
    waits = replace(blank(), started=None, waiting=(kept("reserve", a_message("A")),))
    assert describe_open_work(waits, compute_status(waits), {}) == [f"A for reserve waits {UNSTARTED}"]


def content_of(shop: Path, service: str, name: str) -> bytes:
    with sqlite3.connect(shop / ".saga" / f"{service}.db") as connection:
        query = "SELECT content FROM documents WHERE collection = 'saga' AND key = ?"
        [(content,)] = connection.execute(query, (f"{service}::{name}",)).fetchall()
    connection.close()
    return bytes(content)


def earlier(content: bytes) -> bytes:
    """The same a year ago: a list shows the times of transitions, whatever their hashes."""
    year = int(iso(NOW_MS)[:4])
    return content.replace(f"{year}-".encode(), f"{year - 1}-".encode())


# ---------------------------------------------------------------- dead


def a_letter(number: int, what: str = "dead letter", id_: str = "", calls: tuple[str, ...] = ()) -> DeadLetterRecord:
    return DeadLetterRecord(
        id=id_ or f"dead-{number}", kind=what, handler="reserve", reason=f"reason {number}", remedy="mend",  # type: ignore[arg-type]
        message=a_message("A", f"m-{number}"), attempts=number, calls=calls,
    )  # fmt: skip


def publish_letters(folder: Path, *letters: Outgoing) -> None:
    async def publish() -> None:
        async with EmbeddedBroker(folder / ".saga" / "broker.db", clock=SystemClock()) as broker:
            await broker.ensure_topics(
                [Topic(topic, 1, None) for topic in {"payment.dead", *(each.topic for each in letters)}]
            )
            await broker.publish(letters)

    asyncio.run(publish())


def everything_dead() -> list[Outgoing]:
    late = replace(a_message("A", "late"), saga="s-late")
    record = Record("orders", 0, 5, None, b"\x00rubbish", (("dead_id", b"forged"), ("x", None)), 0)
    dead = [
        a_letter(1),
        a_letter(2),
        a_letter(2, "dropped", "dead-2-dropped"),
        a_letter(3, "escalation", calls=("step x ran",)),
    ]
    return [
        *(dead_letters.to_outgoing("payment", letter, iso(NOW_MS + i), "here", None) for i, letter in enumerate(dead)),
        dead_letters.to_outgoing("payment", a_letter(1), iso(NOW_MS), "here", None),
        dead_letters.from_forgotten("payment", late, Position("orders", 0, 3), None),
        dead_letters.from_unreadable("payment", record, "no reader for it", NOW_MS, None),
        Outgoing("payment.dead", b"s", b"anything", (("no", b"letter"),)),
    ]


def test_everything_on_the_topic_and_what_blocks_in_the_store_is_listed_with_its_reason(shop: Path, saga: Call) -> None:
    publish_letters(shop, *everything_dead())
    found = json.loads(saga("sagas", "list", "--json", "--dead").stdout)
    [blocked] = [each for each in found["letters"] if each["saga"] == "order-3"]
    assert (blocked["now"], blocked["handler"], blocked["type"]) == ("blocks", "reserve", "OrderPlaced")
    assert blocked["reason"] == "Permanent: the bank does not know such cards"
    others = {each["id"]: each for each in found["letters"] if each is not blocked}
    letters = {id_: (each["what"], each["now"], each["reason"][:9]) for id_, each in others.items()}
    assert letters["dead-1"] == ("dead letter", "-", "reason 1")
    assert letters["dead-2"] == ("dead letter", "dropped", "reason 2")
    assert letters["dead-2-dropped"] == ("dropped", "-", "reason 2")
    assert letters["dead-3"] == ("escalation", "-", "reason 3")
    assert others["dead-3"]["calls"] == ["step x ran"]
    assert sorted(what[2] for what in letters.values()) == [
        "no reader", "older tha", "reason 1", "reason 2", "reason 2", "reason 3",
    ]  # fmt: skip
    assert "forged" not in others
    times = [each["time"] for each in found["letters"]]
    assert times == sorted(times, reverse=True)
    assert [each["saga"] for each in found["sagas"]] == ["order-3"]


def test_an_escalation_of_calls_that_undo_a_dead_run_is_open_until_they_succeed(folder: Path, saga: Call) -> None:
    """The run never finished, so there is no result: what undoes it are the calls that it gave to `on_abort`."""
    hotel, log = Hotel(fails=4), deque[Outgoing]()

    async def handle(*events: Event) -> None:
        clock, declared = ShopClock(), service_of(reserve).declared
        async with SqliteStore(folder / ".saga" / "payment.db", clock=clock) as store, AsyncExitStack() as stack:
            resources = await open_resources(declared, stack, clock, 10, [hotel])
            ports = trial_ports("payment", store, clock, ShopLog(log))
            processor = MessageProcessor(make_service_runtime(prepare(declared), resources, ports))
            for n, event in enumerate(events):
                contract, now = contract_of(type(event)), iso(clock.now_ms())
                message = Message(
                    id=f"{contract.name}-1", type=contract.name, schema=type(event).__contract__, saga="o-1",
                    source="order", time=now, value=codec.encode(event), started=now,
                )  # fmt: skip
                await processor.process(processor.begin(message, Position(contract.topic, 0, n), None))

    asyncio.run(handle(PLACED, CANCELLED))
    publish_letters(folder, *(record for record in log if record.topic == "payment.dead"))
    listed = saga("dead", "list", "--json")
    states = {each["what"]: each["now"] for each in json.loads(listed.stdout)["letters"]}
    assert (listed.exit_code, states) == (1, {"dead letter": "blocks", "escalation": "goes on"})


def test_only_sagas_with_what_is_selected_count_for_the_limit(file: Path, saga: Call) -> None:
    """In flight are always many sagas, and in an incident many are blocked: what is meant lies behind them."""
    waits = kept("reserve", a_message("A"))
    put(
        file,
        *(a_saga(n, queue=(replace(waits, dead=f"dead-{n}"),)) for n in range(50, 75)),
        *(a_saga(n, deadlines=(replace(waits, handler="expire", due_ms=9_000_000_000_000),)) for n in range(75, 100)),
        *(a_saga(n, queue=(replace(waits, handler="ship", dead=f"dead-{n}"),)) for n in (1, 2)),
        *(a_saga(n, queue=(replace(waits, handler="pack", due_ms=9_000_000_000_000, attempts=1),)) for n in (3, 4)),
    )
    by = ("--who", "ada", "--why", "to see", "--dry-run")
    for args in (
        ("dead", "replay", "svc", "--handler", "ship", *by),
        ("dead", "release", "svc", "--handler", "pack", *by),
        ("dead", "release", "svc", "--all", *by),
    ):
        whole = saga(*args, "--limit", "2")
        assert (whole.exit_code, len(whole.stdout.splitlines())) == (0, 2), whole.output
        cut = saga(*args, "--limit", "1")
        assert (cut.exit_code, len(cut.stdout.splitlines())) == (1, 1)
        assert "there are more than 1 sagas: repeat the command for the rest" in cut.stderr
    listed = json.loads(saga("dead", "list", "--handler", "ship", "--limit", "2", "--json").stdout)
    assert ([each["saga"] for each in listed["sagas"]], listed["more"]) == (["s-00002", "s-00001"], False)


def test_only_sagas_with_a_contract_of_the_selected_owner_count_for_the_limit(
    file: Path, folder: Path, saga: Call
) -> None:
    """The owner is on the topic, and not in the progress."""
    waits, contract = kept("reserve", a_message("A")), contract_of(OrderPlaced)
    put(file, *(a_saga(n, queue=(replace(waits, dead=f"dead-{n}"),)) for n in (1, 2, 3)))
    letters = [replace(a_letter(n), message=replace(a_message("A"), saga=f"s-{n:05}")) for n in (1, 2, 3)]
    publish_letters(
        folder,
        *(dead_letters.to_outgoing("svc", each, iso(NOW_MS), "here", contract) for each in letters[:2]),
        dead_letters.to_outgoing("svc", letters[2], iso(NOW_MS), "here", None),
    )
    selected = ("--owner", contract.owner, "--limit")
    for limit, code in (("2", 0), ("1", 1)):
        replayed = saga("dead", "replay", "svc", *selected, limit, "--who", "ada", "--why", "to see", "--dry-run")
        assert (replayed.exit_code, len(replayed.stdout.splitlines())) == (code, int(limit)), replayed.output
        listed = json.loads(saga("dead", "list", *selected, limit, "--json").stdout)
        assert [each["saga"] for each in listed["sagas"]] == ["s-00002", "s-00001"][: int(limit)]
        assert (len(listed["letters"]), listed["more"]) == (int(limit), bool(code))
    assert saga("dead", "replay", "svc", "--owner", "nobody", *MEANT[3:]).exit_code == 1


MEANT = ("dead", "replay", "payment", "--who", "ada", "--why", "to see", "--dry-run")


def test_a_dead_letter_that_went_to_an_archive_is_still_known_by_its_reason_class_and_age(
    folder: Path, saga: Call
) -> None:
    async def died_long_ago() -> None:
        async with open_shop(folder / ".saga", "payment") as shop:
            await shop.settle(an_order("order-3", card="broken"))
            await shop.again(an_order("order-3", card="broken"), 70)

    asyncio.run(died_long_ago())
    with sqlite3.connect(folder / ".saga" / "payment.db") as connection:
        archives = connection.execute("SELECT count(*) FROM documents WHERE collection = 'saga-archive'").fetchone()
    connection.close()
    assert archives[0] > 0
    for args in (("--reason", "such cards"), ("--class", "outside"), ("--saga", "order-3")):
        meant = saga(*MEANT, *args)
        assert meant.exit_code == 0, meant.output
        assert "would be replayed: Permanent: the bank does not know such cards" in meant.stdout
    assert saga(*MEANT, "--before", "2000-01-01T00:00:00Z").exit_code == 1, "it has a time"
    [letter] = json.loads(saga("dead", "list", "--reason", "such cards", "--json").stdout)["letters"]
    assert (letter["handler"], letter["now"]) == ("reserve", "blocks")


def test_a_transition_that_cannot_be_read_keeps_no_other_saga_from_being_replayed(shop: Path, saga: Call) -> None:
    file = shop / ".saga" / "payment.db"
    with sqlite3.connect(file) as connection:
        [(content,)] = connection.execute("SELECT content FROM documents WHERE key = 'payment::order-3'").fetchall()
    connection.close()
    p = decode_progress(content)
    last = encode(replace(decode_transition(p.transitions[-1]), letters=()))
    bad = replace(p, saga="order-9", transitions=(Raw(b'{"n": "x"}'), Raw(last)))
    put(file, ("payment::order-9", encode(bad)))
    meant = saga(*MEANT, "--all")
    assert meant.exit_code == 0, meant.output
    assert "order-3  reserve  would be replayed: Permanent: the bank does not know such cards" in meant.stdout
    assert "order-9  reserve  would be replayed: not known" in meant.stdout
    assert "saga order-9 in payment: a transition cannot be read" in meant.stderr


@pytest.mark.parametrize(
    ("args", "count"),
    [(("--saga", "order-3"), 1), (("--saga", "order"), 0), (("--handler", "reserve"), 1), (("--handler", "no"), 0)],
)
def test_letters_are_listed_by_saga_and_handler(shop: Path, saga: Call, args: tuple[str, ...], count: int) -> None:
    assert len(json.loads(saga("dead", "list", *args, "--json").stdout)["letters"]) == count


@pytest.mark.parametrize("count", [3, 4, 6, 20])
def test_beyond_a_limit_only_the_newest_dead_letters_are_listed_with_a_note(
    shop: Path, saga: Call, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr("saga.ops.dead_letters.RECORDS_MAX", 3)
    publish_letters(
        shop, *(dead_letters.to_outgoing("payment", a_letter(n), iso(NOW_MS + n), "here", None) for n in range(count))
    )
    listed = saga("sagas", "list", "--json", "--dead")
    ids = [each["id"] for each in json.loads(listed.stdout)["letters"] if each["saga"] != "order-3"]
    assert ids == [f"dead-{n}" for n in range(count - 1, count - 4, -1)]
    assert ("there are more than 3, these are the newest" in listed.stderr) == (count > 3)


def test_letters_are_listed_by_class_owner_type_and_age(shop: Path, saga: Call) -> None:
    def listed(*args: str) -> set[str]:
        result = saga("dead", "list", "--json", *args)
        letters = json.loads(result.stdout)["letters"]
        assert result.exit_code == any(each["now"] == "blocks" for each in letters), result.output
        return {each["id"] for each in letters}

    contract = contract_of(OrderPlaced)
    placed = replace(a_message("OrderPlaced", "m-9"), schema="")
    outside = replace(a_letter(8), blame="outside")
    ours = replace(a_letter(9), message=placed, blame="code")
    publish_letters(
        shop,
        dead_letters.to_outgoing("payment", outside, iso(NOW_MS), "here", None),
        dead_letters.to_outgoing("payment", ours, iso(NOW_MS - 7_200_000), "here", contract),
    )
    everything = listed()
    assert everything >= {"dead-8", "dead-9"}
    assert listed("--class", "outside") == everything - {"dead-9"}
    assert listed("--class", "code") == {"dead-9"}
    assert listed("--class", "data") == set()
    assert listed("--owner", "payment") == set()
    assert listed("--owner", contract.owner) == {"dead-9"}
    assert listed("--type", "A") == {"dead-8"}
    assert listed("--age", "1d") == set()
    assert saga("dead", "list", "--age", "soon").exit_code == 2


def test_the_table_of_what_needs_a_person_is_escaped_and_gives_the_reason(shop: Path, saga: Call) -> None:
    evil = replace(a_message("A", "m-1"), saga="s\x1b[2J\nforged")
    letter = replace(a_letter(1), message=evil)
    publish_letters(shop, dead_letters.to_outgoing("payment", letter, iso(NOW_MS), "here", None))
    heading, *rows = saga("sagas", "list", "--dead").stdout.splitlines()
    assert heading.split() == ["TIME", "SERVICE", "WHAT", "SAGA", "MESSAGE", "HANDLER", "CLASS", "NOW", "WHY"]
    assert len(rows) == 2
    assert any("s\\x1b[2J\\nforged" in row and row.endswith("reason 1") for row in rows)
    assert any("order-3" in row and "blocks" in row and row.endswith("know such cards") for row in rows)


def test_without_a_log_what_blocks_is_read_from_the_stores_alone(shop: Path, saga: Call) -> None:
    listed = saga("sagas", "list", "--dead")
    assert listed.exit_code == 0
    assert "<service>.dead cannot be shown: no file" in listed.stderr
    assert "order-3" in listed.stdout
    assert not (shop / ".saga" / "broker.db").exists()


def test_a_limit_and_a_prefix_hold_for_what_needs_a_person_too(shop: Path, saga: Call) -> None:
    publish_letters(shop, *everything_dead())
    found = json.loads(saga("sagas", "list", "--json", "--dead", "--limit", "2").stdout)
    assert (len(found["letters"]), found["more"]) == (2, True)
    found = json.loads(saga("sagas", "list", "--json", "--dead", "--prefix", "s-l").stdout)
    assert [each["saga"] for each in found["letters"]] == ["s-late"]
    assert saga("sagas", "list", "--dead", "--open").exit_code == 2


def test_a_compensation_that_fails_is_listed_until_it_has_come_to_its_end(shop: Path, saga: Call) -> None:
    """`payment` has reserved money for `order-1`, and it is escalated that it cannot be given back."""
    [result] = decode_progress(content_of(shop, "payment", "order-1")).results

    def printed_remedy(undoes: str, name: str = "order-1") -> str:
        message = Message(id="m", type="OrderCancelled", schema="", saga=name, source="order", time="", value=b"x")
        dead = replace(a_letter(1, "escalation"), handler="release", message=message)
        publish_letters(shop, dead_letters.escalation_to_outgoing("payment", dead, iso(NOW_MS), undoes, "here", None))
        found = json.loads(saga("dead", "list", "--all", "--json", "--service", "payment").stdout)["letters"]
        [letter] = [each for each in found if (each["what"], each["saga"]) == ("escalation", name)]
        return str(letter["now"])

    assert printed_remedy(result.event.id) == "goes on"
    assert printed_remedy("another") == "over"
    assert printed_remedy("another", "order-0") == "over", "a pending compensation never lets its progress expire"
    put(shop / ".saga" / "payment.db", ("payment::damaged", b"no document"))
    assert printed_remedy("another", "damaged") == "-"
    (shop / ".saga" / "payment.db").unlink()
    assert printed_remedy("another", "order-00") == "-", "without the store it is not known"


def test_headers_of_the_original_are_never_taken_for_ours() -> None:
    theirs = (("dead_id", b"forged"), ("dead_handler", b"forged"), ("ce_type", b"x.OrderPlaced"), ("dead_reason", None))
    ours = (("dead_id", b"real"), ("dead_what", b"dead letter"), ("dead_attempts", b"\xff"))
    found = decode_dead_letter("payment", Record("payment.dead", 0, 0, b"\xff", b"", (*theirs, *ours), 0))
    assert found is not None
    assert (found.id, found.handler, found.reason, found.attempts) == ("real", None, "", None)
    assert (found.saga, found.type) == ("\\xff", "OrderPlaced")
    assert decode_dead_letter("payment", Record("payment.dead", 0, 0, None, None, theirs, 0)) is None
