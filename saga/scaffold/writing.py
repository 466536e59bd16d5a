"""Writing of planned files: all of them, or none."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from saga.errors import ConfigurationError, SagaError


def write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write new files below a folder, each with its text; their paths. Raises `ConfigurationError` with all that are
    there already: nothing was written; `SagaError` if one cannot be: those before it are removed again."""
    there = [name for name in sorted(files) if (folder / name).exists() or (folder / name).is_symlink()]
    if there:
        raise ConfigurationError(
            "nothing was written: nothing is overwritten, so take away what is there, or choose another name:",
            [f"{folder / name} is there already" for name in there],
        )
    written: list[Path] = []
    made: list[Path] = []
    try:
        for name, text in sorted(files.items()):
            path = folder / name
            made += [above for above in reversed(path.parents) if not above.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as why:
        for path in written:
            with suppress(OSError):
                path.unlink()
        for above in reversed(made):
            with suppress(OSError):
                above.rmdir()
        raise SagaError(f"nothing was written: {why.filename or folder}: {why.strerror or why}") from why
    return written
