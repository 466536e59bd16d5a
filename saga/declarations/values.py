"""Frozen values that a service declares and the engine reads. `find_flags` finds the flags that the service's code
reads."""

import dis
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from inspect import getmro, unwrap
from types import CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any, Literal, TypeAlias, cast

from saga.declarations.annotations import EitherShape, OneEvent, ReturnShape, any_number_of, describe_returned
from saga.errors import ReturnNotAllowed
from saga.messages import Event
from saga.policies.breaker import Breaker
from saga.policies.retry import FailureRule, Retry
from saga.view import Later

Start: TypeAlias = Literal["beginning", "now"] | datetime
"""Where a service begins in a topic that it has never read: at the oldest record, at its own first start, or at a
time."""
ReactionKind: TypeAlias = Literal["handler", "compensation", "deadline"]
"""Kind of a reaction: a handler handles events, a compensation undoes what a handler did, and a deadline runs if no
other event came in time."""

_PADDING = ("CACHE", "PRECALL", "PUSH_NULL", "NOP", "EXTENDED_ARG")
"""Bytecode instructions that may stand between a method and its first argument, depending on the version of Python."""
_FOREIGN = sys.stdlib_module_names | {"saga"}
"""Packages whose code never reads a flag of a service, so it is not searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Parameter of a handler, and what it receives."""

    name: str
    role: Literal["event", "saga", "resource"]
    events: tuple[type[Event], ...] = ()
    """Event classes that the parameter accepts, if its role is `event`. A run gets one event."""
    optional: bool = False
    """True if the handler does not wait for the event, so the parameter may be `None`."""
    of_original: bool = False
    """True if a compensation gets this event because the handler that it undoes took it."""
    gives: type | None = None
    """Type of the resource that the parameter receives, if its role is `resource`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """A function of the service that runs in reaction to an event, an outcome or a time: a handler, compensation or
    deadline."""

    kind: ReactionKind

    service: str
    name: str
    function: Callable[..., Awaitable[object]]
    parameters: tuple[Parameter, ...]
    """Parameters in the order of the signature."""
    emits: tuple[type[Event], ...]
    """Events that the function may emit."""
    repeats: tuple[type[Event], ...] = ()
    """Events that may come several times in a saga. Each of them causes a run of its own. Empty if the function runs
    once in a saga."""
    retry: Retry | None
    """Retry rules of the function; `None` if the rules of a resource or of the service apply."""
    timeout_s: float
    undoes: str | None = None
    """Name of the handler that a compensation undoes."""
    within: timedelta | None = None
    """Time after its event at which a deadline is due."""
    unless: tuple[type[Event], ...] = ()
    """Events that cancel a deadline."""
    grace: timedelta | None = None
    """Time after its due time at which a deadline runs even if the log has not been handled up to the due time; `None`
    if it waits as long as necessary."""
    version: int = 1
    """Version of the function's behaviour. A run keeps the version under which it began."""
    irreversible: bool = False
    """True if what the function does cannot be undone: it must not happen before the success of the saga is certain."""
    low_priority: bool = False
    """True if messages for this function are delayed in favour of others while the worker is busy."""
    shape: ReturnShape | None = None
    """Shape of the returned value; if it is not given, any number of the events in `emits`."""
    may_wait: bool = field(init=False, default=False)
    """True if the function may return a `Later`."""
    _alone: frozenset[type] = field(init=False, repr=False, compare=False)
    """Events that the function may return alone, not in a tuple or list. They are checked first, as a fast path for the
    most common case."""

    def __post_init__(self) -> None:
        shape = any_number_of(self.emits) if self.shape is None else self.shape
        options = shape.parts if isinstance(shape, EitherShape) else (shape,)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "may_wait", shape.may_wait)
        object.__setattr__(
            self, "_alone", frozenset(option.event for option in options if isinstance(option, OneEvent))
        )

    @property
    def always_emits_one(self) -> bool:
        """Return whether the function always returns exactly one event."""
        options = self.shape.parts if isinstance(self.shape, EitherShape) else (self.shape,)
        return all(isinstance(option, OneEvent) for option in options)

    @property
    def needed_events(self) -> list[tuple[type[Event], ...]]:
        """Return the events that each required event parameter takes; the parameter in `repeats` comes first."""
        needed = [each.events for each in self.parameters if each.role == "event" and not each.optional]
        return sorted(needed, key=lambda events: events != self.repeats) if self.repeats else needed

    @property
    def taken_events(self) -> tuple[type[Event], ...]:
        """Return the events that the parameters take."""
        return tuple(event for parameter in self.parameters for event in parameter.events)

    @property
    def consumed_events(self) -> tuple[type[Event], ...]:
        """Return the events that the service has to consume because of this function."""
        return (*self.taken_events, *self.unless)

    def events_of(self, returned: object) -> tuple[Event, ...]:
        """Return the events in a returned value, in order. Raises `ReturnNotAllowed` if the return annotation does
        not allow the value.
        """
        if type(returned) in self._alone:
            return (returned,)  # type: ignore[return-value] # all of `_alone` are event classes
        assert self.shape is not None
        found = self.shape.fit(returned)
        if found is None:
            raise ReturnNotAllowed(
                f"{self.service}.{self.name} returned {describe_returned(returned)}, which its return annotation does "
                f"not allow: return {_names(self.emits)} as it says, or correct the annotation"
            )
        if self.may_wait:
            return tuple([each for each in found if isinstance(each, Event)])
        return cast("tuple[Event, ...]", found)

    def wait_of(self, returned: object) -> Later[Event | None] | None:
        """Return the `Later` in a returned value; `None` if there is none, so the run has ended. Raises
        `ReturnNotAllowed` if there are two."""
        if not self.may_wait or type(returned) in self._alone:
            return None
        assert self.shape is not None
        waits = [each for each in self.shape.fit(returned) or () if isinstance(each, Later)]
        if len(waits) > 1:
            raise ReturnNotAllowed(
                f"{self.service}.{self.name} returned {len(waits)} times Later: it goes on once, so return one"
            )
        return waits[0] if waits else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """An external system that handlers use, such as a bank."""

    name: str
    opener: Callable[[], AsyncIterator[object]]
    """Generator function that yields the client of the system once. The code after its `yield` closes the client."""
    gives: type
    timeout_s: float
    """Seconds that one call through `saga.step` may take."""
    expected_errors: tuple[type[Exception], ...]
    retry: Retry | None = None
    """Retry rules for attempts that failed because of a step on this resource."""
    breaker: Breaker | None = None
    at_once_max: int | None = None
    """Largest number of calls that run at once in one process; `None` if unlimited."""
    rate_per_s: float | None = None

    @property
    def is_limited(self) -> bool:
        """Return whether calls may be refused or delayed by a breaker or a limit."""
        return self.breaker is not None or self.at_once_max is not None or self.rate_per_s is not None

    @property
    def rule(self) -> FailureRule | None:
        """Return the retry rules of the resource, with its name."""
        return None if self.retry is None else FailureRule(self.name, self.retry)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentKind:
    """A kind of business document that handlers update or whose changes they receive."""

    kind: type
    collection: str
    expected_errors: tuple[type[Exception], ...]
    saga: str | None = None
    """Field of the document that holds the saga id of a change; `None` if the document's key is the saga id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A function that converts a state to the next version."""

    name: str
    version: int
    """Version of the state that the function takes."""
    function: Callable[[Any], object]
    takes: type
    gives: type


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Everything that a service has declared so far, in the order of declaration."""

    name: str
    state: type | None
    retention: timedelta
    renamed: str = ""
    """Name of the service in the code if it was renamed; `name` is then the first name, under which everything is
    stored."""
    start: Start | None = None
    """Where the service begins in a topic that it has never read; `None` if not declared, which means at the oldest
    record."""
    retry: Retry | None = None
    """Retry rules for failed attempts if neither the handler nor a resource has rules."""
    reactions: list[Reaction] = field(default_factory=list)
    resources: list[Resource] = field(default_factory=list)
    documents: list[DocumentKind] = field(default_factory=list)
    migrations: list[Migration] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Return the service's name in the code."""
        return self.renamed or self.name

    @property
    def handlers(self) -> list[Reaction]:
        """Return the reactions to events."""
        return [reaction for reaction in self.reactions if reaction.kind == "handler"]

    @property
    def deadlines(self) -> list[Reaction]:
        """Return the reactions to a time."""
        return [reaction for reaction in self.reactions if reaction.kind == "deadline"]

    @property
    def compensations(self) -> list[Reaction]:
        """Return the reactions to failure outcomes, each of which undoes a handler."""
        return [reaction for reaction in self.reactions if reaction.kind == "compensation"]


def _names(events: tuple[type[Event], ...]) -> str:
    return " or ".join(event.__name__ for event in events) or "nothing"


# -------------------------------------------------------------------- flags


_CONTAINERS = (list, tuple, set, frozenset, dict)
_PLAIN = frozenset({str, bytes, int, float, bool, NoneType})
"""Types of values that lead to no code. A table may have very many of them."""
OBJECTS_MAX = 20_000
"""Maximum number of objects that are searched for flags. If there are more, any flag may be read."""


def find_flags(declared: Declared) -> frozenset[str] | None:
    """Return the names of all flags that the code of a service may read; `None` if any flag may be read, because the
    name of one cannot be determined, or not all code can be searched."""
    found, known = set[str](), dict[int, object]()
    left: list[object] = [reaction.function for reaction in declared.reactions]
    left += [resource.opener for resource in declared.resources]
    own = frozenset(_package_of(getattr(there, "__module__", None)) for there in left) - _FOREIGN
    left += [resource.gives for resource in declared.resources]  # often a library's client, whose package is no own one
    while left:
        there = left.pop()
        if id(there) in known:
            continue
        known[id(there)] = there  # kept, so that no other object gets its id
        if len(known) > OBJECTS_MAX:
            return None
        if type(there) is not FunctionType:
            left += _parts_of(there, own)
            continue
        left.append(_unwrap(there))
        flags, names, is_own = set[str | None](), set[str](), _package_of(there.__module__) in own
        for code in () if _is_foreign(there.__module__) else _nested_code(there.__code__):
            names |= {*code.co_names}
            flags |= {*_flags_in(code), *(_unknown_imports(there, code) if is_own else ())}
        if None in flags:
            return None
        found |= {flag for flag in flags if flag is not None}
        left += [each for each in _named_objects(there, names) if is_own or type(each) not in _CONTAINERS]
    return frozenset(found)


def _nested_code(code: CodeType) -> Iterator[CodeType]:
    """Yield the code object of a function and of all functions nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_code(constant)


def _flags_in(code: CodeType) -> Iterator[str | None]:
    """Yield the argument of each call of a method `flag`. Yield `None` for each other use of an attribute `flag`, such
    as a call whose argument is not a string literal.
    """
    left = (each for each in dis.get_instructions(code) if each.opname not in _PADDING)
    for instruction in left:
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval == "flag":
            argument, call = next(left, None), next(left, None)
            is_plain = argument is not None and argument.opname == "LOAD_CONST" and isinstance(argument.argval, str)
            is_called = call is not None and call.opname.startswith("CALL")
            yield argument.argval if argument is not None and is_plain and is_called else None


def _unknown_imports(function: FunctionType, code: CodeType) -> Iterator[None]:
    """Yield `None` for each import within a function whose module is not loaded yet, so it cannot be searched."""
    names = [each.argval for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"]
    yield from (None for name in names if not _is_foreign(name) and not any(_modules_called(function, name)))


def _modules_called(function: FunctionType, name: str) -> Iterator[ModuleType]:
    """Yield the loaded modules that a function may mean by this name in an import, which may be relative."""
    package = function.__globals__.get("__package__") or ""
    for each in (name, f"{package}.{name}".rstrip(".")):
        module = sys.modules.get(each)
        if module is not None and not _is_foreign(each):
            yield module


def _named_objects(function: FunctionType, names: set[str]) -> Iterator[object]:
    """Yield the objects outside of a function that its code names: in its module, in other modules that it names or
    imports, and in enclosing functions."""
    for name in names & function.__globals__.keys():
        yield function.__globals__[name]
    modules = [function.__globals__[name] for name in names & function.__globals__.keys()]
    modules += [module for name in names for module in _modules_called(function, name)]
    for module in modules:
        if type(module) is ModuleType and not _is_foreign(module.__name__):
            yield from (vars(module)[each] for each in names & vars(module).keys())
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue


def _parts_of(there: Any, own: Collection[str]) -> Iterable[object]:
    """Return the objects through which an object may call other code: what a container, a `partial` or a method holds,
    the function that a decorator has wrapped, and the methods of a class.

    A class in one of the packages `own` is searched whole, and so are its instances. Of other classes only the methods
    are, because libraries have too much in them, and none of it can read a flag of this service by its name.
    """
    kind = type(there)
    if kind in _CONTAINERS:
        return [each for each in (there.values() if kind is dict else there) if type(each) not in _PLAIN]
    if kind is partial:
        return (there.func, *there.args, *there.keywords.values())
    if kind is MethodType:
        return (there.__func__, there.__self__)
    if kind in (staticmethod, classmethod):
        return (there.__func__,)
    if kind is property:
        return (there.fget,)
    if callable(there) and type(inner := _unwrap(there)) is FunctionType:
        return (inner,)
    is_class = issubclass(kind, type)
    found: list[object] = []
    for each in getmro(cast("type", there) if is_class else kind):
        if _package_of(each.__module__) in own:
            found += [member for name, member in vars(each).items() if name != "__annotations__"]
            found += [] if is_class else _attributes_of(there)
        elif not _is_foreign(each.__module__):
            found += [member for member in vars(each).values() if type(member) is FunctionType]
    return found


def _attributes_of(there: object) -> Iterator[object]:
    """Yield the values of an instance's attributes."""
    with suppress(Exception):  # it stands for an object that is not there yet, and raises anything
        yield from list(object.__getattribute__(there, "__dict__").values())
    for kind in getmro(type(there)):
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with suppress(Exception):  # it has no value yet
                yield object.__getattribute__(there, name)


def _unwrap(there: Callable[..., object]) -> object:
    try:
        return unwrap(there)
    except Exception:  # noqa: BLE001 - it wraps itself, or stands for an object that is not there yet and raises anything
        return there


def _is_foreign(module: str | None) -> bool:
    return _package_of(module) in _FOREIGN


def _package_of(module: str | None) -> str:
    """Return the name of the package to which a module belongs."""
    return (module or "builtins").partition(".")[0]
