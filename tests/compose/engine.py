"""Finds the container engine of this machine, or starts it and stops it again; and runs its commands, each within a
time."""

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from saga.support.clock import SystemClock

INSTALL = "apt-get install -y --no-install-recommends docker.io docker-compose debootstrap iptables"
STARTS_S_MAX, STOPS_S_MAX = 60.0, 40.0
LOOK_S = 0.2
OUTPUT_MAX = 3000
"""Most characters that are shown of the output of a command that failed."""

_clock = SystemClock()
_never = threading.Event()


class NoEngine(Exception):
    """No container can run on this machine; the message says what to do."""


class CommandFailed(Exception):
    """A command ended badly, or not in time."""


def pause(seconds: float) -> None:
    """Let time pass."""
    _never.wait(seconds)


def now_s() -> float:
    """For measuring how long something takes."""
    return _clock.monotonic_s()


def run(
    *command: str | Path,
    within_s: float = 60,
    stdin: bytes | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Standard output of the command. Raises `CommandFailed`."""
    shown = " ".join(map(str, command))
    try:
        done = subprocess.run(
            list(map(str, command)),
            input=stdin or b"",
            capture_output=True,
            timeout=within_s,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as why:
        raise CommandFailed(f"{shown}: did not end within {within_s:.0f} s") from why
    except OSError as why:
        raise CommandFailed(f"{shown}: {why}") from why
    if done.returncode != 0:
        output = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise CommandFailed(f"{shown}: ended with {done.returncode}\n{output[-OUTPUT_MAX:]}")
    return done.stdout.decode(errors="replace")


def succeeds(*command: str | Path, within_s: float = 60) -> bool:
    """True if the command ends well, and in time."""
    try:
        run(*command, within_s=within_s)
    except CommandFailed:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Engine:
    """One that answers, and how compose files are given to it."""

    compose: Sequence[str]
    """`docker compose`, or the older `docker-compose`."""

    def docker(self, *arguments: str | Path, within_s: float = 60, stdin: bytes | None = None) -> str:
        """Output of `docker`. Raises `CommandFailed`."""
        return run("docker", *arguments, within_s=within_s, stdin=stdin)

    def build(self, *arguments: str | Path, within_s: float) -> None:
        """Build an image, in the network of the machine. Raises `CommandFailed`."""
        self.docker("build", "--quiet", "--network", "host", *arguments, within_s=within_s)

    def has_image(self, name: str) -> bool:
        return succeeds("docker", "image", "inspect", name)

    def pull(self, name: str, within_s: float) -> None:
        """Get an image, unless it is there. Raises `CommandFailed`."""
        if not self.has_image(name):
            self.docker("pull", "--quiet", name, within_s=within_s)


@contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """The engine, for as long as the block lasts. One that runs stays as it is; where none does, root starts one, whose
    log is in `folder`, and stops it at the end. Raises `NoEngine`."""
    compose = ("docker", "compose") if succeeds("docker", "compose", "version") else ("docker-compose",)
    for program in ("docker", compose[0]):
        if shutil.which(program) is None:
            raise NoEngine(f"there is no {program} on this machine: {INSTALL}")
    if succeeds("docker", "info", within_s=20):
        yield Engine(compose)
        return
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        raise NoEngine(f"no container engine answers, and only root can start one that is installed: {INSTALL}")
    with _dockerd(folder / "dockerd.log"):
        yield Engine(compose)


@contextmanager
def _dockerd(log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        # A session of its own: Ctrl-C in the terminal reaches us alone, and the containers end before it.
        # No bridge of its own, for it would stay behind: compose makes and removes one for its project.
        daemon = subprocess.Popen(
            ["dockerd", "--bridge=none"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        click.echo(f"no container engine runs: started dockerd, as process {daemon.pid}")
        until_s = now_s() + STARTS_S_MAX
        while not succeeds("docker", "info", within_s=10):
            if daemon.poll() is not None or now_s() > until_s:
                raise NoEngine(f"dockerd did not start: {log.read_text(errors='replace')[-OUTPUT_MAX:]}")
            pause(LOOK_S)
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(STOPS_S_MAX)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
