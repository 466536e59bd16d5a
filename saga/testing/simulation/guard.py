"""The guard of a simulated world. It detects use of real time, randomness, threads, processes and the network, and
names the line of code that is responsible.

Nothing is patched. While the guard is active, the interpreter reports (`sys.setprofile`) every C function that Python
code calls in this thread. Every use of these things ends in one of a few C functions: `uuid.uuid4` in `os.urandom`,
`Thread.start` in `_thread.start_new_thread`. The guard detects the start of a thread, but not calls within the thread.

The guard does not detect calls that C code makes itself: in libraries written in C, or in `map(f, ...)`,
`functools.partial(f)` and `defaultdict(f)` if `f` is a C function. It does not report `time.localtime()`, which is
harmless with an explicit time.
"""

import _socket
import datetime
import gc
import inspect
import os
import random  # noqa: TID251 - names its functions, to detect calls of them; draws nothing
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType
from typing import NamedTuple, Self, TypeAlias

from saga.errors import SagaError

Profiler: TypeAlias = Callable[[FrameType, str, object], None]

CAUGHT_MAX = 20
"""Maximum number of stray calls that are recorded. One is enough to fail a test."""


class StrayKind(NamedTuple):
    """A kind of stray call. A call is stray if it uses something that a simulated world replaces or does not have, such
    as real time or threads.
    """

    why: str
    remedy: str


_FAKE = "make it a resource and give the world a fake"
TIME = StrayKind("has a time of its own", "take the event's own time, or hand a clock to the resource")
SLEEP = StrayKind("has a time of its own", "await asyncio.sleep: there it is the world's time that passes")
CHANCE = StrayKind(
    "runs the same again from the same seed",
    "saga.idempotency_key(name) gives an id that a rerun gives again; random.Random(that id), chance",
)
THREAD = StrayKind("has one thread", "await it, or make it a resource and give a fake")
PROCESS = StrayKind("has one process", _FAKE)
NETWORK = StrayKind("has no network", _FAKE)


@dataclass(frozen=True, slots=True)
class Stray:
    """A call whose result or effect comes from outside the simulated world, and the line of code responsible."""

    what: str
    """Name of the called C function, such as `time.time`."""
    file: str
    line: int
    function: str
    """Function that contains the responsible line."""
    remedy: str
    why: str
    through: str | None = None
    """Function that the responsible line calls, such as `uuid.uuid4`; `None` if it calls `what` itself."""

    def __str__(self) -> str:
        through = f" through {self.through}" if self.through else ""
        return (
            f"{self.file}:{self.line} in {self.function} calls {self.what}{through}: "
            f"a simulated world {self.why}; {self.remedy}"
        )


@dataclass(slots=True)
class Guard:
    """A context manager that detects stray calls and collects them in `caught`. Blocks with the same guard may be
    nested.

    Python's cyclic garbage collector is disabled meanwhile. It runs at any point, and a finalizer of an earlier test's
    garbage would be taken for a call of the code that runs at that point.
    """

    caught: list[Stray] = field(default_factory=list)
    """The detected stray calls. Calls of the same function on the same line are recorded once."""
    active: bool = False
    """True if the guard detects calls, or did so in its last block. False if another profiler was already set, because
    the guard does not replace that one.
    """
    _entered: int = 0
    _profiler: Profiler | None = None
    _collected_before: bool = False

    def __enter__(self) -> Self:
        self._entered += 1
        if self._entered == 1:
            self._collected_before = gc.isenabled()
            gc.disable()
            self.active = sys.getprofile() is None
            if self.active:
                self._profiler = _make_profiler(self._record_stray_call)
                sys.setprofile(self._profiler)
        return self

    def __exit__(self, *exc: object) -> None:
        self._entered -= 1
        if self._entered == 0:
            if self._profiler is not None and sys.getprofile() is self._profiler:
                sys.setprofile(None)
            self._profiler = None
            if self._collected_before:
                gc.enable()

    def check(self) -> None:
        """Raise `SagaError` for the first stray call, if there is one."""
        if self.caught:
            raise SagaError(str(self.caught[0]))

    def _record_stray_call(self, frame: FrameType, called: object) -> None:
        """Record the call if it is stray. `called` is `None` if the frame creates a socket."""
        if (
            len(self.caught) < CAUGHT_MAX
            and (call := _identify_stray_call(called, frame))
            and (who := _find_culprit(frame))
        ):
            stray = Stray(call.what, who.file, who.line, who.function, call.kind.remedy, call.kind.why, who.through)
            if all((stray.what, stray.file, stray.line) != (s.what, s.file, s.line) for s in self.caught):
                self.caught.append(stray)


def _make_profiler(look: Callable[[FrameType, object], None]) -> Profiler:
    """Return a profiler that passes possible stray calls to `look`. The interpreter calls the profiler for every call
    and return in this thread, so the profiler must return quickly for nearly all of them.

    It is a plain function, because a method would take 25 % longer.
    """

    def profiler(frame: FrameType, event: str, called: object) -> None:
        if event == "c_call":
            if called.__name__ in _NAMES:  # type: ignore[attr-defined]  # a builtin: the event says so
                look(frame, called)
        elif event == "call" and frame.f_code is _SOCKET_MADE:
            look(frame, None)

    return profiler


# ---------------------------------------------------------------- the called function


class Call(NamedTuple):
    """A stray C function, with its name as shown in messages, and its kind."""

    what: str
    kind: StrayKind


_IN_MODULES: tuple[tuple[StrayKind, str, str], ...] = (
    (TIME, "time", "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns"),
    (TIME, "time", "thread_time thread_time_ns clock_gettime clock_gettime_ns"),
    (SLEEP, "time", "sleep"),
    (CHANCE, "os", "urandom getrandom"),
    (CHANCE, "random", "random getrandbits"),  # of the shared instance only
    (CHANCE, "_uuid", "generate_time_safe"),
    (CHANCE, "_ssl", "RAND_bytes"),
    (THREAD, "_thread", "start_new_thread start_joinable_thread"),
    (PROCESS, "_posixsubprocess", "fork_exec"),
    (PROCESS, "_winapi", "CreateProcess"),
    (PROCESS, "os", "fork forkpty posix_spawn posix_spawnp system"),
    (NETWORK, "_socket", "getaddrinfo getnameinfo gethostbyname gethostbyname_ex gethostbyaddr"),
    (NETWORK, "select", "select"),
)  # fmt: skip


def _list_functions() -> Iterator[tuple[BuiltinFunctionType, Call]]:
    for kind, module, names in _IN_MODULES:
        try:
            there = vars(import_module(module))
        except ImportError:  # does not exist on this system, or in this version
            continue
        for name in names.split():
            if isinstance(function := there.get(name), BuiltinFunctionType):
                yield function, Call(f"{module}.{name}", kind)


_FUNCTIONS = dict(_list_functions())
_OF_DATES = {"now": datetime.datetime, "utcnow": datetime.datetime, "today": datetime.date}
_OF_SOCKETS = frozenset({"connect", "connect_ex", "bind", "listen", "_accept", "send", "sendall", "sendto", "sendmsg"})
_POLLS = frozenset({"epoll", "poll", "kqueue", "devpoll"})
_NAMES = frozenset({f.__name__ for f in _FUNCTIONS} | set(_OF_DATES) | _OF_SOCKETS | {"seed", "poll", "control"})
_SOCKET_MADE = socket.socket.__init__.__code__
"""Code of the Python function that creates a socket. The guard watches it because the interpreter does not report the C
part of creating a socket.
"""
_SEEDED = random.Random.seed.__code__


def _identify_stray_call(called: object, frame: FrameType) -> Call | None:
    """Return the name and kind of the call if it is stray, else `None`. No code of the caller is run."""
    if called is None:  # the only Python function that is watched
        return Call("socket.socket", NETWORK)
    assert isinstance(called, BuiltinFunctionType)
    if (call := _FUNCTIONS.get(called)) is not None:
        return call
    name, owner = called.__name__, called.__self__
    kind = type(owner)
    if name in _OF_DATES:
        if not (isinstance(owner, type) and issubclass(owner, _OF_DATES[name])):
            return None
        return Call(f"{'datetime' if issubclass(owner, datetime.datetime) else 'date'}.{name}", TIME)
    if name == "seed":
        return _identify_seeding(owner, frame)
    if name in _OF_SOCKETS:
        return Call(f"socket.{name.lstrip('_')}", NETWORK) if issubclass(kind, _socket.socket) else None
    return Call(f"select.{kind.__name__}.{name}", NETWORK) if kind.__name__ in _POLLS else None


def _identify_seeding(owner: object, frame: FrameType) -> Call | None:
    """Return the call if it seeds the shared random generator (`random.seed(...)`), or creates a `random.Random()`
    without a seed; else `None`.
    """
    if owner is random._inst:
        return Call("random.seed", CHANCE)
    unseeded = frame.f_code is _SEEDED and frame.f_locals.get("a", owner) is None
    return Call("random.Random.seed(None)", CHANCE) if unseeded else None


# ---------------------------------------------------------------- the caller


class CodeOwner(Enum):
    """Whose code a file contains."""

    THEIRS = auto()
    THIRD_PARTY = auto()
    OURS = auto()
    OUR_CLOCK = auto()
    TESTING = auto()
    STANDARD = auto()
    GENERATED = auto()


class Caller(NamedTuple):
    """The line of code that leads to a stray call and must be changed."""

    file: str
    line: int
    function: str
    through: str | None


_INNOCENT = frozenset({"hypothesis", "importlib", "linecache", "logging", "structlog", "traceback", "warnings"})
"""Libraries whose use of time and chance does not affect a run: they log the time, load a module, or have a seed of
their own.
"""
_SAGA = Path(__file__).parents[2]
_FOLDERS = (
    *((str(_SAGA / "testing") + os.sep, CodeOwner.TESTING), (str(_SAGA) + os.sep, CodeOwner.OURS)),
    *((sysconfig.get_path(name) + os.sep, CodeOwner.THIRD_PARTY) for name in ("purelib", "platlib")),
    *((sysconfig.get_path(name) + os.sep, CodeOwner.STANDARD) for name in ("stdlib", "platstdlib")),
    (os.path.dirname(os.__file__) + os.sep, CodeOwner.STANDARD),
)


@lru_cache(maxsize=1024)
def _owner_of(file: str) -> CodeOwner:
    """Return the owner of a file's code. Folders are checked in a fixed order, because site-packages is inside the
    standard library's folder.
    """
    if file.startswith("<frozen "):
        return CodeOwner.STANDARD
    if file == "<string>" or file.startswith("<attrs "):
        return CodeOwner.GENERATED
    if file == str(_SAGA / "support" / "clock.py"):
        return CodeOwner.OUR_CLOCK
    for folder, owner in _FOLDERS:
        if file.startswith(folder):
            return owner
    installed = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return CodeOwner.THIRD_PARTY if installed else CodeOwner.THEIRS


def _find_culprit(frame: FrameType | None) -> Caller | None:
    """Return the nearest line of the user's own code that led to the call; `None` if the call is harmless or not caused
    by the user.

    The search ends at the frames of the world itself, because the test that runs the world is not to blame. If no line
    of the user's code is found, return a line in a library that the user chose, or in the toolkit.
    """
    hooks = [
        getattr(hook, "__code__", None) for hook in gc.callbacks
    ]  # the interpreter may run these hooks at any point
    path: list[tuple[FrameType, CodeOwner]] = []
    while frame is not None:
        owner = _owner_of(frame.f_code.co_filename)
        path.append((frame, owner))
        if any(frame.f_code is hook for hook in hooks):
            return None
        if owner is CodeOwner.THEIRS:
            return _describe_caller(path, len(path) - 1)
        if owner is CodeOwner.TESTING:
            break
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _INNOCENT:
            return None
        frame = frame.f_back
    index = _find_next_best(path)
    return None if index is None else _describe_caller(path, index)


def _find_next_best(path: Sequence[tuple[FrameType, CodeOwner]]) -> int | None:
    """Return the index of the frame to name if no frame is the user's own code: generated code in a user's file, else
    the outermost frame in a library, else the nearest frame in the toolkit. Return `None` if there is none of these.
    """
    of = {owner: [i for i, (_, there) in enumerate(path) if there is owner] for owner in CodeOwner}
    for i in of[CodeOwner.GENERATED]:
        if _owner_of(str(path[i][0].f_globals.get("__file__", "<string>"))) is CodeOwner.THEIRS:
            return i
    ours = of[CodeOwner.OURS] or of[CodeOwner.OUR_CLOCK]
    if libraries := [i for i in of[CodeOwner.THIRD_PARTY] if not ours or i < ours[0]]:
        return libraries[-1]
    return ours[0] if ours else None


def _describe_caller(path: Sequence[tuple[FrameType, CodeOwner]], index: int) -> Caller:
    frame, owner = path[index]
    through = None if index == 0 else _name_of(path[index - 1][0])
    file, line, function = frame.f_code.co_filename, frame.f_lineno or 0, _short_name(frame.f_code)
    if owner is CodeOwner.GENERATED:
        # A generated `__init__` of a dataclass, with `field(default_factory=time.time)`: only the class can be found.
        made = type(frame.f_locals.get("self"))
        file, function = str(frame.f_globals["__file__"]), f"{made.__qualname__}.{frame.f_code.co_name}"
        line = _line_of(made)
    return Caller(file, line, function, through)


def _line_of(made: type) -> int:
    try:
        return inspect.getsourcelines(made)[1]
    except (OSError, SyntaxError, TypeError):  # no source file, a changed one, or a built-in class
        return 1


def _name_of(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '?')}.{_short_name(frame.f_code)}"


def _short_name(code: CodeType) -> str:
    """Return the function's name without the names of enclosing functions: `pay`, even if `pay` is defined inside
    another function.
    """
    return code.co_qualname.rpartition("<locals>.")[2]
