"""Contracts and manifests for the documents' tests: every type, two versions, and texts that want to be more."""

import json
from pathlib import Path

from saga.choreography.manifest import Manifest
from saga.choreography.overview import Overview
from saga.choreography.releases import read_manifests
from saga.contracts.library import Library
from tests.contracts.folders import decimal, field, put, schema, write

HOSTILE = (
    "</style></td><script>alert(1)</script><img src=//evil.example/x onerror=alert(2)>\"'{{ 7 * 7 }}\x1b[2J\u202e\n"
)
"""Closes tags, runs scripts, asks other hosts, is a template, moves a terminal, and turns the order of what is read."""
PLACE = {"type": "record", "name": "Place", "doc": HOSTILE, "fields": [field("street", "string", doc=HOSTILE)]}
KIND = {"type": "enum", "name": "Kind", "symbols": ["TEA", "CAKE"], "doc": HOSTILE}
TYPES = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "decimal": decimal(),
    "uuid": {"type": "string", "logicalType": "uuid"},
    "date": {"type": "int", "logicalType": "date"},
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "place": ["null", PLACE],
    "kind": KIND,
    "places": {"type": "array", "items": "Place"},
    "counts": {"type": "map", "values": "int"},
    "deep": ["null", {"type": "array", "items": {"type": "map", "values": ["null", {"type": "record", "name": "Leaf",
        "fields": [field("leaf", "string", doc="A leaf.")]}]}}],
}  # fmt: skip
ODD = Manifest(
    format=1, service="odd", doc=HOSTILE, kind="order_id", retention_s=90_000.0, consumes=(), emits=(), reactions=()
)


def odd_shop(folder: Path) -> Path:
    """Folder with contracts of every type, and two manifests."""
    contract = schema(
        "Said",
        *(field(name, type_, doc=HOSTILE) for name, type_ in TYPES.items()),
        field("note", "string", default=HOSTILE, doc=HOSTILE, sensitive=True),
        doc=HOSTILE,
        owner="odd",
        produced_by="external",
        starts=True,
        **{"$ref": "#/nowhere"},
    )
    failed = schema("Failed", doc=HOSTILE, outcome="failure", topic="ends")
    done = schema("Done", doc="All is well.", outcome="success", consumed_by="external", topic="ends")
    write(folder, contract, failed, done)
    newer = field("remark", "string", default="", doc=HOSTILE, aliases=["note"])
    write(folder, {**contract, "fields": [*contract["fields"][:-1], newer]}, version=2)
    put(folder / "contracts/ends/topic.json", '{"retention_days": null, "partitions": 3, "wire": "registry"}')
    both = [{"contract": "Said", "version": 2, "topic": "orders", "key": "order_id"}]
    place = {"topic": "ends", "key": "order_id"}
    undo = {"name": "undo", "kind": "compensation", "ids": "odd|undo", "takes": [["Failed"], ["Answered"]]}
    manifest = {
        "format": 1,
        "service": "odd",
        "doc": HOSTILE,
        "kind": "order_id",
        "retention_s": 90000,
        "consumes": [
            {**both[0], "fields": ["order_id", "place.street"]},
            {"contract": "Failed", "version": 1, **place, "fields": ["order_id"]},
            {**both[0], "contract": "Answered", "fields": "all", "because": HOSTILE},
        ],
        "emits": [*both, {**both[0], "contract": "Answered"}, {"contract": "Done", "version": 1, **place}],
        "reactions": [
            {"name": "answer", "kind": "handler", "ids": "odd|answer", "takes": [["Said"]], "doc": HOSTILE,
             "emits": ["Answered", "Done"], "keys": [HOSTILE], "resources": [HOSTILE], "repeats": ["Said"],
             "later": True, "until": ["Failed"]},
            {"name": "late", "kind": "deadline", "ids": "odd|late", "takes": [["Said"]], "within_s": 90.5,
             "unless": ["Failed"], "emits": ["Done"]},
            {**undo, "undoes": "answer", "emits": []},
        ],
        "state": {"type": HOSTILE, "version": 1, "fields": {HOSTILE: HOSTILE}},
        "resources": {HOSTILE: HOSTILE},
        "documents": {HOSTILE: HOSTILE},
    }  # fmt: skip
    put(folder / "manifests/odd.json", json.dumps(manifest))
    put(
        folder / "manifests/quiet.json",
        json.dumps(
            {
                **manifest,
                "service": "quiet",
                "emits": [],
                "reactions": [{**undo, "takes": [["Failed"], ["Said"]], "undoes": "gone"}],
            }
        ),
    )
    return folder


def overview_of(folder: Path) -> Overview:
    """Overview of what lies in a folder."""
    return Overview(Library.load(folder / "contracts"), read_manifests(folder / "manifests"))
