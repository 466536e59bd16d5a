"""The topics of a service, as the broker wants them."""

from saga.broker.port import Topic
from saga.contracts.contract import Topic as ContractTopic
from saga.contracts.library import binding_of
from saga.declarations.values import Declared

_DEAD = ".dead"


def topic_of(topic: ContractTopic) -> Topic:
    """A topic as the broker wants it."""
    return Topic(topic.name, topic.partitions, topic.retention_days)


def topics_of(declared: Declared) -> list[Topic]:
    """The topics that a service reads or writes, its dead letters with them."""
    handlers = (*declared.handlers, *declared.compensations)
    events = {e for h in handlers for e in (*h.emits, *(e for p in h.parameters for e in p.events))}
    bindings = [binding_of(event) for event in events]
    topics = {b.contract.topic: topic_of(b.library.topics[b.contract.topic]) for b in bindings}
    dead = Topic(dead_letters_of(declared.name), retention_days=None)
    return [*(topics[name] for name in sorted(topics)), dead]


def dead_letters_of(service: str) -> str:
    """The topic where a service leaves what people have to see.

    >>> dead_letters_of("payment")
    'payment.dead'
    """
    return service + _DEAD


def is_dead_letters(topic: str) -> bool:
    """Whether that is what the topic is for, of whichever service.

    >>> is_dead_letters("payment.dead"), is_dead_letters("payments")
    (True, False)
    """
    return topic.endswith(_DEAD)
