"""Names of all secrets that were ever made in a folder of keys, beside the secrets: so one that is lost is missed,
and no other one takes its place.

    keys/made/3f     names that begin with 3f, one a line

A name is added when its secret can be found, so a name without a file is always a loss. The other way round a process
may have been killed in between: `saga keys rewrap` adds what is not there.
"""

import os
from collections.abc import Iterable
from pathlib import Path


class MadeNames:
    """Names of all secrets that were made. All raise `OSError`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def file_of(self, name: str) -> Path:
        """File in which a name stands."""
        return self._folder / name[:2]

    def __contains__(self, name: str) -> bool:
        try:
            return name in self.file_of(name).read_text().split()
        except FileNotFoundError:
            return False

    def add(self, name: str) -> None:
        """Add a name; more than once does no harm."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = os.open(self.file_of(name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{name}\n".encode())
        finally:
            os.close(file)

    def add_all(self, names: Iterable[str]) -> None:
        """Add those of these names that are not there yet."""
        for name in sorted(set(names) - self.all()):
            self.add(name)

    def all(self) -> set[str]:
        """Read all names."""
        if not self._folder.exists():
            return set()
        return {name for path in self._folder.iterdir() for name in path.read_text().split()}
