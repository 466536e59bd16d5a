"""Source of a function, found beside its code object: only what certainly is the code that runs."""

import ast
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType


@dataclass(frozen=True, slots=True)
class Source:
    """Function with its syntax tree, and the tree of its module."""

    function: object
    code: CodeType
    variables: Mapping[str, object]
    """Variables of its module, as they are now."""
    node: ast.FunctionDef | ast.AsyncFunctionDef
    module: ast.Module


def source_of(function: object) -> Source | None:
    """Source of a plain function; `None` if there is none, if it is a wrapper, or if the file holds other code by
    now."""
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        return None
    code = function.__code__
    parsed = _parsed(code.co_filename, "".join(linecache.getlines(code.co_filename, function.__globals__)))
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
    return Source(function, code, function.__globals__, nodes[0], module) if len(nodes) == 1 else None


def is_bound_once(name: str, module: ast.Module) -> bool:
    """True if one place in the module gives this name its meaning, whatever the scope."""
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
def _parsed(file: str, text: str) -> tuple[ast.Module, CodeType] | None:
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
