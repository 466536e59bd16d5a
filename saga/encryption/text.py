"""Format of encrypted values (sealed texts), and how to find them in bytes. No key is needed."""

import re
from typing import Any, Final

PREFIX: Final = "sealed:1:"
"""Prefix of each sealed text, followed by the name of its key, a colon, and base64."""
ERASED: Final = "erased"
"""Text shown instead of a value whose key was erased."""
NAME_LENGTH: Final = 32
"""Length of a key's name, in hexadecimal digits."""
_SEALED = re.compile(r"sealed:1:[0-9a-f]{32}:[0-9A-Za-z_=-]+")
_NAMES = re.compile(rb"sealed:1:([0-9a-f]{32}):")


class DecryptionFailed(Exception):
    """A sealed text was encrypted with another key, copied from another place, or changed."""


class WrongSecret(DecryptionFailed):
    """A sealed text of this subject was encrypted with another secret than the current one."""


def find_key_names(*contents: bytes) -> set[str]:
    """Return the names of the keys of all sealed texts in these bytes.

    This includes text that only looks like a sealed text, which any sender may put into an unencrypted field.

    >>> find_key_names(b'{"card": "sealed:1:0123456789abcdef0123456789abcdef:x-_"}', b"")
    {'0123456789abcdef0123456789abcdef'}
    """
    return {name.decode() for content in contents for name in _NAMES.findall(content)}


def is_sealed(value: Any) -> bool:
    """Return whether a value is a sealed text."""
    return isinstance(value, str) and _SEALED.fullmatch(value) is not None


def key_name_of(text: str) -> str:
    """Return the name of the key of a sealed text."""
    return text[len(PREFIX) : len(PREFIX) + NAME_LENGTH]


def recorded_place(service: str, saga: str, what: str, path: str = "") -> str:
    """Return the place to which an encrypted value in a progress is bound, so that it cannot be copied elsewhere.

    Args:
        service: The service.
        saga: The saga id.
        what: The state, or a step of a run.
        path: The path of the value in it.
    """
    return f"{service}|{saga}|{what}|{path}"
