"""Calls of a rerun, each answered from the record: it has to ask for the same, in the same order.

Flags are an exception, for they are how a release begins to go another way: one that this release does not ask for is
passed, and one that a run which has gone further never asked for is off. What follows is compared all the same.
"""

from collections.abc import Mapping
from itertools import takewhile
from types import MappingProxyType

from msgspec.structs import replace as with_

from saga.engine.errors import NotDeterministic
from saga.engine.execution.external_calls import Calling
from saga.engine.recorded_values import OFF, identify_call, is_flag, list_answerable_calls, skip_flags
from saga.progress.document import Intent, StepRecord


class Recalling(Calling):
    """Part of a running saga that answers from the record."""

    _next = 0
    """Place of the next call among those that are recorded."""
    _open: StepRecord | None = None
    """Call that has begun and has no answer in it."""
    _recorded = 0
    """Number of answers that the intent holds, as it was written last."""
    _digest = ""
    """Digest of the arguments of the call that is asked for, as it is without keys."""
    _said: Mapping[tuple[str, str, int], StepRecord] = MappingProxyType({})
    """Answers that a person gave in the place of the outside."""

    @property
    def _begun_before(self) -> StepRecord | None:
        return self._open if self._recorded == len(self.calls) else None

    @property
    def is_resolved(self) -> bool:
        """True if a person has said what became of one of its steps: it goes on under whatever code there is."""
        return bool(self._said)

    def _learn(self, intent: Intent, carried: tuple[StepRecord, ...]) -> None:
        """Take in what an earlier attempt has got: what its intent holds, or what this turn carries over."""
        known = intent.calls
        if said := {identify_call(call): call for call in known if call.by is not None}:
            # One overrides what this turn remembers, and all that came of it.
            self._said = said
            known = tuple(call for call in known if call.by is None)
            carried = tuple(takewhile(lambda call: identify_call(call) not in said, carried))
        self._recorded, self._open = len(known), intent.open_call
        # What is recorded wins: another worker may have gone on from other answers meanwhile.
        self.calls = list(carried if carried and carried[: len(known)] == known else known)

    def check_whole(self) -> None:
        """Raises `NotDeterministic` if something is recorded that this run has not asked for."""
        left = self._expected() if self.calls or self._open else None
        if left is not None and is_flag(left):
            self._next = skip_flags(self.calls, self._next, None)
            left = self._expected()
        if left is not None:
            raise self._unlike(
                f"{self.handler.name} recorded {left.kind} {left.name!r} (number {left.number}) "
                "and its rerun has ended without asking for it",
                left,
            )

    def _recalled(self, asked: StepRecord) -> StepRecord | None:
        """The recorded answer; `None` if the call has to be made. Raises `NotDeterministic`."""
        if self._said and (said := self._said.get(identify_call(asked))) is not None:
            return said
        expected = self._expected()
        if expected is None:
            self._next += 1
            return None
        for what in ("kind", "name", "number", "document", "input"):
            if getattr(asked, what) != getattr(expected, what):
                if what == "input" and self.seals.may_be_same(self._digest, expected.input):
                    continue
                if (is_flag(asked) or is_flag(expected)) and identify_call(asked) != identify_call(expected):
                    return self._past_flags(asked)
                raise self._unlike(
                    f"{self.handler.name} recorded {expected.kind} {expected.name!r} "
                    f"(number {expected.number}) and its rerun asks for {asked.kind} {asked.name!r} "
                    f"(number {asked.number}){' with other arguments' if what == 'input' else ''}",
                    expected,
                    asked,
                )
        self._next += 1
        return self.calls[self._next - 1] if self._next <= len(self.calls) else None

    def _unlike(self, what: str, *calls: StepRecord) -> NotDeterministic:
        """Failure of a rerun, with the version under which it began, where that is another one than this release's.
        `calls`: what is recorded, and what was asked for."""
        began, now, disputed = self.version, self.handler.version, list_answerable_calls(calls)
        if began == now:
            return NotDeterministic(what, disputed=disputed)
        return NotDeterministic(
            f"{what}; it began under version {began} of {self.handler.name}, and this release has version {now}",
            f"keep the way of version {began} in {self.handler.name}, for `saga.version == {began}`; or ",
            disputed,
        )

    def _as_begun(self, asked: StepRecord) -> StepRecord:
        """The call as it has begun, if it has: keys that have come or gone since would give it another digest."""
        begun = self._open
        is_it = begun is not None and begun.input != asked.input and identify_call(begun) == identify_call(asked)
        if begun is None or not is_it or not self.seals.may_be_same(self._digest, begun.input):
            return asked
        return with_(asked, input=begun.input)

    def _past_flags(self, asked: StepRecord) -> StepRecord | None:
        """The same, where what is asked for or what is recorded is a flag."""
        place = skip_flags(self.calls, self._next, asked)
        count = len(self.calls)
        follows = self.calls[place] if place < count else self._open if count == self._recorded else None
        if is_flag(asked) and follows is not None and identify_call(follows) != identify_call(asked):
            return with_(asked, value=OFF)
        self._next = place
        return self._recalled(asked)

    def _expected(self) -> StepRecord | None:
        """Call that is recorded, and has to be asked for next."""
        count = len(self.calls)
        if self._next < count:
            return self.calls[self._next]
        return self._open if self._next == count == self._recorded else None
