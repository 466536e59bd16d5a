"""AsyncAPI documents: what they say, and what the official parser makes of them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from saga.choreography.docs import make_asyncapi
from saga.choreography.overview import Overview
from saga.choreography.releases import read_manifests
from saga.contracts.library import Library
from saga.messages import Message
from saga.messaging.envelope import headers_of
from tests.choreography.odd_shop import TYPES, odd_shop, overview_of
from tests.choreography.official_parser import PARSE_S, parsed, parser_folder
from tests.contracts.folders import field, schema, write
from tests.servers.fixtures import or_left_out
from tests.servers.npm import FETCH_S

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shop() -> Any:
    overview = Overview(Library.load(ROOT / "contracts"), read_manifests(ROOT / "manifests"))
    return make_asyncapi(overview, "The order saga", "1.2.3")


def test_topics_are_channels_with_what_kafka_needs(shop: Any) -> None:
    assert sorted(shop["channels"]) == ["inventory", "orders", "payments", "shipments"]
    orders = shop["channels"]["orders"]
    assert sorted(orders["messages"]) == ["OrderCancelled.v1", "OrderConfirmed.v1", "OrderPlaced.v1"]
    assert orders["bindings"]["kafka"] == {
        "topic": "orders",
        "partitions": 12,
        "topicConfiguration": {"cleanup.policy": ["delete"], "retention.ms": 7 * 86_400_000},
        "bindingVersion": "0.5.0",
    }


def test_messages_have_the_schema_as_it_is_in_the_file(shop: Any) -> None:
    message = shop["components"]["messages"]["OrderPlaced.v1"]
    assert message["payload"] == {
        "schemaFormat": "application/vnd.apache.avro+json;version=1.9.0",
        "schema": json.loads((ROOT / "contracts/orders/OrderPlaced.v1.avsc").read_text("utf-8")),
    }
    assert message["contentType"] == "application/avro"
    assert message["bindings"]["kafka"]["key"]["description"] == "The saga id: the value of order_id."
    assert message["x-saga"] == {"starts": True, "owner": "order", "key": "order_id"}
    assert shop["components"]["messages"]["OrderCancelled.v1"]["x-saga"]["outcome"] == "failure"


def test_a_renamed_service_reads_in_the_group_of_its_first_name() -> None:
    known = read_manifests(ROOT / "manifests")
    renamed = msgspec.structs.replace(known["payment"], service="billing", was="payment")
    others = {name: each for name, each in known.items() if name != "payment"}
    overview = Overview(Library.load(ROOT / "contracts"), {**others, "billing": renamed})
    received = make_asyncapi(overview, "The order saga", "1")["operations"]["billing.receive.OrderPlaced"]
    assert received["bindings"]["kafka"]["groupId"]["enum"] == ["payment"]


def test_services_send_and_receive_what_their_manifests_say(shop: Any) -> None:
    operations = {name: (each["action"], each["channel"]["$ref"]) for name, each in shop["operations"].items()}
    mine = {name: what for name, what in operations.items() if name.startswith("payment.")}
    assert mine == {
        "payment.receive.OrderCancelled": ("receive", "#/channels/orders"),
        "payment.receive.OrderConfirmed": ("receive", "#/channels/orders"),
        "payment.receive.OrderPlaced": ("receive", "#/channels/orders"),
        "payment.send.PaymentCaptured": ("send", "#/channels/payments"),
        "payment.send.PaymentDeclined": ("send", "#/channels/payments"),
        "payment.send.PaymentReleased": ("send", "#/channels/payments"),
        "payment.send.PaymentReserved": ("send", "#/channels/payments"),
    }
    received = shop["operations"]["payment.receive.OrderPlaced"]
    assert received["bindings"]["kafka"]["groupId"] == {"type": "string", "enum": ["payment"]}
    assert received["x-saga"] == {"fields": ["card", "order_id", "total"], "version": 1}
    assert received["summary"] == "By reserve."
    assert operations["client.send.OrderPlaced"] == ("send", "#/channels/orders")


def test_every_header_of_ours_is_described(shop: Any) -> None:
    fields: dict[str, Any] = {
        "id": "m-1",
        "type": "OrderPlaced",
        "schema": "orders/OrderPlaced.v1",
        "saga": "o-1",
        "source": "client",
    }
    absent = [each.name for each in msgspec.structs.fields(Message) if each.default is None]
    fields |= {"time": "2026-11-22T16:00:00.000Z", "value": b"", **dict.fromkeys(absent, "x")}
    message = Message(**fields)
    names = {name for name, _ in headers_of(message, None)}
    assert names == set(shop["components"]["schemas"]["headers"]["properties"])


@pytest.mark.slow
@pytest.mark.timeout(FETCH_S + PARSE_S)  # the first one fetches the parser
def test_the_official_parser_has_nothing_to_complain_of(shop: Any, tmp_path: Path) -> None:
    folder = or_left_out(parser_folder)
    odd = make_asyncapi(overview_of(odd_shop(tmp_path)), "Odd", "1.0.0")
    broken = json.loads(json.dumps(shop))
    broken["components"]["messages"]["OrderPlaced.v1"]["payload"]["schema"]["fields"][0]["type"] = "nonsense"
    del broken["operations"]["payment.send.PaymentCaptured"]["channel"]
    files = [tmp_path / f"{name}.json" for name in ("shop", "odd", "broken")]
    for file, document in zip(files, (shop, odd, broken), strict=True):
        file.write_text(json.dumps(document), "utf-8")
    *good, refused = parsed(folder, *files)
    for document, found in zip((shop, odd), good, strict=True):
        assert found["version"] == "3.0.0"
        assert found["complaints"] == []
        assert sorted(found["channels"]) == sorted(document["channels"])
        assert {each["id"]: each["action"] for each in found["operations"]} == {
            name: each["action"] for name, each in document["operations"].items()
        }
        for each in found["operations"]:
            refs = document["operations"][each["id"]]["messages"]
            assert each["messages"] == [ref["$ref"].rpartition("/")[2] for ref in refs]
            assert len(each["channels"]) == 1
    read = good[1]["payloads"]["Said.v1"]["properties"]
    assert set(TYPES) <= set(read), "the parser has read the Avro schema of each message"
    assert refused["version"] is None
    assert any("channel" in each["message"] for each in refused["complaints"]), refused["complaints"]


def test_self_consumed_events_are_not_received_and_a_registry_is_named(tmp_path: Path) -> None:
    odd = make_asyncapi(overview_of(odd_shop(tmp_path)), "Odd", "1.0.0")
    assert sorted(odd["operations"]) == [
        "client.send.Said",
        "odd.receive.Failed",
        "odd.receive.Said",
        "odd.send.Done",
        "odd.send.Said",
        "quiet.receive.Failed",
    ]
    assert [ref["$ref"] for ref in odd["operations"]["odd.send.Said"]["messages"]] == [
        "#/channels/orders/messages/Said.v2"
    ]
    assert [ref["$ref"] for ref in odd["operations"]["odd.receive.Said"]["messages"]] == [
        "#/channels/orders/messages/Said.v1",
        "#/channels/orders/messages/Said.v2",
    ]
    assert odd["components"]["messages"]["Done.v1"]["bindings"]["kafka"]["schemaIdPayloadEncoding"] == "confluent"
    assert "zero byte" in odd["components"]["messages"]["Done.v1"]["description"]
    assert "schemaIdLocation" not in odd["components"]["messages"]["Said.v1"]["bindings"]["kafka"]
    assert "single-object" in odd["components"]["messages"]["Said.v1"]["description"]
    assert "retention.ms" not in odd["channels"]["ends"]["bindings"]["kafka"]["topicConfiguration"]
    assert "#/nowhere" not in json.dumps(odd)


DOTTED: dict[str, Any] = {
    "type": "record",
    "name": "com.shop.Dotted",
    "aliases": ["com.shop.Old", "Older"],
    "fields": [field("kind", {"type": "enum", "name": "com.shop.Inner", "symbols": ["A"]})],
}


def dotted(folder: Path) -> Any:
    """Document of a contract whose types have names with dots."""
    contract = schema("Said", field("one", DOTTED), field("again", ["null", "com.shop.Dotted"]), produced_by="external")
    return make_asyncapi(Overview(Library.load(write(folder, contract)), {}), "Dotted", "1.0.0")


def test_a_name_with_dots_is_name_and_namespace(tmp_path: Path) -> None:
    fields = dotted(tmp_path)["components"]["messages"]["Said.v1"]["payload"]["schema"]["fields"]
    one, again = fields[1]["type"], fields[2]["type"]
    assert (one["namespace"], one["name"], one["aliases"]) == ("com.shop", "Dotted", ["Older"])
    assert (one["fields"][0]["type"]["name"], again) == ("Inner", ["null", "com.shop.Dotted"])


@pytest.mark.slow
@pytest.mark.timeout(FETCH_S + PARSE_S)  # the first one fetches the parser
def test_the_official_parser_takes_names_with_dots(tmp_path: Path) -> None:
    folder = or_left_out(parser_folder)
    file = tmp_path / "dotted.json"
    file.write_text(json.dumps(dotted(tmp_path)), "utf-8")
    (found,) = parsed(folder, file)
    assert (found["version"], found["complaints"]) == ("3.0.0", [])
    assert {"one", "again"} <= set(found["payloads"]["Said.v1"]["properties"])
