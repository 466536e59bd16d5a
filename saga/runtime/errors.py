"""Exceptions that end a turn, or one run of a handler, from within.

BaseException
└─ Halted               this turn goes no further; whatever it did is repeated or found by the next one
   ├─ Refused           the progress is another one by now: reload and decide again
   └─ Draining          the worker is to stop, or to lose the partition
saga.errors.Permanent
└─ NotDeterministic     a rerun asked for something else than recorded
"""

from saga.errors import Permanent


class Halted(BaseException):
    """End of this turn, as by a crash. It is no `Exception`, so that no `except Exception` in a handler swallows it."""


class Refused(Halted):
    """Refusal of a write, or of an update that nobody asks for any more: the progress is another one by now."""


class Draining(Halted):
    """Refusal to begin anything new: the worker stops or loses the partition. It counts as no attempt of anything."""


class NotDeterministic(Permanent):
    """Failure of a rerun that asked for another step, or other input, than recorded."""


def unexpected(why: BaseException, who: str) -> RuntimeError:
    """Make the failure of an attempt that ended with what is no `Exception`."""
    return RuntimeError(f"{who} raised {type(why).__name__}, which is no Exception")
