"""Map each error of aiokafka to its kind and to what to do about it."""

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
"""Errors that call for a retry, because they pass by themselves, or after a person has acted. The interrupted request
may have taken effect."""

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
"""Errors of a commit which mean that another member owns the partitions, or will own them."""

GUESS = "check that the brokers run and can be reached"
"""Advice for errors whose cause is not known: see `KafkaAccess.explain`."""
_PASSWORD = "check user and password, and that the brokers have this user"
_MECHANISM = "configure the SASL mechanism of the brokers' listener"
_VERSION = "the brokers are too old or too new for aiokafka: Kafka 2.1 to 4.3 is known to work"
_TOO_LARGE = "send less in one record, or raise the topic's max.message.bytes to SAGA_RECORD_BYTES_MAX at least"
_TOKENS = "delegation tokens are not supported: configure a user and a password, or a token"
_DEFECT = "unless another program uses the group, this is a defect of saga: report it with this message"

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
    kafka.GroupIdNotFound: "this group has never had a member: check its name",
    kafka.IllegalArgumentError: _DEFECT,
    kafka.IllegalOperation: _DEFECT,
    kafka.IllegalSaslStateError: _MECHANISM,
    kafka.IncompatibleBrokerVersion: _VERSION,
    kafka.InconsistentGroupProtocolError: "another program, not a saga service, is a member of this group: find it "
    "with kafka-consumer-groups --describe --members, and give it a group of its own",
    kafka.InvalidCommitOffsetSizeError: _DEFECT,
    kafka.InvalidConfigurationError: "the brokers refuse a setting of the topic: see the message",
    kafka.InvalidFetchRequestError: _DEFECT,
    kafka.InvalidGroupIdError: "a group's name must not be empty",
    kafka.InvalidPartitionsError: "a topic needs at least one partition",
    kafka.InvalidPrincipalType: _PASSWORD,
    kafka.InvalidReplicationAssignmentError: _DEFECT,
    kafka.InvalidReplicationFactorError: "the cluster has fewer brokers than replication_factor: add brokers, or "
    "configure a smaller one, which loses more data when a disk fails",
    kafka.InvalidRequestError: _VERSION,
    kafka.InvalidRequiredAcksError: _DEFECT,
    kafka.InvalidSessionTimeoutError: "choose session_s between the brokers' group.min.session.timeout.ms and "
    "group.max.session.timeout.ms",
    kafka.InvalidTimestampError: "set message.timestamp.type=LogAppendTime on the topic, or correct this machine's "
    "clock",
    kafka.InvalidTopicError: "the name of a topic has letters, digits, '.', '_' and '-', at most 249",
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
    kafka.UnsupportedCodecError: "the records are compressed: pip install 'aiokafka[lz4,snappy,zstd]'",
    kafka.UnsupportedForMessageFormatError: _VERSION,
    kafka.UnsupportedSaslMechanismError: _MECHANISM,
    kafka.UnsupportedVersionError: _VERSION,
}
"""Errors that waiting does not resolve, each with the action that a person has to take."""

RIGHTS: frozenset[type[Exception]] = frozenset(
    {
        kafka.ClusterAuthorizationFailedError,
        kafka.GroupAuthorizationFailedError,
        kafka.TopicAuthorizationFailedError,
    }
)
"""Errors in `PERSON` that mean a missing permission. A running process waits until the permission is granted, because a
permission that was withdrawn can be granted again."""


def translate_error(
    why: BaseException, doing: str, right: str = "Read, Write or Create", *, waits: bool = False
) -> BrokerError:
    """Convert an error of aiokafka to an error of the toolkit.

    Args:
        why: The error.
        doing: What failed, and where.
        right: The permission on a topic that the operation needs.
        waits: Whether to wait for a missing permission, as a running process does.
    """
    what = f"{doing}: {type(why).__name__}: {_describe(why)}"
    for kind in type(why).__mro__:
        if kind in AGAIN:
            return BrokerUnavailable(f"{what}: it is tried again; {GUESS}")
        if kind in FENCED:
            return Fenced(f"{what}: the partitions have moved to another member, which processes these messages again")
        if kind in PERSON:
            remedy = PERSON[kind].format(right=right)
            if waits and kind in RIGHTS:
                return BrokerUnavailable(f"{what}: {remedy}; until then it is tried again")
            return BrokerError(f"{what}: {remedy}")
    return BrokerUnavailable(f"{what}: it is tried again")


def _describe(why: BaseException) -> str:
    """Return the text of an error, without the name of its class and without aiokafka's advice of many lines."""
    text = (
        " ".join(str(part) for part in why.args if isinstance(part, str | int | dict | tuple))
        or getattr(why, "description", "")
        or "no details"
    )
    return " ".join(text.split())[:300]
