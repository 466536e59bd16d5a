"""Port of the key provider: encryption keys of subjects. A subject is a person or a saga.

Every provider keeps these promises:
- A subject has the same key for ever.
- A subject whose key was erased (a forgotten subject) never gets a key again.

Not promised: that keys can always be read. If they cannot, `KeysUnavailable` is raised, and the caller tries again
later.
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from saga.encryption.keys import SubjectKey


class KeyState(NamedTuple):
    """Summary of all keys that can be read."""

    subjects: int
    """Number of subjects with a secret."""
    erased: int
    """Number of forgotten subjects."""
    troubles: list[str]
    """Problems with secrets, each with the place of the secret."""
    unneeded: list[str]
    """Older wrapping keys that no secret uses any more."""
    unwritable: str
    """Path that this user may not write; empty if there is none."""


class Keys(Protocol):
    """Provider of keys. Both methods raise `KeysUnavailable` if the keys cannot be read now."""

    async def get_or_create_key(self, subject: str) -> "SubjectKey | None":
        """Return the key of a subject, created if it has none; `None` if the subject was forgotten."""

    async def get_key(self, name: str) -> "SubjectKey | None":
        """Return the key with this name; `None` if its subject was forgotten. Raises `KeyMissing` if this key is
        missing but others can be read."""


class KeyRing(Keys, Protocol):
    """Key management for operators. Each change is recorded in an audit log. All methods raise `KeysUnavailable`."""

    def check(self) -> None:
        """Raise `ConfigurationError` if nothing can be encrypted with this folder."""

    def summarize(self) -> KeyState:
        """Read all keys and summarise them."""

    def create_wrapping_key(self, who: str, why: str) -> str:
        """Create a wrapping key, which wraps new secrets from now on, and return its name."""

    def rewrap(self, who: str, why: str) -> tuple[int, list[str]]:
        """Wrap all secrets with the newest key. Return the number of rewrapped secrets, and the wrapping keys that are
        no longer needed."""

    def forget(self, subject: str, who: str, why: str) -> bool:
        """Erase the secret of a subject for good. Return whether it had one."""

    def append_audit_line(self, did: str, what: str, who: str, why: str) -> None:
        """Append a line to the audit log; it is durable when this returns."""

    def read_audit_log(self) -> list[dict[str, str]]:
        """Return the lines of the audit log, oldest first."""
