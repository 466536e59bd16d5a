"""Send operator commands and requests for controls to services, and wait for their results.

Commands are about dead letters, escalations and parked runs. Commands and requests are records on `<service>.commands`.
Results are read from the histories of sagas, and from the control log.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec
from msgspec import structs

from saga.broker.port import APPLY, find_topic_problems
from saga.configuration import wiring
from saga.encryption.port import Keys
from saga.encryption.sensitive_fields import mark, recorded_place
from saga.engine.prepared_service import commands_topic
from saga.errors import BadInput, ConfigurationError, NoStore, SagaError, StoreUnavailable
from saga.messages import Message, Outgoing, texts_of
from saga.messaging import controls, operator_commands
from saga.messaging.controls import TYPE, ControlEntry, ControlLog, Switch
from saga.messaging.message_ids import identity
from saga.messaging.names import ARCHIVES
from saga.messaging.operator_commands import OPERATOR, StepAnswer, Wanted
from saga.ops.dead_letters import DeadLetter
from saga.ops.histories import UnreadableHistory, decode_progress, read_document
from saga.ops.selection import Deployment, Operator
from saga.ops.sources import ServiceStore
from saga.progress.document import UNREADABLE, SagaProgress, Transition, decode_transition

LOOK_EVERY_S = 0.2
REPLAYS_MAX = 5
"""Number of replays of one saga in one service after which another one needs `--again`. This stops endless
replaying."""
OUTCOMES: Mapping[Wanted, str] = {
    "replay": "replayed", "discard": "discarded", "resolve": "resolved", "release": "released"
}  # fmt: skip
"""For each command: the outcome that the service records when it has carried out the command."""
NONE: Mapping[str, Message] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """An operator's request to do something with dead letters, escalations or parked runs."""

    wanted: Wanted
    operator: Operator
    answered: StepAnswer | None = None
    """The operator's answer to a step whose result is unknown; `None` if the command gives none."""


@dataclass(frozen=True, slots=True)
class SentCommand:
    """A command that was published."""

    dead_letter: DeadLetter
    message: str
    """Id under which the command is recorded in the saga's history."""


NOT_ENDED = "not ended yet"
"""Outcome of a run that was to be repeated, and has not ended while a command was waiting for it."""


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The result of a command."""

    sent: SentCommand
    outcome: str
    """`replayed`, `discarded`, `resolved`, `released` or `ignored` (the service refused the command). Empty if the
    service has not handled the command yet."""
    reason: str
    after: str = ""
    """Outcome of the repeated run, once the run has ended; `retrying` if it failed and will be tried again, `NOT_ENDED`
    if it has not ended in time. Empty if there is no such run."""

    def is_success(self, wanted: Wanted) -> bool:
        """Return whether the command was carried out and the repeated run, if there is one, did not fail again.

        A run that failed and waits for its next attempt counts as failed, because it shows that the cause is not fixed.
        """
        return self.outcome == OUTCOMES[wanted] and self.after not in ("dead", "retrying", NOT_ENDED)


async def send_commands(
    letters: Sequence[DeadLetter],
    wish: CommandRequest,
    deployment: Deployment,
    originals: Mapping[str, Message] = NONE,
) -> list[SentCommand]:
    """Publish a command for each dead letter. Return when all commands are durable.

    After an exception some commands may have been published. Publishing them again does no harm.

    Args:
        originals: Messages to send with the commands, by the id of the dead letter.

    Raises:
        BadInput: A string is too long, a dead letter has no saga, or the saga's key was erased.
        SagaError: The broker cannot be used, or a topic is missing.
    """
    settings, clock = deployment.broker_settings, deployment.clock
    now_ms, keys = clock.now_ms(), wiring.open_keys(settings, clock)
    records = [
        _encode_command(letter, await _encrypt_answer(letter, wish, keys), now_ms, originals.get(letter.id))
        for letter in letters
    ]
    async with wiring.open_broker(None, clock, settings) as broker:
        topics = [commands_topic(service) for service in sorted({letter.service for letter in letters})]
        problems = await find_topic_problems(topics, broker, writes=[topic.name for topic in topics])
        if problems:
            raise ConfigurationError(
                f"nothing was sent: create the topics of the services first: {APPLY} MODULES", problems
            )
        await broker.publish(records)
    return [SentCommand(letter, _make_command_id(record)) for letter, record in zip(letters, records, strict=True)]


async def _encrypt_answer(letter: DeadLetter, wish: CommandRequest, keys: Keys | None) -> CommandRequest:
    """Encrypt the answer in a request before it is published.

    The key is the saga's, because the subject of the run is not known here. The service encrypts the answer again for
    the run. Raises `BadInput` if the saga's key was erased.
    """
    given = wish.answered
    if keys is None or given is None or given.raised is not None or letter.saga is None:
        return wish
    key = await keys.get_or_create_key(letter.saga)
    if key is None:
        raise BadInput(f"the key of saga {letter.saga} was erased: the answer cannot be encrypted, and was not sent")
    place = recorded_place(letter.service, letter.saga, given.place(letter.id))
    value = msgspec.json.encode(mark(key.encrypt_recorded(given.value.encode(), place))).decode()
    return replace(wish, answered=structs.replace(given, value=value))


def _encode_command(letter: DeadLetter, wish: CommandRequest, now_ms: int, original: Message | None) -> Outgoing:
    if not letter.saga:
        raise BadInput(f"dead letter {letter.id} belongs to no saga: it cannot be replayed, discarded or resolved")
    return operator_commands.command_to_record(
        letter.service,
        letter.saga,
        wish.wanted,
        operator_commands.CommandValue(
            dead=letter.id, who=wish.operator.who, why=wish.operator.why, answered=wish.answered, original=original
        ),
        now_ms,
    )


def _make_command_id(record: Outgoing) -> str:
    headers = texts_of(record.headers)
    return identity(OPERATOR, headers["ce_id"], headers["ce_type"], "")


async def wait_for_answers(
    sent: Sequence[SentCommand], deployment: Deployment, wait_s: float
) -> AsyncIterator[CommandAnswer]:
    """Yield the result of each command as soon as its service has recorded it.

    After `wait_s` seconds, yield the commands that still have no result. Raises `NoStore` if there is no store. Raises
    `StoreUnavailable` if a store cannot be opened, or if it still cannot be read when the time is over.
    """
    clock = deployment.clock
    deadline_s, left, unfinished = clock.monotonic_s() + wait_s, list(sent), dict[str, CommandAnswer]()
    async with deployment.open_stores({each.dead_letter.service for each in sent}) as sources:
        named = {source.service: source for source in sources}
        while left:
            for each in list(left):
                try:
                    answer = await _find_answer(each, named.get(each.dead_letter.service))
                except StoreUnavailable:  # the command was sent, and its service may well be executing it
                    if clock.monotonic_s() >= deadline_s:
                        raise
                    answer = None
                if answer is not None and answer.after == NOT_ENDED:
                    unfinished[each.message] = answer
                elif answer is not None:
                    left.remove(each)
                    yield answer
            if not left or clock.monotonic_s() >= deadline_s:
                break
            await clock.sleep(LOOK_EVERY_S)
    for each in left:
        unanswered = CommandAnswer(each, "", f"{each.dead_letter.service} has not handled it yet: does it run?")
        yield unfinished.get(each.message, unanswered)


async def _find_answer(sent: SentCommand, source: ServiceStore | None) -> CommandAnswer | None:
    """Return the result of a command, which is recorded in the saga's progress; `None` if there is none yet."""
    if source is None or not sent.dead_letter.saga:
        return None
    try:
        document = await read_document(source, sent.dead_letter.saga)
        p = None if document is None else decode_progress(source, sent.dead_letter.saga, document)
        entries = [] if p is None else [decode_transition(raw) for raw in p.transitions]
    except UnreadableHistory as why:
        return CommandAnswer(sent, "", str(why))
    except UNREADABLE as why:
        what = f"a transition of saga {sent.dead_letter.saga} in {source.service} cannot be read: {why}"
        return CommandAnswer(sent, "", f"{what}; the command was sent")
    at = next((i for i, entry in enumerate(entries) if entry.message == sent.message), None)
    if p is None or at is None:
        return None
    entry = entries[at]
    if entry.outcome not in ("replayed", "released") and not (entry.outcome == "resolved" and entry.calls):
        return CommandAnswer(sent, entry.outcome, entry.reason or "")
    return _find_replay_answer(sent, entry, entries[at + 1 :], p)


def _find_replay_answer(
    sent: SentCommand, entry: Transition, later: Sequence[Transition], p: SagaProgress
) -> CommandAnswer:
    """Return the result, which is `NOT_ENDED` while the repeated run has not ended."""
    own = [each for each in later if each.handler == entry.handler]
    end = next((each.outcome for each in own if each.outcome in ("handled", "compensated", "dead")), None)
    retries = [each for each in own if each.outcome == "retrying"]
    if end is None and retries and not any(each.failures for each in retries):
        # A pause, a limit or a breaker holds the run back: it has not failed.
        return CommandAnswer(sent, entry.outcome, retries[-1].reason or "", NOT_ENDED)
    if end is not None or retries:
        return CommandAnswer(sent, entry.outcome, entry.reason or "", end or "retrying")
    if not (
        p.intents or p.queue or p.compensating
    ):  # no run follows, because the saga has ended meanwhile or the run was ignored
        return CommandAnswer(sent, entry.outcome, entry.reason or "", later[-1].outcome if later else "")
    return CommandAnswer(
        sent, entry.outcome, f"the run has not ended: saga explain {p.saga} says what it waits for", NOT_ENDED
    )


def describe_answer(answer: CommandAnswer) -> str:
    """Describe the result of a command in a few words."""
    if answer.outcome == "ignored":
        return "refused"
    if answer.after == NOT_ENDED:
        return f"{answer.outcome}, {NOT_ENDED}"
    if answer.outcome and answer.after:
        return f"{answer.outcome}, then {answer.after}"
    return answer.outcome or "not yet"


# -------------------------------------------------------------------- control changes


async def send_switch(service: str, wanted: Switch, operator: Operator, deployment: Deployment) -> str:
    """Publish a request for a control. Return the id under which the control log will record it.

    The request is durable when this returns. Raises `SagaError` if the broker cannot be used, or if its topic is
    missing.
    """
    clock = deployment.clock
    record = controls.control_to_record(service, wanted, who=operator.who, why=operator.why, now_ms=clock.now_ms())
    async with wiring.open_broker(None, clock, deployment.broker_settings) as broker:
        topic = commands_topic(service)
        if broker.creates_topics and not await broker.count_partitions(
            [topic.name]
        ):  # publishing would create the topic, and no service would ever read it
            raise ConfigurationError("nothing was sent:", [f"no service {service!r} has ever run here: check its name"])
        problems = await find_topic_problems([topic], broker, writes=[topic.name])
        if problems:
            raise ConfigurationError(
                f"nothing was sent: create the topics of the services first: {APPLY} MODULES", problems
            )
        await broker.publish([record])
    return identity(OPERATOR, texts_of(record.headers)["ce_id"], TYPE, "")


async def wait_for_entry(service: str, name: str, deployment: Deployment, wait_s: float) -> ControlEntry | None:
    """Wait until the service has recorded a request in the control log, and return the entry, which may be a refusal.
    Return `None` if there is no entry in time.

    `name`: the id that `send_switch` returned. Raises `SagaError` if the control log cannot be read. A store that is
    unavailable is read again until the time is over.
    """
    clock = deployment.clock
    until_s = clock.monotonic_s() + wait_s
    while True:
        try:
            # Opened each time: the service may just be creating its store.
            async with deployment.open_stores((service,)) as sources:
                control_log = await find_control_log(service, sources)
        except NoStore:
            control_log = None
        except StoreUnavailable:
            if clock.monotonic_s() >= until_s:
                raise
            control_log = None
        for entry in () if control_log is None else controls.entries_of(control_log):
            if entry.id == name:
                return entry
        if clock.monotonic_s() >= until_s:
            return None
        await clock.sleep(LOOK_EVERY_S)


async def read_control_log(service: str, deployment: Deployment) -> ControlLog:
    """Read the control log of a service. Raises `SagaError` if the service has no store, or if the log cannot be
    read."""
    async with deployment.open_stores((service,)) as sources:
        control_log = await find_control_log(service, sources)
    if control_log is None:
        raise SagaError(f"there is no store of {service!r}: name it with --store, or see whether the service ever ran")
    return control_log


async def find_control_log(service: str, sources: Sequence[ServiceStore]) -> ControlLog | None:
    """Read the control log of a service from one of these open stores; `None` if none of them is the service's."""
    source = next((source for source in sources if source.service == service), None)
    if source is None:
        return None
    there = await source.store.get(ARCHIVES, controls.control_log_key(service))
    return controls.decode_control_log(service, None if there is None else there.content)
