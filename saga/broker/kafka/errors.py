"""What each error of aiokafka means, and what to do about it, in one table."""

from collections.abc import Mapping

from aiokafka import errors as kafka

from saga.errors import BrokerError, BrokerUnavailable, Fenced

AGAIN: frozenset[type[Exception]] = frozenset(
    {
        kafka.BrokerNotAvailableError,
        kafka.Cancelled,
        kafka.ConcurrentTransactions,
        kafka.CorrelationIdError,
        kafka.CorruptRecordException,
        kafka.FetchSessionIdNotFound,
        kafka.GroupCoordinatorNotAvailableError,
        kafka.GroupLoadInProgressError,
        kafka.InvalidFetchSessionEpoch,
        kafka.InvalidProducerEpoch,
        kafka.InvalidProducerIdMapping,
        kafka.KafkaConnectionError,
        kafka.KafkaError,
        kafka.KafkaProtocolError,
        kafka.KafkaStorageError,
        kafka.KafkaTimeoutError,
        kafka.KafkaUnavailableError,
        kafka.LeaderNotAvailableError,
        kafka.ListenerNotFound,
        kafka.LogDirNotFound,
        kafka.MetadataEmptyBrokerList,
        kafka.NoBrokersAvailable,
        kafka.NodeNotReadyError,
        kafka.NotControllerError,
        kafka.NotCoordinatorForGroupError,
        kafka.NotEnoughReplicasAfterAppendError,
        kafka.NotEnoughReplicasError,
        kafka.NotLeaderForPartitionError,
        kafka.OperationNotAttempted,
        kafka.OutOfOrderSequenceNumber,
        kafka.ProducerClosed,
        kafka.ProducerFenced,
        kafka.QuotaViolationError,
        kafka.ReassignmentInProgress,
        kafka.ReplicaNotAvailableError,
        kafka.RequestTimedOutError,
        kafka.StaleControllerEpochError,
        kafka.StaleLeaderEpochCodeError,
        kafka.StaleMetadata,
        kafka.TooManyInFlightRequests,
        kafka.TransactionCoordinatorFenced,
        kafka.UnknownError,
        kafka.UnknownProducerId,
    }
)
"""Errors that pass, or that a person makes pass: wait and try again. What they interrupted may have happened."""

FENCED: frozenset[type[Exception]] = frozenset(
    {
        kafka.CommitFailedError,
        kafka.IllegalGenerationError,
        kafka.IllegalStateError,
        kafka.MemberIdRequired,
        kafka.RebalanceInProgressError,
        kafka.UnknownMemberIdError,
    }
)
"""Errors of a commit that say: the partitions are another member's by now, or will be."""

GUESS = "see whether the brokers run and can be reached"
"""Advice where nothing better is known: see `Access.explained`."""
_PASSWORD = "check user and password, and that the brokers have this user"
_MECHANISM = "ask which SASL mechanism the brokers' listener has, and give that one"
_VERSION = "the brokers are too old or too new for aiokafka: Kafka 2.1 to 4.3 is known to work"
_TOO_LARGE = "send less in one record, or raise the topic's max.message.bytes to SAGA_RECORD_BYTES_MAX at least"
_TOKENS = "delegation tokens are not used here: give a user and a password, or a token"
_DEFECT = "a defect of saga, unless another program uses the group: report it with this message"

PERSON: Mapping[type[Exception], str] = {
    kafka.AuthenticationFailedError: _PASSWORD,
    kafka.AuthenticationMethodNotSupported: _MECHANISM,
    kafka.BrokerResponseError: _DEFECT,
    kafka.ClusterAuthorizationFailedError: "have the user allowed Write on the topics that it publishes to, or "
    "IdempotentWrite on the cluster; to make topics, Create",
    kafka.ConsumerStoppedError: _DEFECT,
    kafka.DelegationTokenAuthDisabled: _TOKENS,
    kafka.DelegationTokenAuthorizationFailed: _TOKENS,
    kafka.DelegationTokenExpired: _TOKENS,
    kafka.DelegationTokenNotFound: _TOKENS,
    kafka.DelegationTokenOwnerMismatch: _TOKENS,
    kafka.DelegationTokenRequestNotAllowed: _TOKENS,
    kafka.DuplicateSequenceNumber: _DEFECT,
    kafka.GroupAuthorizationFailedError: "have the user allowed Read on the group",
    kafka.GroupIdNotFound: "no member of this group has ever been there: check its name",
    kafka.IllegalArgumentError: _DEFECT,
    kafka.IllegalOperation: _DEFECT,
    kafka.IllegalSaslStateError: _MECHANISM,
    kafka.IncompatibleBrokerVersion: _VERSION,
    kafka.InconsistentGroupProtocolError: "a program that is no saga service is a member of this group: see who it is "
    "(kafka-consumer-groups --describe --members), and give that program a group of its own",
    kafka.InvalidCommitOffsetSizeError: _DEFECT,
    kafka.InvalidConfigurationError: "the brokers refuse a setting of the topic: see the message",
    kafka.InvalidFetchRequestError: _DEFECT,
    kafka.InvalidGroupIdError: "a group's name must not be empty",
    kafka.InvalidPartitionsError: "a topic needs at least one partition",
    kafka.InvalidPrincipalType: _PASSWORD,
    kafka.InvalidReplicationAssignmentError: _DEFECT,
    kafka.InvalidReplicationFactorError: "the cluster has fewer brokers than replication_factor: add brokers, or say a "
    "smaller one, which loses what only a broken disk held",
    kafka.InvalidRequestError: _VERSION,
    kafka.InvalidRequiredAcksError: _DEFECT,
    kafka.InvalidSessionTimeoutError: "session_s: within the brokers' group.min.session.timeout.ms and "
    "group.max.session.timeout.ms",
    kafka.InvalidTimestampError: "have the topic message.timestamp.type=LogAppendTime, or mend this machine's clock",
    kafka.InvalidTopicError: "a topic's name: letters, digits, '.', '_' and '-', at most 249",
    kafka.InvalidTransactionTimeout: _DEFECT,
    kafka.InvalidTxnState: _DEFECT,
    kafka.KafkaConfigurationError: _DEFECT,
    kafka.MessageSizeTooLargeError: _TOO_LARGE,
    kafka.NoError: _DEFECT,
    kafka.NoOffsetForPartitionError: _DEFECT,
    kafka.NonEmptyGroup: "stop the service first: its group has members",
    kafka.OffsetMetadataTooLargeError: _DEFECT,
    kafka.OffsetOutOfRangeError: _DEFECT,
    kafka.PolicyViolationError: "the brokers' policy refuses the topic: see the message",
    kafka.RecordListTooLargeError: _TOO_LARGE,
    kafka.RecordTooLargeError: _TOO_LARGE,
    kafka.SaslAuthenticationFailed: _PASSWORD,
    kafka.SecurityDisabled: "the brokers have no authorizer",
    kafka.TopicAlreadyExistsError: _DEFECT,
    kafka.TopicAuthorizationFailedError: "have the user allowed {right} on the topic",
    kafka.TransactionalIdAuthorizationFailed: _DEFECT,
    kafka.UnknownTopicOrPartitionError: "create the topic, or have the user allowed Describe on it",
    kafka.UnrecognizedBrokerVersion: _VERSION,
    kafka.UnsupportedCodecError: "pip install 'aiokafka[lz4,snappy,zstd]': somebody compresses what we read",
    kafka.UnsupportedForMessageFormatError: _VERSION,
    kafka.UnsupportedSaslMechanismError: _MECHANISM,
    kafka.UnsupportedVersionError: _VERSION,
}
"""Errors that waiting alone does not mend, each with what a person has to do."""

RIGHTS: frozenset[type[Exception]] = frozenset(
    {
        kafka.ClusterAuthorizationFailedError,
        kafka.GroupAuthorizationFailedError,
        kafka.TopicAuthorizationFailedError,
    }
)
"""Errors of these that are of rights: one that was taken away can be given back."""


def translate_error(
    why: BaseException, doing: str, right: str = "Read, Write or Create", *, waits: bool = False
) -> BrokerError:
    """Make the error to raise instead of one of aiokafka's; `doing`: what failed, and where; `right`: which one it
    takes on a topic. `waits`: whether a right that is missing is waited for, as those do who are running."""
    said = f"{doing}: {type(why).__name__}: {_words(why)}"
    for kind in type(why).__mro__:
        if kind in AGAIN:
            return BrokerUnavailable(f"{said}: it is tried again; {GUESS}")
        if kind in FENCED:
            return Fenced(f"{said}: the group has moved on; what was done comes again elsewhere")
        if kind in PERSON:
            remedy = PERSON[kind].format(right=right)
            if waits and kind in RIGHTS:
                return BrokerUnavailable(f"{said}: {remedy}; until then it is tried again")
            return BrokerError(f"{said}: {remedy}")
    return BrokerUnavailable(f"{said}: it is tried again")


def _words(why: BaseException) -> str:
    """Text of an error, without its name, and without aiokafka's own advice of many lines."""
    text = (
        " ".join(str(part) for part in why.args if isinstance(part, str | int | dict | tuple))
        or getattr(why, "description", "")
        or "no details"
    )
    return " ".join(text.split())[:300]
