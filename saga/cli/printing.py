"""Output of the commands. All text is escaped. No other module writes to a terminal."""

import io
import json
import logging
import sys
import threading
import traceback
from collections import Counter
from types import TracebackType

import click

from saga.support.printable import printable, printable_lines

log = logging.getLogger("python")

LIBRARY_LINES_MAX = 20
"""Maximum number of messages that a process prints from one place in a library."""


def print_lines(*lines: str, err: bool = False) -> None:
    """Print these lines, escaped, so that text from outside can neither begin a new line nor control the terminal.

    Args:
        err: True to print to standard error.
    """
    click.echo("\n".join(map(printable, lines)), err=err)


def print_prefixed(name: str, colour: str | None, line: str) -> None:
    """Print a line of another process, preceded by its name, which is coloured on a terminal."""
    click.echo(f"{click.style(printable(name), fg=colour)} | {printable(line)}")


def print_json(value: object) -> None:
    """Print a JSON document as one line of ASCII."""
    click.echo(json.dumps(value))


def print_error(what: object) -> None:
    """Print an error, or the reason why a part of the answer is missing, to standard error. If it has several lines,
    all except the first are indented."""
    click.echo("\n".join(printable_lines(f"saga: {what}")), err=True)


def print_traceback(kind: type[BaseException], why: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an unexpected exception. Used as `sys.excepthook`."""
    print_lines(*"".join(traceback.format_exception(kind, why, trace)).rstrip("\n").split("\n"), err=True)


def escape_unencodable() -> None:
    """Make the standard streams escape characters that the terminal's encoding lacks. So a name in another script does
    not end the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class LibraryLogHandler(logging.Handler):
    """Log handler that prints messages of libraries. Used as `logging.lastResort`. `saga run` writes such messages to
    its log instead."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._counts: Counter[tuple[str, int]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        place = record.pathname, record.lineno
        self._counts[place] += 1
        if self._counts[place] <= LIBRARY_LINES_MAX:
            why = record.exc_info[1] if record.exc_info is not None else None
            print_error(
                f"{record.name}: {record.getMessage()}" + (f": {type(why).__name__}: {why}" if why is not None else "")
            )
        elif self._counts[place] == LIBRARY_LINES_MAX + 1:
            print_error(f"{record.name}: further messages from this place are not shown")


def install_hooks() -> None:
    """Install hooks that escape everything that Python itself would print: uncaught exceptions of the process and its
    threads, unraisable exceptions, and messages of libraries."""
    sys.excepthook = print_traceback
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_thread_error
    logging.lastResort = LibraryLogHandler()


def _log_unraisable(args: "sys.UnraisableHookArgs") -> None:
    if (why := args.exc_value) is not None:
        log.error("an exception was raised where it cannot be handled", exc_info=(type(why), why, why.__traceback__))


def _log_thread_error(args: threading.ExceptHookArgs) -> None:
    if (why := args.exc_value) is not None and not isinstance(why, SystemExit):
        log.error("a thread has ended with an exception", exc_info=(type(why), why, why.__traceback__))
