"""Errors of the SDK and their meaning: all of them, and the ones that hide what happened."""

import couchbase.exceptions as sdk  # type: ignore[import-untyped]  # the SDK has no types for checkers
import pytest

from saga.errors import Ambiguous, Conflict, Exists, StoreUnavailable, TooLarge
from saga.store.couchbase.errors import (
    CODES,
    ELSEWHERE,
    MEANINGS,
    NETWORK,
    TOO_LARGE,
    WRITE_MISSES,
    StoreOperation,
    code_of,
    lacks_collection,
    shorten_message,
    to_store_error,
)

WRITES = (StoreOperation.INSERT, StoreOperation.REPLACE, StoreOperation.REMOVE)
UNCERTAIN = {2, 5, 13, 20, 109, 5000}
"""After these it is unknown whether the write happened."""

NOT_FOR_DOCUMENTS = frozenset(
    """
    AlreadyQueriedException AnalyticsLinkExistsException AnalyticsLinkNotFoundException BucketAlreadyExistsException
    BucketDoesNotExistException BucketNotFlushableException CollectionAlreadyExistsException CryptoException
    CryptoKeyNotFoundException DecrypterAlreadyExistsException DecrypterNotFoundException DecryptionFailureException
    EncrypterAlreadyExistsException EncrypterNotFoundException EncryptionFailureException
    EventingFunctionAlreadyDeployedException EventingFunctionCollectionNotFoundException
    EventingFunctionCompilationFailureException EventingFunctionIdenticalKeyspaceException
    EventingFunctionNotBootstrappedException EventingFunctionNotDeployedException EventingFunctionNotFoundException
    EventingFunctionNotUnDeployedException FeatureNotFoundException GroupNotFoundException
    InvalidCipherTextException InvalidCryptoKeyException InvalidIndexException KeyspaceNotFoundException
    MissingConnectionException MissingTokenException NoChildrenException QueueEmpty ScopeAlreadyExistsException
    SearchIndexNotFoundException TimeoutException TransactionCommitAmbiguous TransactionException TransactionExpired
    TransactionFailed TransactionOperationFailed UserNotFoundException WatchQueryIndexTimeoutException
    """.split()  # noqa: SIM905 - a list of fifty strings is no easier to read
)
"""Classes without a code, of other services and of what we never ask. All the same they would be uncertain."""


class Planted(sdk.CouchbaseException):  # type: ignore[misc]  # the SDK has no types for checkers
    """Error as the SDK would raise it, with why it repeated the request."""

    def __init__(self, code: int | None = None, *, reasons: tuple[str, ...] = (), collection: str = "saga") -> None:
        context = sdk.KeyValueErrorContext(retry_reasons=set(reasons), collection_name=collection)
        super().__init__(message="planted", error_code=code, context=context)


def test_every_code_of_the_sdk_has_a_meaning_or_comes_from_elsewhere() -> None:
    codes = {entry.value for entry in sdk.ExceptionMap} | set(sdk.CLIENT_ERROR_MAP)
    assert len(codes) > 45
    assert codes - set(MEANINGS) - ELSEWHERE == set()
    assert set(MEANINGS) & ELSEWHERE == set()


def test_every_class_of_the_sdk_is_known() -> None:
    def below(kind: type[Exception]) -> set[str]:
        return {kind.__name__}.union(*(below(child) for child in kind.__subclasses__()))

    classes = {name for name in below(sdk.CouchbaseException) if getattr(sdk, name, None) is not None}
    with_codes = {entry.name for entry in sdk.ExceptionMap}
    assert len(classes) > 80
    assert classes - with_codes - NOT_FOR_DOCUMENTS == {
        "CouchbaseException",
        "ValueFormatException",  # of what is not JSON: we write nothing else, and read whatever there is
    }


def test_classes_stand_for_the_codes_that_the_sdk_gives_them() -> None:
    assert {name: sdk.ExceptionMap[name].value for name in CODES} == CODES


@pytest.mark.parametrize("doing", WRITES)
@pytest.mark.parametrize("code", sorted(set(MEANINGS) - WRITE_MISSES))
def test_a_write_is_ambiguous_exactly_when_its_result_is_unknown(code: int, doing: StoreOperation) -> None:
    error = to_store_error(Planted(code), doing, "couchbase://db/saga", "'a'")
    certain = TooLarge if code == TOO_LARGE else StoreUnavailable
    assert type(error) is (Ambiguous if code in UNCERTAIN else certain)
    assert ("nothing was written" in str(error)) == (code not in UNCERTAIN)


@pytest.mark.parametrize("code", [None, 0, 99, 4711, *sorted(ELSEWHERE), NETWORK[0], NETWORK[-1]])
def test_an_unexpected_error_is_ambiguous_for_a_write_and_unavailable_for_a_read(code: int | None) -> None:
    assert type(to_store_error(Planted(code), StoreOperation.REPLACE, "there", "'a'")) is Ambiguous
    assert type(to_store_error(Planted(code), StoreOperation.READ, "there", "'a'")) is StoreUnavailable


@pytest.mark.parametrize("code", sorted(MEANINGS))
def test_a_read_that_fails_is_always_unavailable(code: int) -> None:
    assert type(to_store_error(Planted(code), StoreOperation.READ, "there", "'a'")) is StoreUnavailable


def test_a_key_that_exists_or_not_is_an_error_that_depends_on_the_operation() -> None:
    for code in (105, 9):
        assert type(to_store_error(Planted(code), StoreOperation.INSERT, "there", "'a'")) is Exists
    for code in (9, 101, 105):
        assert type(to_store_error(Planted(code), StoreOperation.REPLACE, "there", "'a'")) is Conflict
        assert type(to_store_error(Planted(code), StoreOperation.REMOVE, "there", "'a'")) is Conflict


@pytest.mark.parametrize("kind", [sdk.DocumentLockedException, sdk.TemporaryFailException])
def test_a_timeout_that_hides_behind_another_class_is_ambiguous(kind: type[Exception]) -> None:
    hidden = kind(error_code=13)  # type: ignore[call-arg]  # the SDK has no types for checkers
    assert type(to_store_error(hidden, StoreOperation.REPLACE, "there", "'a'")) is Ambiguous
    plain = kind(error_code=sdk.ExceptionMap[kind.__name__].value)  # type: ignore[call-arg]  # see above
    assert type(to_store_error(plain, StoreOperation.REPLACE, "there", "'a'")) is StoreUnavailable
    assert (
        type(to_store_error(kind(), StoreOperation.REPLACE, "there", "'a'")) is Ambiguous
    )  # without a code it tells nothing


def test_an_error_raised_by_the_sdk_before_sending_means_not_written() -> None:
    for why in (sdk.InvalidArgumentException("x"), sdk.UnAmbiguousTimeoutException("x"), RuntimeError("closed")):
        error = to_store_error(why, StoreOperation.INSERT, "there", "'a'")
        assert type(error) is StoreUnavailable
        assert "nothing was written" in str(error)


def test_a_missing_collection_is_seen_behind_a_timeout() -> None:
    assert lacks_collection(Planted(13, reasons=("key_value_collection_outdated",)))
    assert lacks_collection(Planted(11))
    assert not lacks_collection(Planted(13, reasons=("key_value_locked",)))


def test_the_message_has_one_line_with_the_code_and_why_it_was_repeated() -> None:
    why = Planted(13, reasons=("key_value_locked",))
    assert shorten_message(why) == "Planted 13 after key_value_locked"
    assert code_of(why) == 13
    assert "\n" not in str(to_store_error(why, StoreOperation.REPLACE, "there", "'a'"))
