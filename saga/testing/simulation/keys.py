"""Encryption keys of a simulated world. They exist only in memory, all processes share them, and the same subject
always gets the same key.
"""

from hashlib import blake2b

from saga.encryption.keys import SECRET_BYTES, SubjectKey, subject_key_name
from saga.errors import KeyMissing


class SimulatedKeys:
    """Encryption keys of subjects. See `saga.encryption.port.Keys` for the guarantees."""

    def __init__(self) -> None:
        self._known: dict[str, SubjectKey | None] = {}

    async def get_or_create_key(self, subject: str) -> SubjectKey | None:
        name = subject_key_name(subject)
        if name not in self._known:
            secret = blake2b(name.encode(), digest_size=SECRET_BYTES, person=b"simulated").digest()
            self._known[name] = SubjectKey(name, secret)
        return self._known[name]

    async def get_key(self, name: str) -> SubjectKey | None:
        if name not in self._known:
            raise KeyMissing(f"no value in this world is encrypted with {name}")
        return self._known[name]

    def forget(self, subject: str) -> None:
        """Erase the key of a subject permanently."""
        self._known[subject_key_name(subject)] = None

    @property
    def has_forgotten(self) -> bool:
        """True if the key of any subject was erased."""
        return None in self._known.values()
