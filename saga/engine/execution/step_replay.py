"""Replay the steps of a rerun from the record: it has to ask for the same calls, in the same order.

Flags are the exception, for a release uses them to begin another way: a recorded flag that this release does not ask
for is skipped, and a flag that the recorded run never asked for is off. What follows is compared all the same.
"""

from collections.abc import Callable, Mapping
from itertools import takewhile
from types import MappingProxyType

from msgspec.structs import replace as with_

from saga.engine.errors import NotDeterministic
from saga.engine.recorded_values import OFF, identify_call, is_flag, list_answerable_calls, skip_flags
from saga.progress.document import Intent, StepRecord


class StepReplay:
    """Answers of one run so far: those that are recorded, and those that this attempt adds."""

    open_call: StepRecord | None = None
    """Call that has begun and has no answer in the intent."""
    recorded = 0
    """Number of answers that the intent holds, as it was written last."""
    _next = 0
    """Index of the next recorded call."""
    _resolved: Mapping[tuple[str, str, int], StepRecord] = MappingProxyType({})
    """Answers that an operator gave in place of the external system."""

    def __init__(self, handler: str, began_version: int, version: int, may_be_same: Callable[[str, str], bool]) -> None:
        """`began_version`: version of the handler under which the run began. `version`: that of this release.
        `may_be_same`: compares a digest of arguments with one that was recorded with another key."""
        self._handler, self._began_version, self._version = handler, began_version, version
        self._may_be_same = may_be_same
        self.calls: list[StepRecord] = []

    @property
    def answers(self) -> tuple[StepRecord, ...]:
        """All calls with their answers; those that an operator gave come last."""
        return (*self.calls, *self._resolved.values()) if self._resolved else tuple(self.calls)

    @property
    def position(self) -> int:
        """Number of recorded calls that the run has asked for."""
        return self._next

    @property
    def begun_before(self) -> StepRecord | None:
        """The call that is asked for, if an earlier attempt began it: its result is unknown."""
        return self.open_call if self.recorded == len(self.calls) else None

    @property
    def is_resolved(self) -> bool:
        """True if an operator has answered one of the steps: the run continues under whatever code there is."""
        return bool(self._resolved)

    def load(self, intent: Intent, carried: tuple[StepRecord, ...]) -> None:
        """Load what an earlier attempt has got: what its intent holds, or what this message's processing carries on."""
        known = intent.calls
        if answered := {identify_call(call): call for call in known if call.by is not None}:
            # One overrides what is carried on, and all that came of it.
            self._resolved = answered
            known = tuple(call for call in known if call.by is None)
            carried = tuple(takewhile(lambda call: identify_call(call) not in answered, carried))
        self.recorded, self.open_call = len(known), intent.open_call
        # What is recorded wins: another worker may have gone on from other answers meanwhile.
        self.calls = list(carried if carried and carried[: len(known)] == known else known)

    def mark_saved(self, begun: StepRecord | None) -> None:
        """Take note that an intent with all answers so far is in the store. `begun`: the call that it begins."""
        self.open_call, self.recorded = begun, len(self.calls)

    def check_exhausted(self) -> None:
        """Raise `NotDeterministic` if something is recorded that this run has not asked for."""
        left = self._expected() if self.calls or self.open_call else None
        if left is not None and is_flag(left):
            self._next = skip_flags(self.calls, self._next, None)
            left = self._expected()
        if left is not None:
            raise self._mismatch(
                f"{self._handler} recorded {left.kind} {left.name!r} (number {left.number}) "
                "and its rerun has ended without asking for it",
                left,
            )

    def answer_of(self, asked: StepRecord, digest: str) -> StepRecord | None:
        """Return the recorded answer of a call; `None` if the call has to be made. Raises `NotDeterministic`.

        `digest`: of the arguments, made without a key.
        """
        if self._resolved and (answered := self._resolved.get(identify_call(asked))) is not None:
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
                    f"{self._handler} recorded {expected.kind} {expected.name!r} "
                    f"(number {expected.number}) and its rerun asks for {asked.kind} {asked.name!r} "
                    f"(number {asked.number}){' with other arguments' if what == 'input' else ''}",
                    expected,
                    asked,
                )
        self._next += 1
        return self.calls[self._next - 1] if self._next <= len(self.calls) else None

    def as_begun(self, asked: StepRecord, digest: str) -> StepRecord:
        """Return the call as it was begun, if it was: a key that has come or gone since would change its digest."""
        begun = self.open_call
        is_it = begun is not None and begun.input != asked.input and identify_call(begun) == identify_call(asked)
        if begun is None or not is_it or not self._may_be_same(digest, begun.input):
            return asked
        return with_(asked, input=begun.input)

    def _mismatch(self, what: str, *calls: StepRecord) -> NotDeterministic:
        """Make the failure of a rerun. It names the version under which the run began if this release has another one.

        `calls`: what is recorded, and what was asked for.
        """
        began, now, disputed = self._began_version, self._version, list_answerable_calls(calls)
        if began == now:
            return NotDeterministic(what, disputed=disputed)
        return NotDeterministic(
            f"{what}; it began under version {began} of {self._handler}, and this release has version {now}",
            f"keep the way of version {began} in {self._handler}, for `saga.version == {began}`; or ",
            disputed,
        )

    def _answer_past_flags(self, asked: StepRecord, digest: str) -> StepRecord | None:
        """Return the recorded answer where the call that is asked for, or the recorded one, is a flag."""
        place = skip_flags(self.calls, self._next, asked)
        count = len(self.calls)
        follows = self.calls[place] if place < count else self.open_call if count == self.recorded else None
        if is_flag(asked) and follows is not None and identify_call(follows) != identify_call(asked):
            return with_(asked, value=OFF)
        self._next = place
        return self.answer_of(asked, digest)

    def _expected(self) -> StepRecord | None:
        """Return the recorded call that has to be asked for next."""
        count = len(self.calls)
        if self._next < count:
            return self.calls[self._next]
        return self.open_call if self._next == count == self.recorded else None
