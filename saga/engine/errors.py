"""Exceptions that end the processing of a message or a handler's run from within; and errors as people read them.

BaseException
└─ Halted               processing goes no further; what it did is repeated or found when the message is redelivered
   ├─ Superseded        the progress is another one by now: reload and decide again
   └─ Draining          the worker is to stop, or to lose the partition
saga.errors.Permanent
└─ NotDeterministic     a rerun asked for something else than recorded
"""

import traceback
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

from saga.encryption.sensitive_fields import redact_text
from saga.errors import Permanent
from saga.support.printable import shorten


class Halted(BaseException):
    """Ends processing as a crash would. It is no `Exception`, so that no `except Exception` in a handler swallows
    it."""


class Superseded(Halted):
    """Raised for a write, or an update, of a progress that is another one by now."""


class Draining(Halted):
    """Raised when nothing new may begin: the worker stops or loses the partition. It counts as no attempt of
    anything."""


class NotDeterministic(Permanent):
    """Raised when a rerun asks for another step, or other input, than recorded."""

    def __init__(self, problem: str, way: str = "", disputed: tuple[tuple[str, int], ...] = ()) -> None:
        """`way`: how the handler may go on if another version of it began the run. `disputed`: name and number of what
        is recorded, and of what was asked for: see `saga.progress.document.PendingMessage`."""
        self.way, self.disputed = way, disputed
        super().__init__(f"not deterministic: {problem}")


def wrap_base_exception(why: BaseException, who: str) -> RuntimeError:
    """Make the failure of an attempt that ended with what is no `Exception`."""
    return RuntimeError(f"{who} raised {type(why).__name__}, which is no Exception")


PACKAGE = str(Path(__file__).parents[1])
"""Folder of the toolkit's own code: reports name places in the code of the service."""
FRAMES_MAX, CAUSES_MAX, PLACES_MAX = 12, 3, 24
"""Places that are kept of each exception, exceptions of which some are kept, and places in all, at most."""
PLACE_BYTES_MAX = 300
REASON_BYTES_MAX = 2000
"""Bytes of an exception's text that are kept, at most: a reason stands in progress, log and headers."""


def describe_exception(why: Exception, secrets: Sequence[str] = ()) -> str:
    """Describe an exception as bounded text, whatever its message is made of.

    `secrets`: texts that are hidden in it, for a handler may quote any value that it was given.
    """
    try:
        text = f"{type(why).__name__}: {why}"
    except Exception as worse:  # noqa: BLE001 - a handler may raise anything
        text = f"{type(why).__name__}: (its text raises {type(worse).__name__})"
    if secrets:
        text = redact_text(text, secrets)
    return shorten(text[: REASON_BYTES_MAX + 1], REASON_BYTES_MAX)


def find_origin(why: Exception) -> str | None:
    """Return file, line and function that raised an exception: the last of the service's own code, or of what it
    calls."""
    last = None
    for frame, line in traceback.walk_tb(why.__traceback__):
        if not (code := frame.f_code).co_filename.startswith(PACKAGE):
            last = code, line
    return None if last is None else _place(*last)


def format_stack(why: Exception, secrets: Sequence[str] = ()) -> tuple[str, ...]:
    """List the places of the service's code, or of what it calls, that led to an exception, outermost first.

    Behind them those of its cause. Of many the innermost. `secrets`: as in `describe_exception`.
    """
    places: list[str] = []
    for _ in range(CAUSES_MAX):
        places += _theirs(why)[-FRAMES_MAX:]
        if not isinstance(why.__cause__, Exception):
            break
        why = why.__cause__
        places.append(shorten(f"from {describe_exception(why, secrets)}", PLACE_BYTES_MAX))
    return tuple(places[:PLACES_MAX])


def _theirs(why: Exception) -> list[str]:
    """List the places that led to an exception, outermost first, without the toolkit's own.

    No source is read for it: an outage has very many of them.
    """
    return [
        _place(code, line)
        for frame, line in traceback.walk_tb(why.__traceback__)
        if not (code := frame.f_code).co_filename.startswith(PACKAGE)
    ]


def _place(code: CodeType, line: int) -> str:
    return shorten(f"{code.co_filename}:{line} in {code.co_name}", PLACE_BYTES_MAX)
