"""Prepare the declarations of one service once, for workers and for tools. Also derive the service's topics from its
declarations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import msgspec

from saga.broker.acls import BrokerUse
from saga.change import Change
from saga.contracts import codec
from saga.contracts.encryption import NO_KEYS, split_encrypted
from saga.contracts.library import Contract, Library, Version, binding_of, contract_of
from saga.contracts.sensitive_fields import has_sensitive
from saga.contracts.upcasters import find_missing_upcasters
from saga.declarations.changes import is_change, kind_of, make_change
from saga.declarations.migrations import check_chain
from saga.declarations.values import Declared, DocumentKind, Migration, Reaction
from saga.encryption.sensitive_fields import SensitiveMarks, find_key_names, find_marks, unwrap_marked
from saga.engine.foreign_values import check_schema, decode_single_object
from saga.engine.known_schemas import KnownSchemas
from saga.errors import BadInput, DeclarationError, KeyMissing
from saga.messages import Event, Message, Topic, name_of
from saga.messaging.names import command_topic, dead_letter_topic
from saga.messaging.operator_commands import OperatorCommand
from saga.messaging.timers import TimerTier, tiers_of
from saga.policies.retry import RETRY, Retry
from saga.progress import overflow
from saga.progress.handlers import CompensationRole, HandlerRole, HandlerRoles
from saga.progress.overflow import OverflowBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedService:
    """The declarations of a service, arranged for lookup while messages are processed. It does no I/O."""

    declared: Declared
    name: str
    commands: str
    """Topic of the operator commands for the service."""
    wakes: Mapping[str, TimerTier]
    """Topics of the service's timers, each with its timer tier."""
    roles: HandlerRoles
    handlers: Mapping[str, Reaction]
    """Handlers, compensations and deadlines, by the name of the function."""
    classes: Mapping[str, Mapping[str, type[Event]]]
    """For each handler, the event class for each type that it consumes."""
    contracts: Mapping[str, Contract]
    """All consumed and emitted contracts, by record name."""
    changes: Mapping[str, type[Event]]
    """Topics of document changes, each with the class that represents the changes."""
    set_apart: frozenset[str]
    """Topics without events: topics of commands, timers and document changes."""
    consumed: frozenset[str]
    """Types to read from the log: a handler or compensation here consumes them, and other services may emit them."""
    starts: frozenset[str]
    """Types that start a saga."""
    schemas: KnownSchemas
    """Schemas of the consumed contracts. In a running service, it also has those deployed since the start."""
    state: type[Any] | None
    state_marks: SensitiveMarks | None = None
    """Sensitive parts of the state."""
    sensitive: frozenset[str] = frozenset()
    """Types with sensitive fields, in any version."""
    migrations: Sequence[Migration] = ()
    """Functions that convert a state to the next version, oldest first."""
    retention_s: int
    documents: Mapping[type, DocumentKind]
    expected_errors: Mapping[str, tuple[type[Exception], ...]]
    """For each handler, the declared exceptions of its resources: a call that raises one of them is recorded as
    answered."""
    bounds: OverflowBounds
    is_all_at_once: bool = False
    """True if calls with limits of their own do not wait, because no time passes or nothing is called."""
    version: int = 1
    """Version of the state: the number of migrations plus one."""
    is_private: bool = False
    """True if an event or the state has sensitive fields, so that stored values may be encrypted."""

    @property
    def topics(self) -> frozenset[str]:
        """Return the topics that the service reads."""
        return frozenset((self.commands, *self.wakes, *(self.contracts[type_].topic for type_ in self.consumed)))

    @property
    def event_topics(self) -> frozenset[str]:
        """Return the topics of events and document changes that the service reads. Events that close deadlines are on
        these topics."""
        return self.topics - {self.commands, *self.wakes}

    def state_of(self, fields: dict[str, Any]) -> Any:
        """Convert the recorded fields to the state, as the service's class."""
        if self.state_marks is not None:
            fields = unwrap_marked(fields)
        return None if self.state is None else msgspec.convert(fields, self.state, strict=False)

    def decode(self, handler: str, message: Message) -> Event:
        """Decode the message as the class that `handler` consumes. Raises `BadInput`, and `KeyMissing` if the message
        is encrypted."""
        library = self.schemas.library
        if (parts := split_encrypted(message.value)) is not None and parts[0]:
            raise KeyMissing(NO_KEYS)
        value = (
            message.value
            if message.value[:2] == codec.MARKER
            else decode_single_object(message, library, self.schemas.writers.get)
        )
        event = codec.decode(value, self.classes[handler][message.type], library)
        contract = self.contracts[message.type]
        key = str(getattr(event, contract.key))
        if key != message.saga:
            raise BadInput(f"its {contract.key} is {key!r}, its key {message.saga!r}: both must be the saga id")
        return event

    def given(self, handler: str, message: Message) -> Event | Change[Any]:
        """Decode the message to the value that `handler` gets as its argument. Raises `BadInput`."""
        event = self.decode(handler, message)
        kind = kind_of(type(event)) if self.changes else None
        return event if kind is None else make_change(event, kind)

    def find_undecodable(self, message: Message) -> Mapping[str, str]:
        """Return the handlers for which the message would be pending although they can never decode it, with the reason
        for each."""
        if isinstance(message, OperatorCommand) and message.original is not None:
            message = message.original
        takers = self.roles.by_type.get(message.type, ())
        waits = [role for role in takers if role.is_joined() or message.started is None]
        return {role.name: why for role in waits if (why := self.why_undecodable(role, message)) is not None}

    def why_undecodable(self, role: HandlerRole, message: Message) -> str | None:
        """Return why the handler cannot decode the message; `None` if it can."""
        try:
            if not find_key_names(message.value):
                self.given(role.name, message)
            elif (parts := split_encrypted(message.value)) is not None and parts[
                0
            ]:  # without its key nothing else can be read
                check_schema(parts[0], self.schemas.library, self.schemas.writers.get)
            else:
                self.decode(role.name, message)
        except BadInput as why:
            return str(why)
        return None


def prepare(declared: Declared) -> PreparedService:
    """Prepare everything that the service has declared so far.

    Raises `DeclarationError` for a service without a handler, for migrations that do not lead to the current state, and
    for older versions of events without an upcaster.
    """
    migrations = check_chain(declared)
    check_has_handler(declared)
    everything = declared.reactions
    _check_upcasts(declared)
    taken = {e for h in everything for e in h.consumed_events}
    emitted = {e for h in everything for e in h.emits}
    contracts = {name_of(e): contract_of(e) for e in sorted(taken | emitted, key=name_of)}
    changing = {name_of(e) for e in taken if is_change(e)}  # most changes of a document do not start a saga
    commands, wakes, changes = command_topic(declared.name), tiers_of(declared.name), _changes_of(taken)
    sensitive = frozenset(n for n, c in contracts.items() if any(has_sensitive(v.record) for v in c.versions))
    state_marks = None if declared.state is None else find_marks(declared.state)
    return PreparedService(
        declared=declared,
        name=declared.name,
        commands=commands,
        wakes=wakes,
        changes=changes,
        set_apart=frozenset((commands, *wakes, *changes)),
        roles=roles_of(declared, contracts),
        handlers={h.name: h for h in everything},
        classes={h.name: {name_of(e): e for e in h.taken_events} for h in everything},
        contracts=contracts,
        consumed=consumed_by(declared, contracts),
        starts=frozenset(n for n, contract in contracts.items() if contract.starts and n not in changing),
        schemas=KnownSchemas(_library_of(taken)),
        state=declared.state,
        sensitive=sensitive,
        state_marks=state_marks,
        is_private=bool(sensitive) or state_marks is not None,
        migrations=migrations,
        version=len(migrations) + 1,
        retention_s=int(declared.retention.total_seconds()),
        documents={document.kind: document for document in declared.documents},
        expected_errors={h.name: expected_errors_of(declared, h) for h in everything},
        bounds=overflow.BOUNDS,
    )


def check_has_handler(declared: Declared) -> None:
    """Check that the service reacts to something. Raises `DeclarationError` if it has no handler."""
    if not declared.reactions:
        raise DeclarationError(f"the service {declared.name!r} has no handler; a service reacts to something")


def _changes_of(taken: Iterable[type[Event]]) -> dict[str, type[Event]]:
    """Return the topics of document changes, each with the class that represents the changes."""
    return {contract_of(e).topic: e for e in taken if is_change(e)}


def _library_of(taken: Iterable[type[Event]]) -> Library:
    """Return one library of all consumed contracts. It includes document changes, whose contracts are in no contract
    folder."""
    libraries = [
        binding_of(event).library for event in sorted(taken, key=lambda event: (is_change(event), name_of(event)))
    ]
    whole, *others = libraries
    for other in others:
        if other.contracts.keys() - whole.contracts.keys():
            whole = replace(
                whole,
                contracts={**other.contracts, **whole.contracts},
                topics={**other.topics, **whole.topics},
                by_path={**other.by_path, **whole.by_path},
                by_fingerprint={**other.by_fingerprint, **whole.by_fingerprint},
            )
    return whole


def _check_upcasts(declared: Declared) -> None:
    """Check that every older version of the consumed events can be read. Raises `DeclarationError` that lists the ones
    that cannot."""
    taken = sorted(
        {event for h in declared.reactions for event in h.taken_events}, key=lambda event: event.__contract__
    )
    problems = [problem for event in taken for problem in find_missing_upcasters(event)]
    if problems:
        raise DeclarationError(f"the events that {declared.name!r} takes: {'; '.join(problems)}")


def consumed_by(declared: Declared, contracts: Mapping[str, Contract]) -> frozenset[str]:
    """Return the types that are read from the log: the types that handlers consume, and the outcomes that compensations
    react to.

    Events that only the service itself may emit are left out, because the progress has them.
    """
    taken = {n for h in (*declared.handlers, *declared.deadlines) for n in _names(h.consumed_events)}
    undoing = {n for h in declared.compensations for n in _names(h.taken_events)}
    taken |= {n for n in undoing if contracts[n].outcome is not None}  # results are in the progress
    return frozenset(n for n in taken if contracts[n].owner != declared.name or contracts[n].produced_externally)


def roles_of(declared: Declared, contracts: Mapping[str, Contract]) -> HandlerRoles:
    """Return the handlers, with their compensations, in the form that decisions use."""
    undo = {}
    for compensation in declared.compensations:
        took = frozenset(n for p in compensation.parameters if p.of_original for n in _names(p.events))
        taken = _names(compensation.taken_events) - took
        failures = frozenset(n for n in taken if contracts[n].outcome == "failure")
        assert compensation.undoes is not None
        undo[compensation.undoes] = CompensationRole(
            name=compensation.name,
            outcomes=failures,
            results=taken - failures,
            took=took,
            expected_errors=_answer_names(declared, compensation),
        )
    emitted = {n for h in declared.reactions for n in _names(h.emits)}
    # Events that the service consumes and only it may emit: an earlier version of the service may have emitted them.
    reacting = (*declared.handlers, *declared.deadlines)
    own = {n for h in reacting for n in _names(h.taken_events) if contracts[n].owner == declared.name}
    ends = frozenset(n for n, contract in contracts.items() if contract.outcome)
    unless = {n for h in declared.deadlines for n in _names(h.unless)}
    handlers = [
        HandlerRole(
            name=handler.name,
            takes=tuple(map(_names, handler.needed_events)),
            optional=tuple(_names(p.events) for p in handler.parameters if p.optional),
            many=bool(handler.repeats),
            changes=frozenset(name_of(e) for e in handler.taken_events if is_change(e)),
            decides=any(contracts[n].outcome for n in _names(handler.emits)),
            closes=not unless.isdisjoint(_names(handler.emits)),
            after_outcome=any(contracts[n].outcome for n in _names(handler.taken_events)),
            undo=undo.get(handler.name),
            within_ms=0 if handler.within is None else max(1, round(handler.within.total_seconds() * 1000)),
            grace_ms=None if handler.grace is None else round(handler.grace.total_seconds() * 1000),
            unless=frozenset() if handler.within is None else ends | _names(handler.unless),
            ends_surely=_ends_surely(handler, contracts),
            expected_errors=_answer_names(declared, handler),
        )
        for handler in reacting
    ]
    outcomes = frozenset(n for n in emitted if contracts[n].outcome)
    return HandlerRoles(declared.name, handlers, outcomes=outcomes, emitted=frozenset(emitted | own))


def expected_errors_of(declared: Declared, reaction: Reaction) -> tuple[type[Exception], ...]:
    """Return the declared exceptions of the resources that a handler uses."""
    by_type = {resource.gives: resource for resource in declared.resources}
    return tuple(a for p in reaction.parameters if p.gives is not None for a in by_type[p.gives].expected_errors)


def _answer_names(declared: Declared, reaction: Reaction) -> frozenset[str]:
    return frozenset(answer.__name__ for answer in expected_errors_of(declared, reaction))


def _ends_surely(handler: Reaction, contracts: Mapping[str, Contract]) -> bool:
    """Return whether an open deadline of this handler is certain to end the saga: see `HandlerRole.ends_surely`."""
    is_last = handler.kind == "deadline" and not handler.unless
    return is_last and handler.always_emits_one and all(contracts[n].outcome for n in _names(handler.emits))


def find_low_priority_types(service: PreparedService) -> tuple[frozenset[str], frozenset[str]]:
    """Return the types that only low-priority handlers consume, and the topics from which only such types are read."""
    busy = {n for h in service.declared.reactions if not h.low_priority for n in _names(h.consumed_events)}
    types = service.consumed - busy
    read = {service.contracts[n].topic for n in service.consumed - types}
    return types, frozenset(service.contracts[n].topic for n in types) - read


def _names(events: tuple[type[Event], ...]) -> frozenset[str]:
    return frozenset(map(name_of, events))


def get_emitted_contracts(services: Iterable[Declared]) -> list[tuple[Contract, Version]]:
    """Return the contracts that services emit, each with the version of the declared class."""
    events = dict.fromkeys(event for declared in services for each in declared.reactions for event in each.emits)
    return [(binding.contract, binding.version) for binding in map(binding_of, events)]


def get_consumed_contracts(services: Iterable[Declared]) -> list[Contract]:
    """Return the contracts that services consume, by name."""
    consumed = {
        e for declared in services for each in declared.reactions for e in each.consumed_events if not is_change(e)
    }
    return [*{contract.name: contract for contract in map(contract_of, sorted(consumed, key=name_of))}.values()]


def relayed_by(declared: Declared) -> frozenset[str]:
    """Return the topics of the document changes that a service consumes.

    The service's workers publish the changes if its store records them; otherwise a connector does.
    """
    return frozenset(
        contract_of(e).topic for reaction in declared.reactions for e in reaction.taken_events if is_change(e)
    )


def topics_of(declared: Declared) -> list[Topic]:
    """Return the topics that a service reads or writes, including those of its dead letters, commands and timers."""
    bindings = [binding_of(event) for h in declared.reactions for event in (*h.emits, *h.consumed_events)]
    topics = {b.contract.topic: b.library.topics[b.contract.topic] for b in bindings}
    dead = Topic(dead_letter_topic(declared.name), retention_days=None)
    wakes = [tier.topic(declared.name) for tier in tiers_of(declared.name).values()]
    return [*(topics[name] for name in sorted(topics)), dead, commands_topic(declared.name), *wakes]


def commands_topic(service: str) -> Topic:
    """Return the topic of the commands for a service. It has one partition, because commands are rare."""
    return Topic(command_topic(service), partitions=1, retention_days=None)


def reads_of(declared: Declared) -> frozenset[str]:
    """Return the topics that the service's workers read."""
    contracts = {
        name_of(event): contract_of(event) for reaction in declared.reactions for event in reaction.consumed_events
    }
    events = (contracts[name].topic for name in consumed_by(declared, contracts))
    return frozenset((*events, command_topic(declared.name), *tiers_of(declared.name)))


def writes_of(declared: Declared) -> frozenset[str]:
    """Return the topics that the service's workers write, including those of its dead letters and timers."""
    emitted = {binding_of(event).contract.topic for reaction in declared.reactions for event in reaction.emits}
    return frozenset({*emitted, dead_letter_topic(declared.name), *tiers_of(declared.name)})


def needs_of(services: Iterable[Declared], transition_topic: Topic | None = None) -> BrokerUse:
    """Return what the workers of these services, together, need to do on the broker.

    `transition_topic`: topic on which they publish their transition events.
    """
    several, more = list(services), {transition_topic.name} if transition_topic else set[str]()
    return BrokerUse(
        reads=frozenset(topic for declared in several for topic in reads_of(declared)),
        writes=frozenset(topic for declared in several for topic in writes_of(declared)) | more,
        groups=frozenset(declared.name for declared in several),
        topics=frozenset(topic.name for declared in several for topic in topics_of(declared)) | more,
    )


# -------------------------------------------------------------------- time limits


DAY_S = 86_400


def find_conflicting_times(declared: Declared) -> tuple[str, ...]:
    """Describe retries and topics that last longer than the retention.

    Nothing is lost in this service because of them, but a saga may be forgotten while it is still in progress.
    """
    return (*_long_waits(declared), *_long_topics(declared))


def retry_span_s(retry: Retry) -> float:
    """Return the sum of the delays between all attempts in seconds, without the time of the attempts themselves.

    >>> retry_span_s(Retry(attempts_max=4, delay_s_first=1, delay_s_max=2)), retry_span_s(Retry(attempts_max=1))
    (5.0, 0.0)
    """
    delays = (retry.delay_s_first * 2.0 ** min(before, 64) for before in range(min(retry.attempts_max, 10_000) - 1))
    return float(sum(min(delay, retry.delay_s_max) for delay in delays))


def _long_waits(declared: Declared) -> Iterator[str]:
    """Yield a description of each handler whose attempts may last longer than the retention. (A deadline that would be
    due after the retention is refused when it is declared.)"""
    retention = declared.retention
    for handler in declared.reactions:
        wait = timedelta(seconds=sum(retry_span_s(retry) for retry in _rules_of(declared, handler)))
        if handler.undoes is None and wait >= retention:
            yield (
                f"the attempts of {handler.name} take up to {wait}, and {declared.name} remembers a saga for "
                f"{retention}: what it emits then is of a saga that others may have forgotten; raise retention=, or "
                "let it fail sooner"
            )


def _rules_of(declared: Declared, handler: Reaction) -> Iterator[Retry]:
    """Yield the retry rules that may apply to the handler.

    The attempts under each rule are counted separately, so the rules may apply one after another.
    """
    rules = [handler.retry or declared.retry or RETRY]
    if handler.retry is None:
        taken = {parameter.gives for parameter in handler.parameters if parameter.role == "resource"}
        rules += [r.retry for r in declared.resources if r.retry is not None and r.gives in taken]
    for rule in rules:
        yield rule
        yield from rule.by.values()


def _long_topics(declared: Declared) -> Iterator[str]:
    topics = {
        name: topic for h in declared.reactions for e in h.consumed_events for name, topic in _topics_of(e).items()
    }
    retention_s = declared.retention.total_seconds()
    for name in sorted(reads_of(declared) & topics.keys()):
        days = topics[name]
        if days is None or days * DAY_S > retention_s:
            retention = "for ever" if days is None else f"for {days:g} days"
            yield (
                f"the topic {name} keeps records {retention}, and {declared.name} remembers a saga for "
                f"{declared.retention}: reading the topic again would handle older records twice; raise retention=, or "
                "lower retention_days in its topic.json"
            )


def _topics_of(event: type) -> dict[str, float | None]:
    binding = binding_of(event)
    name = binding.contract.topic
    return {name: binding.library.topics[name].retention_days}
