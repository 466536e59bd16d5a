"""Write the documents of a choreography into a folder: an AsyncAPI document, and a page for each event and service.

The AsyncAPI 3 document has topics as channels, contracts as messages with their Avro schemas, and what each service
sends and receives. The pages are in `pages`, which needs Jinja2.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from saga.choreography.manifest import DeclaredReaction, Manifest
from saga.choreography.overview import Emitter, EventConsumer, Overview
from saga.contracts.contract import Contract, Version
from saga.contracts.library import Library
from saga.errors import ConfigurationError
from saga.messages import Topic
from saga.messaging.envelope import CONTENT_TYPE, PRINCIPAL
from saga.support.printable import printable

ASYNCAPI_FILE = "asyncapi.json"
_MARK = '<meta name="generator" content="saga docs build">'


@dataclass(frozen=True, slots=True)
class BuiltDocs:
    """The documents that a call of `build_docs` has written."""

    out: Path
    events: int
    services: int
    removed: int
    """Number of pages that were removed, because their event or service no longer exists."""


def build_docs(library: Library, manifests: Mapping[str, Manifest], out: Path, title: str, version: str) -> BuiltDocs:
    """Write the documents into a folder that is new or empty, or that an earlier call has written.

    Raises `ConfigurationError` if the folder contains other files.
    """
    try:
        from saga.choreography.pages import render_pages
    except ImportError as why:
        problem = f"pages need Jinja2: {why}; pip install 'saga-choreography[docs]'"
        raise ConfigurationError("nothing was written:", [problem]) from why
    old = _find_earlier_pages(out)
    overview = Overview(library, manifests)
    files = {
        **dict(render_pages(overview, title)),
        ASYNCAPI_FILE: json.dumps(make_asyncapi(overview, title, version), indent=2) + "\n",
    }
    for name, text in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    gone = [path for path in old if path.relative_to(out).as_posix() not in files]
    for path in gone:
        path.unlink()
    return BuiltDocs(out, len(overview.contracts), len(manifests), len(gone))


def _find_earlier_pages(out: Path) -> list[Path]:
    """Return the pages that an earlier call wrote. Raises `ConfigurationError` if the folder contains other files."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return []
    index = out / "index.html"
    if not index.is_file() or _MARK not in index.read_text("utf-8", "replace"):
        problem = f"{out} holds other files: name an empty folder, or one that saga docs build has written"
        raise ConfigurationError("nothing was written:", [problem])
    pages = [path for folder in ("events", "services") for path in sorted((out / folder).glob("*.html"))]
    return [path for path in pages if _MARK in path.read_text("utf-8", "replace")]


# -------------------------------------------------------------------- asyncapi


ASYNCAPI: Final = "3.0.0"
AVRO: Final = "application/vnd.apache.avro+json;version=1.9.0"
CLIENT: Final = "client"
_BINDING: Final = "0.5.0"
_DAY_MS = 86_400_000
_BY_REGISTRY: Final = {
    "schemaIdLocation": "payload",
    "schemaIdPayloadEncoding": "confluent",
    "schemaLookupStrategy": "TopicRecordNameStrategy",
}
_SINGLE_OBJECT = "The value is Avro's single-object encoding: C3 01, the schema's fingerprint in 8 bytes, the record."
_IN_REGISTRY = "The value is a zero byte, the id that a schema registry gave the schema, in 4 bytes, and the record."

Json: TypeAlias = dict[str, Any]


def make_asyncapi(overview: Overview, title: str, version: str) -> Json:
    """Return the AsyncAPI document. `version`: version of the document, in any format."""
    return {
        "asyncapi": ASYNCAPI,
        "info": {
            "title": title,
            "version": version,
            "description": "Events of services that react to each other, without a coordinator. Generated from their "
            "contracts and manifests.",
        },
        "defaultContentType": CONTENT_TYPE.decode(),
        "channels": {name: _channel(overview, topic) for name, topic in sorted(overview.library.topics.items())},
        "operations": dict(_operations(overview)),
        "components": {
            "messages": {
                path.rpartition("/")[2]: _message(overview.contracts[v.name], v)
                for path, v in sorted(overview.library.by_path.items())
                if v.name in overview.contracts
            },
            "schemas": {"headers": _headers()},
        },
    }


def _channel(overview: Overview, topic: Topic) -> Json:
    contracts = [each for each in overview.contracts.values() if each.topic == topic.name]
    owners = sorted({each.owner for each in contracts})
    retention = {} if topic.retention_days is None else {"retention.ms": int(topic.retention_days * _DAY_MS)}
    return {
        "address": topic.name,
        "title": topic.name,
        "description": f"Events of {', '.join(owners)}. Records of one saga have one key, and are in order.",
        "messages": {
            _id(version): {"$ref": f"#/components/messages/{_id(version)}"}
            for contract in contracts
            for version in contract.versions
        },
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": {"cleanup.policy": ["delete"], **retention},
                "bindingVersion": _BINDING,
            }
        },
    }


def _message(contract: Contract, version: Version) -> Json:
    key = version.record.field(contract.key)
    assert key is not None  # AsyncAPI tools refuse a contract without it
    terms = {"starts": contract.starts, "outcome": contract.outcome, "owner": contract.owner, "key": contract.key}
    return {
        "name": contract.full_name,
        "title": f"{contract.name}, version {version.number}",
        "summary": _text(version.record.doc) or contract.name,
        "description": _IN_REGISTRY if contract.wire == "registry" else _SINGLE_OBJECT,
        "contentType": CONTENT_TYPE.decode(),
        "headers": {"$ref": "#/components/schemas/headers"},
        "payload": {"schemaFormat": AVRO, "schema": _plain(version.schema)},
        "correlationId": {"description": "The saga id.", "location": "$message.header#/ce_subject"},
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": f"The saga id: the value of {contract.key}."},
                **(_BY_REGISTRY if contract.wire == "registry" else {}),
                "bindingVersion": _BINDING,
            }
        },
        "x-saga": {name: value for name, value in terms.items() if value},
    }


def _headers() -> Json:
    """Return the schema of the headers of every event: CloudEvents in binary mode."""
    headers = {
        "ce_specversion": "Version of CloudEvents, 1.0.",
        "ce_id": "Id of the event, derived from its cause: a repetition has the same id.",
        "ce_type": "Full name of the contract.",
        "ce_source": "Service that emitted it, or client.",
        "ce_time": "Time at which it was recorded, RFC 3339 in UTC.",
        "ce_subject": "The saga id; also the record's key.",
        "ce_dataschema": "URI of its schema.",
        "ce_sagastart": "Time at which its saga started.",
        PRINCIPAL: "Who started the saga, if a client or a foreign header said so.",
        "traceparent": "Trace context of W3C.",
        "content-type": "Form of the value.",
    }
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": text} for name, text in headers.items()},
        "required": ["ce_id", "ce_type", "ce_source", "ce_time", "ce_subject"],
    }


def _operations(overview: Overview) -> Iterator[tuple[str, Json]]:
    for contract in overview.contracts.values():
        for emitter in overview.emitters(contract.name):
            yield f"{emitter.service}.send.{contract.name}", _send_operation(contract, emitter)
        for consumer in overview.consumers(contract.name):
            if consumer.from_log:
                yield f"{consumer.service}.receive.{contract.name}", _receive_operation(contract, consumer)
        if contract.produced_externally:
            yield f"{CLIENT}.send.{contract.name}", _operation("send", CLIENT, contract, contract.versions[-1:], ())


def _send_operation(contract: Contract, emitter: Emitter) -> Json:
    versions = [each for each in contract.versions if each.number == emitter.version]
    return _operation("send", emitter.service, contract, versions or contract.versions, emitter.reactions)


def _receive_operation(contract: Contract, consumer: EventConsumer) -> Json:
    group = {"groupId": {"type": "string", "enum": [consumer.group]}, "bindingVersion": _BINDING}
    fields = consumer.use.fields if isinstance(consumer.use.fields, str) else list(consumer.use.fields)
    return {
        **_operation("receive", consumer.service, contract, contract.versions, consumer.reactions),
        "bindings": {"kafka": group},
        "x-saga": {"fields": fields, "version": consumer.use.version},
    }


def _operation(
    action: str, service: str, contract: Contract, versions: Sequence[Version], reactions: Sequence[DeclaredReaction]
) -> Json:
    names = ", ".join(each.name for each in reactions)
    texts = [f"{each.name}: {_text(each.doc)}" for each in reactions if each.doc]
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{contract.topic}"},
        "messages": [{"$ref": f"#/channels/{contract.topic}/messages/{_id(version)}"} for version in versions],
        "title": f"{service} {'emits' if action == 'send' else 'consumes'} {contract.name}",
        "summary": f"By {names}." if names else "By external clients.",
        **({"description": "\n\n".join(texts)} if texts else {}),
        "tags": [{"name": service}],
    }


def _id(version: Version) -> str:
    return f"{version.name}.v{version.number}"


def _plain(schema: Mapping[str, Any]) -> Json:
    """Return a schema in the form that AsyncAPI tools accept. `$ref`, which the tools would follow, is removed; it has
    no meaning in Avro. Names with dots, which Avro allows and AsyncAPI does not, are split into name and namespace.
    """
    plain = {key: _plain_part(value) for key, value in schema.items() if key != "$ref"}
    name, aliases = plain.get("name"), plain.get("aliases")
    if plain.get("type") in ("record", "enum", "fixed") and isinstance(name, str) and "." in name:
        plain["namespace"], _, plain["name"] = name.rpartition(".")
    if isinstance(aliases, list) and any("." in str(alias) for alias in aliases):
        plain["aliases"] = [alias for alias in aliases if "." not in str(alias)]
    return plain


def _plain_part(value: Any) -> Any:
    if isinstance(value, dict):
        return _plain(value)
    return [_plain_part(part) for part in value] if isinstance(value, list) else value


def _text(text: str) -> str:
    return printable(" ".join(text.split()))
