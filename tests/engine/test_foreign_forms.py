"""Events in other forms than ours: as JSON, structured or not, and in the wire format of a schema registry. They are
the same messages, and what cannot be read is refused with a helpful reason."""

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from saga import Service
from saga.contracts import codec
from saga.contracts.foreign_values import frame, schema_id_in, to_registered_schema, writer_without_registry
from saga.contracts.library import contract_of
from saga.engine.consumer.record_router import BadRecord, SkippedRecord, route_record
from saga.engine.known_schemas import KnownSchemas
from saga.engine.prepared_service import PreparedService, prepare
from saga.errors import BadInput, SchemaUnasked, UnknownSchema
from saga.messages import Headers, Message, Outgoing, Record, Writer
from services.payment.events import OrderPlaced
from tests.engine.deployed_contracts import Contracts
from tests.engine.real_worker import SAGA, an_order, at_work, workplace

payment = Service("payment")


@payment.handler
async def reserve(order: OrderPlaced) -> None: ...


SERVICE = prepare(payment.declared)
ORDER = an_order()
NATIVE = codec.encode(ORDER)
FIELDS = codec.to_json(ORDER)
JSON = json.dumps(FIELDS).encode()
CONTRACT = contract_of(OrderPlaced)
SCHEMA = CONTRACT.newest.schema
ENVELOPE: Mapping[str, str] = {
    "specversion": "1.0",
    "id": "a7f3-1",
    "source": "/shops/kiel",
    "type": "org.example.shop.OrderPlaced",
    "time": "2026-11-21T15:06:40.5+01:00",
}


def recorded(value: bytes, content_type: str, writer: Writer | None = None, **more: str | None) -> Record:
    """A record in binary mode. `more`: other attributes, or `None` for those to leave out."""
    attributes = {**ENVELOPE, **more}
    headers: Headers = tuple((f"ce_{name}", text.encode()) for name, text in attributes.items() if text is not None)
    headers = (*headers, ("content-type", content_type.encode()))
    return Record("orders", 3, 41, SAGA.encode(), value, headers, 1_767_225_600_000, writer)


def structured(data: object, **more: str) -> Record:
    value = json.dumps({**ENVELOPE, **more, "data": data}).encode()
    headers: Headers = (("content-type", b"application/cloudevents+json"),)
    return Record("orders", 3, 41, SAGA.encode(), value, headers, 1_767_225_600_000)


def read_message(record: Record, service: PreparedService = SERVICE) -> Message:
    message = route_record(record, service)
    assert isinstance(message, Message), message
    return message


def skipped(record: Record) -> str:
    skip = route_record(record, SERVICE)
    assert isinstance(skip, SkippedRecord), skip
    assert skip.why == "unknown type"
    return skip.type


def without_foreign(message: Message) -> Message:
    return structs.replace(message, foreign=(), schema="")


# -------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    "record",
    [
        recorded(JSON, "application/json"),
        recorded(JSON, "application/json; charset=utf-8"),
        recorded(JSON, "application/vnd.example.order+json"),
        recorded(b"\n\t" + JSON, "Application/JSON", dataschema="https://example.org/orders/OrderPlaced.v1"),
        structured(FIELDS),
        structured(FIELDS, datacontenttype="application/json"),
    ],
)
def test_an_event_as_json_is_the_same_message_as_one_of_ours(record: Record) -> None:
    ours = recorded(NATIVE, "application/avro")
    assert without_foreign(read_message(record)) == without_foreign(read_message(ours))
    assert SERVICE.decode("reserve", read_message(record)) == ORDER


def test_a_structured_event_may_hold_our_bytes() -> None:
    event = {**ENVELOPE, "datacontenttype": "application/avro", "data_base64": base64.b64encode(NATIVE).decode()}
    record = structured(None)._replace(value=json.dumps(event).encode())
    assert read_message(record).value == NATIVE


def test_json_that_is_no_event_keeps_its_bytes_and_names_all_that_is_wrong() -> None:
    message = read_message(recorded(b'{"order_id":"order-1","total":9.8,"more":1}', "application/json"))
    assert message.value == b'{"order_id":"order-1","total":9.8,"more":1}'
    with pytest.raises(BadInput) as raised:
        SERVICE.decode("reserve", message)
    text = str(raised.value)
    assert text.startswith('OrderPlaced: total: must be a decimal as text: "9.80"; more: OrderPlaced has no such field')
    assert "customer_id: is missing" in text
    assert "9.8}" not in text, "values may be sensitive"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "it is to be JSON, and cannot be read as that"),
        (b"\xff", "it is to be JSON, and cannot be read as that: it is not UTF-8: its byte 1 is ff"),
        (JSON.decode().encode("utf-32"), "it is not UTF-8: its byte 1 is ff"),
        (b"[" * 100_000, "its JSON is nested too deeply"),
        (b"[]", "must be an object with the fields of OrderPlaced"),
        (
            b'{"total":1e400}',
            "it is to be JSON, and cannot be read as that: it has a number that is too great for a float",
        ),
        (b'{"order_id":"1","order_id":"2"}', "the name 'order_id' comes twice in one object"),
        (b"[" + b"0," * 100_001 + b"0]", "at most 100000 values"),
    ],
)
def test_json_that_cannot_be_read_gives_the_reason(value: bytes, reason: str) -> None:
    with pytest.raises(BadInput) as raised:
        SERVICE.decode("reserve", read_message(recorded(value, "application/json")))
    assert reason in str(raised.value)


def test_json_without_a_content_type_is_not_guessed() -> None:
    with pytest.raises(
        BadInput, match="it begins with 7b 22, not c3 01; it looks like JSON: its content type has to say"
    ):
        SERVICE.decode("reserve", read_message(recorded(JSON, "application/avro")))


def test_events_without_a_handler_are_skipped_in_every_format() -> None:
    other = SkippedRecord("no contract here is called Other", "unknown type", "Other")
    assert route_record(recorded(b"{", "application/json", type="Other"), SERVICE) == other
    assert route_record(structured({}, type="Other"), SERVICE) == other
    assert route_record(recorded(b"\0\0\0\0\1", "application/avro", type="Other"), SERVICE) == other


def test_a_structured_event_that_is_none_is_a_letter() -> None:
    record = structured(FIELDS)._replace(value=b"{")
    letter = route_record(record, SERVICE)
    assert isinstance(letter, BadRecord)
    assert letter.reason.startswith("its content type is application/cloudevents+json, but its value is no CloudEvent")


def test_json_of_a_version_that_is_not_deployed_here_waits_for_it(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    contracts.newer_class("OrderPlaced")
    newer = json.dumps({**FIELDS, "note": "as a gift"}).encode()
    message = read_message(recorded(newer, "application/json", dataschema="urn:saga:orders/OrderPlaced.v2"))
    with pytest.raises(UnknownSchema, match=r"note: OrderPlaced has no such field.*it is of orders/OrderPlaced.v2"):
        SERVICE.decode("reserve", message)
    contracts.deploy()
    library = replace(SERVICE.schemas.library, folder=contracts.here).reload()
    assert replace(SERVICE, schemas=KnownSchemas(library)).decode("reserve", message) == ORDER


def test_json_is_no_unknown_type_while_its_contract_is_missing_in_the_folder(tmp_path: Path) -> None:
    """In the middle of a deployment the folder may lack a contract. Its events must not be skipped from then on."""
    contracts = Contracts(tmp_path)
    for path in contracts.here.glob("orders/OrderPlaced.*"):
        path.unlink()
    library = replace(SERVICE.schemas.library, folder=contracts.here).reload()
    service = replace(SERVICE, schemas=KnownSchemas(library))
    assert read_message(recorded(JSON, "application/json"), service).value == NATIVE


async def test_json_that_is_no_event_stops_its_saga_and_is_given_back_as_it_came(tmp_path: Path) -> None:
    bad = recorded(b'{"order_id":"order-1"}', "application/json")
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.broker.publish([Outgoing("orders", SAGA.encode(), bad.value, bad.headers)])
        await place.at_rest(payment)
        ((record, headers),) = await place.dead(payment)
        assert record.value == bad.value
        assert "customer_id: is missing" in headers["dead_reason"]
        assert headers["foreign_content-type"] == "application/json"
        p = await place.progress(payment)
        assert p is not None
        assert p.queue[0].dead


# -------------------------------------------------------------------- the registry's wire format


def of_registry(schema: object = None, *, body: bytes = NATIVE, id_: int = 258, **more: str | None) -> Record:
    """Record as a client of a registry writes it, and what the registry says of its id."""
    text = json.dumps(to_registered_schema(SCHEMA) if schema is None else schema)
    return recorded(frame(id_, body), "application/avro", Writer(id_, text, "http://registry"), **more)


def changed(**fields: Any) -> dict[str, Any]:
    """Our schema with other types of these fields; of a name that is not there yet, with one field more."""
    schema: dict[str, Any] = json.loads(json.dumps(to_registered_schema(SCHEMA)))
    for name, type_ in fields.items():
        before = [field for field in schema["fields"] if field["name"] == name]
        if before:
            before[0]["type"] = type_
        else:
            schema["fields"].append({"name": name, "type": type_})
    return schema


def test_a_value_of_the_registry_with_one_of_our_schemas_is_the_same_message() -> None:
    ours = read_message(recorded(NATIVE, "application/avro"))
    assert read_message(of_registry()) == ours
    assert read_message(of_registry({**to_registered_schema(SCHEMA), "doc": "other words"})) == ours


def test_a_sender_without_headers_is_understood_by_the_registrys_schema() -> None:
    message = read_message(of_registry()._replace(headers=()))
    assert (message.type, message.value, message.source) == ("OrderPlaced", NATIVE, "unknown")
    other = {**to_registered_schema(SCHEMA), "name": "SomethingElse"}
    assert skipped(of_registry(other)._replace(headers=())) == "'SomethingElse'"
    elsewhere = {**to_registered_schema(SCHEMA), "namespace": "another.shop"}
    assert skipped(of_registry(elsewhere)._replace(headers=())) == "'another.shop.OrderPlaced'"


def test_a_foreign_schema_that_fits_is_read_as_the_newest_version() -> None:
    body = NATIVE + b"\x08gift"
    message = read_message(of_registry(changed(note="string"), body=body))
    assert message.value == NATIVE
    assert message.foreign == ()


def test_a_foreign_schema_that_does_not_fit_waits_as_one_that_is_not_deployed_yet() -> None:
    schema = changed(quantity="string")
    message = read_message(of_registry(schema))
    assert message.value[:2] == codec.MARKER
    assert message.value[10:] == NATIVE[10:]
    with pytest.raises(UnknownSchema):
        SERVICE.decode("reserve", message)


def test_a_foreign_default_does_not_matter_for_what_was_written(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    contracts.newer_class("OrderPlaced")
    contracts.deploy()
    library = replace(SERVICE.schemas.library, folder=contracts.here).reload()
    service = replace(SERVICE, schemas=KnownSchemas(library))
    schema = changed(note="string", more="string")
    schema["fields"][-2]["default"] = "another"
    message = read_message(of_registry(schema, body=NATIVE + b"\x08gift\x02x"), service)
    assert message.value[2:10] == library.contracts["OrderPlaced"].newest.fingerprint
    assert message.value[10:] == NATIVE[10:] + b"\x08gift"


def test_json_has_the_version_that_it_names(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    contracts.newer_class("OrderPlaced")
    contracts.deploy()
    (newer,) = contracts.here.glob("orders/OrderPlaced.v2.avsc")
    schema = json.loads(newer.read_text())
    del schema["fields"][-1]["default"]
    newer.write_text(json.dumps({**schema, "compatible": "none"}))
    library = replace(SERVICE.schemas.library, folder=contracts.here).reload()
    service = replace(SERVICE, schemas=KnownSchemas(library))
    json_record = recorded(JSON, "application/json", dataschema="urn:saga:orders/OrderPlaced.v1")
    assert read_message(json_record, service).value == NATIVE
    with pytest.raises(BadInput, match="note: is missing"):
        service.decode("reserve", read_message(recorded(JSON, "application/json"), service))


def test_a_foreign_schema_is_not_taken_for_one_side_of_a_step_in_meaning(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    contracts.newer_class("OrderPlaced")
    contracts.deploy()
    (newer,) = contracts.here.glob("orders/OrderPlaced.v2.avsc")
    newer.write_text(json.dumps({**json.loads(newer.read_text()), "upcasts": [1]}))
    library = replace(SERVICE.schemas.library, folder=contracts.here).reload()
    service = replace(SERVICE, schemas=KnownSchemas(library))
    fits = changed(note={"type": "string"}, more="string")
    body = NATIVE + b"\x08gift\x02x"
    assert read_message(of_registry(fits, body=body), service).value[10:] == body[10:], (
        "it is parked, as it was written"
    )
    (taken_as_newest,) = {read_message(of_registry(fits, body=body)).value}
    assert taken_as_newest == NATIVE, "without such a step it is read"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            of_registry()._replace(writer=None),
            "the value is in the wire format of a schema registry, and none was asked: set SAGA_REGISTRY",
        ),
        (
            of_registry()._replace(writer=Writer(258, "", "http://registry")),
            "the value says schema id 258, and the registry at http://registry has none of that id",
        ),
        (
            of_registry(changed(total={"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3})),
            "the schema with id 258 is not that of orders/OrderPlaced.v1, and would be misread: total is ",
        ),
        (
            of_registry({**to_registered_schema(SCHEMA), "name": "Other\x1b[2J"}),
            r"the value is a 'Other\x1b[2J' by its schema (id 258), not a OrderPlaced",
        ),
        (
            of_registry({**to_registered_schema(SCHEMA), "name": "Other"}),
            "the value is a 'Other' by its schema (id 258), not a OrderPlaced",
        ),
        (of_registry("string"), "the schema that the registry has is none that can be used: 'it is no record'"),
        (of_registry(changed(note="string")), "the value is partial: it ends in the middle of OrderPlaced"),
    ],
)
def test_a_value_that_cannot_be_converted_keeps_its_bytes_and_is_retried(record: Record, reason: str) -> None:
    message = read_message(record)
    assert message.value == record.value
    assert message.foreign == (), "no reason is part of it: a registry may say something else tomorrow"
    with pytest.raises(SchemaUnasked, match="258"):
        SERVICE.decode("reserve", message)
    answered = replace(
        SERVICE, schemas=KnownSchemas(SERVICE.schemas.library, {258: record.writer or writer_without_registry(258)})
    )
    with pytest.raises(BadInput) as raised:
        answered.decode("reserve", message)
    assert str(raised.value).startswith(reason)
    assert not isinstance(raised.value, UnknownSchema)
    mended = of_registry().writer
    assert mended is not None
    once = replace(SERVICE, schemas=KnownSchemas(SERVICE.schemas.library, {258: mended}))
    assert once.decode("reserve", message) == ORDER


@pytest.mark.parametrize("version", ["vX", "v", "v\u0663", "v99x"])
def test_json_of_what_is_no_version_is_only_wrong(version: str) -> None:
    message = read_message(recorded(b"{}", "application/json", dataschema=f"orders/OrderPlaced.{version}"))
    with pytest.raises(BadInput, match="is missing") as raised:
        SERVICE.decode("reserve", message)
    assert not isinstance(raised.value, UnknownSchema)


@pytest.mark.parametrize("value", [b"\0", b"\0\0\0\0", b"\0" * 5])
def test_frames_that_end_too_soon_are_refused(value: bytes) -> None:
    writer = (
        Writer(0, json.dumps(to_registered_schema(SCHEMA)), "http://registry")
        if schema_id_in(value) is not None
        else None
    )
    with pytest.raises(BadInput):
        SERVICE.decode("reserve", read_message(recorded(value, "application/avro", writer)))


def test_a_registered_schema_has_nothing_of_ours() -> None:
    kept = json.dumps(to_registered_schema(SCHEMA))
    assert '"logicalType": "decimal"' in kept
    for name in ("topic", "key", "owner", "starts", "said", "sensitive"):
        assert f'"{name}":' not in kept, name
    assert to_registered_schema(SCHEMA)["name"] == "OrderPlaced"


# -------------------------------------------------------------------- JSON without a stated version


def with_versions(tmp_path: Path) -> PreparedService:
    """The service with a second version of the contract, whose class it does not know yet."""
    contracts = Contracts(tmp_path)
    contracts.newer_class("OrderPlaced")
    contracts.deploy()
    return replace(SERVICE, schemas=KnownSchemas(replace(SERVICE.schemas.library, folder=contracts.here).reload()))


def test_json_with_a_field_more_waits_for_the_version_that_has_it(tmp_path: Path) -> None:
    more = json.dumps({**FIELDS, "note": "as a gift"}).encode()
    message = read_message(recorded(more, "application/json"))
    with pytest.raises(UnknownSchema, match=r"note: OrderPlaced has no such field.*newer than orders/OrderPlaced.v1"):
        SERVICE.decode("reserve", message)
    assert with_versions(tmp_path).decode("reserve", message) == ORDER


def test_json_that_names_the_version_before_may_have_a_field_of_the_newest(tmp_path: Path) -> None:
    more = json.dumps({**FIELDS, "note": "as a gift"}).encode()
    message = read_message(recorded(more, "application/json", dataschema="urn:saga:orders/OrderPlaced.v1"))
    assert with_versions(tmp_path).decode("reserve", message) == ORDER
    unknown = json.dumps({**FIELDS, "nothing": 1}).encode()
    message = read_message(recorded(unknown, "application/json", dataschema="urn:saga:orders/OrderPlaced.v1"))
    with pytest.raises(UnknownSchema, match=r"nothing: .*newer than orders/OrderPlaced.v2"):
        with_versions(tmp_path / "again").decode("reserve", message)
