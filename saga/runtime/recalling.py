"""Calls of a rerun, each answered from the record: it has to ask for the same, in the same order.

Flags are an exception, for they are how a release begins to go another way: one that this release does not ask for is
passed, and one that a run which has gone further never asked for is off. What follows is compared all the same.
"""

from msgspec.structs import replace as with_

from saga.progress.document import Call
from saga.runtime.calling import Calling
from saga.runtime.errors import NotDeterministic
from saga.runtime.recording import OFF, is_flag, past_flags, which


class Recalling(Calling):
    """Part of a running saga that answers from the record."""

    _next = 0
    """Place of the next call among those that are recorded."""
    _open: Call | None
    """Call that has begun and has no answer in it."""
    _digest = ""
    """Digest of the arguments of the call that is asked for, as it is without keys."""
    _said: dict[tuple[str, str, int], Call]

    def check_whole(self) -> None:
        """Raises `NotDeterministic` if something is recorded that this run has not asked for."""
        left = self._expected() if self.calls or self._open else None
        if left is not None and is_flag(left):
            self._next = past_flags(self.calls, self._next, None)
            left = self._expected()
        if left is not None:
            raise NotDeterministic(
                f"not deterministic: {self.handler.name} recorded {left.kind} {left.name!r} (number {left.number}) "
                "and its rerun has ended without asking for it"
            )

    def _recalled(self, asked: Call) -> Call | None:
        """The recorded answer; `None` if the call has to be made. Raises `NotDeterministic`."""
        if self._said and (said := self._said.get(which(asked))) is not None:
            return said
        expected = self._expected()
        if expected is None:
            self._next += 1
            return None
        for what in ("kind", "name", "number", "document", "input"):
            if getattr(asked, what) != getattr(expected, what):
                if what == "input" and self.seals.may_be_same(self._digest, expected.input):
                    continue
                if (is_flag(asked) or is_flag(expected)) and which(asked) != which(expected):
                    return self._past_flags(asked)
                raise NotDeterministic(
                    f"not deterministic: {self.handler.name} recorded {expected.kind} {expected.name!r} "
                    f"(number {expected.number}) and its rerun asks for {asked.kind} {asked.name!r} "
                    f"(number {asked.number}){' with other arguments' if what == 'input' else ''}"
                )
        self._next += 1
        return self.calls[self._next - 1] if self._next <= len(self.calls) else None

    def _as_begun(self, asked: Call) -> Call:
        """The call as it has begun, if it has: keys that have come or gone since would give it another digest."""
        begun = self._open
        is_it = begun is not None and begun.input != asked.input and which(begun) == which(asked)
        if begun is None or not is_it or not self.seals.may_be_same(self._digest, begun.input):
            return asked
        return with_(asked, input=begun.input)

    def _past_flags(self, asked: Call) -> Call | None:
        """The same, where what is asked for or what is recorded is a flag."""
        place = past_flags(self.calls, self._next, asked)
        count = len(self.calls)
        follows = self.calls[place] if place < count else self._open if count == self._recorded else None
        if is_flag(asked) and follows is not None and which(follows) != which(asked):
            return with_(asked, value=OFF)
        self._next = place
        return self._recalled(asked)

    def _expected(self) -> Call | None:
        """Call that is recorded, and has to be asked for next."""
        count = len(self.calls)
        if self._next < count:
            return self.calls[self._next]
        return self._open if self._next == count == self._recorded else None
