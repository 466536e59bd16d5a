"""Replay the recorded steps in a rerun, which has to make the same calls in the same order.

Flags are the exception, because a release uses them to introduce a new branch in a handler. A recorded flag that this
release does not read is skipped, and a flag that the recorded run never read is off. All other calls are compared as
usual.
"""

from collections.abc import Callable, Mapping
from itertools import takewhile
from operator import itemgetter
from types import MappingProxyType
from typing import TypeAlias

from msgspec.structs import replace as with_

from saga.declarations.values import Reaction
from saga.engine.errors import NotDeterministic
from saga.engine.recorded_values import OFF, identify_call, is_flag, list_answerable_calls, skip_flags
from saga.progress.document import Intent, StepRecord

CallKey: TypeAlias = tuple[str, str, int]
"""Kind, name and number of a call."""


def combine_answers(recorded: tuple[StepRecord, ...], carried: tuple[StepRecord, ...]) -> tuple[StepRecord, ...]:
    """Return the answers of a run: the `recorded` ones of its intent or, if these continue the recorded ones, the
    answers `carried` over in memory.

    The intent takes precedence: another worker may have continued with other answers meanwhile. An operator's answer
    overrides the carried one, and all carried answers after it.
    """
    if not carried:
        return recorded
    supplied = {identify_call(call): call for call in recorded if call.by is not None}
    valid = [*takewhile(lambda c: supplied.get(identify_call(c)) == (None if c.by is None else c), carried)]
    own, known = ([call for call in calls if call.by is None] for calls in (valid, recorded))
    if len(own) <= len(known) or own[: len(known)] != known:
        return recorded
    return (*valid, *(call for call in supplied.values() if call not in valid))


class StepReplay:
    """Answers of one run so far: the recorded ones, and the ones that this attempt adds."""

    open_call: StepRecord | None = None
    """The call that has begun and has no answer in the intent."""
    recorded = 0
    """Number of answers in the intent as it was last written."""
    _next = 0
    """Index of the next recorded call."""
    _resolved: Mapping[CallKey, StepRecord] = MappingProxyType({})
    """Answers that an operator supplied in place of the external system. They are not in `calls`, because a rerun may
    ask for them anywhere, or not at all."""
    _places: dict[CallKey, tuple[int, bool]]
    """For each key of `_resolved`: the number of calls before the answer, and whether that is the recorded place. Once
    this attempt has asked for the answer, the place is where it asked, and the second value is False."""

    def __init__(self, handler: Reaction, began_version: int, may_be_same: Callable[[str, str], bool]) -> None:
        """`began_version`: version of the handler that began the run. `may_be_same`: compares a digest of arguments
        with one that may have been recorded with another key."""
        self._handler, self._began_version, self._may_be_same = handler, began_version, may_be_same
        self.calls: list[StepRecord] = []

    @property
    def answers(self) -> tuple[StepRecord, ...]:
        """All calls with their answers: first those for which this attempt has asked, in that order, then the others in
        the recorded order. Operators' answers that the attempt has passed over come last."""
        if not self._resolved:
            return tuple(self.calls)
        end = max(self._next, len(self.calls))
        placed = [((place, 2), call) for place, call in enumerate(self.calls)]
        for key, (place, is_recorded) in self._places.items():
            passed_over = is_recorded and place < self._next
            placed.append(((end if passed_over else place, int(is_recorded)), self._resolved[key]))
        return tuple([call for _, call in sorted(placed, key=itemgetter(0))])

    @property
    def position(self) -> int:
        """Number of answers that this attempt has got."""
        asked = sum(not is_recorded for _, is_recorded in self._places.values()) if self._resolved else 0
        return self._next + asked

    @property
    def begun_before(self) -> StepRecord | None:
        """The current call, if an earlier attempt began it and its result is unknown; otherwise `None`."""
        return self.open_call if self.recorded == len(self.calls) else None

    @property
    def is_resolved(self) -> bool:
        """True if an operator has answered one of the steps. Then the run continues with whatever version of the
        handler is deployed."""
        return bool(self._resolved)

    def load(self, intent: Intent, carried: tuple[StepRecord, ...]) -> None:
        """Load the answers of an earlier attempt: from its intent, or those carried over while this message is
        processed."""
        resolved: dict[CallKey, StepRecord] = {}
        self.calls, self._resolved, self._places, self.open_call = [], resolved, {}, intent.open_call
        for call in combine_answers(intent.calls, carried):
            if call.by is None:
                self.calls.append(call)
            else:
                resolved[identify_call(call)] = call
                self._places[identify_call(call)] = len(self.calls), True
        self.recorded = len(intent.calls) - len(resolved)

    def mark_saved(self, begun: StepRecord | None) -> None:
        """Record that the intent was saved with all answers so far. `begun`: the call that this intent marks as begun,
        if any."""
        self.open_call, self.recorded = begun, len(self.calls)

    def check_exhausted(self) -> None:
        """Raise `NotDeterministic` if the record has a call that this run has not made."""
        left = self._expected() if self.calls or self.open_call else None
        if left is not None and is_flag(left):
            self._next = skip_flags(self.calls, self._next, None)
            left = self._expected()
        if left is not None:
            raise self._mismatch(
                f"{self._handler.name} recorded {left.kind} {left.name!r} (number {left.number}) "
                "and its rerun has ended without asking for it",
                left,
            )

    def answer_of(self, asked: StepRecord, digest: str) -> StepRecord | None:
        """Return the recorded answer of a call; `None` if the call has to be made. Raises `NotDeterministic`.

        `digest`: digest of the arguments, made without a key.
        """
        if self._resolved and (answered := self._resolved.get(key := identify_call(asked))) is not None:
            del self._places[key]  # the last one that was asked for comes last
            self._places[key] = self._next, False
            return answered
        expected = self._expected()
        if expected is None:
            self._next += 1
            return None
        for what in ("kind", "name", "number", "document", "input"):
            if getattr(asked, what) != getattr(expected, what):
                if what == "input" and self._may_be_same(digest, expected.input):
                    continue
                if (is_flag(asked) or is_flag(expected)) and identify_call(asked) != identify_call(expected):
                    return self._answer_past_flags(asked, digest)
                raise self._mismatch(
                    f"{self._handler.name} recorded {expected.kind} {expected.name!r} "
                    f"(number {expected.number}) and its rerun asks for {asked.kind} {asked.name!r} "
                    f"(number {asked.number}){' with other arguments' if what == 'input' else ''}",
                    expected,
                    asked,
                )
        self._next += 1
        return self.calls[self._next - 1] if self._next <= len(self.calls) else None

    def as_begun(self, asked: StepRecord, digest: str) -> StepRecord:
        """Return the call with the digest under which an earlier attempt began it; unchanged if none did.

        The digest may differ, because a key may have been added or lost since.
        """
        begun = self.open_call
        is_it = begun is not None and begun.input != asked.input and identify_call(begun) == identify_call(asked)
        if begun is None or not is_it or not self._may_be_same(digest, begun.input):
            return asked
        return with_(asked, input=begun.input)

    def _mismatch(self, what: str, *calls: StepRecord) -> NotDeterministic:
        """Make the error of a rerun that differs from the record. If another version of the handler began the run, the
        error names it.

        `calls`: the recorded call, and the call that the rerun made instead.
        """
        handler, began, disputed = self._handler, self._began_version, list_answerable_calls(calls)
        if began == handler.version:
            return NotDeterministic(what, disputed=disputed)
        return NotDeterministic(
            f"{what}; it began under version {began} of {handler.name}, and this release has version {handler.version}",
            f"keep the way of version {began} in {handler.name}, for `saga.version == {began}`; or ",
            disputed,
        )

    def _answer_past_flags(self, asked: StepRecord, digest: str) -> StepRecord | None:
        """Return the recorded answer if the rerun's call and the recorded call differ, and at least one of them reads a
        flag."""
        place = skip_flags(self.calls, self._next, asked)
        count = len(self.calls)
        follows = self.calls[place] if place < count else self.open_call if count == self.recorded else None
        if is_flag(asked) and follows is not None and identify_call(follows) != identify_call(asked):
            return with_(asked, value=OFF)
        self._next = place
        return self.answer_of(asked, digest)

    def _expected(self) -> StepRecord | None:
        """Return the recorded call that the rerun has to make next; `None` if there is none."""
        count = len(self.calls)
        if self._next < count:
            return self.calls[self._next]
        return self.open_call if self._next == count == self.recorded else None
