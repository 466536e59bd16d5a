"""Makes an empty environment, builds the wheel as a release does, and installs it there with what it asks for.

Nothing is fetched: what the wheel requires is linked, one distribution at a time, from the environment that runs the
tests. So an undeclared package is not there, and neither is the source tree.
"""

import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "saga")
BUILD_S_MAX = 120.0


def built(folder: Path) -> Path:
    """The wheel, made from the source distribution, as `python -m build` does it. Writes nothing to the checkout."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree / name)
    out = folder / "dist"
    call("-m", "build", "--no-isolation", "--outdir", str(out), str(tree))
    [wheel] = out.glob("*.whl")
    return wheel


def call(*arguments: str) -> None:
    """Run this Python. Fails with what it printed when it does."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=BUILD_S_MAX, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Environment:
    """A virtual environment in which only what is installed here can be imported."""

    def __init__(self, folder: Path) -> None:
        call("-m", "venv", "--without-pip", str(folder))
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        [self._packages] = (folder / "lib").glob("python*/site-packages")

    def install(self, wheel: Path) -> None:
        """Put the wheel in, and what it requires."""
        call("-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-index", "--no-deps", str(wheel))
        self.require("saga-choreography")

    def require(self, name: str, extra: str = "") -> None:
        """Link what a distribution requires, with one of its extras or without, and what that requires in turn."""
        for text in self._found(name).requires or ():
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                self._link(distribution(wanted.name))
                for inner in (*wanted.extras, ""):
                    self.require(wanted.name, inner)

    def _found(self, name: str) -> Distribution:
        """A distribution that is installed here: ours from the wheel, any other from where the tests run."""
        return next(iter(Distribution.discover(name=name, path=[str(self._packages)])), None) or distribution(name)

    def _link(self, needed: Distribution) -> None:
        for top in {file.parts[0] for file in needed.files or () if file.parts[0] not in ("..", "__pycache__")}:
            link = self._packages / top
            if not link.exists():
                link.symlink_to(Path(str(needed.locate_file(top))))
