"""Manifests of the example's services, and manifest files written by others."""

import dataclasses
import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from saga import Event, Later, Saga, Service, upcast
from saga.choreography import manifest
from saga.choreography.manifest import LATER, DeclaredReaction, DeclaredState, list_alternatives, make_manifest
from saga.choreography.releases import compare_with_released, read_manifests, save_manifest
from saga.declarations.annotations import TupleShape, parse_shape
from saga.errors import ConfigurationError
from services.inventory import inventory
from services.order import order
from services.payment import payment
from services.payment.events import OrderCancelled, OrderConfirmed, OrderPlaced, PaymentDeclined, PaymentReserved
from services.shipping import shipping
from tests.contracts.folders import field, generated, schema, write

ROOT = Path(__file__).parents[2]
EXAMPLE = (order, payment, inventory, shipping)


def test_a_manifest_lists_the_fields_that_a_service_reads_of_each_event() -> None:
    read = {each.contract: each.fields for each in make_manifest(payment.declared).consumes}
    assert read == {
        "OrderCancelled": ("order_id",),
        "OrderConfirmed": ("order_id",),
        "OrderPlaced": ("card", "order_id", "total"),
        "PaymentReserved": ("amount", "charge_id", "order_id"),
    }


def test_a_manifest_lists_compensations_awaited_events_and_steps() -> None:
    found = make_manifest(payment.declared)
    assert found.reaction("release") == DeclaredReaction(
        name="release",
        kind="compensation",
        ids="payment|release",
        takes=(("OrderCancelled",), ("PaymentReserved",)),
        undoes="reserve",
        emits=("PaymentReleased",),
        returns=(("PaymentReleased",),),
        steps=("bank.release",),
        keys=("release",),
        resources=("bank",),
    )
    assert found.resources == {"bank": "Bank"}
    expire = make_manifest(order.declared).reaction("expire")
    assert expire is not None
    assert (expire.kind, expire.within_s, expire.takes) == ("deadline", 900.0, (("OrderPlaced",),))
    assert make_manifest(inventory.declared).documents == {"stock": "Stock"}


def test_a_wait_and_what_ends_it_are_in_the_manifest() -> None:
    patient = Service("patient")

    @patient.handler
    async def collect(placed: OrderPlaced, done: OrderConfirmed | None) -> Later[OrderConfirmed] | None:
        """Wait for the confirmation.

        More of it."""
        return Later(until=OrderConfirmed, within=timedelta(days=1))

    @patient.deadline(within=timedelta(hours=1), unless=(OrderCancelled,))
    async def remind(placed: OrderPlaced) -> None: ...

    manifest = make_manifest(patient.declared)
    waits, reminds = manifest.reactions
    assert (waits.later, waits.until, waits.optional, waits.doc) == (
        True,
        ("OrderConfirmed",),
        ("OrderConfirmed",),
        "Wait for the confirmation.",
    )
    assert (reminds.unless, reminds.hears) == (("OrderCancelled",), ("OrderPlaced", "OrderCancelled"))
    assert [each.contract for each in manifest.consumes] == ["OrderCancelled", "OrderConfirmed", "OrderPlaced"]


def test_a_manifest_claims_all_fields_where_an_event_is_passed_on_whole() -> None:
    opaque = Service("opaque")

    @opaque.handler
    async def log(placed: OrderPlaced, saga: Saga) -> None:
        repr(placed)

    [use] = make_manifest(opaque.declared).consumes
    assert (use.fields, use.because) == ("all", "log hands it on whole")


@dataclass(frozen=True)
class Before:
    """State of a release before."""

    total: str = ""


@dataclass(frozen=True)
class Now:
    """State of now."""

    cents: int = 0
    note: str | None = None


def test_the_state_and_its_version_are_in_the_manifest() -> None:
    stateful = Service("stateful", state=Now)

    @stateful.migrate(1)
    def in_cents(old: Before) -> Now:
        return Now(cents=int(old.total))

    @stateful.handler
    async def hear(placed: OrderPlaced) -> None: ...

    assert make_manifest(stateful.declared).state == DeclaredState(
        type="Now", version=2, fields={"cents": "int", "note": "str | None"}
    )


def test_two_versions_of_a_class_are_both_read_and_the_older_one_counts(tmp_path: Path) -> None:
    write(tmp_path, schema("Said", field("one", "string"), field("two", "string")), schema("Other"))
    older = generated(tmp_path, "Said", "Other")
    added = field("three", "string", default="")
    write(tmp_path, schema("Said", field("one", "string"), field("two", "string"), added), version=2)
    newer = generated(tmp_path, "Said")
    service = Service("listener")

    async def first(event: Event) -> None:
        str(event.one)  # type: ignore[attr-defined]

    async def second(event: Event, other: Event) -> None:
        str(event.three)  # type: ignore[attr-defined]

    first.__annotations__["event"] = older.Said
    second.__annotations__.update(event=newer.Said, other=older.Other)
    service.handler(first)
    service.handler(second)
    use = make_manifest(service.declared).find_consumed("Said")
    assert use is not None
    assert (use.version, use.fields) == (1, ("one", "order_id", "three"))


def test_versions_that_an_upcaster_reads_are_in_the_manifest(tmp_path: Path) -> None:
    write(tmp_path, schema("Said", field("cents", "int")))
    write(tmp_path, schema("Said", field("euros", "string", default=""), upcasts=[1]), version=2)
    events = generated(tmp_path, "Said", "Said.v1")

    def in_euros(old: Event) -> Event:
        return old

    in_euros.__annotations__.update({"old": events.SaidV1, "return": events.Said})
    upcast(events.Said, 1)(in_euros)
    service = Service("listener")

    async def hear(event: Event) -> None: ...

    hear.__annotations__["event"] = events.Said
    service.handler(hear)
    [use] = make_manifest(service.declared).consumes
    assert (use.version, use.upcasts) == (2, (1,))


def test_the_examples_manifests_are_those_that_are_committed() -> None:
    for found in compare_with_released([each.declared for each in EXAMPLE]):
        assert found.path == ROOT / "manifests" / f"{found.manifest.service}.json"
        assert not found.differences
        assert found.path.read_text("utf-8") == manifest.format_manifest(found.manifest)


def test_a_file_is_read_as_it_was_written() -> None:
    for service in EXAMPLE:
        made = make_manifest(service.declared)
        assert manifest.parse_manifest(manifest.format_manifest(made), "m.json") == made


def edited(**changes: Any) -> str:
    return json.dumps({**json.loads((ROOT / "manifests/payment.json").read_text("utf-8")), **changes})


ODD: list[tuple[str, str]] = [
    ("", "is no manifest"),
    ("[]", "is no manifest: Expected `object`, got `array`"),
    ("[" * 100_000, "is no manifest"),
    ('{"format": 1}', "Object missing required field `service`"),
    (edited(format=3), "is of format 3; this toolkit reads 2"),
    (edited(reactions=[{"name": "x", "kind": "handler", "ids": "", "takes": [], "returns": [["<b>"]]}]), "'<b>' is no"),
    (edited(service="../../etc"), "'../../etc' is no name of a service"),
    (edited(service="<script>"), "'<script>' is no name of a service"),
    (edited(consumes=[{"contract": "A/B", "version": 1, "topic": "t", "key": "k", "fields": []}]), "'A/B' is no name"),
    (edited(emits=[{"contract": "A", "version": 1, "topic": "t/t", "key": "k"}]), "'t/t' is no name of a topic"),
    (edited(emits=[{"contract": "A", "version": 1, "topic": "t", "key": "\x1b"}]), "is no name of an event, a field"),
    (edited(reactions=[{"name": "x y", "kind": "handler", "ids": "", "takes": []}]), "'x y' is no name"),
    (edited(reactions=[{"name": "x", "kind": "handler", "ids": "", "takes": [["<b>"]]}]), "'<b>' is no name"),
    (edited(reactions=[{"name": "x", "kind": "other", "ids": "", "takes": []}]), "Invalid enum value 'other'"),
]


@pytest.mark.parametrize(("text", "problem"), ODD, ids=range(len(ODD)))
def test_a_file_that_cannot_be_used_is_refused_by_name(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        manifest.parse_manifest(text, "odd.json")
    assert str(refused.value).startswith("odd.json cannot be used:")
    assert problem in str(refused.value)


def test_all_files_that_cannot_be_used_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}", "utf-8")
    (tmp_path / "b.json").write_bytes(b"\xff")
    (tmp_path / "c.json").write_text(edited(), "utf-8")
    (tmp_path / "d.json").mkdir()
    (tmp_path / "notes.txt").write_text("no manifest", "utf-8")
    with pytest.raises(ConfigurationError) as refused:
        read_manifests(tmp_path)
    assert [problem[:6] for problem in refused.value.problems] == ["a.json", "b.json", "c.json", "d.json"]
    assert "is of the service 'payment'; call it payment.json" in str(refused.value)


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert read_manifests(tmp_path / "nowhere") == {}


def test_a_renamed_service_is_compared_with_its_manifest_under_the_name_of_before(tmp_path: Path) -> None:
    (before,) = compare_with_released([payment.declared], tmp_path)
    assert before.is_new
    assert save_manifest(before)
    renamed = dataclasses.replace(payment.declared, renamed="payments")
    (now,) = compare_with_released([renamed], tmp_path)
    assert not now.is_new
    assert not now.is_refused
    assert save_manifest(now)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["payments.json"]
    (again,) = compare_with_released([renamed], tmp_path)
    assert not again.differences
    assert not save_manifest(again)


def test_events_returned_together_are_distinguished_from_alternatives() -> None:
    def alternatives(annotation: object) -> tuple[tuple[str, ...], ...]:
        return list_alternatives(parse_shape(annotation, "here"))

    reserved, declined = "PaymentReserved", "PaymentDeclined"
    assert alternatives(PaymentReserved | PaymentDeclined | None) == ((reserved,), (declined,), ())
    assert alternatives(tuple[PaymentReserved, PaymentDeclined | None]) == ((declined, reserved), (reserved,))
    assert alternatives(list[PaymentReserved | PaymentDeclined]) == ((f"{reserved}*", f"{declined}*"),)
    assert alternatives(tuple[list[PaymentReserved], Later]) == ((LATER, f"{reserved}*"),)
    assert alternatives(Later[PaymentDeclined] | PaymentReserved) == ((LATER,), (reserved,))
    assert alternatives(list[PaymentReserved | Later]) == ((f"{reserved}*",), (f"{reserved}*", LATER)), "or without it"
    three: TypeAlias = PaymentReserved | PaymentDeclined | None
    assert len(alternatives(tuple[three, three, three, three])) == 15, "what is emitted together has no order"
    assert list_alternatives(TupleShape((parse_shape(three, "here"),) * 12)) == ((f"{reserved}*", f"{declined}*"),), (
        "91 alternatives are too many to list"
    )
