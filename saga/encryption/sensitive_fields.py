"""Sensitive values, which a service marks in its classes with `Annotated[str, sensitive]`. This module records them,
hides them from people, redacts them in text, and recognises them when they are encrypted.

A marked value is recorded inside an object of its own, `{"_sensitive": ...}`, wherever it occurs in JSON. So all code
that shows recorded values can hide the marked ones without knowing the service's classes.
"""

import base64
import html
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib import parse

import msgspec

HIDDEN: Final = "***"
"""Text that people see instead of a sensitive value."""
MARK: Final = "_sensitive"
"""Name of the only field of an object that holds a sensitive value."""
WHOLE_MIN = 4
"""Minimum length of a sensitive value that is also found inside words. A shorter value is found only as a whole
word."""
GROUPED_MIN = 6
"""Minimum length of a value with digits, such as a card number, that is also found if it is written in groups: 4111
1111."""
TEXT_MAX = 20_000
"""Maximum number of characters of a text that are searched for secrets. If there are secrets, the rest of a longer text
is cut off."""
_SEPARATOR: Final = "(?:[ ,.'_-]|%20)"
"""Pattern of a separator between groups, as in a card number."""


class Sensitive:
    """The class of the marker `sensitive`."""

    __name__ = "sensitive"

    def __repr__(self) -> str:
        return "sensitive"


sensitive: Final = Sensitive()
"""Marker for a sensitive value, as in `Annotated[str, sensitive]`. It may mark a field of a state or a document, a
result of a step, or an argument of `on_abort`.

People see `***` instead of the value.
"""

Change: TypeAlias = Callable[[Any], Any]
"""Function from a sensitive value, as JSON, to its replacement."""
_Walk: TypeAlias = Callable[[Any, Any, Change], Any]
"""Function that takes a value, the same value as JSON, and a change. It returns the JSON with all sensitive parts
changed."""


class SensitiveMarks:
    """The sensitive parts of one type. Its methods change or collect them in a value of the type."""

    __slots__ = ("_walk",)

    def __init__(self, walk: _Walk) -> None:
        self._walk = walk

    def change(self, value: object, plain: Any, change: Change) -> Any:
        """Return a value as JSON, with each sensitive part replaced with the result of `change`.

        `plain`: the value as JSON. If it is an object, some fields may be missing.
        """
        try:
            return self._walk(value, plain, change)
        except _UNREAD:  # the value is not of its type, so any part of it may be sensitive
            return change(plain)

    def texts(self, value: object) -> list[str]:
        """Return the strings that would reveal the sensitive parts of a value."""
        found: list[str] = []

        def note(plain: Any) -> Any:
            found.extend(collect_texts(plain))
            return plain

        with suppress(*_UNREAD):  # a value of another type has no known sensitive parts
            self._walk(value, msgspec.to_builtins(value, str_keys=True), note)
        return found


_UNREAD = (TypeError, ValueError, OverflowError, RecursionError, AttributeError, msgspec.MsgspecError)


def mark(plain: Any) -> dict[str, Any]:
    """Return an object that marks this JSON value as sensitive."""
    return {MARK: plain}


def find_marks(hint: Any) -> SensitiveMarks | None:
    """Return the sensitive parts of a type; `None` if it has none."""
    try:
        return _marks_of(hint)
    except TypeError:  # an unhashable annotation is none of the toolkit's types
        return None


@lru_cache(maxsize=4096)
def _marks_of(hint: Any) -> SensitiveMarks | None:
    return SensitiveMarks(_walk(hint)) if _is_marked(hint, set()) else None


def hide_marked(recorded: Any) -> Any:
    """Replace the marked parts of a recorded value with `***`.

    >>> hide_marked({"paid": True, "card": {"_sensitive": "4242"}})
    {'paid': True, 'card': '***'}
    """
    return replace_marked(recorded, lambda _: HIDDEN)


def unwrap_marked(recorded: Any) -> Any:
    """Replace each object that marks a value with the value itself.

    >>> unwrap_marked({"paid": True, "card": {"_sensitive": "4242"}})
    {'paid': True, 'card': '4242'}
    """
    return replace_marked(recorded, lambda value: value)


def find_secrets(recorded: Any) -> list[str]:
    """Return the strings that would reveal the marked parts of a recorded value."""
    found: list[str] = []
    replace_marked(recorded, lambda value: found.extend(collect_texts(value)))
    return found


def replace_marked(recorded: Any, change: Change) -> Any:
    """Replace each marked part of a recorded value with the result of `change`."""
    return replace_marked_at(recorded, lambda _, value: change(value))


def replace_marked_at(recorded: Any, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """Replace each marked part as `replace_marked` does. `change` also gets the path of the part.

    >>> replace_marked_at({"cards": [{"_sensitive": "4242"}]}, lambda path, value: f"{value} at {path}")
    {'cards': ["4242 at ['cards'][0]"]}
    """
    if isinstance(recorded, dict):
        if recorded.keys() == {MARK}:
            return change(path, recorded[MARK])
        return {name: replace_marked_at(part, change, f"{path}[{name!r}]") for name, part in recorded.items()}
    if isinstance(recorded, list):
        return [replace_marked_at(part, change, f"{path}[{n}]") for n, part in enumerate(recorded)]
    return recorded


# ---------------------------------------------------------------- strings


def collect_texts(plain: Any) -> Iterator[str]:
    """Yield all parts of a value as strings: names and values, as JSON and Python write them."""
    match plain:
        case str():
            yield plain
        case None:
            return
        case bytes():
            yield from (repr(plain)[2:-1], plain.hex(), base64.b64encode(plain).decode())
        case Mapping():
            for part in (*plain.keys(), *plain.values()):
                yield from collect_texts(part)
        case list() | tuple() | set() | frozenset():
            for part in plain:
                yield from collect_texts(part)
        case _:
            yield str(plain)


def redact_text(text: str, secrets: Iterable[str]) -> str:
    """Replace every occurrence of these secrets in a string with `***`, even in another case, quoted or encoded.

    >>> redact_text("card 4111-1111 of 1 declined", ["4111-1111", "1"])
    'card *** of *** declined'
    >>> redact_text("GET /pay?name=J%C3%BCrgen&card=4111%201111", ["jürgen", "4111-1111"])
    'GET /pay?name=***&card=***'
    """
    length = len(text)
    forms = {form for secret in set(secrets) if 0 < len(secret) <= 2 * length for form in _forms(secret)}
    if not forms:
        return text
    if length > TEXT_MAX:  # a secret may have been cut in two at the end
        text = text[: max(0, TEXT_MAX - max(map(len, forms)))]
    lower = text.lower()
    bare = re.sub(_SEPARATOR, "", lower)
    found = {form for form in forms if form.lower() in lower or (_join_groups(form) or form) in bare}
    if not found:
        return text
    alternatives = "|".join(map(_pattern, sorted(found, key=len, reverse=True)))
    return re.sub(alternatives, HIDDEN, text, flags=re.IGNORECASE)


def _join_groups(form: str) -> str | None:
    """Return the string in lower case without separators, such as the spaces in `4111 1111`, so that it can also be
    found if it is grouped differently.

    Return `None` if fewer than `GROUPED_MIN` characters are left, if they are not all letters and digits, or if none is
    a digit.
    """
    bare = re.sub(_SEPARATOR, "", form.lower())
    return bare if len(bare) >= GROUPED_MIN and bare.isalnum() and any(map(str.isdigit, bare)) else None


def _pattern(form: str) -> str:
    """Return the pattern that finds one form of a secret. A string that `_join_groups` accepts is found in any
    grouping. A short one is found only as a whole word."""
    bare = _join_groups(form)
    if bare is not None:
        return f"{_SEPARATOR}*".join(map(re.escape, bare))
    if len(form) >= WHOLE_MIN and form.lower() not in ("true", "false"):
        return re.escape(form)
    return rf"(?<!\w){re.escape(form)}(?!\w)"


def _forms(text: str) -> Iterator[str]:
    """Yield the forms in which a string may occur: plain, quoted and encoded, in upper and lower case, and in each
    Unicode normalization form."""
    composed = [text] if text.isascii() else [text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))]
    for each in composed:
        cased = [each] if each.isascii() else [each, each.upper(), each.lower(), each.casefold()]
        for letters in cased:  # their encoded forms differ
            yield from _quoted(letters)
        if len(each) >= WHOLE_MIN:
            yield from _encodings_of(each.encode("utf-8", "surrogatepass"))
    yield from _as_times(text)


def _quoted(text: str) -> Iterator[str]:
    """Yield a string unchanged, and as Python, JSON, URLs and markup write it."""
    yield text
    for quote in (repr, ascii, json.dumps, lambda each: json.dumps(each, ensure_ascii=False)):
        yield (once := quote(text)[1:-1])
        yield quote(once)[1:-1]
    content = text.encode("utf-8", "surrogatepass")
    for address in (parse.quote(content), parse.quote(content, safe=""), parse.quote_plus(content)):
        yield address
        yield parse.quote(address, safe="")
    yield html.escape(text)
    yield text.encode("ascii", "xmlcharrefreplace").decode()
    yield repr(content)[2:-1]
    for wrongly in ("latin-1", "cp1252"):  # as the text looks when it was decoded with the wrong encoding
        yield content.decode(wrongly, "replace")
    if not text.isascii() and sum(map(str.isascii, text)) >= WHOLE_MIN:
        yield text.encode("ascii", "replace").decode()


def _encodings_of(content: bytes) -> Iterator[str]:
    """Yield bytes as hexadecimal digits and as base64.

    The base64 characters at both ends, which depend on neighbouring bytes, are left out. So the bytes are also found
    within longer base64.
    """
    yield content.hex()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for at in range(3):
            yield encode(b"-" * at + content).decode()[(at * 8 + 5) // 6 : (at + len(content)) * 8 // 6]


def _as_times(text: str) -> Iterator[str]:
    """If a string is a date or a time, yield it in the forms in which Python and people write it."""
    with suppress(ValueError):
        day = date.fromisoformat(text)
        yield repr(day)
        for form in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d"):
            yield day.strftime(form)
        return
    with suppress(ValueError):
        time = datetime.fromisoformat(text)
        yield repr(time.replace(tzinfo=None))[:-1]
        yield str(time.replace(tzinfo=None))
        yield time.replace(tzinfo=None).isoformat()


# ---------------------------------------------------------------- types


def _is_marked(hint: Any, seen: set[Any]) -> bool:
    """Return whether a type has a sensitive part at any depth."""
    hint, is_sensitive = _bare(hint)
    if is_sensitive:
        return True
    origin = get_origin(hint)
    cls, parts = hint if origin is None else origin, [*get_args(hint)]
    if isinstance(cls, type) and cls not in seen:
        seen.add(cls)
        parts += _hints_of(cls).values()
    return any(_is_marked(part, seen) for part in parts)


def _bare(hint: Any) -> tuple[Any, bool]:
    """Return a type without its annotations and without `typing.NewType` around it, and whether one of these
    annotations is `sensitive`."""
    hint, metadata = unwrap_annotation(hint)
    while hasattr(hint, "__supertype__"):  # of a `NewType`
        hint, more = unwrap_annotation(hint.__supertype__)
        metadata += more
    return hint, any(note is sensitive for note in metadata)


def unwrap_annotation(hint: Any) -> tuple[Any, list[Any]]:
    """Return a type without the type aliases and `Annotated` around it, and the metadata of `Annotated`, outermost
    first."""
    metadata: list[Any] = []
    while True:
        if hasattr(hint, "__value__"):
            hint = resolve_alias(hint)
        elif get_origin(hint) is Annotated:
            metadata += hint.__metadata__
            hint = hint.__origin__
        else:
            return hint, metadata


def resolve_alias(alias: Any) -> Any:
    """Return what an alias stands for, one of `typing_extensions` or of the `type` statement. `Maybe[A]` of the alias
    `type Maybe[T] = T | None` stands for `A | None`."""
    value, own = alias.__value__, alias.__type_params__
    needed = getattr(value, "__parameters__", ())
    if not all(isinstance(each, TypeVar) for each in own):  # `*Ts` takes several types
        return value[get_args(alias)] if get_args(alias) and needed == own else value
    given = dict(zip(own, get_args(alias), strict=False))
    if isinstance(value, TypeVar):
        return given.get(value, value)
    return value[tuple(given[each] for each in needed)] if needed and given.keys() >= {*needed} else value


def _hints_of(cls: type) -> Mapping[str, Any]:
    """Return the types of a class's fields, by name. The result is empty if the class has no fields, or if their types
    cannot be resolved."""
    if not (is_dataclass(cls) or hasattr(cls, "__struct_fields__") or hasattr(cls, "__annotations__")):
        return {}
    try:
        return get_type_hints(cls, include_extras=True)
    except (
        NameError,
        AttributeError,
        TypeError,
        SyntaxError,
    ):  # one of the toolkit's own types, or one that no record can contain
        return {}


def _walk(hint: Any) -> _Walk:
    """Return the function that changes the sensitive parts of values of a type. The type must have such a part.

    If the structure of a part is not known, the whole part is treated as sensitive. That includes a generic class with
    arguments.
    """
    hint, is_sensitive = _bare(hint)
    origin, args = get_origin(hint), get_args(hint)
    if is_sensitive:
        return _whole
    if origin in (Union, UnionType):
        return _of_union(args)
    if origin is list or (origin is tuple and args[1:] == (Ellipsis,)):
        each = _walk(args[0])
        return lambda value, plain, change: [each(v, p, change) for v, p in zip(value, plain, strict=True)]
    if origin is dict and args[0] is str:
        one = _walk(args[1])
        return lambda value, plain, change: {name: one(value[name], part, change) for name, part in plain.items()}
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "__struct_fields__")):
        return _of_fields(hint)
    return _whole


def _whole(value: Any, plain: Any, change: Change) -> Any:
    return plain if plain is None else change(plain)


def _of_fields(cls: type) -> _Walk:
    if is_dataclass(cls):
        names = {field.name: field.name for field in fields(cls)}
    else:
        names = dict(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))  # type: ignore[attr-defined] # a Struct
    hints = _hints_of(cls)
    marked = [(name, names[name], hints[name]) for name in names if _is_marked(hints[name], set())]
    walks: dict[str, _Walk] = {}

    def walk(value: Any, plain: Any, change: Change) -> Any:
        if not isinstance(plain, dict):
            return _whole(value, plain, change)
        made = dict(plain)
        for name, written, hint in marked:
            if written in made:
                if name not in walks:  # created lazily: a class may contain itself
                    walks[name] = _walk(hint)
                made[written] = walks[name](getattr(value, name), made[written], change)
        return made

    return walk


def _of_union(options: tuple[Any, ...]) -> _Walk:
    walks = [(_class_of(option), _walk(option)) for option in options if _is_marked(option, set())]
    others = tuple(c for option in options if not _is_marked(option, set()) and (c := _class_of(option)) is not object)

    def walk(value: Any, plain: Any, change: Change) -> Any:
        for cls, one in walks:
            if isinstance(value, cls):
                return one(value, plain, change)
        return plain if isinstance(value, others) else _whole(value, plain, change)

    return walk


def _class_of(hint: Any) -> type:
    """Return the class to which all values of a type belong; `object` if there is no better one."""
    hint, _ = _bare(hint)
    origin = get_origin(hint)
    if hint is None or hint is NoneType:
        return NoneType
    if hasattr(hint, "__total__"):  # of a TypedDict
        return dict
    return hint if isinstance(hint, type) else origin if isinstance(origin, type) else object


# ---------------------------------------------------------------- encrypted values
#
# An encrypted value is a string. No key is needed to find it and to know the name of its key.


ENCRYPTED_PREFIX: Final = "sealed:1:"
"""Prefix of each encrypted value, followed by the name of its key, a colon, and base64."""
ERASED: Final = "erased"
"""Text shown instead of a value whose key was erased."""
KEY_NAME_LENGTH: Final = 32
"""Length of a key's name, in hexadecimal digits."""
_ENCRYPTED = re.compile(r"sealed:1:[0-9a-f]{32}:[0-9A-Za-z_=-]+")
_KEY_NAMES = re.compile(rb"sealed:1:([0-9a-f]{32}):")


class DecryptionFailed(Exception):
    """Error for a value that was encrypted with another key, copied from another place, or changed."""


class WrongSecret(DecryptionFailed):
    """Error for a value that was encrypted for this subject, but with another secret than the current one."""


def find_key_names(*contents: bytes) -> set[str]:
    """Return the names of the keys of all encrypted values in these bytes.

    The result may include names from text that only looks like an encrypted value, because any sender may write such
    text into an unencrypted field.

    >>> find_key_names(b'{"card": "sealed:1:0123456789abcdef0123456789abcdef:x-_"}', b"")
    {'0123456789abcdef0123456789abcdef'}
    """
    return {name.decode() for content in contents for name in _KEY_NAMES.findall(content)}


def is_encrypted(value: Any) -> bool:
    """Return whether a value has the form of an encrypted value."""
    return isinstance(value, str) and _ENCRYPTED.fullmatch(value) is not None


def key_name_of(text: str) -> str:
    """Return the name of the key of an encrypted value."""
    return text[len(ENCRYPTED_PREFIX) : len(ENCRYPTED_PREFIX) + KEY_NAME_LENGTH]


def recorded_place(service: str, saga: str, what: str, path: str = "") -> str:
    """Return the place to which an encrypted value in a progress is bound, so that the ciphertext cannot be copied
    elsewhere.

    Args:
        service: Name of the service.
        saga: The saga id.
        what: What contains the value: the state, or a step of a run.
        path: Path of the value within the state or the step's answer.
    """
    return f"{service}|{saga}|{what}|{path}"
