"""Port for providers of encryption keys. Each key belongs to a subject: a person or a saga.

Every provider keeps these promises:

- A subject has the same key for ever.
- A subject whose key was erased (a forgotten subject) never gets a key again.

Not promised: that keys can be read at any time. If they cannot, `KeysUnavailable` is raised, and the caller tries again
later.
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from saga.encryption.keys import SubjectKey


class KeyState(NamedTuple):
    """Summary of all keys, for operators."""

    subjects: int
    """Number of subjects whose secret can be read."""
    erased: int
    """Number of forgotten subjects."""
    troubles: list[str]
    """Problems with secrets. Each text names the place of the secret."""
    unneeded: list[str]
    """Older wrapping keys that no secret uses any more; empty if there are problems, or if something is unwritable."""
    unwritable: str
    """The first path that this user may not write; empty if there is none."""


class Keys(Protocol):
    """Provider of keys. Both methods raise `KeysUnavailable` if keys cannot be read at the moment."""

    async def get_or_create_key(self, subject: str) -> "SubjectKey | None":
        """Return the key of a subject. It is created if the subject has none. Return `None` if the subject was
        forgotten."""

    async def get_key(self, name: str) -> "SubjectKey | None":
        """Return the key with this name; `None` if its subject was forgotten. Raises `KeyMissing` if this key is
        missing although others can be read."""


class KeyRing(Keys, Protocol):
    """Management of keys, for operators. Each change is recorded in an audit log. All methods raise `KeysUnavailable`
    if keys cannot be read or written, except `check`."""

    def check(self) -> None:
        """Raise `ConfigurationError` if nothing can be encrypted, because there is no usable wrapping key."""

    def summarize(self) -> KeyState:
        """Read all keys and return a summary."""

    def create_wrapping_key(self, who: str, why: str) -> str:
        """Create a wrapping key, and return its name. All new secrets are wrapped with it from now on."""

    def rewrap(self, who: str, why: str) -> tuple[int, list[str]]:
        """Wrap all secrets with the newest wrapping key. Return the number of secrets that had another one, and the
        wrapping keys that are no longer needed.

        Raises `KeysUnavailable` if a secret is damaged or missing. All others are wrapped again nevertheless.
        """

    def forget(self, subject: str, who: str, why: str) -> bool:
        """Erase the secret of a subject for good, even a damaged one. Return whether it had one."""

    def append_audit_line(self, did: str, what: str, who: str, why: str) -> None:
        """Append a line to the audit log. The line is durable when this returns."""

    def read_audit_log(self) -> list[dict[str, str]]:
        """Return the lines of the audit log, oldest first."""
