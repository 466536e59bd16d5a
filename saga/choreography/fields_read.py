"""Find the fields of events that a handler's code may read. The source is analysed; the code does not run.

The result may contain a field that is never read, but it never misses a field that may be read. If the code cannot be
followed, all fields of an event count as read: because the event is passed on as a whole, compared or printed, or
because the source is not available. Reads are attributes, `getattr` with a literal, and patterns of `match`; functions
of the same module are followed. `find_calls` finds steps, updates and idempotency keys in the same way."""

import ast
import builtins
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePath
from types import CodeType, FunctionType, NoneType

from saga.contracts.library import binding_of
from saga.contracts.schema import OptionalType, RecordType, Type
from saga.declarations.annotations import is_async
from saga.messages import Event

_VARIABLES = ("locals", "eval", "exec", "vars")
"""Functions that can read the variables of a function without naming them. The attribute `f_locals` of a frame can do
so, too."""
_Chain = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FieldsRead:
    """The fields of one event that may be read."""

    fields: frozenset[str] = frozenset()
    """Paths of the fields, such as `total`, or `address.street` in a nested record."""
    whole: str = ""
    """Why all fields count as read; empty if only `fields` are read."""

    def __or__(self, other: "FieldsRead") -> "FieldsRead":
        return FieldsRead(self.fields | other.fields, self.whole or other.whole)


def find_fields_read(
    function: Callable[..., object], parameter: str, events: Iterable[type[Event]]
) -> dict[type, FieldsRead]:
    """Return the fields that `function` may read of each class in `events`. The function receives the event as
    `parameter`."""
    classes = tuple(events)
    finding = _FieldUse(classes)
    finding.follow(function, parameter)
    return {event: _of(event, finding, classes) for event in classes}


@dataclass(frozen=True, slots=True)
class CodeCalls:
    """The calls of `Saga` methods in the code of a handler, sorted."""

    keys: tuple[str, ...]
    """Names of idempotency keys that are literals, such as `saga.idempotency_key("charge")`."""
    steps: tuple[str, ...] | None
    """First arguments of `saga.step`, such as `bank.reserve`; `None` if the `Saga` is passed to code that cannot be
    followed."""
    updates: tuple[str, ...] | None
    """Classes of the business documents in `saga.update`; `None` if the `Saga` is passed to code that cannot be
    followed."""


def find_calls(function: Callable[..., object], sagas: frozenset[str]) -> CodeCalls | None:
    """Return the calls of `Saga` methods in the code of a function, and in the functions of the same module that it
    calls. Return `None` if the source cannot be found.

    `sagas`: names of the parameters that receive the `Saga`.
    """
    source = find_source(function)
    if source is None:
        return None
    finding = _SagaCalls()
    finding.follow(source, sagas)
    names = tuple(sorted(finding.steps)), tuple(sorted(finding.updates))
    return CodeCalls(tuple(sorted(finding.keys)), *(names if finding.is_followed else (None, None)))


@dataclass(slots=True)
class _SagaCalls:
    """Collects the calls of `Saga` methods, by following the `Saga` through a function and its helpers."""

    keys: set[str] = field(default_factory=set)
    steps: set[str] = field(default_factory=set)
    updates: set[str] = field(default_factory=set)
    is_followed: bool = True
    """False if the `Saga`, or its `step` or `update`, is used in a way that cannot be followed."""
    seen: set[tuple[CodeType, frozenset[str]]] = field(default_factory=set)

    def follow(self, source: "FunctionSource", sagas: frozenset[str]) -> None:
        """Add the calls in a function that receives the `Saga` as the parameters `sagas`."""
        names = _with_aliases(source.node, sagas)
        if (source.code, names) in self.seen:
            return
        self.seen.add((source.code, names))
        understood = set[ast.AST]()
        for node in ast.walk(source.node):  # an expression comes before its parts
            match node:
                case ast.Call():
                    self.add(node)
                    understood |= self.follow_call(source, node, names)
                case ast.Attribute(attr=attr, value=value) if attr not in ("step", "update"):
                    understood.add(value)
                case ast.Assign(targets=targets, value=value) if all(map(_is_plain, targets)):
                    understood.add(value)
                case ast.Name(id=name, ctx=ast.Load()) if name in names and node not in understood:
                    self.is_followed = False
                case _:
                    pass

    def add(self, node: ast.Call) -> None:
        match node:
            case ast.Call(func=ast.Attribute(attr="idempotency_key"), args=[ast.Constant(value=str(name)), *_]):
                self.keys.add(name)
            case ast.Call(func=ast.Attribute(attr="step"), args=[call, *_]):
                self.steps.add(ast.unparse(call))
            case ast.Call(func=ast.Attribute(attr="update"), args=[kind, *_]):
                self.updates.add(ast.unparse(kind))
            case _:
                pass

    def follow_call(self, source: "FunctionSource", node: ast.Call, names: frozenset[str]) -> set[ast.AST]:
        """Follow a call into a function of the same module. Return the nodes of the call in which the use of the `Saga`
        is understood."""
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name) as saga)) if name in names:
                return {saga, *_arguments(node)}
            case ast.Call(func=ast.Name(id=name)) if (helper := find_helper(source, name)) is not None:
                pairs = [(to, arg) for to, arg in _pair_arguments(node, helper) or [] if to is not None]
                self.follow(helper, frozenset(to for to, arg in pairs if _is_name(arg, names)))
                return {arg for _, arg in pairs}
            case _:
                return set()


def find_direct_calls(function: Callable[..., object], resources: Mapping[str, type]) -> tuple[str, ...]:
    """Return the calls of resources in the code of a handler that bypass `saga.step`, each with its place: `bank.charge
    (in capture, shop/payment.py)`. The place has no line number, so that other changes of the module do not change the
    manifest.

    Calls in functions of the same module that receive the resource count as well. Calls in lambdas and inner functions
    do not count, because these may be passed to `saga.step`. Only calls that are recognisably async count: they are
    awaited, or the resource's type has an async method of this name.

    `resources`: types of the resources, by the names of the parameters that receive them."""
    finding = _DirectCalls()
    finding.follow(function, resources)
    return tuple(finding.calls)


@dataclass(slots=True)
class _DirectCalls:
    """Collects the calls of resources that bypass `saga.step`."""

    calls: dict[str, None] = field(default_factory=dict)
    seen: set[tuple[CodeType, tuple[str, ...]]] = field(default_factory=set)

    def follow(self, function: object, resources: Mapping[str, type]) -> None:
        """Add the calls in a function that receives the resources as these parameters."""
        source = find_source(function)
        if source is None or not resources or (source.code, tuple(resources)) in self.seen:
            return
        self.seen.add((source.code, tuple(resources)))
        named = {**resources}
        for name, type_ in resources.items():
            named |= dict.fromkeys(_aliases(source.node, {name}), type_)
        for node in _own_nodes(source.node):
            match node:
                case ast.Await(value=ast.Call(func=ast.Attribute() as called)) if _root(called) in named:
                    self.add(source, called)
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method) as called) if name in named:
                    if is_async_method(named[name], method):
                        self.add(source, called)
                case ast.Call(func=ast.Name(id=name)) if (helper := find_helper(source, name)) is not None:
                    pairs = _pair_arguments(node, helper) or []
                    given = {to: arg.id for to, arg in pairs if to is not None and isinstance(arg, ast.Name)}
                    self.follow(helper.function, {to: named[name] for to, name in given.items() if name in named})
                case _:
                    pass

    def add(self, source: "FunctionSource", called: ast.Attribute) -> None:
        self.calls[f"{ast.unparse(called)} (in {source.node.name}, {source.file})"] = None


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below a function in the order of the source. Lambdas, inner functions and classes are left
    out."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


def _root(node: ast.expr) -> str:
    """Return the variable with which a chain of attributes begins; empty if it begins with another expression."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_async_method(type_: type, name: str) -> bool:
    """Return whether a class has an async method of this name."""
    return is_async(getattr(type_, name, None))


def _pair_arguments(node: ast.Call, helper: "FunctionSource") -> list[tuple[str | None, ast.expr]] | None:
    """Return each argument of a call with the name of the parameter that receives it. The name is `None` for an
    argument that goes into `*args` or `**kwargs`. The whole result is `None` if the call unpacks arguments."""
    taking = helper.node.args
    by_place = [arg.arg for arg in (*taking.posonlyargs, *taking.args)]
    by_name = {arg.arg for arg in (*taking.args, *taking.kwonlyargs)}
    if any(isinstance(arg, ast.Starred) for arg in node.args) or any(word.arg is None for word in node.keywords):
        return None
    called: list[tuple[str | None, ast.expr]]
    called = [(by_place[i] if i < len(by_place) else None, arg) for i, arg in enumerate(node.args)]
    return called + [(word.arg if word.arg in by_name else None, word.value) for word in node.keywords]


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def find_helper(source: "FunctionSource", name: str) -> "FunctionSource | None":
    """Return the function of the same module to which a name refers; `None` if this is not certain."""
    helper = find_source(source.variables.get(name))
    if helper is None or helper.variables is not source.variables:
        return None
    return helper if is_bound_once(name, source.module) else None


@dataclass(slots=True)
class _FieldUse:
    """Collects the fields of an event that are read, by following one parameter through a function and its helpers."""

    classes: tuple[type[Event], ...]
    chains: set[tuple[type[Event] | None, _Chain]] = field(default_factory=set)
    """Chains of attributes that are read, such as `address.street`. Each has the event class to which it applies, or
    `None` if it applies to all classes."""
    whole: str = ""
    seen: set[tuple[object, str]] = field(default_factory=set)

    def follow(self, function: object, parameter: str) -> None:
        """Add the fields that a function reads of the event that it receives as `parameter`."""
        name = getattr(function, "__name__", repr(function))
        source = find_source(function)
        if source is None:
            self.give_up(f"the source of {name} is not known")
        elif (source.function, parameter) not in self.seen:
            self.seen.add((source.function, parameter))
            _Walk(self, source, parameter).walk(source.node.body)

    def give_up(self, reason: str) -> None:
        """Count all fields as read, for this reason."""
        self.whole = self.whole or reason


class _Walk:
    """Walks through the source of one function, in which one or several variables refer to the event."""

    def __init__(self, finding: _FieldUse, source: "FunctionSource", parameter: str) -> None:
        self.finding, self.source = finding, source
        self.names = _with_aliases(source.node, {parameter})
        self.local = set(_bound_names(source.node))

    def walk(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.Attribute():
                self.attribute(node)
            case ast.Name(id=name) if name in _VARIABLES:
                self.finding.give_up(f"{self.source.node.name} can see all variables by {name}")
            case ast.Name(id=name, ctx=ast.Load()) if name in self.names:
                self.finding.give_up(f"{self.source.node.name} hands it on whole")
            case ast.Assign(targets=targets, value=value) if self.is_event(value) and all(map(_is_plain, targets)):
                pass  # an assignment to a plain name only makes an alias
            case ast.Match(subject=subject, cases=cases) if self.is_event(subject):
                for case in cases:
                    self.pattern(case.pattern)
                    self.walk([case.guard] if case.guard else [])
                    self.walk(case.body)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if self.is_event(test):
                self.walk(child for child in ast.iter_child_nodes(node) if child is not test)
            case ast.UnaryOp(op=ast.Not(), operand=operand) if self.is_event(operand):
                pass
            case ast.Compare(ops=ops) if all(isinstance(op, ast.Is | ast.IsNot) for op in ops):
                self.walk(part for part in (node.left, *node.comparators) if not self.is_event(part))
            case ast.Call():
                self.call(node)
            case _:
                self.walk(ast.iter_child_nodes(node))

    def attribute(self, node: ast.Attribute) -> None:
        """Record a chain of attributes if it begins at the event; otherwise continue with the parts of the
        expression."""
        chain: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            chain.insert(0, inner.attr)
            inner = inner.value
        if "f_locals" in chain:
            self.finding.give_up(f"{self.source.node.name} can see all variables by f_locals")
        elif self.is_event(inner):
            self.finding.chains.add((None, tuple(chain)))
        else:
            self.visit(inner)

    def call(self, node: ast.Call) -> None:
        """Follow a call if the event is among its arguments."""
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        mine = [part for part in given if self.is_event(part)]
        if not mine:
            return self.walk(ast.iter_child_nodes(node))
        others: list[ast.AST] = [part for part in given if part not in mine]
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]) if self.is_builtin("isinstance"):
                if self.classes_in(kinds) is None:
                    self.finding.give_up(f"{self.source.node.name} asks whether it is something else than an event")
            case ast.Call(func=ast.Name(id="getattr"), args=[event, ast.Constant(value=str(name)), *_]) if (
                self.is_builtin("getattr") and mine == [event]
            ):
                self.finding.chains.add((None, (name,)))
            case ast.Call(func=ast.Name(id=name)) if (helper := find_helper(self.source, name)) is not None:
                self.hand_on(node, helper)
            case _:
                self.finding.give_up(f"{self.source.node.name} hands it on whole")
        self.walk(others)

    def hand_on(self, node: ast.Call, helper: "FunctionSource") -> None:
        """Follow the event into a function of the same module, through the parameter that receives it."""
        called = _pair_arguments(node, helper)
        if called is None:
            return self.finding.give_up(f"{self.source.node.name} hands it on whole")
        for name, arg in called:
            if not self.is_event(arg):
                continue
            if name is None:
                self.finding.give_up(f"{self.source.node.name} hands it on whole")
            else:
                self.finding.follow(helper.function, name)

    def pattern(self, pattern: ast.pattern) -> None:
        """Record the fields of the event that a `match` pattern reads. The variables that the pattern binds are already
        known as aliases."""
        match pattern:
            case ast.MatchAs(pattern=None):
                pass
            case ast.MatchAs(pattern=inner) if inner is not None:
                self.pattern(inner)
            case ast.MatchOr(patterns=patterns):
                for each in patterns:
                    self.pattern(each)
            case ast.MatchClass(cls=cls, patterns=[], kwd_attrs=names, kwd_patterns=inside) if (
                classes := self.classes_in(cls)
            ) is not None:
                self.finding.chains |= {(each, (name,)) for each in classes for name in names}
                self.walk(inside)
            case ast.MatchSingleton(value=None):
                pass
            case _:
                self.finding.give_up(f"{self.source.node.name} matches all of it")

    def classes_in(self, node: ast.expr) -> tuple[type[Event], ...] | None:
        """Return the event classes that an expression names, as in `isinstance`. `None` and `NoneType` in the
        expression are ignored. The result is `None` if the expression names anything else."""
        match node:
            case ast.Constant(value=None):
                return ()
            case ast.Tuple(elts=parts):
                return self.all_of(parts)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self.all_of([left, right])
            case ast.Name(id=name) if name not in self.local:
                found = self.source.variables.get(name)
                if found is NoneType:
                    return ()
                return (found,) if isinstance(found, type) and found in self.finding.classes else None
            case _:
                return None

    def all_of(self, parts: Iterable[ast.expr]) -> tuple[type[Event], ...] | None:
        found: tuple[type[Event], ...] = ()
        for part in parts:
            classes = self.classes_in(part)
            if classes is None:
                return None
            found += classes
        return found

    def is_event(self, node: ast.AST) -> bool:
        return _is_name(node, self.names)

    def is_builtin(self, name: str) -> bool:
        return name not in self.local and name not in self.source.variables and hasattr(builtins, name)


def _of(event: type[Event], finding: _FieldUse, classes: tuple[type[Event], ...]) -> FieldsRead:
    """Return what is read of one event, as paths of fields in its schema."""
    if finding.whole:
        return FieldsRead(whole=finding.whole)
    records: Mapping[type[Event], RecordType] = {each: binding_of(each).version.record for each in classes}
    paths = set()
    for only, chain in finding.chains:
        if not any(record.field(chain[0]) for record in records.values()):
            return FieldsRead(whole=f"{chain[0]} is read of it, which is no field")
        if only in (None, event) and records[event].field(chain[0]):
            paths.add(".".join(_path(records[event], chain)))
    return FieldsRead(frozenset(paths))


def _path(type_: Type, chain: _Chain) -> Iterator[str]:
    """Yield the names at the beginning of a chain of attributes that are names of fields."""
    while isinstance(type_, OptionalType):
        type_ = type_.inner
    found = type_.field(chain[0]) if isinstance(type_, RecordType) and chain else None
    if found is not None:
        yield found.name
        yield from _path(found.type, chain[1:])


def _with_aliases(node: ast.AST, names: Iterable[str]) -> frozenset[str]:
    """Return these variables, and all variables that are bound to one of them."""
    found, before = frozenset(names), -1
    while before != len(found):
        before = len(found)
        found |= {*_aliases(node, found)}
    return found


def _aliases(node: ast.AST, names: Set[str]) -> Iterator[str]:
    """Yield the variables that an assignment or a `match` pattern binds to the value of one of `names`."""
    for each in ast.walk(node):
        match each:
            case ast.Assign(targets=targets, value=value) if _is_name(value, names):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.Match(subject=subject, cases=cases) if _is_name(subject, names):
                for case in cases:
                    yield from _captured_names(case.pattern)
            case _:
                pass


def _captured_names(pattern: ast.pattern) -> Iterator[str]:
    """Yield the variables that a pattern binds to the whole matched value."""
    match pattern:
        case ast.MatchAs(pattern=inner, name=name):
            if name is not None:
                yield name
            if inner is not None:
                yield from _captured_names(inner)
        case ast.MatchOr(patterns=patterns):
            for each in patterns:
                yield from _captured_names(each)
        case _:
            pass


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Yield all names that a function binds, including those bound in its inner functions."""
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                if each is not node:
                    yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
            case ast.alias():
                yield each.asname or each.name.partition(".")[0]
            case _:
                pass


def _is_name(node: ast.AST, names: Set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _is_plain(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


# -------------------------------------------------------------------- source


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """A function with its syntax tree, and the syntax tree of its module."""

    function: object
    code: CodeType
    variables: Mapping[str, object]
    """Current variables of the function's module."""
    node: ast.FunctionDef | ast.AsyncFunctionDef
    module: ast.Module

    @property
    def file(self) -> str:
        """The path of the module, from the folder of its top package: the same on each machine."""
        path = PurePath(self.code.co_filename)
        parts = str(self.variables.get("__name__", "")).count(".") + 1 + (path.name == "__init__.py")
        return "/".join(path.parts[-parts:])


def find_source(function: object) -> "FunctionSource | None":
    """Return the source of a plain function. Return `None` if there is no source, if the function is a wrapper, or if
    the file has changed since it was imported."""
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        return None
    code = function.__code__
    parsed = _parse_file(code.co_filename, "".join(linecache.getlines(code.co_filename, function.__globals__)))
    if parsed is None:
        return None
    module, compiled = parsed
    if code not in _codes(compiled):
        return None
    nodes = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and min([node.lineno, *(each.lineno for each in node.decorator_list)]) == code.co_firstlineno
    ]
    return FunctionSource(function, code, function.__globals__, nodes[0], module) if len(nodes) == 1 else None


def is_bound_once(name: str, module: ast.Module) -> bool:
    """Return whether a name is bound at exactly one place in the module, whatever the scope."""
    places = 0
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                places += node.name == name
            case ast.Name(id=found, ctx=ast.Store() | ast.Del()) if found == name:
                places += 1
            case ast.alias():
                places += (node.asname or node.name.partition(".")[0]) in (name, "*")
            case ast.arg(arg=found) if found == name:
                places += 1
            case ast.Global(names=names) | ast.Nonlocal(names=names) if name in names:
                places += 1
            case ast.MatchAs(name=found) | ast.MatchStar(name=found) | ast.ExceptHandler(name=found) if found == name:
                places += 1
            case ast.MatchMapping(rest=found) if found == name:
                places += 1
            case _:
                pass
    return places == 1


@lru_cache(maxsize=256)
def _parse_file(file: str, text: str) -> tuple[ast.Module, CodeType] | None:
    if not text:
        return None
    try:
        return ast.parse(text, file), compile(text, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
