"""Call fakes across processes: they remain objects of the test, and workers call them through a socket. On the same
socket workers report mistakes in the code of handlers and fakes.

Only our own processes use the socket, which is in a folder that only this user can enter. Therefore requests and
answers may be pickled.
"""

import asyncio
import inspect
import pickle
import socket as sockets
import threading
import types
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from saga.declarations.resources import Limits, with_limits
from saga.errors import SagaError
from saga.testing.code_mistakes import is_failed_check
from saga.testing.processes.worker_processes import CallLimits, RemoteFake

HEADER_BYTES = 8
"""Length in bytes of the header of a message, which contains the length of the rest."""
READY_S_MAX = 10.0
"""Maximum time in seconds that a fake may block its thread. A fake that blocks it longer counts as hanging."""
PICKLING = (pickle.PickleError, TypeError, AttributeError, ImportError, RecursionError, EOFError)
"""Exceptions which mean that a value cannot be sent from one process to another."""


ON_SELF = (types.FunctionType, property, cached_property)
"""Kinds of members that use data of the instance. The real fake with its data is in the test's process, so in a worker
these members raise `AttributeError`. Only the fake's async methods are forwarded.
"""


class CodeMistake(msgspec.Struct, frozen=True):
    """A mistake in the code of a handler or a fake that a worker has noticed."""

    text: str
    is_failure: bool
    """True if the mistake fails the test."""


REPORT = b"mistake"
"""First bytes of a report of a mistake. No pickled request begins with them."""


class CallRequest(NamedTuple):
    """One call of a fake."""

    number: int
    """Index of the fake among the test's fakes."""
    method: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]


class CallReply(NamedTuple):
    """Result of a call: a value, or an exception."""

    value: object = None
    raised: Exception | None = None


class FakeServer:
    """Runs the calls that workers make to the test's fakes, one after another, on a thread with an event loop of its
    own.

    If the caller is gone, because of a timeout or `kill -9`, the call is cancelled at its current `await`, as it would
    be in one process. Effects that it has already had remain.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.fakes: list[object] = []
        """The fakes. Requests refer to them by index, so fakes are added, but never removed."""
        self.mistakes: dict[CodeMistake, None] = {}
        """Mistakes that workers have reported, each once."""
        self._thread = threading.Thread(target=self._run_loop, name="outside", daemon=True)
        self._ready = threading.Event()
        self._refused: OSError | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._refused is not None:
            self._thread.join()
            raise SagaError(
                f"no socket at {self.socket} ({self._refused}): choose a shorter path for temporary files, by TMPDIR"
            ) from self._refused
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(READY_S_MAX)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Suspend all fakes within the block, so that their state can be checked. Raises `SagaError` if a fake has
        blocked its thread for `READY_S_MAX` seconds.
        """
        is_paused, go_on = threading.Event(), threading.Event()

        def pause_loop() -> None:
            is_paused.set()
            go_on.wait()

        self._loop.call_soon_threadsafe(pause_loop)
        try:
            if not is_paused.wait(READY_S_MAX):
                raise SagaError(f"a fake has kept its thread for {READY_S_MAX:.0f} s: let it wait by `await`")
            yield
        finally:
            go_on.set()

    # ---------------------------------------------------------------- in the server's thread

    def _run_loop(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._over, self._turn = asyncio.get_running_loop(), asyncio.Event(), asyncio.Lock()
        try:
            server = await asyncio.start_unix_server(self._on_connection, self.socket)
        except OSError as why:
            self._refused = why
            return
        finally:
            self._ready.set()
        async with server:
            await self._over.wait()
            if self._connections:  # their callers are gone, so each ends soon
                await asyncio.wait(self._connections)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None, "the server calls this in a task"
        self._connections.add(connection)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):  # the caller is gone
                request = await _receive(reader)
                if request.startswith(REPORT):
                    self.mistakes[msgspec.json.decode(request.removeprefix(REPORT), type=CodeMistake)] = None
                else:
                    await self._answer(request, reader, writer)
        finally:
            self._connections.remove(connection)
            writer.close()

    async def _answer(self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = self._loop.create_task(self._call(request))
        gone = self._loop.create_task(
            reader.read()
        )  # the caller sends nothing more, so this returns when the caller is gone
        try:
            await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                _send(writer, _encode_reply(call.result()))
                await writer.drain()
        finally:
            call.cancel()
            gone.cancel()
            await asyncio.gather(call, gone, return_exceptions=True)

    async def _call(self, request: bytes) -> CallReply:
        async with self._turn:
            try:
                number, method, args, kwargs = pickle.loads(request)
            except Exception as why:  # noqa: BLE001 - the arguments may be of any class
                return CallReply(raised=why)
            try:
                return CallReply(await getattr(self.fakes[number], method)(*args, **kwargs))
            except BaseException as why:
                if is_failed_check(why):
                    what = f"{type(self.fakes[number]).__name__}.{method} failed: {type(why).__name__}: {why}"
                    self.mistakes[CodeMistake(what, is_failure=True)] = None
                    return CallReply(raised=SagaError(what))
                if not isinstance(why, Exception):
                    raise
                return CallReply(raised=why)


def report_mistake(socket: Path, mistake: CodeMistake) -> None:
    """Report a mistake to the test's process, and wait until it is noted. Do nothing if that process has ended."""
    content = REPORT + msgspec.json.encode(mistake)
    with suppress(OSError), sockets.socket(sockets.AF_UNIX) as connection:
        connection.settimeout(READY_S_MAX)
        connection.connect(str(socket))
        connection.sendall(_with_length(content))
        connection.recv(1)  # returns when the server closes the connection


def make_remote_fake(gives: type, remote: RemoteFake, socket: Path) -> object:
    """Return an object for a worker process whose async methods call a fake of the test. Its class is a subclass of
    `gives` with the name of the fake's class.
    """

    def fill(namespace: dict[str, Any]) -> None:
        public = {name: inspect.getattr_static(gives, name) for name in dir(gives) if not name.startswith("_")}
        namespace |= {n: property(partial(_not_here, name=n)) for n, of in public.items() if isinstance(of, ON_SELF)}
        made = {name: _make_method(gives, remote.number, name, socket) for name in remote.calls}
        namespace |= {name: with_limits(made[name], _limits_of(limits, made)) for name, limits in remote.calls.items()}
        namespace["__getattr__"] = _not_here
        namespace["__init__"] = _made_as_it_is

    kind = types.new_class(remote.fake, (gives,), {}, fill)
    if hasattr(kind, "__abstractmethods__"):  # a call of a method that the fake lacks raises an error
        kind.__abstractmethods__ = frozenset()
    return kind()


def _limits_of(limits: CallLimits | None, made: Mapping[str, Callable[..., Any]]) -> Limits | None:
    """Return the limits of a method of the remote fake.

    `made`: all methods of the remote fake, by name. One of them may be the fallback of another.
    """
    if limits is None:
        return None
    return Limits(
        call=limits.call,
        timeout_s=limits.timeout_s,
        at_once_max=limits.at_once_max,
        rate_per_s=limits.rate_per_s,
        fallback=limits.remembered if limits.instead is None else made.get(limits.instead),
    )


def _make_method(gives: type, number: int, name: str, socket: Path) -> Callable[..., Awaitable[object]]:
    async def call(self: object, /, *args: object, **kwargs: object) -> object:
        try:
            request = pickle.dumps(CallRequest(number, name, args, kwargs))
        except PICKLING as why:
            raise SagaError(
                f"the arguments of {gives.__name__}.{name} cannot go to the fake in the test's process ({why}): pass "
                "plain values, and instances of classes at the top level of a module"
            ) from why
        reader, writer = await asyncio.open_unix_connection(socket)
        try:
            _send(writer, request)
            await writer.drain()
            reply = _decode_reply(await _receive(reader), f"{gives.__name__}.{name}")
        finally:
            writer.close()
        if reply.raised is not None:
            raise reply.raised
        return reply.value

    original = getattr(gives, name, None)
    if original is not None:
        return wraps(original)(call)  # `saga.step` uses the name and the annotations
    call.__name__ = name
    return call


def _not_here(self: object, name: str) -> object:
    raise AttributeError(
        f"{type(self).__bases__[0].__name__}.{name}: the fake is in the test's process, and only calls of its async "
        "methods reach it from a service"
    )


def _made_as_it_is(self: object) -> None:
    """Initialise nothing. This function replaces the `__init__` of the real class, which would connect or create
    state.
    """


# ---------------------------------------------------------------- bytes


def _send(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(_with_length(content))


def _with_length(content: bytes) -> bytes:
    return len(content).to_bytes(HEADER_BYTES, "big") + content


async def _receive(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(HEADER_BYTES), "big"))


def _encode_reply(reply: CallReply) -> bytes:
    try:
        return pickle.dumps(reply)
    except PICKLING as why:
        what = "what it returned" if reply.raised is None else f"{type(reply.raised).__name__}: {reply.raised}"
        return pickle.dumps(CallReply(raised=SagaError(f"{what} cannot go to another process: {why}")))


def _decode_reply(content: bytes, where: str) -> CallReply:
    try:
        reply: CallReply = pickle.loads(content)
    except PICKLING as why:
        raise SagaError(
            f"the answer of the fake of {where} cannot be read here ({type(why).__name__}: {why}): an exception must "
            "be creatable from its `args`, and a class be defined at the top level of a module"
        ) from why
    return reply
