"""Port of the keys of subjects, as runtime and clients see it."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from saga.encryption.keys import SubjectKey


class KeyState(NamedTuple):
    """State of all keys, as far as they can be read."""

    subjects: int
    """Number of subjects that have a secret."""
    erased: int
    """Number of subjects that were forgotten."""
    troubles: list[str]
    """Troubles with secrets, each with its place."""
    unneeded: list[str]
    """Keys, older than the newest, with which no secret is wrapped."""
    unwritable: str
    """Place that may not be written; empty: all may."""


class Keys(Protocol):
    """Holder of the keys of subjects. Both raise `KeysUnavailable` where nobody can tell now."""

    async def of_subject(self, subject: str) -> "SubjectKey | None":
        """Key of a subject, made if there is none; `None`: the subject was forgotten."""

    async def named(self, name: str) -> "SubjectKey | None":
        """Key of that name; `None`: its subject was forgotten. Raises `KeyMissing` if all others are there."""


class KeyRing(Keys, Protocol):
    """Keys as people see them. Each change is noted in a book. All raise `KeysUnavailable`."""

    def check(self) -> None:
        """Raises `ConfigurationError` for a folder with which nothing can be sealed."""

    def state(self) -> KeyState:
        """Look at all of them."""

    def new(self, who: str, why: str) -> str:
        """Make a key that wraps: from now on new secrets are wrapped with it. Returns its name."""

    def rewrap(self, who: str, why: str) -> tuple[int, list[str]]:
        """Wrap all secrets with the newest key. Returns how many there were to be wrapped, and the keys that nothing
        needs any more."""

    def forget(self, subject: str, who: str, why: str) -> bool:
        """Remove the secret of a subject for good. Returns whether there was one."""

    def note(self, did: str, what: str, who: str, why: str) -> None:
        """Write a line into the book: durable when this returns."""

    def book(self) -> list[dict[str, str]]:
        """Lines of the book, oldest first."""
