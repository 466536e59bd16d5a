"""Topics of a service: which it reads, which it writes, and as the broker wants them."""

from saga.broker.port import Topic
from saga.contracts.contract import Topic as ContractTopic
from saga.contracts.library import binding_of, contract_of
from saga.declarations.values import Declared
from saga.messages import name_of
from saga.names import dead_letters_of
from saga.runtime.prepared import consumed_by


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


def reads_of(declared: Declared) -> frozenset[str]:
    """Topics that its workers read."""
    taken = {event for each in declared.reactions for parameter in each.parameters for event in parameter.events}
    contracts = {name_of(event): contract_of(event) for event in taken}
    return frozenset(contracts[name].topic for name in consumed_by(declared, contracts))


def writes_of(declared: Declared) -> frozenset[str]:
    """Topics that its workers write: that of its dead letters, too."""
    emitted = {binding_of(event).contract.topic for reaction in declared.reactions for event in reaction.emits}
    return frozenset({*emitted, dead_letters_of(declared.name)})
