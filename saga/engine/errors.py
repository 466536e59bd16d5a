"""Exceptions that end the processing of a message or a handler's run from within, and functions that describe errors.

BaseException
└─ Halted               processing stops; what it did is repeated or found when the message is redelivered
   ├─ Superseded        another worker has changed the progress: reload it and decide again
   └─ Draining          the worker stops, or loses the partition
saga.errors.Permanent
├─ NotAsync             a step called a function that gives nothing to await
└─ NotDeterministic     a rerun asked for something other than what is recorded
"""

import importlib
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

from saga.encryption.sensitive_fields import redact_text
from saga.errors import Permanent
from saga.support.printable import shorten


class Halted(BaseException):
    """Ends processing as a crash would. It is not an `Exception`, so that no `except Exception` in a handler catches
    it."""


class Superseded(Halted):
    """Raised if a write or an update is refused, because another worker has changed the progress since it was read."""


class Draining(Halted):
    """Raised when nothing new may begin, because the worker stops or loses the partition. It does not count as an
    attempt."""


class NotAsync(Permanent, TypeError):
    """Raised when a step called a function that is not async. It has run, so each further attempt would repeat its
    effect."""


class NotDeterministic(Permanent):
    """Raised when a rerun calls another step, or passes other arguments, than the record of the run has."""

    def __init__(self, problem: str, way: str = "", disputed: tuple[tuple[str, int], ...] = ()) -> None:
        """`way`: how the handler can continue if another version of it began the run. `disputed`: name and number of
        the recorded call, and of the call that the rerun made instead; see `saga.progress.document.PendingMessage`."""
        self.way, self.disputed = way, disputed
        super().__init__(f"not deterministic: {problem}")


def wrap_base_exception(why: BaseException, who: str) -> RuntimeError:
    """Convert a `BaseException` that is not an `Exception` to an ordinary error, so that it fails the attempt and does
    not end the process."""
    return RuntimeError(f"{who} raised {type(why).__name__}, which is no Exception")


PACKAGE = str(Path(__file__).parents[1])
"""Folder of the toolkit's own code. Reports leave it out, and name places in the service's code."""
FRAMES_MAX, CAUSES_MAX, PLACES_MAX = 12, 3, 24
"""Maximum number of places kept for each exception, of exceptions (the first and its causes), and of places in
total."""
PLACE_BYTES_MAX = 300
REASON_BYTES_MAX = 2000
"""Maximum number of bytes kept of an exception's text, because it is stored in the progress, the log and headers."""


def describe_exception(why: Exception, secrets: Sequence[str] = ()) -> str:
    """Describe an exception as text of limited length, even if converting the exception to text fails.

    `secrets`: strings to hide, because a handler may quote any value that it was given.
    """
    try:
        text = f"{type(why).__name__}: {why}"
    except Exception as worse:  # noqa: BLE001 - a handler may raise anything
        text = f"{type(why).__name__}: (its text raises {type(worse).__name__})"
    if secrets:
        text = redact_text(text, secrets)
    return shorten(text[: REASON_BYTES_MAX + 1], REASON_BYTES_MAX)


def find_origin(why: Exception) -> str | None:
    """Return file, line and function in which an exception was raised: the innermost place outside the toolkit's own
    code. `None` if there is no such place."""
    last = None
    for frame, line in traceback.walk_tb(why.__traceback__):
        if not (code := frame.f_code).co_filename.startswith(PACKAGE):
            last = code, line
    return None if last is None else _place(*last)


def find_place(why: Exception) -> tuple[str, int] | None:
    """Return file and line at which loading code failed: that of a syntax error, else the innermost place outside the
    toolkit and the import system. `None` if there is no such place."""
    if isinstance(why, SyntaxError) and why.filename is not None:
        return why.filename, why.lineno or 1
    last = None
    for frame, line in traceback.walk_tb(why.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith((PACKAGE, "<")) and file != importlib.__file__:
            last = file, line
    return last


def format_stack(why: Exception, secrets: Sequence[str] = ()) -> tuple[str, ...]:
    """List the places outside the toolkit's own code that led to an exception, outermost first.

    The places of its causes follow. If there are very many places, the innermost are kept. `secrets`: as in
    `describe_exception`.
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
    """List the places outside the toolkit's own code that led to one exception, outermost first.

    This reads no source file, because many exceptions are raised during an outage.
    """
    return [
        _place(code, line)
        for frame, line in traceback.walk_tb(why.__traceback__)
        if not (code := frame.f_code).co_filename.startswith(PACKAGE)
    ]


def _place(code: CodeType, line: int) -> str:
    return shorten(f"{code.co_filename}:{line} in {code.co_name}", PLACE_BYTES_MAX)
