"""Recognition of events: of which contract a record is, by what its headers say of its type and by what its bytes, or
the schema that a registry has for them, say themselves. Pure.

A type that is written a bit differently (quotes around it, a version behind it, small letters, dots in a word) is taken
where the bytes show which contract is meant. Where they do not, as in JSON, or say something else than the type, nobody
guesses: the record is of that contract, with a doubt.
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
"""Types in headers that are remembered with what they mean, at most."""
PUBLISHED_AGAIN = "have its sender publish it again"
_TYPE_BYTES_MAX = 512
_WORDS_MAX = 6
"""Words at the end of a type that may be the name of a contract together, at most."""
_is_version = re.compile(r"v?[0-9]+").fullmatch
_version_behind = re.compile(r"[vV][0-9]+$")
_between = re.compile(r"[^A-Za-z0-9]+")


class Recognized(NamedTuple):
    """Contract that a record is of, as far as can be told."""

    name: str
    """Name of the contract; empty: it is of none that is known here."""
    schema: str = ""
    """Path of its schema, if the bytes alone tell the type."""
    doubt: str = ""
    """Reason that it cannot be handled as one all the same."""
    remark: str = ""
    """What is odd about it, for people: it is handled."""
    said: str = ""
    """Type that is none of any contract, for people."""


def recognize(record: Record, library: Library) -> Recognized:
    """Recognize a record in binary mode. Raises `BadInput` where neither header nor bytes say anything."""
    said, value = _said(record), record.value or b""
    if said is None:
        content, path = _content(record, library)
        if content is None:
            raise BadInput(_nameless(record, library))
        return Recognized(content, path, said=_schema_name(record) if content == "" else "")
    meant = _meant(said, library)
    try:
        content, path = _content(record, library)
    except BadInput:
        if meant is None:
            return Recognized("", said=_text(said))
        return Recognized(meant.name)  # who decodes it says what is wrong with its schema
    if content:
        if meant is not None and meant.name == content:
            return Recognized(content, remark="" if meant.is_exact else _odd(said, content))
        what = path or f"{_schema_name(record)} by their schema"
        return Recognized(
            content,
            doubt=f"its ce_type is {quoted(_text(said))}, and its bytes are those of {what}: have its sender write the "
            "type that it is of",
            said=_text(said),
        )
    if meant is None or (content == "" and not meant.is_exact):
        return Recognized("", said=_text(said))
    if meant.is_exact:
        return Recognized(meant.name)
    if value[:2] == codec.MARKER or registered.id_in(value) is not None:  # whoever decodes it sees what it is
        return Recognized(meant.name, remark=_odd(said, meant.name))
    full_name = library.contracts[meant.name].full_name
    return Recognized(
        meant.name,
        doubt=f"{_odd(said, meant.name)}, and nothing in it shows that it is one: have its sender write {full_name}",
        said=_text(said),
    )


def _said(record: Record) -> bytes | None:
    """Type in the header of a record; `None` if there is none."""
    return next((value for name, value in record.headers if name == "ce_type"), None) or None


def _content(record: Record, library: Library) -> tuple[str | None, str]:
    """Contract that a value itself says, and the path of its schema; empty: another record's; `None`: it says none.
    Raises `BadInput` for a schema that is none."""
    value = record.value or b""
    if value[:2] == codec.MARKER:
        version = library.by_fingerprint.get(value[2 : codec.HEADER_SIZE])
        return (None, "") if version is None else (version.name, version.path)
    return registered.name_in(value, record.writer, library), ""


def _schema_name(record: Record) -> str:
    return registered.full_name_of(record.writer) if record.writer is not None else ""


def _meant(said: bytes, library: Library) -> MeantType | None:
    """Contract that a type means; `None` if it means none. Remembered: there are not many types."""
    try:
        return library.types[said]
    except KeyError:
        found = _looked_up(_text(said), library)
        if len(library.types) < TYPES_MAX:
            library.types[said] = found
        return found


def _looked_up(said: str, library: Library) -> MeantType | None:
    space, _, last = said.rpartition(".")
    contract = library.contracts.get(last)
    if contract is not None:
        return MeantType(last, not space or not contract.namespace or space == contract.namespace)
    words = [word for word in _between.split(said) if word]
    while words and _is_version(words[-1].lower()):
        words.pop()
    if words:
        words[-1] = _version_behind.sub("", words[-1])
    names = {_small(name): name for name in library.contracts}
    for count in range(min(len(words), _WORDS_MAX), 0, -1):
        name = names.get("".join(words[-count:]).lower())
        if name is not None:
            return MeantType(name, _is_written(said, library.contracts[name]))
    return None


def _is_written(said: str, contract: Contract) -> bool:
    """True if a type is the name of a contract but for quotes or blanks around it."""
    space, _, last = said.strip(" \t\r\n\0\"'").rpartition(".")
    return last == contract.name and (not space or not contract.namespace or space == contract.namespace)


def _small(name: str) -> str:
    return _between.sub("", name).lower()


def _odd(said: bytes, name: str) -> str:
    return f"no contract is called {quoted(_text(said))}; it comes near {name}"


def _text(said: bytes) -> str:
    return said[:_TYPE_BYTES_MAX].decode("utf-8", "replace")


def _nameless(record: Record, library: Library) -> str:
    """Reason that nobody can tell what a record is, with what would help."""
    near = next((name for name, _ in record.headers if name != "ce_type" and _small(name) == "cetype"), None)
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
