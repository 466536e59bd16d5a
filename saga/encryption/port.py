"""Port of the key provider, and the format of encrypted values. No driver is needed for either.

The provider has the encryption keys of subjects. A subject is a person or a saga.

Promised: a subject has one key for its whole life; a forgotten subject never gets a key again.

Not promised: that keys can be read now. Then `KeysUnavailable` is raised, and the caller tries again.
"""

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from saga.encryption.keys import SubjectKey


class KeyState(NamedTuple):
    """Summary of all keys that can be read."""

    subjects: int
    """Number of subjects with a secret."""
    erased: int
    """Number of forgotten subjects."""
    troubles: list[str]
    """Problems with secrets, each with its place."""
    unneeded: list[str]
    """Older wrapping keys that no secret needs any more."""
    unwritable: str
    """A place that this user may not write; empty if there is none."""


class Keys(Protocol):
    """Provider of keys. Both methods raise `KeysUnavailable` if the keys cannot be read now."""

    async def get_or_create_key(self, subject: str) -> "SubjectKey | None":
        """Return the key of a subject, created if it has none; `None` if the subject was forgotten."""

    async def get_key(self, name: str) -> "SubjectKey | None":
        """Return the key with this name; `None` if its subject was forgotten. Raises `KeyMissing` if only this key is
        missing."""


class KeyRing(Keys, Protocol):
    """Key management for operators. Each change is recorded in an audit log. All methods raise `KeysUnavailable`."""

    def check(self) -> None:
        """Raise `ConfigurationError` if nothing can be encrypted with this folder."""

    def summarize(self) -> KeyState:
        """Read all keys and summarise them."""

    def create_wrapping_key(self, who: str, why: str) -> str:
        """Create a wrapping key, which wraps new secrets from now on, and return its name."""

    def rewrap(self, who: str, why: str) -> tuple[int, list[str]]:
        """Wrap all secrets with the newest key. Return how many were wrapped, and the keys that are no longer
        needed."""

    def forget(self, subject: str, who: str, why: str) -> bool:
        """Erase the secret of a subject for good. Return whether it had one."""

    def append_audit_line(self, did: str, what: str, who: str, why: str) -> None:
        """Append a line to the audit log; it is durable when this returns."""

    def read_audit_log(self) -> list[dict[str, str]]:
        """Return the lines of the audit log, oldest first."""


# ---------------------------------------------------------------- encrypted values
#
# An encrypted value is a text, called a sealed text after its prefix. No key is needed to find it and to name its key.


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
