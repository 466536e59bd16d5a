"""Names of documents in Couchbase, for each key, also one that is longer than Couchbase's keys can be.

A key of more than 246 bytes is stored under its beginning, `~` and a digest of the whole. As the key cannot be read
back from that, such a document's content is `{"key": ..., "content": ...}`: a scan gives the key as it was written, and
two keys of one digest, if that ever comes, are an error and not one document. A short key that looks as if it were
shortened is treated like a long one, so no two keys share a name.
"""

import re
from hashlib import blake2b

import msgspec

from saga.errors import StoreError

KEY_BYTES_MAX = 246
"""Longest key: Couchbase's limit in a named collection; in the default one it is 250."""
DIGEST_BYTES = 16
HEAD_BYTES = KEY_BYTES_MAX - 1 - 2 * DIGEST_BYTES
"""Bytes that a shortened key keeps of its beginning."""
_SHORTENED = re.compile(rf"~[0-9a-f]{{{2 * DIGEST_BYTES}}}\Z")


class _Wrapped(msgspec.Struct):
    key: str


def stored_key(key: str) -> str:
    """Name in Couchbase of a key's document.

    >>> stored_key("payment::order-1")
    'payment::order-1'
    >>> len(stored_key("payment::" + "x" * 300).encode())
    246
    """
    encoded = key.encode()
    if len(encoded) <= KEY_BYTES_MAX and not is_shortened(key):
        return key
    return f"{stored_prefix(key)}~{blake2b(encoded, digest_size=DIGEST_BYTES).hexdigest()}"


def stored_prefix(prefix: str) -> str:
    """Common beginning of all stored keys whose keys begin with `prefix`."""
    return prefix.encode()[:HEAD_BYTES].decode(errors="ignore")


def is_shortened(stored: str) -> bool:
    """Return whether a stored key is a shortened one, and not the key itself."""
    return _SHORTENED.search(stored) is not None


def wrapped(key: str, content: bytes) -> bytes:
    """Wrap the content of a document whose key was shortened: the key goes with it.

    >>> wrapped("ab", b"[1]")
    b'{"key":"ab","content":[1]}'
    """
    return b"%b%b}" % (_beginning(key), content)


def unwrapped(key: str, stored: bytes) -> bytes:
    """Take out the content that was wrapped. Raises `StoreError` if the document is not that of `key`: waiting mends
    nothing, so it is no outage."""
    beginning = _beginning(key)
    if not stored.startswith(beginning):
        raise StoreError(f"the document under {stored_key(key)!r} belongs to another key than {key!r}")
    return stored[len(beginning) : -1]


def key_in(stored: bytes) -> str:
    """Key of a document whose content was wrapped. Raises `StoreError`."""
    try:
        return msgspec.json.decode(stored, type=_Wrapped).key
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise StoreError(f"a document with a shortened key does not say which key it has: {why}") from why


def _beginning(key: str) -> bytes:
    return b'{"key":%b,"content":' % msgspec.json.encode(key)
