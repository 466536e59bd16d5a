"""`saga access`: what is printed follows from the declarations, and what is wrong is reported."""

import asyncio
import json
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest

from saga.configuration import wiring
from saga.engine.lifecycle import collections_of
from saga.engine.prepared_service import reads_of, topics_of, writes_of
from saga.store.port import Document
from saga.store.sqlite.store import SqliteStore
from tests.cli import example_runs
from tests.cli.conftest import ROOT, Call
from tests.cli.example_runs import an_order, open_shop

SERVICES = [f"services.{name}" for name in ("order", "payment", "inventory", "shipping")]
STORE = "couchbase://db1:11210,db2/shop/{service}"


@pytest.fixture(autouse=True)
def _packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def rights(saga: Call, *args: str) -> dict[str, set[tuple[str, str, str]]]:
    """Rights that are printed for each user."""
    report = json.loads(saga("access", "kafka", *args, "--json").stdout)["access"]
    return {each["user"]: {(r["operation"], r["kind"], r["name"]) for r in each["rights"]} for each in report}


def test_each_service_reads_writes_and_joins_what_its_workers_do(saga: Call) -> None:
    printed = rights(saga, *SERVICES)
    for declared in wiring.load_services(SERVICES):
        assert printed[f"User:{declared.name}"] == {
            *(("Read", "topic", name) for name in reads_of(declared)),
            *(("Write", "topic", name) for name in (*writes_of(declared), "saga.transitions")),
            ("Read", "group", declared.name),
        }


def test_readers_of_transitions_may_read_their_topic_and_without_publishing_no_user_may(
    saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ("topic", "saga.transitions")

    def may(who: str) -> set[str]:
        (user,) = rights(saga, *SERVICES, "--for", who, "--principal", "User:one").values()
        return {operation for operation, *what in user if tuple(what) == right}

    everybody = {who: may(who) for who in ("service", "client", "operator", "administrator", "doctor")}
    assert everybody == {
        "service": {"Write"},
        "client": set(),
        "operator": {"Read"},
        "administrator": {"Create", "Alter", "AlterConfigs"},
        "doctor": {"Write", "DescribeConfigs"},
    }
    monkeypatch.setenv("SAGA_TRANSITIONS", "off")
    assert not any(map(may, everybody))


def test_services_of_one_process_have_one_user_who_may_what_all_of_them_do(saga: Call) -> None:
    each = rights(saga, *SERVICES)
    assert rights(saga, *SERVICES, "--principal", "User:shop") == {"User:shop": set().union(*each.values())}


def test_a_topic_that_a_service_only_looks_for_is_to_be_seen(saga: Call, folder: Path) -> None:
    (folder / "quiet.py").write_text(
        "from saga import Service\n"
        "from services.payment.events import OrderPlaced, PaymentReserved\n"
        "payment = Service('payment')\n"
        "@payment.handler\n"
        "async def remember(placed: OrderPlaced, reserved: PaymentReserved) -> None: ...\n"
    )
    (declared,) = wiring.load_services(["quiet"])
    assert "payments" in {topic.name for topic in topics_of(declared)} - reads_of(declared) - writes_of(declared)
    assert ("Describe", "topic", "payments") in rights(saga, "quiet")["User:payment"]


def test_the_commands_give_what_the_json_lists_at_the_servers_of_the_settings(saga: Call) -> None:
    user, broker = "User:CN=a b", ("--broker", "kafka://db1,db2:9093")
    printed = saga("access", "kafka", "services.payment", *broker, "--principal", user)
    heading, *commands = printed.stdout.splitlines()
    assert heading == f"# {user}: service of payment"
    given: set[tuple[str, str, str]] = set()
    for command in commands:
        words = shlex.split(command)
        assert words[:4] == ["kafka-acls.sh", "--bootstrap-server", "db1:9092,db2:9093", "--add"]
        assert words[4:7] == ["--allow-principal", user, "--operation"]
        named = zip(words[8::2], words[9::2], strict=True)
        given |= {(words[7], option.removeprefix("--"), name) for option, name in named}
    assert {user: given} == rights(saga, "services.payment", "--principal", user)


def test_a_client_may_write_what_it_may_say_and_read_outcomes_and_what_is_heard_outside(saga: Call) -> None:
    heard = ("orders", "payments", "inventory", "shipments")

    def of(*args: str) -> set[tuple[str, str, str]]:
        (granted,) = rights(saga, *SERVICES, "--for", "client", *args).values()
        return granted

    assert of() == {("Write", "topic", "orders"), *(("Read", "topic", topic) for topic in heard)}
    assert of("--event", "OrderPlaced") == {("Write", "topic", "orders")}
    producer = ("IdempotentWrite", "cluster", "kafka-cluster")
    assert of("--event", "OrderConfirmed", "--event", "OrderCancelled") == {("Read", "topic", "orders"), producer}
    mailer = of("--event", "ShipmentDispatched", "--group", "mailer")
    assert mailer == {("Read", "topic", "shipments"), ("Read", "group", "client.mailer"), producer}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--for", "client", "--event", "PaymentReserved"], "PaymentReserved: it is for services alone"),
        (["--for", "client", "--event", "PaymentReserved"], "clients may publish or receive OrderCancelled, OrderConf"),
        (["--for", "client", "--event", "OrderPlaced", "--group", "m"], "none of these events is consumed externally"),
        (["--for", "client", "--group", "a/b"], "cannot be a group"),
        (["--group", "mailer"], "--group needs --for client"),
        (["--for", "client", "--event", "OrderPlacd"], "these services have no such event"),
        (["--event", "OrderPlaced"], "--event needs --for client"),
        (["--principal", "payment"], "User:payment"),
        (["--broker", "kafka://ada:secret@db1"], "the broker given"),
    ],
)
def test_wrong_arguments_are_reported(saga: Call, args: list[str], says: str) -> None:
    result = saga("access", "kafka", "services.payment", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert "ada" not in result.stderr


def test_services_of_which_clients_may_say_nothing_have_no_clients(saga: Call, folder: Path) -> None:
    (folder / "inner.py").write_text(
        "from saga import Service\n"
        "from services.payment.events import PaymentReserved\n"
        "audit = Service('audit')\n"
        "@audit.handler\n"
        "async def note(reserved: PaymentReserved) -> None: ...\n"
    )
    result = saga("access", "kafka", "inner", "--for", "client")
    assert (result.exit_code, "clients may publish or receive none of their events" in result.stderr) == (2, True)


# -------------------------------------------------------------------- Couchbase


def roles(saga: Call, *args: str) -> dict[str, list[tuple[str, str, str, str]]]:
    report = json.loads(saga("access", "couchbase", *args, "--json").stdout)["access"]
    return {each["user"]: [tuple(r.values()) for r in each["rights"]] for each in report}


def test_each_service_reads_and_writes_its_own_collections(saga: Call) -> None:
    printed = roles(saga, *SERVICES, "--store", STORE)
    for declared in wiring.load_services(SERVICES):
        assert printed[declared.name] == [
            (role, "shop", declared.name, collection)
            for role in ("data_reader", "data_writer")
            for collection in collections_of(declared)
        ]
    assert ("data_writer", "shop", "inventory", "stock") in printed["inventory"]


def test_with_a_single_collection_the_roles_are_on_that_collection(saga: Call) -> None:
    default = roles(saga, "services.inventory", "--store", "couchbase://db1/shop")
    named = roles(saga, "services.inventory", "--store", "couchbase://db1/shop/s/c", "--for", "operator")
    assert default == {"inventory": [(role, "shop", "_default", "_default") for role in ("data_reader", "data_writer")]}
    assert named == {"operator": [("data_reader", "shop", "s", "c")]}


def test_the_commands_give_a_user_all_roles_at_once(saga: Call) -> None:
    printed = saga("access", "couchbase", "services.payment", "--store", STORE).stdout.splitlines()
    assert printed == [
        "# payment: service of payment",
        "couchbase-cli user-manage --cluster couchbase://db1 --set --auth-domain local --rbac-username payment "
        '--rbac-password "$PASSWORD" --roles \'data_reader[shop:payment:saga],data_reader[shop:payment:saga-archive],'
        "data_writer[shop:payment:saga],data_writer[shop:payment:saga-archive]'",
    ]


def test_in_sql_names_are_quoted_whatever_is_in_them(saga: Call) -> None:
    args = ("--store", STORE, "--form", "sql", "--user", "a`b")
    assert saga("access", "couchbase", "services.payment", *args).stdout.splitlines()[1:] == [
        f"GRANT {role} ON `shop`.`payment`.`saga`, `shop`.`payment`.`saga-archive` TO `a``b`;"
        for role in ("data_reader", "data_writer")
    ]


class Noting(SqliteStore):
    """Store that notes which collections are read, and which are written."""

    used: ClassVar[set[tuple[str, str]]] = set()

    async def get(self, collection: str, key: str) -> Document | None:
        self.used.add(("data_reader", collection))
        return await super().get(collection, key)

    def scan(self, collection: str, prefix: str = "") -> AsyncIterator[tuple[str, Document]]:
        self.used.add(("data_reader", collection))
        return super().scan(collection, prefix)

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        self.used.add(("data_writer", collection))
        return await super().insert(collection, key, content, expiry_s=expiry_s)

    async def replace(
        self,
        collection: str,
        key: str,
        content: bytes,
        *,
        cas: int,
        expiry_s: float | None = None,
        keep_expiry: bool = False,
    ) -> int:
        self.used.add(("data_writer", collection))
        return await super().replace(collection, key, content, cas=cas, expiry_s=expiry_s, keep_expiry=keep_expiry)

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        self.used.add(("data_writer", collection))
        await super().remove(collection, key, cas=cas)


def test_a_run_reads_and_writes_the_collections_of_the_roles_and_no_others(
    saga: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_runs, "SqliteStore", Noting)
    modules = {"inventory": "services.inventory", "tally": "tests.cli.example_runs", "payment": "services.payment"}

    async def used(service: str) -> set[tuple[str, str]]:
        async with open_shop(folder, service) as shop:
            Noting.used.clear()
            for order, card in (("order-1", "visa-1"), ("order-2", "declined-1"), ("order-3", "broken")):
                await shop.settle(an_order(order, card=card))
            await shop.again(an_order("order-1"), 70)
            return set(Noting.used)

    for service, module in modules.items():
        printed = roles(saga, module, "--store", STORE)[service]
        assert asyncio.run(used(service)) == {(role, collection) for role, _, _, collection in printed}, service


def test_a_store_without_users_has_no_roles(saga: Call) -> None:
    result = saga("access", "couchbase", "services.payment")
    assert (result.exit_code, "which has no users" in result.stderr) == (2, True)


def test_an_address_is_taken_from_the_settings_without_the_password_that_services_need(
    saga: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "saga.toml").write_text('store = "couchbase://db1/shop/{service}"\n')
    monkeypatch.setenv("SAGA_CONFIG", "saga.toml")
    assert "shop:payment:saga" in saga("access", "couchbase", "services.payment").stdout
    (folder / "saga.toml").write_text("store = \n")
    broken = saga("access", "couchbase", "services.payment")
    assert (broken.exit_code, "SAGA_CONFIG" in broken.stderr) == (2, True)


def test_only_services_without_a_connector_may_write_change_records(
    saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def writes(store: str) -> set[str]:
        monkeypatch.setenv("SAGA_STORE", store)
        printed = saga("access", "kafka", "tests.service.documents", "--broker", "kafka://k:9092", "--json")
        assert printed.exit_code == 0, printed.output
        (access,) = json.loads(printed.stdout)["access"]
        return {right["name"] for right in access["rights"] if right["operation"] == "Write"}

    assert writes("sqlite:///s.db") - writes("couchbase://h/b/s") == {"intake.changes.orders"}
