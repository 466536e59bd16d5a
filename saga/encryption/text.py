"""Format of encrypted values (sealed texts), and how to find them in bytes. No key is needed."""

import re
from typing import Any, Final

PREFIX: Final = "sealed:1:"
"""Beginning of each sealed text; behind it the name of its key, a colon, and base64."""
ERASED: Final = "erased"
"""Text in the place of a value whose key was removed."""
NAME_LENGTH: Final = 32
"""Length of a key's name, in hexadecimal digits."""
_SEALED = re.compile(r"sealed:1:[0-9a-f]{32}:[0-9A-Za-z_=-]+")
_NAMES = re.compile(rb"sealed:1:([0-9a-f]{32}):")


class DecryptionFailed(Exception):
    """A sealed text has another key or another place, or was changed."""


class WrongSecret(DecryptionFailed):
    """A sealed text of this subject was encrypted with another secret than the current one."""


def find_key_names(*contents: bytes) -> set[str]:
    """Names of the keys of all sealed texts in these bytes, and of what only looks like one: anybody may have written
    it into a field that nobody opens.

    >>> find_key_names(b'{"card": "sealed:1:0123456789abcdef0123456789abcdef:x-_"}', b"")
    {'0123456789abcdef0123456789abcdef'}
    """
    return {name.decode() for content in contents for name in _NAMES.findall(content)}


def is_sealed(value: Any) -> bool:
    """Return whether a value is a sealed text."""
    return isinstance(value, str) and _SEALED.fullmatch(value) is not None


def key_name_of(text: str) -> str:
    """Name of the key of a sealed text."""
    return text[len(PREFIX) : len(PREFIX) + NAME_LENGTH]


def recorded_place(service: str, saga: str, what: str, path: str = "") -> str:
    """Place to which a value that a service records is bound. `what`: the state, or which call of which run; `path`:
    of the value in that."""
    return f"{service}|{saga}|{what}|{path}"
