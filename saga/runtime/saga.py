"""Saga as a running handler sees it: steps, updates and reads are recorded, and answered to a rerun without a call."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import fields
from hashlib import blake2b
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace as with_

from saga.declarations.annotations import returns_of
from saga.declarations.answers import check_recorded, declared_answer
from saga.declarations.values import DocumentKind, Reaction
from saga.errors import Permanent, StoreError, TooLarge
from saga.observe.moments import StepDone
from saga.progress import ids, record
from saga.progress.document import UNENCODABLE, Call, Intent
from saga.runtime import documents, persistence
from saga.runtime.errors import Halted, NotDeterministic, unexpected
from saga.runtime.participant import Participant
from saga.runtime.ports import OneRun, Step
from saga.runtime.turn_state import RunKey, TurnState
from saga.view import Saga

P = ParamSpec("P")
T = TypeVar("T")

_encoder = msgspec.json.Encoder(order="deterministic")


class RunningSaga(Saga[Any]):
    """One run of a handler on one cause. Made for each attempt."""

    failure: Exception | None = None
    """Failure of a step, and with it of this attempt, even if the handler catches it."""
    halt: BaseException | None = None
    left = False
    """True if it is left as by a crash: nobody waits for what the handler did not wait for, except for writes."""
    ended = False
    """True if nothing of it begins any more."""
    _next = 0
    _one_run: OneRun | None = None
    _state: Any = None

    def __init__(self, service: Participant, turn: TurnState, handler: Reaction, run: RunKey, intent: Intent) -> None:
        """`intent`: as it is open in the progress, or as it will be written before the first step."""
        self.service, self.turn, self.handler, self.run, self.intent = service, turn, handler, run, intent
        recorded_, carried = intent.calls, turn.results_of(run)
        # What is recorded wins: another worker may have gone on from other answers meanwhile.
        self.calls = list(carried if carried and carried[: len(recorded_)] == recorded_ else recorded_)
        """All answers so far, recorded or carried over."""
        self.outages = service.ports.watching.outages
        """Outages that had been told when it began."""
        self.begun_s = service.ports.clock.monotonic_s()
        self.until_s = self.begun_s + handler.timeout_s
        self._numbers: dict[str, int] = {}
        if service.state is not None:
            self._state = service.state_of(intent.state)
            self._before = fields_of(self._state)

    @property
    def has_begun(self) -> bool:
        """True if it has asked for a step, an update or a read."""
        return self._one_run is not None

    @property
    def state(self) -> Any:
        return self._state

    @state.setter
    def state(self, state: Any, /) -> None:
        self._state = state

    def delta(self) -> dict[str, Any]:
        """The fields of the state that this run has changed."""
        if self.service.state is None and self._state is None:
            return {}
        if self.service.state is None or not isinstance(self._state, self.service.state):
            raise Permanent(
                f"{self.handler.name} assigned {self._state!r} to saga.state: it must be an instance of "
                f"{'the state= of Service(...)' if self.service.state is None else self.service.state.__name__}"
            )
        before, after = self._before, fields_of(self._state)
        changed = {name: value for name, value in after.items() if before[name] != value}
        if not changed:
            return {}
        written = {n: msgspec.json.decode(recorded(value, n, "saga.state's")) for n, value in changed.items()}
        try:
            read = self.service.state_of({**self.intent.state, **written})
        except (msgspec.ValidationError, TypeError, ValueError):
            read = None
        for name in changed:
            if read is None or getattr(read, name) != getattr(self._state, name):
                raise Permanent(
                    f"saga.state's {name!r} cannot be recorded: {getattr(self._state, name)!r} is not the same when it "
                    "is read back"
                )
        return written

    def key(self, name: str, /) -> str:
        return ids.key(name, self.service.name, self.turn.message.saga, self.handler.name, self.intent.cause)

    async def step(self, call: Callable[P, Awaitable[Any]], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        async with self._one_at_a_time():
            answered, type_ = await self._or_failed(self._stepped(call, args, kwargs))
            return self._given_back(answered, type_, self.service.answers[self.handler.name])

    async def _stepped(
        self, call: Callable[..., Awaitable[Any]], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[Call, Any]:
        """The answer as it is recorded, and the type as which it is given back."""
        name = getattr(call, "__name__", type(call).__name__)
        asked, type_ = self._asked("step", name, args, kwargs), returns_of(call)
        answered = self._recalled(asked)
        if answered is None:
            await self._begin(asked)
            answered = await self._made(asked, call, args, kwargs)
            self.calls.append(answered)
        return answered, type_

    async def _made(
        self, asked: Call, call: Callable[..., Awaitable[Any]], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Call:
        """Make the call itself, within its time."""
        clock, began = self.service.ports.clock, self.service.ports.clock.monotonic_s()
        timeout_s = self.service.timeouts.get(type(getattr(call, "__self__", None)), self.handler.timeout_s)
        try:
            called = self.service.ports.outside(
                Step(self.turn.message.saga, self.handler.name, asked, call, args, kwargs)
            )
            value = await clock.within(timeout_s, called)
        except self.service.answers[self.handler.name] as why:
            answer = declared_answer(why, self.service.answers[self.handler.name])
            value = recorded(why.args, asked.name, "the answer of")
            check_recorded(answer, why, value, asked.name)
            answered = with_(asked, answer=answer.__name__, value=value)
        except TimeoutError as why:
            raise TimeoutError(f"step {asked.name} gave no answer within {timeout_s} s") from why
        else:
            answered = with_(asked, value=recorded(value, asked.name, "what it returned by"))
        self.service.ports.watching.report(
            StepDone(
                service=self.service.name,
                saga=self.turn.message.saga,
                handler=self.handler.name,
                step=asked.name,
                ms=(clock.monotonic_s() - began) * 1000,
            )
        )
        return answered

    async def update(
        self,
        kind: type[Any],
        key: str,
        change: Callable[Concatenate[Any, P], Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Any:
        async with self._one_at_a_time():
            answered, type_ = await self._or_failed(self._updated(kind, key, change, args, kwargs))
            return self._given_back(answered, type_, self._declared(kind).answers)

    async def _updated(
        self,
        kind: type[Any],
        key: str,
        change: Callable[..., Any],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> tuple[Call, Any]:
        declared = self._declared(kind)
        name = getattr(change, "__name__", type(change).__name__)
        asked = self._asked("update", name, args, kwargs, document=f"{declared.collection}/{key}")
        type_ = documents.result_of(change, declared.kind)
        answered = self._recalled(asked)
        if answered is None:
            await self._begin(asked)
            update = documents.Update(
                declared=declared,
                key=key,
                marker=self.marker(asked),
                saga=self.turn.message.saga,
                run=self.run,
                change=change,
                args=args,
                kwargs=kwargs,
                until_s=self.until_s,
            )
            marker = await self._shielded(documents.apply(self.service, self.turn.position, update))
            answered = with_(asked, answer=marker.answer, value=marker.value)
            self.calls.append(answered)
        return answered, type_

    async def read(self, kind: type[Any], key: str, /) -> Any:
        async with self._one_at_a_time():
            return self._given_back(*await self._or_failed(self._looked_up(kind, key)), ())

    async def _looked_up(self, kind: type[Any], key: str) -> tuple[Call, Any]:
        declared = self._declared(kind)
        asked = self._asked("read", declared.collection, (), {}, document=f"{declared.collection}/{key}")
        answered = self._recalled(asked)
        if answered is None:
            value = await self._of_store(documents.read(self.service, self.turn.position, declared, key))
            answered = with_(asked, value=recorded(value, declared.collection, "the document read by"))
            self.calls.append(answered)
        return answered, declared.kind | None

    async def _or_failed(self, work: Coroutine[object, object, T]) -> T:
        """Await an answer. All else fails this attempt, even if the handler catches it."""
        try:
            return await work
        except Halted as halt:
            self.halt = halt
            raise
        except Exception as why:
            self.failure = self.failure or why
            raise
        except asyncio.CancelledError:  # an update goes on to its end: a handler that went on would not know of it
            self.failure = self.failure or TimeoutError("a step, update or read was cancelled before it answered")
            raise
        except BaseException as why:
            self.failure = self.failure or unexpected(why, "a step, update or read")
            raise

    def marker(self, call: Call) -> str:
        """The id of an update of this run."""
        return ids.update_id(
            self.service.name, self.turn.message.saga, self.handler.name, self.intent.cause, call.name, call.number
        )

    def _one_at_a_time(self) -> AbstractAsyncContextManager[object]:
        """Gate of this run: its steps never overlap, one begun during another waits."""
        if self._one_run is None:
            self._one_run = self.service.ports.one_run()
        return self._one_run.gate

    async def settled(self) -> None:
        """Return when nothing of this run is under way; nothing of it begins any more."""
        self.ended = True
        if self._one_run is not None and self.left:
            await self._one_run.settled()
        elif self._one_run is not None:
            async with self._one_run.gate:  # a step that the handler did not wait for comes to its end
                await self._one_run.settled()

    def check_whole(self) -> None:
        """Raises `NotDeterministic` if something is recorded that this run has not asked for."""
        left = self._expected() if self.calls or self.intent.begins else None
        if left is not None:
            raise NotDeterministic(
                f"not deterministic: {self.handler.name} recorded {left.kind} {left.name!r} (number {left.number}) "
                "and its rerun has ended without asking for it"
            )

    def _declared(self, kind: type[Any]) -> DocumentKind:
        declared = self.service.documents.get(kind)
        if declared is None:
            raise Permanent(
                f"{self.handler.name} asks for a {kind.__name__}, which is no document of {self.service.name!r}: "
                f'declare it with {self.service.name}.document({kind.__name__}, "...")'
            )
        return declared

    def _asked(
        self,
        kind: Any,
        name: str,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        document: str | None = None,
    ) -> Call:
        """The call as it is compared with what is recorded."""
        if self.ended:
            raise Permanent(f"{self.handler.name} asks for {kind} {name!r} after its end: await what it begins")
        if self.halt is not None:
            raise self.halt
        if self.failure is not None:
            raise self.failure
        self._numbers[name] = number = self._numbers.get(name, 0) + 1
        return Call(kind=kind, name=name, number=number, input=_digest(name, args, kwargs), document=document)

    def _recalled(self, asked: Call) -> Call | None:
        """The recorded answer; `None` if the call has to be made. Raises `NotDeterministic`."""
        expected = self._expected()
        if expected is None:
            self._next += 1
            return None
        for what in ("kind", "name", "number", "document", "input"):
            if getattr(asked, what) != getattr(expected, what):
                raise NotDeterministic(
                    f"not deterministic: {self.handler.name} recorded {expected.kind} {expected.name!r} "
                    f"(number {expected.number}) and its rerun asks for {asked.kind} {asked.name!r} "
                    f"(number {asked.number}){' with other arguments' if what == 'input' else ''}"
                )
        self._next += 1
        return self.calls[self._next - 1] if self._next <= len(self.calls) else None

    def _expected(self) -> Call | None:
        """Call that is recorded, and has to be asked for next."""
        count = len(self.calls)
        if self._next < count:
            return self.calls[self._next]
        begun = self.intent.begins
        return begun if begun is not None and self._next == count == len(self.intent.calls) else None

    async def _begin(self, asked: Call) -> None:
        """Make the intent durable, with all answers so far: nothing new begins before."""
        try:
            self.service.ports.assignment.check_running(self.turn.position)
        except Halted as halt:
            self.halt = halt
            raise
        if self.intent.begins is not None and len(self.intent.calls) == len(self.calls):
            return
        hand = persistence.in_hand(self.service, self.turn, appends=False)
        intent = with_(self.intent, begins=asked, calls=tuple(self.calls), time=self.intent.time or hand.time)
        await self._shielded(self._save(intent, record.begun(self.turn.known, hand, intent)))

    async def _save(self, intent: Intent, written: record.Written) -> None:
        self.turn = await persistence.save(self.service, self.turn, written)
        self.intent = intent  # only now: what is not written binds no rerun

    async def _of_store(self, work: Awaitable[T]) -> T:
        """Trouble of the store is no failure of the handler: the turn ends as by a crash, and the lane tells."""
        try:
            return await work
        except TooLarge:
            raise
        except (Halted, StoreError) as why:
            self.halt = why
            raise

    def _shielded(self, work: Coroutine[object, object, Any]) -> Coroutine[object, object, Any]:
        """Await a write: a timeout abandons the await, never the write."""
        assert self._one_run is not None
        return self._of_store(self._one_run.write(work))

    def _given_back(self, call: Call, type_: Any, answers: tuple[type[Exception], ...]) -> Any:
        """Give a recorded result, as the first run and every rerun see it."""
        if call.answer is not None:
            for answer in answers:
                if answer.__name__ == call.answer:
                    raise answer(*msgspec.json.decode(call.value))
            self.failure = Permanent(
                f"{self.handler.name} recorded that {call.name!r} answered {call.answer}, which is in no answers=(...) "
                "any more: put it back until no saga is open"
            )
            raise self.failure
        try:
            return msgspec.json.decode(call.value, type=type_)
        except (msgspec.ValidationError, TypeError) as why:
            self.failure = Permanent(
                f"the recorded result of {call.name!r} cannot be given back as {type_}: {why}; "
                "annotate what it returns with a type that can be recorded and read back"
            )
            raise self.failure from why


def fields_of(state: Any) -> dict[str, Any]:
    """All fields of a state, as they are recorded.

    msgspec alone leaves out what has its default in an object that it made itself: `__dict__` does not hold it.
    """
    values: dict[str, Any] = msgspec.to_builtins(state, str_keys=True)
    if len(values) < len(state.__dataclass_fields__):
        for field in fields(state):
            if field.name not in values:
                values[field.name] = msgspec.to_builtins(getattr(state, field.name), str_keys=True)
    return values


def recorded(value: object, name: str, what: str) -> Raw:
    """A value as it is recorded. Raises `Permanent` for one that cannot be."""
    try:
        return Raw(_encoder.encode(value))
    except UNENCODABLE as why:
        raise Permanent(f"{what} {name!r} cannot be recorded: {why}; return plain values or dataclasses") from why


def _digest(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Digest that tells two inputs of a call apart. Raises `Permanent` naming the argument that cannot be recorded."""
    try:
        return blake2b(_encoder.encode((args, kwargs)), digest_size=12).hexdigest()
    except UNENCODABLE as why:
        for where, argument in (*enumerate(args, 1), *kwargs.items()):
            try:
                _encoder.encode(argument)
            except UNENCODABLE as its:
                raise Permanent(
                    f"argument {where} of {name!r} cannot be recorded: {its}; hand over plain values"
                ) from its
        raise Permanent(f"the arguments of {name!r} cannot be recorded: {why}; hand over plain values") from why
