"""Clients outside any service, as a web page or a script: they publish events, ask for outcomes, and listen."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any, Self, TypeVar, overload

from saga.broker.port import APPLY, find_topic_problems
from saga.clients.event_reader import Hearing, check_heard, check_outcomes, outcomes_here
from saga.clients.events import check_principal, seal_of, to_record
from saga.clients.outcomes import Outcomes
from saga.clients.subscription import Alone, Begin, Listening, Shared, check_group
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.contracts.library import Binding, binding_of
from saga.errors import BrokerUnavailable, ConfigurationError, SagaError
from saga.messages import Event, Topic
from saga.ops.sources import open_administration
from saga.registry.edge import problems_of
from saga.support.clock import Clock, SystemClock

E = TypeVar("E", bound=Event)
A = TypeVar("A", bound=Event)
B = TypeVar("B", bound=Event)
C = TypeVar("C", bound=Event)

ACKNOWLEDGED_S_MAX = 30.0
"""Longest wait of `publish` for the broker's acknowledgement."""


class Client:
    """Application outside any service: it publishes events, asks what became of a saga, and hears what is for others.

    `async with Client() as client: await client.publish(OrderPlaced(...))`
    """

    def __init__(self, broker: str | None = None, *, principal: str | None = None) -> None:
        """Note the broker; nothing is opened before `async with`. `broker`: its address (`embedded:///path`); by
        default the setting `SAGA_BROKER`, as for services. `principal`: who begins the sagas of what is published, as
        in "user:4711", at most 256 bytes; see `publish`. Raises `SagaError` for one that cannot be."""
        check_principal(principal)
        self._address, self._principal = broker, principal
        self._clock: Clock = SystemClock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connect. Raises `SagaError` when the broker cannot be reached or refuses, within 15 s, saying what to do."""
        settings = Settings.from_environment(broker=self._address)
        self._keys = wiring.keys_of(settings, self._clock)
        self._trace = wiring.current_trace(settings)
        self._broker = await self._stack.enter_async_context(open_administration(settings, self._clock))
        self._looking = asyncio.Lock()
        self._known: set[tuple[str, bool]] = set()
        """Topics that are there, each with whether they were looked at for writing."""
        self._outcomes: dict[frozenset[type[Event]], Outcomes[Any]] = {}
        self._listening: set[Listening[Any]] = set()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect. Nothing is pending: what `publish` returned for is durable. Who still asks or listens is told."""
        try:
            for outcomes in self._outcomes.values():
                await outcomes.close()
            for listening in list(self._listening):
                await listening.aclose()
        finally:
            await self._stack.aclose()

    async def publish(self, *events: Event, principal: str | None = None) -> None:
        """Publish, in the order given. Returns when all are durable.

        Promises: an event's id is made of its contract, saga id and content, so publishing an equal event again, after
        an error, a timeout or a crash, now or in another process, is the same event. So build it once: with a new
        timestamp in it, it is another one. Two events that both count must differ in a field.

        `principal`: who begins the saga, in the place of the client's. It goes with events that begin one, and from
        there into every event, progress and handler of the saga (`saga.principal`); to other events it adds nothing. It
        is no part of an event: of two equal ones the first says who it was.

        Raises `SagaError`: a field that its contract does not allow, an event larger than SAGA_RECORD_BYTES_MAX leaves
        room for, or a topic that is not there, which is a `ConfigurationError` (nothing was published); or the broker
        did not acknowledge in time (any of them may have been published; publish again).
        """
        check_principal(principal)
        who, bytes_max = principal or self._principal, self._broker.record_bytes_max
        seals, now_ms = [await seal_of(event, self._keys) for event in events], self._clock.now_ms()
        trace = None if self._trace is None else self._trace()
        records = [to_record(e, now_ms, bytes_max, who, seal, trace) for e, seal in zip(events, seals, strict=True)]
        bindings = [binding_of(kind) for kind in {type(event) for event in events}]
        await self._with_topics({b.contract.topic: b.library.topics[b.contract.topic] for b in bindings}, writes=True)
        if any(binding.contract.subject for binding in bindings):
            await self._with_schemas(bindings)
        try:
            await self._clock.within(ACKNOWLEDGED_S_MAX, self._broker.publish(records))
        except (TimeoutError, BrokerUnavailable) as why:
            reason = f"within {ACKNOWLEDGED_S_MAX:.0f} s" if isinstance(why, TimeoutError) else f"({why})"
            raise SagaError(
                f"the broker did not acknowledge {reason}: any of the {len(events)} "
                "events may have been published; publish them again, an equal event is the same event"
            ) from why

    @overload
    async def outcome(self, saga: str, *, within: timedelta) -> Event | None: ...
    @overload
    async def outcome(self, saga: str, a: type[A], /, *, within: timedelta) -> A | None: ...
    @overload
    async def outcome(self, saga: str, a: type[A], b: type[B], /, *, within: timedelta) -> A | B | None: ...
    @overload
    async def outcome(
        self, saga: str, a: type[A], b: type[B], c: type[C], /, *, within: timedelta
    ) -> A | B | C | None: ...
    @overload
    async def outcome(self, saga: str, *events: type[E], within: timedelta) -> E | None: ...
    async def outcome(self, saga: str, *events: type[Event], within: timedelta) -> Event | None:
        """Outcome of a saga: the event with which the service that decides ended it, whether it was said before the
        question or comes within `within`; `None` if there is none by then.

        `events`: the classes of all outcomes of this kind of saga. Without any they are those in `contracts/`, if these
        have one kind of saga, and their classes are made as `saga contracts generate` would write them.

        Promises: `None` means that nobody had said an outcome by then, or that retention has removed it since. A
        question costs no scan, but the first about a part of the topic in the life of a client, which reads what is
        there: `within` counts from then on. Any number may be asked at once; memory does not grow with them.

        Raises `SagaError`: a class that is no outcome; one of them that is missing, or of another kind of saga; a topic
        that is not there; an outcome that cannot be read; the broker is away, or has more than can be looked through in
        a minute (ask again, it goes on where it is).
        """
        hearing = Hearing(check_outcomes(events or outcomes_here()), self._keys)
        await self._with_topics(hearing.topics, writes=False)
        asked = self._outcomes.setdefault(hearing.classes, Outcomes(hearing, self._broker, self._clock))
        return await asked.of(saga, within.total_seconds())

    @overload
    def listen(self, a: type[A], /, *, begin: Begin = ..., group: str | None = ...) -> Listening[A]: ...
    @overload
    def listen(self, a: type[A], b: type[B], /, *, begin: Begin = ..., group: str | None = ...) -> Listening[A | B]: ...
    @overload
    def listen(
        self, a: type[A], b: type[B], c: type[C], /, *, begin: Begin = ..., group: str | None = ...
    ) -> Listening[A | B | C]: ...
    @overload
    def listen(self, *events: type[E], begin: Begin = ..., group: str | None = ...) -> Listening[E]: ...
    def listen(self, *events: type[Event], begin: Begin = "now", group: str | None = None) -> Listening[Any]:
        """Events of these classes as they come, for `async for`; their contracts say `"consumed_by": "external"`.

        `begin`: with what comes from now on (when the first one is asked for, or at `async with`), or at the beginning
        of what the topics hold. `group`: a name under which the broker remembers how far it was heard, also when
        nobody listens: it begins at the beginning, goes on where it was, and those who listen in one group share its
        partitions. An event counts as heard when the next one is asked for: in a group at least once.

        Promises: the order of each saga and topic. What says that it is one of these events, and can never be read, is
        passed over and told to the log, `saga.client`. An outage of the broker is waited for, and told there.

        Raises `SagaError`: a contract that is not `"consumed_by": "external"`, a group's name that cannot be one, or
        both `begin` and `group`; while listening: a topic that is not there, and an event of a version that is not in
        `contracts/` yet, which is tried again when the next one is asked for.
        """
        hearing = Hearing(check_heard(events), self._keys)
        taking: Alone | Shared
        if group is None:
            taking = Alone(self._broker, hearing.topics, begin, self._clock)
        else:
            taking = Shared(self._broker, hearing.topics, check_group(group, begin), self._clock)
        ready = partial(self._with_topics, hearing.topics, writes=False)
        listening = Listening(hearing, taking, self._clock, ready, self._listening.discard)
        self._listening.add(listening)
        return listening

    async def _with_topics(self, topics: Mapping[str, Topic], *, writes: bool) -> None:
        """Return when these topics are there, and we may write them, or read them. Raises `ConfigurationError` if
        people have to act."""
        if self._known.issuperset((topic, writes) for topic in topics):
            return
        async with self._looking:  # one after another: whoever comes second nearly always finds that all is known
            if not self._known.issuperset((topic, writes) for topic in topics):
                await self._check_topics(topics, writes=writes)
                self._known |= {(topic, writes) for topic in topics}

    async def _check_topics(self, topics: Mapping[str, Topic], *, writes: bool) -> None:
        nothing = "nothing was published" if writes else "nothing can be heard"
        reads, written = ((), topics) if writes else (topics, ())
        problems = await find_topic_problems(list(topics.values()), self._broker, reads, written)
        if problems:
            raise ConfigurationError(
                f"{nothing}: whoever runs the services has to make the topics as the contracts want them: "
                f"{APPLY} MODULES",
                problems,
            )
        if forbidden := await self._broker.find_missing_rights(reads, written):
            raise ConfigurationError(
                f"{nothing}: have this user allowed to {'publish' if writes else 'listen'}:", forbidden
            )

    async def _with_schemas(self, bindings: Sequence[Binding]) -> None:
        """Return when these events can be published as their topics want it. Raises `ConfigurationError` if people have
        to act."""
        versions = [(binding.contract, binding.version) for binding in bindings]
        if problems := await problems_of(self._broker, versions):
            raise ConfigurationError(
                "nothing was published: the schemas of what is published have to be there:", problems
            )
