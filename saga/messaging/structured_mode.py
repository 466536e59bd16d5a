"""CloudEvents in structured mode: the whole event is JSON in the record's value. It is taken apart into headers and a
value, as binary mode has them. Pure."""

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any

from saga.contracts.json_form import read_objects
from saga.errors import BadInput
from saga.messages import Headers, Record, unquote_header
from saga.support.printable import quoted

STRUCTURED = "application/cloudevents+json"
OTHER_MODES = "application/cloudevents"
"""Beginning of the content types of structured modes that are not read, and of batches."""
JSON = "application/json"
_NEEDED = frozenset(
    {"specversion", "type", "id", "source", "time", "subject", "dataschema", "datacontenttype", "data", "data_base64"}
    | {"sagastart", "sagaprincipal"}
)
"""Names of an event that are looked at: all others travel with it as they are, whatever they are."""
_SHOWN_MAX = 40


def content_type_of(record: Record) -> str:
    """Content type in the headers of a record; empty if it says none.

    >>> content_type_of(Record("t", 0, 0, None, b"{}", (("Content-Type", b"Application/JSON; charset=utf-8"),), 0))
    'application/json'
    """
    for name, value in record.headers:
        if value and name.lower() == "content-type":
            return media_type(value)
    return ""


def media_type(header: bytes) -> str:
    """Type in a header, in small letters and without parameters, or the quotes that some put around it."""
    return unquote_header(header[:200]).decode("utf-8", "replace").partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """True if data of this type is JSON.

    >>> is_json("application/json"), is_json("application/vnd.shop+json"), is_json("application/avro")
    (True, True, False)
    """
    return content_type in (JSON, "text/json") or content_type.endswith("+json")


def in_binary_mode(record: Record) -> Record:
    """The same event as a record in binary mode. One that is in binary mode already comes back as it is. Raises
    `BadInput` for a structured event that is none, and for a mode that is not read."""
    content_type = content_type_of(record)
    if not content_type.startswith(OTHER_MODES):
        return record
    if content_type != STRUCTURED:
        raise BadInput(
            f"its content type is {quoted(content_type)}, which is not read: have its sender write one event a record, "
            f"in binary mode or as {STRUCTURED}"
        )
    event = _event_in(record.value or b"")
    attributes = {name: value for name, value in event.items() if name not in ("data", "data_base64")}
    content_type, value = _data(event, str(attributes.pop("datacontenttype", None) or JSON))
    headers: Headers = (("content-type", content_type.encode()), *_headers(attributes))
    others = tuple(header for header in record.headers if header[0].lower() != "content-type")
    return record._replace(value=value, headers=(*headers, *others))


def _event_in(value: bytes) -> dict[str, Any]:
    """The event in a value. Raises `BadInput`."""
    what = f"its content type is {STRUCTURED}, but its value is no CloudEvent:"
    try:
        event, twice = read_objects(value)
    except (ValueError, RecursionError) as why:
        raise BadInput(f"{what} it cannot be read as JSON: {_said(why)}") from None
    if not isinstance(event, dict):
        raise BadInput(f"{what} it is no JSON object")
    for doubled, names in twice:
        if doubled is event:
            names = [name for name in names if name in _NEEDED]
        elif not any(doubled is part for part in _objects_in(event.get("data"))):
            names = []
        if names:
            raise BadInput(f"{what} the name {_shown(names[0])} comes twice in one object")
    if event.get("specversion") != "1.0":
        raise BadInput(f'{what} its "specversion" is not "1.0"')
    if not isinstance(event.get("type"), str) or not event["type"]:
        raise BadInput(f'{what} its "type" is missing')
    return event


def _data(event: dict[str, Any], content_type: str) -> tuple[str, bytes | None]:
    """Content type and bytes of an event's data. Raises `BadInput`."""
    if not content_type.isprintable() or not content_type.isascii():
        raise BadInput(f'the event\'s "datacontenttype" is no content type: {_shown(content_type)}')
    data, packed = event.get("data"), event.get("data_base64")
    if packed is not None:
        if data is not None:
            raise BadInput('the event has "data" and "data_base64": it may have one of them')
        try:
            return content_type, base64.b64decode(packed, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise BadInput('the event\'s "data_base64" is no base64 text') from None
    if data is None:
        return content_type, None
    if isinstance(data, str) and not is_json(media_type(content_type.encode())):
        return content_type, data.encode("utf-8", "surrogatepass")
    return content_type, json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _objects_in(data: object) -> Iterator[object]:
    """All objects in JSON data."""
    open_ = [data]
    while open_:
        part = open_.pop()
        if isinstance(part, list):
            open_ += part
        elif isinstance(part, dict):
            yield part
            open_ += part.values()


def _headers(attributes: dict[str, Any]) -> Headers:
    """Attributes as binary mode has them. Raises `BadInput` for one that is needed and is none."""
    made = []
    for name, value in attributes.items():
        if value is None:
            continue
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif not isinstance(value, str | int):
            if name in _NEEDED:
                raise BadInput(f'the event\'s attribute "{name}" is neither text nor a whole number, true or false')
            value = json.dumps(value, ensure_ascii=False)
        made.append((f"ce_{name}", str(value).encode("utf-8", "surrogatepass")))
    return tuple(made)


def _said(why: Exception) -> str:
    return "it is nested too deeply" if isinstance(why, RecursionError) else str(why)


def _shown(name: str) -> str:
    return quoted(name[:_SHOWN_MAX])
