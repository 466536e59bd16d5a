"""Rescue of a file that was removed, replaced or damaged under a running service: a copy, and what people are to do."""

import os
from collections.abc import Callable
from contextlib import suppress
from ctypes import py_object, pythonapi
from pathlib import Path

from saga.sqlite.opening import make_file, make_folder
from saga.sqlite.tampering import CONDEMNED, identity, noted


def rescued(path: Path, execute: Callable[[str, tuple[str]], object]) -> str:
    """Save what an open connection sees of a file that has lost its name, beside it; return what to tell about it.

    `execute` is the connection's. Nobody else has what it sees, and it is gone when this process ends.
    """
    copy = path.with_name(f"{path.name}.rescued-{os.getpid()}")
    while copy.exists():
        copy = copy.with_name(f"{copy.name}-2")
    try:
        make_folder(path.parent)
        make_file(copy)
        execute("VACUUM INTO ?", (str(copy),))
        file = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    except Exception as why:  # noqa: BLE001 - whatever it is: the error to be told must not be lost over it
        return f"what was acknowledged before could not be saved ({why}): it is in the old file, if that still exists"
    return (
        f"all that was acknowledged before is saved in {copy}: put that in the place of {path}, with no "
        f"{path.name}-wal and -shm beside it, or move it elsewhere to go on with what lies there now; then start again"
    )


def left(path: Path, lock: int) -> str | None:
    """Trouble that a process found which had this file open, and that a person has to decide about before it is used
    again; `None` if there is nothing. `lock`: the descriptor of `<path>.lock`. Raises `OSError`."""
    copies = sorted(path.parent.glob(f"{path.name}.rescued-*"))
    if copies:
        return (
            f"{', '.join(str(copy) for copy in copies)} holds what was acknowledged when {path} was removed or "
            f"replaced under a running service: put it in the place of {path}, with no {path.name}-wal and -shm beside "
            "it, or move it elsewhere to go on with what lies there now"
        )
    with suppress(FileNotFoundError):
        if (said := noted(lock, CONDEMNED, identity(path.stat()))) is not None:
            return f"{said.decode(errors='replace')}: {restore(path)}"
    return None


def restore(path: Path) -> str:
    """Advice about a file that holds what it should not."""
    return (
        f"stop all its services, restore the file from a copy, with no {path.name}-wal and -shm beside it, and remove "
        f"{path}.lock"
    )


def keep_open(connection: object) -> None:
    """Keep a connection to a file that has lost its name for ever: to close it would remove the log of that name, which
    is another's by now. Its end is that of the process."""
    pythonapi.Py_IncRef(py_object(connection))
