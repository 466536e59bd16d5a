"""Keys of subjects, with which values are encrypted. A subject is a person or a saga whose data may have to be erased.

The encryption is deterministic (AES-SIV, RFC 5297): equal values of one subject at the same place give equal
ciphertexts. So an event that is published again has the same bytes, and so has an event that a rerun emits again. An
observer of two ciphertexts learns whether the values are equal, and nothing else.
"""

import base64
from hashlib import blake2b
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from saga.encryption.sensitive_fields import ENCRYPTED_PREFIX, KEY_NAME_LENGTH, DecryptionFailed, WrongSecret

SECRET_BYTES: Final = 32
"""Size of a subject's secret, and of a wrapping key."""
_NONCE_BYTES: Final = 12
_MARK_BYTES: Final = 4
"""Bytes at the beginning of an encrypted value that identify the secret with which it was encrypted."""


class SubjectKey:
    """The key of one subject. It encrypts and decrypts values that are about this subject."""

    __slots__ = ("_cipher", "_mark", "_mark_of_recorded", "digest", "name")

    def __init__(self, name: str, secret: bytes) -> None:
        self.name = name
        self._cipher = AESSIV(_derived(secret, b"saga: seal", 64))
        self._mark = _derived(secret, b"saga: mark", _MARK_BYTES)
        self._mark_of_recorded = _derived(secret, b"saga: mark of a recorded value", _MARK_BYTES)
        self.digest = _derived(secret, b"saga: digest", 32)
        """Key for digests of values that may be sensitive. The digests depend on a secret, so hashing guesses does not
        reveal a value."""

    def encrypt(self, plain: bytes, place: str) -> str:
        """Encrypt a value.

        `place`: where the value belongs, such as contract, field and saga. The ciphertext cannot be decrypted for
        another place.
        """
        return self._encrypt_marked(self._mark, plain, place)

    def encrypt_recorded(self, plain: bytes, place: str) -> str:
        """Encrypt a value that a service records. The ciphertext contains a mark which shows that it is bound to one
        place within its saga."""
        return self._encrypt_marked(self._mark_of_recorded, plain, place)

    def _encrypt_marked(self, mark: bytes, plain: bytes, place: str) -> str:
        encrypted = mark + self._cipher.encrypt(
            b"=" + plain, [place.encode()]
        )  # never empty, because not all versions accept empty data
        return f"{ENCRYPTED_PREFIX}{self.name}:{base64.urlsafe_b64encode(encrypted).decode()}"

    def decrypt_recorded(self, text: str, place: str, place_before: str) -> bytes:
        """Decrypt a ciphertext made by `encrypt_recorded`. Raises the same errors as `decrypt`.

        `place_before`: the place to which earlier releases bound the value. They did not distinguish places within a
        saga.
        """
        try:
            encrypted = _bytes_in(text)
            if not encrypted.startswith(self._mark_of_recorded):
                return self.decrypt(text, place_before)
            return self._cipher.decrypt(encrypted[_MARK_BYTES:], [place.encode()])[1:]
        except (InvalidTag, ValueError) as why:
            raise DecryptionFailed from why

    def decrypt(self, text: str, place: str, place_before: str | None = None) -> bytes:
        """Decrypt a value.

        Raises `DecryptionFailed` if the value has the mark of this secret, but was changed or encrypted for another
        place. Raises `WrongSecret` if it has another mark and this secret cannot decrypt it.

        `place_before`: the place to which earlier releases bound the value. They did not distinguish all places, and
        did not mark the secret.
        """
        try:
            encrypted = _bytes_in(text)
            if encrypted.startswith(self._mark):
                return self._cipher.decrypt(encrypted[_MARK_BYTES:], [place.encode()])[1:]
        except (InvalidTag, ValueError) as why:
            raise DecryptionFailed from why
        try:
            return self._cipher.decrypt(encrypted, [(place_before or place).encode()])[1:]
        except (InvalidTag, ValueError):
            raise WrongSecret from None


def _bytes_in(text: str) -> bytes:
    """Return the bytes of an encrypted value. Raises `ValueError` if they are not valid base64."""
    return base64.b64decode(text[len(ENCRYPTED_PREFIX) + KEY_NAME_LENGTH + 1 :], b"-_", validate=True)


def subject_key_name(subject: str) -> str:
    """Return the name of a subject's key."""
    return blake2b(subject.encode(), digest_size=KEY_NAME_LENGTH // 2, person=b"saga subject").hexdigest()


def wrap_secret(secret: bytes, name: str, by: bytes, nonce: bytes) -> bytes:
    """Encrypt a subject's secret with a wrapping key.

    Args:
        name: Name of the subject's key. The result can be decrypted only for the same name.
        by: The wrapping key.
        nonce: Random bytes, new for each call.
    """
    nonce = nonce[:_NONCE_BYTES]
    return nonce + AESGCM(by).encrypt(nonce, secret, name.encode())


def unwrap_secret(content: bytes, name: str, by: bytes) -> bytes:
    """Decrypt a subject's secret. Raises `DecryptionFailed` if it was wrapped with another key or for another name, or
    was changed."""
    try:
        return AESGCM(by).decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], name.encode())
    except (InvalidTag, ValueError) as why:
        raise DecryptionFailed from why


def _derived(secret: bytes, what: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt=None, info=what).derive(secret)
