"""Recognize the contract of a record from its type header, and from the schema that its bytes or a schema registry
name. Pure.

A type that is spelled differently (quotes around it, a version behind it, lower case, dots in a word) is accepted if
the bytes confirm the contract. If they do not, as in JSON, or contradict the header, the record gets a `doubt` and
becomes a dead letter: nothing is guessed.
"""

import re
from typing import NamedTuple

from saga.contracts import codec, registered
from saga.contracts.contract import Contract
from saga.contracts.library import Library, MeantType
from saga.errors import BadInput
from saga.messages import Record
from saga.messaging.structured_mode import content_type_of, is_json
from saga.support.printable import quoted

TYPES_MAX = 1024
"""Maximum number of cached type headers."""
PUBLISHED_AGAIN = "have its sender publish it again"
_TYPE_BYTES_MAX = 512
_WORDS_MAX = 6
"""Maximum number of words at the end of a type that may form the name of a contract."""
_is_version = re.compile(r"v?[0-9]+").fullmatch
_version_behind = re.compile(r"[vV][0-9]+$")
_between = re.compile(r"[^A-Za-z0-9]+")


class Recognition(NamedTuple):
    """Result of recognizing a record."""

    name: str
    """Name of the contract; empty: no known contract."""
    schema: str = ""
    """Path of its schema, if the type comes from the bytes alone."""
    doubt: str = ""
    """Why it cannot be handled although the contract is known."""
    remark: str = ""
    """What is unusual about its type header; it is handled nevertheless."""
    unknown_type: str = ""
    """Type that no contract has, for reports."""


def recognize(record: Record, library: Library) -> Recognition:
    """Recognize a record in binary mode. Raises `BadInput` if neither header nor bytes name a type."""
    said, value = _get_type_header(record), record.value or b""
    if said is None:
        content, path = _identify_value(record, library)
        if content is None:
            raise BadInput(_explain_missing_type(record, library))
        return Recognition(content, path, unknown_type=_schema_name(record) if content == "" else "")
    meant = _resolve_type(said, library)
    try:
        content, path = _identify_value(record, library)
    except BadInput:
        if meant is None:
            return Recognition("", unknown_type=_text(said))
        return Recognition(meant.name)  # decoding reports what is wrong with the schema
    if content:
        if meant is not None and meant.name == content:
            return Recognition(content, remark="" if meant.is_exact else _describe_near_match(said, content))
        what = path or f"{_schema_name(record)} by their schema"
        return Recognition(
            content,
            doubt=f"its ce_type is {quoted(_text(said))}, and its bytes are those of {what}: have its sender write the "
            "type that it is of",
            unknown_type=_text(said),
        )
    if meant is None or (content == "" and not meant.is_exact):
        return Recognition("", unknown_type=_text(said))
    if meant.is_exact:
        return Recognition(meant.name)
    if value[:2] == codec.MARKER or registered.id_in(value) is not None:  # decoding checks the schema
        return Recognition(meant.name, remark=_describe_near_match(said, meant.name))
    full_name = library.contracts[meant.name].full_name
    return Recognition(
        meant.name,
        doubt=f"{_describe_near_match(said, meant.name)}, and nothing in it shows that it is one: have its sender "
        f"write {full_name}",
        unknown_type=_text(said),
    )


def _get_type_header(record: Record) -> bytes | None:
    """Return the type header; `None` if there is none."""
    return next((value for name, value in record.headers if name == "ce_type"), None) or None


def _identify_value(record: Record, library: Library) -> tuple[str | None, str]:
    """Return the contract that the value itself names, and the path of its schema.

    The contract is empty for a record of some other type, and `None` if the value names none. Raises `BadInput` for an
    invalid schema.
    """
    value = record.value or b""
    if value[:2] == codec.MARKER:
        version = library.by_fingerprint.get(value[2 : codec.HEADER_SIZE])
        return (None, "") if version is None else (version.name, version.path)
    return registered.name_in(value, record.writer, library), ""


def _schema_name(record: Record) -> str:
    return registered.full_name_of(record.writer) if record.writer is not None else ""


def _resolve_type(said: bytes, library: Library) -> MeantType | None:
    """Return the contract that a type header means, or `None`. Cached, because there are few types."""
    try:
        return library.types[said]
    except KeyError:
        found = _look_up_type(_text(said), library)
        if len(library.types) < TYPES_MAX:
            library.types[said] = found
        return found


def _look_up_type(said: str, library: Library) -> MeantType | None:
    space, _, last = said.rpartition(".")
    contract = library.contracts.get(last)
    if contract is not None:
        return MeantType(last, not space or not contract.namespace or space == contract.namespace)
    words = [word for word in _between.split(said) if word]
    while words and _is_version(words[-1].lower()):
        words.pop()
    if words:
        words[-1] = _version_behind.sub("", words[-1])
    names = {_normalize(name): name for name in library.contracts}
    for count in range(min(len(words), _WORDS_MAX), 0, -1):
        name = names.get("".join(words[-count:]).lower())
        if name is not None:
            return MeantType(name, _is_exact_but_for_quotes(said, library.contracts[name]))
    return None


def _is_exact_but_for_quotes(said: str, contract: Contract) -> bool:
    """Return whether a type is the name of a contract, apart from quotes or blanks around it."""
    space, _, last = said.strip(" \t\r\n\0\"'").rpartition(".")
    return last == contract.name and (not space or not contract.namespace or space == contract.namespace)


def _normalize(name: str) -> str:
    return _between.sub("", name).lower()


def _describe_near_match(said: bytes, name: str) -> str:
    return f"no contract is called {quoted(_text(said))}; it comes near {name}"


def _text(said: bytes) -> str:
    return said[:_TYPE_BYTES_MAX].decode("utf-8", "replace")


def _explain_missing_type(record: Record, library: Library) -> str:
    """Explain why the type of a record is not known, and what its sender has to change."""
    near = next((name for name, _ in record.headers if name != "ce_type" and _normalize(name) == "cetype"), None)
    hint = f"; its header {quoted(near)} is not looked at: it has to be called ce_type" if near is not None else ""
    why = registered.elsewhere(record.headers) or registered.unreadable(record.value, record.writer, PUBLISHED_AGAIN)
    if why is not None:
        return f"{why}{hint}"
    if is_json(content_type_of(record)):
        return (
            "it is JSON, of which only its header ce_type could say what event it is, and it has none: have its sender "
            f"write one{hint}"
        )
    try:
        codec.identify(record.value, library)
    except BadInput as reason:
        return f"{reason}{hint}"
    raise AssertionError("its bytes say what it is")
