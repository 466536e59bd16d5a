"""Meaning of the SDK's errors: one table by error code, because the error classes hide what happened.

The SDK chooses the class of an error by the reason for which it repeated the request, not by the way in which the
request ended. For example, a write may time out with an unknown result after the document was locked, or the server was
busy, for some time. The SDK raises this as `DocumentLockedException` or `TemporaryFailException`, although its code 13
means an unknown result. So the code decides, and the class is used only if there is no code.

Before you add a line, answer one question: can the write have happened, or happen later? If you do not know, the answer
is yes.
"""

import enum
from typing import NamedTuple

from saga.errors import Ambiguous, Conflict, Exists, StoreError, StoreUnavailable, TooLarge


class StoreOperation(enum.Enum):
    """Operation during which an error occurred."""

    READ = "read"
    INSERT = "inserted"
    REPLACE = "replaced"
    REMOVE = "removed"


class CouchbaseErrorMeaning(NamedTuple):
    """Meaning of an error: what the server did, and what people can do about it."""

    what: str
    remedy: str
    undone: bool
    """True if nothing was written, and nothing will be written later."""


_REPORT = "this is a mistake in saga, or an unusual server: please report it"
_NETWORK = "see whether its nodes are up and the network between is sound"
_LOAD = "give it more nodes or memory, or send less"
_REPLICAS = (
    "bring its nodes back or lower the bucket's number of replicas; SAGA_STORE_DURABILITY=none gives up that "
    "what was acknowledged survives a failover"
)
CREATE = (
    "create it, as in `couchbase-cli collection-manage -c HOST -u ADMIN -p ... --bucket {bucket}"
    " --create-collection {scope}.{collection}`"
)

CANCELED, CAS_MISMATCH, NO_COLLECTION, UNSUPPORTED, AMBIGUOUS_TIMEOUT, TIMEOUT, NO_FEATURE = 2, 9, 11, 12, 13, 14, 15
AUTHENTICATION, NO_BUCKET, NO_SCOPE, NOT_FOUND, TOO_LARGE, EXISTS, INTERNAL_SDK = 6, 10, 16, 101, 104, 105, 5000
DURABILITY_INVALID, DURABILITY_IMPOSSIBLE = 107, 108

_REFUSED = CouchbaseErrorMeaning(
    "refuses the user", "check user, password and the roles data_reader and data_writer of bucket or scope", True
)
_TOO_OLD = CouchbaseErrorMeaning(
    "cannot do this", "use Couchbase Server 7.6 or later; 7.2 does all but list documents", True
)

MEANINGS: dict[int, CouchbaseErrorMeaning] = {
    CANCELED: CouchbaseErrorMeaning("closed the connection before it answered", _NETWORK, False),
    3: CouchbaseErrorMeaning("does not accept this kind of request", _REPORT, True),
    4: CouchbaseErrorMeaning(
        "has no data service at the address", "give the address of nodes with the data service", True
    ),
    5: CouchbaseErrorMeaning("failed inside", "look at the server's log", False),
    AUTHENTICATION: _REFUSED,
    7: CouchbaseErrorMeaning("is busy", _LOAD, True),
    CAS_MISMATCH: CouchbaseErrorMeaning("holds another version", "read it again", True),
    NO_BUCKET: CouchbaseErrorMeaning("has no such bucket", "create it, or name another one in SAGA_STORE", True),
    NO_COLLECTION: CouchbaseErrorMeaning("has no such collection", CREATE, True),
    UNSUPPORTED: _TOO_OLD,
    AMBIGUOUS_TIMEOUT: CouchbaseErrorMeaning("did not answer in time", _NETWORK, False),
    TIMEOUT: CouchbaseErrorMeaning("could not be reached in time", _NETWORK, True),
    NO_FEATURE: _TOO_OLD,
    NO_SCOPE: CouchbaseErrorMeaning(
        "has no such scope", "create it with `couchbase-cli collection-manage --create-scope`", True
    ),
    19: CouchbaseErrorMeaning("was sent what cannot be encoded", _REPORT, True),
    20: CouchbaseErrorMeaning("gave an answer that cannot be decoded", _REPORT, False),
    21: CouchbaseErrorMeaning("limits how much this user may ask", _LOAD, True),
    22: CouchbaseErrorMeaning("has no room left in the scope", "raise the scope's limit", True),
    NOT_FOUND: CouchbaseErrorMeaning("does not have the document", "read it again", True),
    103: CouchbaseErrorMeaning("holds the document locked", "end what locks documents of sagas", True),
    TOO_LARGE: CouchbaseErrorMeaning("cannot take a document of more than 20 MB", "keep less", True),
    EXISTS: CouchbaseErrorMeaning("has the document already", "read it", True),
    DURABILITY_INVALID: CouchbaseErrorMeaning("cannot write as durably as requested", _REPLICAS, True),
    DURABILITY_IMPOSSIBLE: CouchbaseErrorMeaning("has too few nodes up for a durable write", _REPLICAS, True),
    109: CouchbaseErrorMeaning("does not know whether enough nodes have the write", _NETWORK, False),
    110: CouchbaseErrorMeaning("is still busy with another durable write of the document", _LOAD, True),
    111: CouchbaseErrorMeaning("is still committing an earlier durable write of the document", _LOAD, True),
    120: CouchbaseErrorMeaning("says that the document is not JSON", "keep other programs from changing it", True),
    INTERNAL_SDK: CouchbaseErrorMeaning("cannot be asked: its SDK failed inside", _REPORT, False),
}
"""Meanings by error code, for all errors that reading or writing a whole document can cause. A test compares them with
the codes of the SDK."""

ELSEWHERE = frozenset(
    {8, 17, 18, 102, *range(113, 120), 121, 122, 123, 124, *range(126, 129), *range(130, 138)}  # parts of documents
    | {*range(201, 205), *range(301, 309), 401, 402, 501, 502, *range(601, 615), *range(700, 708)}  # other services
    | {*range(1200, 1204), *range(1300, 1321), 1399, 5001, 5002}  # transactions; HTTP
)
"""Error codes that our requests cannot cause. If one occurs anyway, the result of the request is unknown."""

NETWORK = range(1001, 1129)
"""Codes of connection errors, and of errors that such errors caused."""

_ODD = CouchbaseErrorMeaning("answers in a way that it should not", _REPORT, False)
_CUT_OFF = CouchbaseErrorMeaning("cannot be reached", _NETWORK, False)
_CLOSED = CouchbaseErrorMeaning("is closed", "a closed store stays closed: open another one", True)

CODES: dict[str, int] = {
    "RequestCanceledException": CANCELED,
    "InvalidArgumentException": 3,
    "ServiceUnavailableException": 4,
    "InternalServerFailureException": 5,
    "AuthenticationException": AUTHENTICATION,
    "CollectionNotFoundException": NO_COLLECTION,
    "UnsupportedOperation": UNSUPPORTED,
    "AmbiguousTimeoutException": AMBIGUOUS_TIMEOUT,
    "UnAmbiguousTimeoutException": TIMEOUT,
    "FeatureUnavailableException": NO_FEATURE,
    "ScopeNotFoundException": NO_SCOPE,
    "RateLimitedException": 21,
    "QuotaLimitedException": 22,
    "DocumentNotFoundException": NOT_FOUND,
    "InternalSDKException": INTERNAL_SDK,
}
"""Codes, by class, for errors that the SDK raises from its Python part without a code. For any other class without a
code the result is unknown, even if the class says that the server was busy or the document locked: see above."""

WRITE_MISSES = frozenset({CAS_MISMATCH, NOT_FOUND, EXISTS})


def code_of(why: Exception) -> int:
    """Return the code of an error; if it has none, the code of its class, or 0."""
    code: int | None = getattr(why, "error_code", None)
    return code or CODES.get(type(why).__name__, 0)


def meaning_of(why: Exception) -> CouchbaseErrorMeaning:
    """Return the meaning of an error of the SDK."""
    if isinstance(why, RuntimeError):  # the cluster was closed, or was never connected, so nothing was sent
        return _CLOSED
    code = code_of(why)
    return MEANINGS.get(code) or (_CUT_OFF if code in NETWORK else _ODD)


def to_store_error(why: Exception, doing: StoreOperation, where: str, document: str) -> StoreError:
    """Create the error for the caller. Its class says how to react; its text says what happened and what to do."""
    code = code_of(why)
    if doing is StoreOperation.INSERT and code in (EXISTS, CAS_MISMATCH):
        return Exists(f"there is a document {document} in the store {where} already")
    if doing in (StoreOperation.REPLACE, StoreOperation.REMOVE) and code in WRITE_MISSES:
        return conflict_error(doing, where, document)
    known = meaning_of(why)
    text = f"the store {where} {known.what} ({shorten_message(why)}, document {document})"
    if doing is not StoreOperation.READ and code == TOO_LARGE:
        return TooLarge(f"{text}; nothing was written: {known.remedy}")
    if doing is not StoreOperation.READ and not known.undone:
        return Ambiguous(f"{text}; whether it was {doing.value} is not known: {known.remedy}")
    return StoreUnavailable(
        f"{text}; {'nothing was written: ' if doing is not StoreOperation.READ else ''}{known.remedy}"
    )


def conflict_error(doing: StoreOperation, where: str, document: str) -> Conflict:
    """Create the error for a write to a version that has been replaced or removed since it was read."""
    return Conflict(f"document {document} in the store {where} was not {doing.value}: it has changed; read it again")


def lacks_collection(why: Exception) -> bool:
    """Return whether the server did not know the collection. In this case the SDK waits, and then reports a timeout."""
    if code_of(why) in (NO_COLLECTION, NO_SCOPE):
        return True
    return "key_value_collection_outdated" in _reasons(why)


def collection_of(why: Exception) -> str:
    """Return the name of the Couchbase collection of the failed request."""
    return getattr(getattr(why, "error_context", None), "collection_name", None) or "?"


def shorten_message(why: Exception) -> str:
    """Return the text of an error on one line, because the SDK's own text is a page long."""
    code = code_of(why)
    reasons = sorted(_reasons(why))
    return " ".join(
        [type(why).__name__, *([str(code)] if code else []), *([f"after {', '.join(reasons)}"] * bool(reasons))]
    )


def _reasons(why: Exception) -> set[str]:
    """Return the reasons for which the SDK repeated the request."""
    context = getattr(why, "error_context", None)
    return set(getattr(context, "retry_reasons", None) or ())
