"""Programs out of packages of Debian, as they are installed, or else fetched and unpacked, which needs no rights."""

import os
import shutil
import subprocess
from pathlib import Path

from saga.testing.servers.jars import FETCH_S, fill_folder
from saga.testing.servers.missing import ServersMissing


def program(package: str, name: str) -> Path:
    """The program, as it is installed, or out of the package. Raises `ServersMissing` where neither can be had."""
    installed = shutil.which(name)
    if installed is not None:
        return Path(installed)
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise ServersMissing(f"no {name} on this machine, and no apt-get: install what Debian calls {package}")
    return fill_folder(f"debian-{package}", package, lambda folder: _unpack(package, folder)) / "usr" / "bin" / name


def _unpack(package: str, folder: Path) -> None:
    folder.mkdir()
    try:
        _call(["apt-get", "download", "-qq", package], folder)
        [fetched] = folder.glob("*.deb")
        _call(["dpkg", "-x", fetched.name, "."], folder)
        fetched.unlink()
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as why:
        output = f"{why.stderr or b''!r}"[-2000:]
        raise ServersMissing(
            f"{package} could not be fetched: apt-get update; apt-get install {package}: {output}"
        ) from why


def _call(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=FETCH_S, capture_output=True)
