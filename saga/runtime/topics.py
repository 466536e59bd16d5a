"""The topics of a service, as the broker wants them."""

from saga.broker.port import Topic
from saga.contracts.contract import Topic as ContractTopic
from saga.contracts.library import binding_of
from saga.declarations.values import Declared
from saga.names import dead_letters_of


def topic_of(topic: ContractTopic) -> Topic:
    """A topic as the broker wants it."""
    return Topic(topic.name, topic.partitions, topic.retention_days)


def topics_of(declared: Declared) -> list[Topic]:
    """The topics that a service reads or writes, its dead letters with them."""
    events = {e for h in declared.reactions for e in (*h.emits, *(e for p in h.parameters for e in p.events))}
    bindings = [binding_of(event) for event in events]
    topics = {b.contract.topic: topic_of(b.library.topics[b.contract.topic]) for b in bindings}
    dead = Topic(dead_letters_of(declared.name), retention_days=None)
    return [*(topics[name] for name in sorted(topics)), dead]
