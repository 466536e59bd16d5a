"""Render pages about a choreography: one for each event and service, in plain HTML that loads nothing from other
hosts."""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from saga.choreography.manifest import DeclaredReaction
from saga.choreography.overview import EventConsumer, Overview
from saga.contracts.contract import Contract, Version
from saga.contracts.schema import ArrayType, EnumType, MapType, OptionalType, RecordType, Type, describe_type
from saga.contracts.schema_parser import NULLS
from saga.messages import Topic
from saga.support.durations import describe_duration
from saga.support.printable import printable

EVENTS, SERVICES = "events", "services"
_SPACES = re.compile(r"[ \t\r\n]+")


# -------------------------------------------------------------------- pages


TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True, slots=True)
class FieldShown:
    """A field of a record, as pages show it."""

    name: str
    type: str
    default: str | None
    doc: str
    sensitive: bool
    aliases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordShown:
    """A record or enum of a version, as pages show it."""

    name: str
    doc: str
    fields: tuple[FieldShown, ...] = ()
    symbols: tuple[str, ...] = ()


def render_pages(overview: Overview, title: str) -> Iterator[tuple[str, str]]:
    """Yield the HTML pages, each as its path below the folder and its text. All values in them are escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable_line,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (TEMPLATES / "style.css").read_text("utf-8")
    digest = b64encode(sha256(style.encode()).digest()).decode()
    everywhere: dict[str, Any] = {
        "overview": overview,
        "title": title,
        "style": Markup(style),
        "style_source": Markup(f"'sha256-{digest}'"),
        "kept": describe_retention,
        "span": describe_duration,
        "records": list_records,
        "readers": list_readers,
    }

    def page(template: str, up: str, **values: object) -> str:
        return environment.get_template(template).render(**everywhere, up=up, **values)

    yield "index.html", page("index.html.j2", "")
    for contract in overview.contracts.values():
        yield f"{EVENTS}/{contract.name}.html", page("event.html.j2", "../", **_of_event(overview, contract))
    for manifest in overview.manifests.values():
        yield f"{SERVICES}/{manifest.service}.html", page("service.html.j2", "../", manifest=manifest)


def _of_event(overview: Overview, contract: Contract) -> Mapping[str, object]:
    """Return the values that only the page of an event needs."""
    reactions = [(name, each) for name, manifest in overview.manifests.items() for each in manifest.reactions]
    return {
        "contract": contract,
        "topic": overview.library.topics[contract.topic],
        "undone_on": overview.compensated_on(contract.name),
        "undoing": overview.compensated_after(contract.name),
        "failures": [each.name for each in overview.outcomes(contract.key) if each.outcome == "failure"],
        "deadlines": [(of, each) for of, each in reactions if each.kind == "deadline" and _takes(each, contract)],
        "repeating": [(of, each) for of, each in reactions if contract.name in each.repeats],
    }


def _takes(reaction: DeclaredReaction, contract: Contract) -> bool:
    return any(contract.name in part for part in reaction.takes)


def describe_retention(topic: Topic) -> str:
    """Return how long a topic's records are kept, as text.

    >>> describe_retention(Topic("orders")), describe_retention(Topic("orders", retention_days=None))
    ('kept for 7 days', 'kept for ever')"""
    return (
        "kept for ever"
        if topic.retention_days is None
        else f"kept for {describe_duration(topic.retention_days * 86_400)}"
    )


def list_readers(consumers: Iterable[EventConsumer], field: str) -> list[str]:
    """Return the services that may read a field of an event."""
    return [
        each.service
        for each in consumers
        if each.use.fields == "all" or any(path.partition(".")[0] == field for path in each.use.fields)
    ]


def list_records(version: Version) -> list[RecordShown]:
    """Return the record of a version, followed by the records and enums that it contains."""
    found: dict[str, RecordShown] = {}
    _collect(version.record, version.schema, found)
    return list(found.values())


def _collect(type_: Type, schema: Any, found: dict[str, RecordShown]) -> None:
    """Add the records and enums in a type to `found`. `schema`: JSON of the type, which contains the descriptions of
    fields; the parsed types lack them."""
    match type_:
        case RecordType(name=name, fields=fields, doc=doc) if name not in found and isinstance(schema, dict):
            raw = {each["name"]: each for each in schema["fields"]}
            found[name] = RecordShown(
                name,
                doc,
                tuple(
                    FieldShown(
                        name=field.name,
                        type=describe_type(field.type),
                        default=json.dumps(raw[field.name]["default"]) if "default" in raw[field.name] else None,
                        doc=raw[field.name]["doc"] if isinstance(raw[field.name].get("doc"), str) else "",
                        sensitive=field.sensitive,
                        aliases=field.aliases,
                    )
                    for field in fields
                ),
            )
            for field in fields:
                _collect(field.type, raw[field.name]["type"], found)
        case EnumType(name=name, symbols=symbols, doc=doc) if name not in found:
            found[name] = RecordShown(name, doc, symbols=symbols)
        case ArrayType(inner) if isinstance(schema, dict):
            _collect(inner, schema["items"], found)
        case MapType(inner) if isinstance(schema, dict):
            _collect(inner, schema["values"], found)
        case OptionalType(inner) if isinstance(schema, list):
            _collect(inner, next(each for each in schema if each not in NULLS), found)
        case _:
            pass


def _printable_line(value: object) -> object:
    """Return text on one line, without invisible characters. Return other values unchanged."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(_SPACES.sub(" ", value))
    return value
