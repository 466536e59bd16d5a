"""Every failure that aiokafka knows has its place in the table."""

import pytest
from aiokafka import errors as kafka

from saga.broker.kafka.errors import AGAIN, FENCED, PERSON, translate_error
from saga.errors import BrokerError, BrokerUnavailable, Fenced


def known() -> list[type[Exception]]:
    """All exception classes of aiokafka's module, whatever they descend from."""
    found = {kind for kind in vars(kafka).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    return sorted(found, key=lambda kind: kind.__name__)


def test_there_is_something_to_look_at() -> None:
    assert len(known()) > 90


@pytest.mark.parametrize("kind", known())
def test_each_failure_is_in_the_table_once(kind: type[Exception]) -> None:
    assert (kind in AGAIN) + (kind in FENCED) + (kind in PERSON) == 1


def test_nothing_else_is_in_the_table() -> None:
    assert {*AGAIN, *FENCED, *PERSON} == set(known())


def test_errors_that_aiokafka_retries_are_retried_here() -> None:
    retriable = {kind for kind in known() if getattr(kind, "retriable", False)}
    assert retriable - AGAIN == {kafka.UnknownTopicOrPartitionError}  # of a topic that is not there


@pytest.mark.parametrize(
    ("why", "becomes"),
    [
        (kafka.RequestTimedOutError(), BrokerUnavailable),
        (kafka.CommitFailedError("said", "much"), Fenced),
        (kafka.TopicAuthorizationFailedError("orders"), BrokerError),
        (type("NewerError", (kafka.KafkaError,), {})("of a later version"), BrokerUnavailable),
    ],
)
def test_a_failure_becomes_what_it_calls_for(why: Exception, becomes: type[BrokerError]) -> None:
    error = translate_error(why, "publishing to orders")
    assert type(error) is becomes
    assert "publishing to orders" in str(error)
    assert "\n" not in str(error)
