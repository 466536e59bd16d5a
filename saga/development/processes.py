"""Development mode: one process for each service of a folder, restarted when its code or a contract changes, and one
process for a web page that shows the sagas.

Before a service is restarted, its new code is loaded in a separate process. If that fails, the error is shown, and the
old process continues. A service that ended by itself is started again at the next change that affects it.
"""

import ast
import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process, create_subprocess_exec
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from saga.errors import ConfigurationError
from saga.support.clock import Clock

LOOK_S, QUIET_S = 0.25, 0.3
"""Pause between two scans of the files, and time without changes after which a series of changes counts as finished.
Both are in seconds.
"""
STOP_S_MAX: Final = 30.0
"""Maximum time for services to drain, in seconds. Their own limit is 20 s by default; the rest is for their work after
the drain."""
LOAD_S_MAX: Final = 60.0
"""Maximum time for loading a service, in seconds."""
OUTPUT_S_MAX: Final = 1.0
"""Maximum time between the end of a process and the end of its output, in seconds. After that it is not waited for any
more: a process that it has started keeps the output open."""
EXIT_LOOK_S: Final = 0.05
"""Pause between two checks whether a process has ended, in seconds."""
LINE_BYTES_MAX: Final = 1 << 16
"""Maximum length of a line that is shown, in bytes. Longer lines are split."""
PAGE: Final = ".page"
"""Key of the web page's process in the mapping of processes by module. It is not a valid module name."""

Seen: TypeAlias = Mapping[Path, tuple[int, int]]
"""Result of a scan: each file's time of last change and size. Two scans are compared to find changes."""
FILES_MAX = 20_000
"""Maximum number of files that are scanned. If there are more, changes may go unnoticed."""
_ENDINGS = (".py", ".avsc", ".toml")
_DATA_FILES = frozenset({"topic.json", "released.json"})
"""Names of JSON files that belong to contracts."""
_LEFT_OUT = frozenset({"__pycache__", "tests", "node_modules", "build", "dist", "site"})


@dataclass(eq=False)
class RunningProcess:
    """A process that was started for a service or for the web page."""

    module: str
    process: Process
    following: asyncio.Task[None]
    """Task that prints the output of the process, and ends with it."""
    is_stopping: bool = False


@dataclass
class ServiceProcesses:
    """Runs the services of a folder, each in its own process."""

    folder: Path
    """Folder that contains the services. It is below `root`."""
    root: Path
    """Working directory of the services, from which they are imported."""
    environment: Mapping[str, str]
    clock: Clock
    say: Callable[[str, str], None]
    """Function that prints a line. Its arguments are the name of a service (or an empty string) and the text."""
    contracts: Path | None = None
    """Folder of contracts if it is elsewhere than below `root`, otherwise `None`."""
    page: str | None = None
    """Host and port of the web page; `None` for no page."""
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that makes the services stop at once, without waiting until they have drained."""
    _running: dict[str, RunningProcess] = field(default_factory=dict)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, stop: asyncio.Event) -> None:
        """Run the services until `stop` is set, then end all of them.

        They also end if the output can no longer be written, for example because the terminal was closed. Raises
        `ConfigurationError` if the folder does not exist or is not below `root`.
        """
        self._stop = stop
        seen = snapshot_files(self.root, self.contracts)
        found = services_in(self.folder, self.root)
        try:
            if self.page is not None:
                await self._start([PAGE])
            await self._start(self._usable(found.modules, found.broken))
            if not found.modules:
                self._print("", f"there is no service in {self.folder} yet: a module there says name = Service(...)")
            while not stop.is_set():
                await self.clock.sleep(LOOK_S)
                now = snapshot_files(self.root, self.contracts)
                if now != seen:
                    now = await self._wait_until_settled(now)
                    await self._renew(changed_files(seen, now))
                    seen = now
        finally:
            await self._end(list(self._running))

    def _print(self, name: str, text: str) -> None:
        """Print a line. If that is impossible, end all services, because they could no longer be watched."""
        try:
            self.say(name, text)
        except (OSError, ValueError):  # the terminal or the reader of a pipe is gone; or the stream is closed
            self._stop.set()

    async def _wait_until_settled(self, seen: Mapping[Path, tuple[int, int]]) -> Mapping[Path, tuple[int, int]]:
        """Wait until files stop changing, because several files may be saved one after another. Return the last
        scan.
        """
        while not self._stop.is_set():
            await self.clock.sleep(QUIET_S)
            now = snapshot_files(self.root, self.contracts)
            if now == seen:
                break
            seen = now
        return seen

    async def _renew(self, paths: Collection[Path]) -> None:
        """Restart the services that a change of these files affects. Start nothing once everything is to stop."""
        if self._stop.is_set():
            return
        some = sorted(str(path.relative_to(self.root)) for path in paths if self.root in path.parents)[:3]
        self._print("", f"changed: {', '.join(some) or len(paths)}{' and more' if len(paths) > 3 else ''}")
        found = services_in(self.folder, self.root)
        present = {*found.modules, *found.broken, PAGE}
        gone = [module for module in self._running if module not in present]
        for module in gone:
            self._print(_name(module), "was removed")
        await self._end(gone)
        wanted = affected_modules(paths, [*found.modules, *found.broken], self.root)
        restarting = self._usable([module for module in wanted if module not in found.broken], found.broken)
        restarting += [module for module in found.modules if module not in (*self._running, *restarting)]
        ready = [module for module in restarting if await self._can_be_loaded(module)]
        if self.page is not None and any(path.suffix in (".avsc", ".json") for path in paths):
            ready.insert(0, PAGE)  # the page reads contracts and manifests only once
        if not self._stop.is_set():
            await self._end(ready)
            await self._start(ready)

    def _usable(self, modules: Iterable[str], broken: Mapping[str, str]) -> list[str]:
        """Return `modules` as a list. Also print, for each module in `broken`, why it cannot be read."""
        for module, why in broken.items():
            self._print(_name(module), f"cannot be read: {why}; {self._describe_next(module)}")
        return list(modules)

    def _describe_next(self, module: str) -> str:
        running = self._running.get(module)
        is_up = running is not None and running.process.returncode is None
        return "the old process keeps running" if is_up else "it is started when that is fixed"

    async def _can_be_loaded(self, module: str) -> bool:
        """Load a service in a separate process, and return whether that succeeded. Print the output if it did not."""
        if self._stop.is_set():
            return False
        process, loop = await self._process("manifest", module), asyncio.get_running_loop()
        loading, stopping = loop.create_task(process.communicate()), loop.create_task(self._stop.wait())
        try:
            with suppress(TimeoutError):
                either = asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                await self.clock.within(LOAD_S_MAX, either)
            output = f"it was not loaded within {LOAD_S_MAX:.0f} s".encode()
            if loading.done():
                output, _ = loading.result()
            elif self._stop.is_set():
                return False
        finally:
            stopping.cancel()
            if not loading.done():
                _kill_all(process)
                await self._await_end_of_output(loading)
                loading.cancel()
        if process.returncode == 0:
            return True
        for line in output.decode("utf-8", "replace").splitlines():
            self._print(_name(module), line)
        self._print(_name(module), f"cannot be loaded; {self._describe_next(module)}")
        return False

    # ---------------------------------------------------------------- processes

    async def _process(self, *arguments: str) -> Process:
        # In its own session: Ctrl-C in the terminal then reaches only this process, which ends the services in order.
        return await create_subprocess_exec(
            *(sys.executable, "-m", "saga.cli.main", *arguments),
            cwd=self.root,
            env=dict(self.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )

    async def _start(self, modules: Iterable[str]) -> None:
        for module in modules:
            if self._stop.is_set():
                return
            what = ("run", module) if module != PAGE else ("monitor", "run", "--listen", self.page or "")
            process = await self._process(*what)
            following = asyncio.get_running_loop().create_task(self._follow(module, process), name=module)
            self._running[module] = RunningProcess(module, process, following)
            self._print(_name(module), f"started, process {process.pid}")

    async def _follow(self, module: str, process: Process) -> None:
        """Print the output of a process, and then how the process ended. Kill what it has left running."""
        reading = asyncio.get_running_loop().create_task(self._read(module, process))
        while process.returncode is None:  # `process.wait()` would also wait until the output is closed
            await self.clock.sleep(EXIT_LOOK_S)
        await self._await_end_of_output(reading)
        _kill_all(process)  # one that it has started may keep the output open, or have another one
        await self._await_end_of_output(reading)
        reading.cancel()
        running = self._running.get(module)
        if running is not None and running.process is process and not running.is_stopping:
            then = "its code or a shared file" if module != PAGE else "a contract"
            code = process.returncode
            self._print(_name(module), f"ended by itself with code {code}; it is started again when {then} changes")

    async def _read(self, module: str, process: Process) -> None:
        """Print the output of a process line by line, until it is closed."""
        assert process.stdout is not None
        rest = b""
        while part := await process.stdout.read(LINE_BYTES_MAX):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                self._print(_name(module), line.decode("utf-8", "replace").rstrip("\r"))
            if len(rest) >= LINE_BYTES_MAX:
                self._print(_name(module), rest.decode("utf-8", "replace"))
                rest = b""
        if rest:
            self._print(_name(module), rest.decode("utf-8", "replace"))

    async def _await_end_of_output(self, reading: asyncio.Task[Any]) -> None:
        """Wait until the output of a process that has ended is read, but at most for `OUTPUT_S_MAX`."""
        with suppress(TimeoutError):
            await self.clock.within(OUTPUT_S_MAX, asyncio.wait([reading]))

    async def _end(self, modules: Iterable[str]) -> None:
        """End these processes. They drain in parallel; those that take too long are killed, which loses nothing."""
        ending = [self._running[module] for module in modules if module in self._running]
        for running in ending:
            running.is_stopping = True
            with suppress(ProcessLookupError):
                running.process.send_signal(signal.SIGTERM)
        hurry = asyncio.get_running_loop().create_task(self.hurry.wait())
        try:
            with suppress(TimeoutError):
                await self.clock.within(STOP_S_MAX, _all_or([running.following for running in ending], hurry))
        finally:
            hurry.cancel()
            for running in ending:
                if running.process.returncode is None:
                    self._print(_name(running.module), "did not end in time, and is killed; nothing is lost")
                    _kill_all(running.process)
            for running in ending:
                await running.following
                self._running.pop(running.module, None)


def _kill_all(process: Process) -> None:
    """Kill a process and what it has started: all of them are in a session of their own."""
    with suppress(ProcessLookupError, PermissionError):  # all have ended; macOS then refuses it for a moment
        os.killpg(process.pid, signal.SIGKILL)


async def _all_or(tasks: Collection[asyncio.Task[None]], hurry: asyncio.Task[bool]) -> None:
    """Wait until all tasks have ended, or until `hurry` has ended."""
    waiting: set[asyncio.Task[None] | asyncio.Task[bool]] = {*tasks}
    while waiting and not hurry.done():
        await asyncio.wait({*waiting, hurry}, return_when=asyncio.FIRST_COMPLETED)
        waiting = {task for task in waiting if not task.done()}


def _name(module: str) -> str:
    """Return the last part of a module's name. The output shows the service under this name."""
    return module.rpartition(".")[2]


# -------------------------------------------------------------------- folder


class FoundServices(NamedTuple):
    """Services that were found in a folder."""

    modules: tuple[str, ...]
    """Import names of the modules that declare a service, such as `services.payment`."""
    broken: Mapping[str, str]
    """Modules that are not valid Python, each with the error and its place."""


def services_in(folder: Path, root: Path) -> FoundServices:
    """Find the modules and packages directly in a folder that declare a service: those that contain `name =
    Service(...)`.

    Nothing is imported.

    Args:
        root: Folder from which the modules are imported.

    Raises:
        ConfigurationError: The folder does not exist, or is not below `root`.
    """
    try:
        package = folder.resolve().relative_to(root.resolve()).parts
    except ValueError:
        package = ("..",)
    if not folder.is_dir() or not all(part.isidentifier() for part in package):
        problem = f"{folder} is no package of the folder {root}: call it where `import services` finds the services"
        raise ConfigurationError("nothing was started:", [problem])
    modules, broken = list[str](), dict[str, str]()
    for path in sorted(folder.iterdir()):
        source = path / "__init__.py" if path.is_dir() else path
        if not path.stem.isidentifier() or source.suffix != ".py" or not source.is_file() or path.name == "__init__.py":
            continue
        name = ".".join((*package, path.stem))
        try:
            if _declares(source):
                modules.append(name)
        except (SyntaxError, ValueError) as why:  # ValueError for null bytes and for text that is not UTF-8
            at = f":{why.lineno}" if isinstance(why, SyntaxError) else ""
            broken[name] = f"{source}{at}: {why.msg if isinstance(why, SyntaxError) else why}"
    return FoundServices(tuple(modules), broken)


def _declares(source: Path) -> bool:
    """Return whether a module assigns a `Service` to a name. Raises `SyntaxError` or `ValueError` if the source is not
    valid Python.
    """
    for node in ast.parse(source.read_bytes(), str(source)).body:
        match node:
            case ast.Assign(value=ast.Call(func=called)) | ast.AnnAssign(value=ast.Call(func=called)):
                if isinstance(called, ast.Subscript):  # `Service[OrderState](...)`
                    called = called.value
                if isinstance(called, ast.Name) and called.id == "Service":
                    return True
                if isinstance(called, ast.Attribute) and called.attr == "Service":
                    return True
            case _:
                pass
    return False


def snapshot_files(root: Path, contracts: Path | None = None) -> Seen:
    """Scan all files below a folder that may be part of services, and the contracts if they are elsewhere.

    Hidden folders, virtual environments and tests are left out.
    """
    seen: dict[Path, tuple[int, int]] = {}
    for above in (root, *([contracts] if contracts is not None else [])):
        for path in _files_below(above):
            if len(seen) >= FILES_MAX:
                return seen
            try:
                found = path.stat()
            except OSError:
                continue  # the file was removed just now
            seen[path] = found.st_mtime_ns, found.st_size
    return seen


def _files_below(root: Path) -> Iterator[Path]:
    for above, folders, files in os.walk(root):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _LEFT_OUT)
        # A service may write JSON files of its own, so only those of contracts, manifests and packages are watched.
        has_data = "__init__.py" in files or Path(above).name == "manifests"
        for name in sorted(files):
            if name.endswith(_ENDINGS) or name in _DATA_FILES or (has_data and name.endswith(".json")):
                yield Path(above, name)


def changed_files(before: Seen, now: Seen) -> frozenset[Path]:
    """Return the files that were changed, created or removed between two scans."""
    return frozenset(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))


def affected_modules(paths: Collection[Path], modules: Collection[str], root: Path) -> tuple[str, ...]:
    """Return the modules that changes of these files affect.

    If every file belongs to one of the modules, or to its package, only those modules are affected. Otherwise all
    modules are, because contracts and shared code belong to all of them.
    """
    found = set[str]()
    for path in paths:
        of = {module for module in modules if _is_in(path, root.joinpath(*module.split(".")))}
        if not of:
            return tuple(modules)
        found |= of
    return tuple(module for module in modules if module in found)


def _is_in(path: Path, module: Path) -> bool:
    return module in path.parents or path == module.with_name(f"{module.name}.py")
