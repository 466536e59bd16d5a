"""Failures as people read them: what an exception says, bounded, and the line of the service's code that raised it."""

import traceback
from pathlib import Path

from saga.printable import shortened

PACKAGE = str(Path(__file__).parents[1])
"""Folder of the toolkit's own code: people are told of theirs."""
REASON_BYTES_MAX = 2000
"""Bytes of an exception's text that are kept, at most: a reason stands in progress, log and headers."""


def said_by(why: Exception) -> str:
    """Words of an exception, as they can be written down: bounded, and text whatever it is made of."""
    try:
        text = f"{type(why).__name__}: {why}"
    except Exception as worse:  # noqa: BLE001 - a handler may raise anything
        text = f"{type(why).__name__}: (its text raises {type(worse).__name__})"
    return shortened(text[: REASON_BYTES_MAX + 1], REASON_BYTES_MAX)


def raised_at(why: Exception) -> str | None:
    """File, line and function that raised an exception: the last of the service's own code, or of what it calls."""
    frames = traceback.extract_tb(why.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(PACKAGE)]
    return f"{theirs[-1].filename}:{theirs[-1].lineno} in {theirs[-1].name}" if theirs else None
