"""Publishing from outside any service: a web page, a script, a person's answer."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Self

from saga import wiring as wiring
from saga.broker.missing_topics import APPLY, topic_problems
from saga.client_events import check_principal, seal_of, to_record
from saga.clock import Clock, SystemClock
from saga.config import Settings
from saga.contracts.library import Binding, binding_of
from saga.errors import BrokerUnavailable, ConfigurationError, SagaError
from saga.messages import Event, Topic
from saga.registry.edge import problems_of

ACKNOWLEDGED_S_MAX = 30.0
"""Longest wait of `publish` for the broker's acknowledgement."""


class Client:
    """Publisher of events from outside any service.

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
        self._broker = await self._stack.enter_async_context(wiring.broker_of(None, self._clock, settings))
        self._known: set[str] = set()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect. Nothing is pending: what `publish` returned for is durable."""
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
        records = [to_record(event, now_ms, bytes_max, who, seal) for event, seal in zip(events, seals, strict=True)]
        bindings = [binding_of(kind) for kind in {type(event) for event in events}]
        if {binding.contract.topic for binding in bindings} - self._known:
            await self._with_topics({b.contract.topic: b.library.topics[b.contract.topic] for b in bindings})
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

    async def _with_topics(self, topics: Mapping[str, Topic]) -> None:
        """Return when these topics are there, and we may write them. Raises `ConfigurationError` if people have to
        act."""
        problems = await topic_problems(list(topics.values()), self._broker, writes=topics)
        if problems:
            raise ConfigurationError(
                "nothing was published: whoever runs the services has to make the topics as the contracts want them: "
                f"{APPLY} MODULES",
                problems,
            )
        if forbidden := await self._broker.forbidden((), topics):
            raise ConfigurationError("nothing was published: have this user allowed to publish:", forbidden)
        self._known |= topics.keys()

    async def _with_schemas(self, bindings: Sequence[Binding]) -> None:
        """Return when these events can be published as their topics want it. Raises `ConfigurationError` if people have
        to act."""
        versions = [(binding.contract, binding.version) for binding in bindings]
        if problems := await problems_of(self._broker, versions):
            raise ConfigurationError(
                "nothing was published: the schemas of what is published have to be there:", problems
            )
