"""Commands to services about dead letters, escalations and parked runs: sent through the log, answered in histories."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec
from msgspec import structs

from saga.broker.port import APPLY, find_topic_problems
from saga.configuration import wiring
from saga.encryption.port import Keys
from saga.encryption.sensitive_fields import mark
from saga.encryption.text import recorded_place
from saga.engine.prepared_service import commands_topic
from saga.errors import BadInput, ConfigurationError, NoStore, SagaError
from saga.messages import Message, Outgoing, texts_of
from saga.messaging import controls, operator_commands
from saga.messaging.controls import TYPE, Book, Noted, Switch
from saga.messaging.message_ids import identity
from saga.messaging.names import ARCHIVES
from saga.messaging.operator_commands import OPERATOR, Answered, Wanted
from saga.ops.dead_letters import DeadLetter
from saga.ops.histories import UnreadableHistory, decode_progress, read_document
from saga.ops.selection import Deployment, Operator
from saga.ops.sources import ServiceStore
from saga.progress.document import SagaProgress, Transition, decode_transition

LOOK_EVERY_S = 0.2
REPLAYS_MAX = 5
"""Replays of one saga in one service after which each more has to be asked for by name: a loop helps nobody."""
OUTCOMES: Mapping[Wanted, str] = {
    "replay": "replayed", "discard": "discarded", "resolve": "resolved", "release": "released"
}  # fmt: skip
"""Outcome of each command that is done."""
NONE: Mapping[str, Message] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """What an operator wants done with dead letters, escalations or parked runs."""

    wanted: Wanted
    operator: Operator
    answered: Answered | None = None
    """Answer that the operator gives for a step whose result is not known."""


@dataclass(frozen=True, slots=True)
class SentCommand:
    """Command that is in the log."""

    dead_letter: DeadLetter
    message: str
    """Name of the command in the saga's history."""


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """State of a command."""

    sent: SentCommand
    outcome: str
    """`replayed`, `discarded`, `resolved`, `released`, `ignored`; empty: the service has not come to it yet."""
    reason: str
    after: str = ""
    """Outcome of what was tried again, if there is one already."""


async def send_commands(
    letters: Sequence[DeadLetter],
    wish: CommandRequest,
    deployment: Deployment,
    originals: Mapping[str, Message] = NONE,
) -> list[SentCommand]:
    """Return when all commands are durable. `originals`: messages that go with them, by the letter's id.

    Raises `SagaError`: a broker that cannot be used, a topic that is missing; `BadInput` for a text that is too long.
    Then any of them may have been sent: sent again they do no harm.
    """
    settings, clock = deployment.broker_settings, deployment.clock
    now_ms, keys = clock.now_ms(), wiring.keys_of(settings, clock)
    records = [
        _encode_command(letter, await _encrypt_answer(letter, wish, keys), now_ms, originals.get(letter.id))
        for letter in letters
    ]
    async with wiring.broker_of(None, clock, settings) as broker:
        topics = [commands_topic(service) for service in sorted({letter.service for letter in letters})]
        problems = await find_topic_problems(topics, broker, writes=[topic.name for topic in topics])
        if problems:
            raise ConfigurationError(
                f"nothing was sent: whoever runs the services has to make their topics: {APPLY} MODULES", problems
            )
        await broker.publish(records)
    return [SentCommand(letter, _make_command_id(record)) for letter, record in zip(letters, records, strict=True)]


async def _encrypt_answer(letter: DeadLetter, wish: CommandRequest, keys: Keys | None) -> CommandRequest:
    """Seal the answer that a wish gives, as it lies in the log; the service seals it for the run then. With the key of
    the saga, for whom the run is about cannot be told here. Raises `BadInput` for a saga that was forgotten."""
    given = wish.answered
    if keys is None or given is None or given.raised is not None or letter.saga is None:
        return wish
    key = await keys.get_or_create_key(letter.saga)
    if key is None:
        raise BadInput(f"saga {letter.saga} was forgotten: nothing can be sealed for it, and no answer is sent")
    place = recorded_place(letter.service, letter.saga, given.place(letter.id))
    value = msgspec.json.encode(mark(key.seal_recorded(given.value.encode(), place))).decode()
    return replace(wish, answered=structs.replace(given, value=value))


def _encode_command(letter: DeadLetter, wish: CommandRequest, now_ms: int, original: Message | None) -> Outgoing:
    if not letter.saga:
        raise BadInput(
            f"dead letter {letter.id} belongs to no saga: nothing of it can be replayed, discarded or resolved"
        )
    return operator_commands.to_record(
        letter.service,
        letter.saga,
        wanted=wish.wanted,
        dead=letter.id,
        who=wish.operator.who,
        why=wish.operator.why,
        now_ms=now_ms,
        answered=wish.answered,
        original=original,
    )


def _make_command_id(record: Outgoing) -> str:
    said = texts_of(record.headers)
    return identity(OPERATOR, said["ce_id"], said["ce_type"], "")


async def wait_for_answers(
    sent: Sequence[SentCommand], deployment: Deployment, wait_s: float
) -> AsyncIterator[CommandAnswer]:
    """Yield the answer to each command once its service has recorded it.

    Commands without an answer after `wait_s` come last. Raises `NoStore`, `StoreUnavailable`.
    """
    clock = deployment.clock
    deadline_s, left = clock.monotonic_s() + wait_s, list(sent)
    async with deployment.open_stores({each.dead_letter.service for each in sent}) as sources:
        named = {source.service: source for source in sources}
        while left:
            for each in list(left):
                answer = await _find_answer(each, named.get(each.dead_letter.service))
                if answer is not None:
                    left.remove(each)
                    yield answer
            if not left or clock.monotonic_s() >= deadline_s:
                break
            await clock.sleep(LOOK_EVERY_S)
    for each in left:
        yield CommandAnswer(each, "", f"{each.dead_letter.service} has not come to it yet: does it run?")


async def _find_answer(sent: SentCommand, source: ServiceStore | None) -> CommandAnswer | None:
    """Answer in the progress; `None` while there is none."""
    if source is None or not sent.dead_letter.saga:
        return None
    try:
        document = await read_document(source, sent.dead_letter.saga)
        p = None if document is None else decode_progress(source, sent.dead_letter.saga, document)
    except UnreadableHistory as why:
        return CommandAnswer(sent, "", str(why))
    entries = [] if p is None else [decode_transition(raw) for raw in p.transitions]
    at = next((i for i, entry in enumerate(entries) if entry.message == sent.message), None)
    if p is None or at is None:
        return None
    entry = entries[at]
    if entry.outcome not in ("replayed", "released") and not (entry.outcome == "resolved" and entry.calls):
        return CommandAnswer(sent, entry.outcome, entry.reason or "")
    return _find_replay_answer(sent, entry, entries[at + 1 :], p)


def _find_replay_answer(
    sent: SentCommand, entry: Transition, later: Sequence[Transition], p: SagaProgress
) -> CommandAnswer | None:
    """Answer once what is tried again has come to an end; `None` before."""
    ends = ("handled", "compensated", "dead", "retrying")
    end = next((e.outcome for e in later if e.handler == entry.handler and e.outcome in ends), None)
    if end is not None:
        return CommandAnswer(sent, entry.outcome, entry.reason or "", end)
    if not (p.intents or p.queue or p.compensating):  # closed meanwhile, or ignored: nothing is left to wait for
        return CommandAnswer(sent, entry.outcome, entry.reason or "", later[-1].outcome if later else "")
    return None


def describe_answer(answer: CommandAnswer) -> str:
    """State of a command."""
    if answer.outcome == "ignored":
        return "refused"
    if answer.outcome and answer.after:
        return f"{answer.outcome}, then {answer.after}"
    return answer.outcome or "not yet"


# -------------------------------------------------------------------- control changes


async def send_switch(service: str, wanted: Switch, operator: Operator, deployment: Deployment) -> str:
    """Return when the wish is durable: its name in the service's book. Raises `SagaError`."""
    clock = deployment.clock
    record = controls.to_record(service, wanted, who=operator.who, why=operator.why, now_ms=clock.now_ms())
    async with wiring.broker_of(None, clock, deployment.broker_settings) as broker:
        topic = commands_topic(service)
        if broker.creates_topics and not await broker.count_partitions(
            [topic.name]
        ):  # a wish would make it, and wait for ever
            raise ConfigurationError("nothing was sent:", [f"no service {service!r} has ever run here: see its name"])
        problems = await find_topic_problems([topic], broker, writes=[topic.name])
        if problems:
            raise ConfigurationError(
                f"nothing was sent: whoever runs the services has to make their topics: {APPLY} MODULES", problems
            )
        await broker.publish([record])
    return identity(OPERATOR, texts_of(record.headers)["ce_id"], TYPE, "")


async def wait_for_entry(service: str, name: str, deployment: Deployment, wait_s: float) -> Noted | None:
    """Entry that the service writes of the wish, which it may refuse; `None`: nothing within so many seconds."""
    clock = deployment.clock
    until_s = clock.monotonic_s() + wait_s
    while True:
        try:
            # Opened each time: the service may just be creating its store.
            async with deployment.open_stores((service,)) as sources:
                book = await _find_control_log(service, sources)
        except NoStore:
            book = None
        for entry in () if book is None else controls.entries_of(book):
            if entry.id == name:
                return entry
        if clock.monotonic_s() >= until_s:
            return None
        await clock.sleep(LOOK_EVERY_S)


async def read_control_log(service: str, deployment: Deployment) -> Book:
    """The service's book. Raises `SagaError` if there is no store of it, or it cannot be read."""
    async with deployment.open_stores((service,)) as sources:
        book = await _find_control_log(service, sources)
    if book is None:
        raise SagaError(f"there is no store of {service!r}: name it with --store, or see whether the service ever ran")
    return book


async def _find_control_log(service: str, sources: Sequence[ServiceStore]) -> Book | None:
    source = next((source for source in sources if source.service == service), None)
    if source is None:
        return None
    there = await source.store.get(ARCHIVES, controls.book_key(service))
    return controls.decode(service, None if there is None else there.content)
