"""Which code graded: a hash over a function's or class's own code and over the helpers that it calls.

Invariant: edits elsewhere in the file, its line numbers and its path change nothing.  Followed are functions, classes
and plain constants of the same top-level package; what a module is reached through by attribute is not seen.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

_NAMES_ONLY = ("__module__", "__doc__", "__qualname__", "__firstlineno__", "__dict__", "__weakref__")
_PLAIN = (str, bytes, int, float, bool, type(None), re.Pattern)


def code_hash(thing: Any) -> str:
    """12 hex digits for a function, a class, a partial of one, or an instance (by its class)."""
    digest = hashlib.sha256()
    for part in _parts(thing, _root(thing), set()):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()[:12]


def _parts(thing: Any, root: str, seen: set[int]) -> Iterator[str]:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, functools.partial):
        yield f"{_stable(thing.args)} {_stable(thing.keywords)}"
        yield from _parts(thing.func, root, seen)
    elif isinstance(thing, staticmethod | classmethod) or inspect.ismethod(thing):
        yield from _parts(thing.__func__, root, seen)
    elif isinstance(thing, property):
        yield from _parts(thing.fget, root, seen)
    elif isinstance(thing, FunctionType):
        yield from _function(inspect.unwrap(thing), root, seen)
    elif inspect.isclass(thing):
        yield from _class(thing, root, seen)
    elif isinstance(thing, _PLAIN):
        yield _stable(thing)
    elif _root(thing) == root:
        yield from _class(type(thing), root, seen)


def _class(found: type, root: str, seen: set[int]) -> Iterator[str]:
    for cls in found.__mro__:
        if _root(cls) == root:
            for name, value in sorted(vars(cls).items()):
                if name not in _NAMES_ONLY:
                    yield name
                    yield from _parts(value, root, seen)


def _function(function: Any, root: str, seen: set[int]) -> Iterator[str]:
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return
    yield from _code(code)
    yield f"{_stable(function.__defaults__)} {_stable(function.__kwdefaults__)}"
    for name in sorted(_names(code)):
        value = function.__globals__.get(name)
        if isinstance(value, _PLAIN) and value is not None and not name.startswith("__"):
            yield f"{name}={_stable(value)}"
        elif (inspect.isfunction(value) or inspect.isclass(value)) and _root(value) == root:
            yield from _parts(value, root, seen)
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        yield from _parts(value, root, seen)


def _code(code: CodeType) -> Iterator[str]:
    yield f"{code.co_name} {code.co_code.hex()} {code.co_names} {code.co_varnames}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield _stable(constant)


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _stable(value: Any) -> str:
    """A ``repr`` without addresses and without the order of the hash seed."""
    if isinstance(value, frozenset | set):
        return f"set{sorted(map(repr, value))}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _root(thing: Any) -> str:
    module = getattr(thing, "__module__", None) or getattr(type(thing), "__module__", None) or ""
    return str(module).partition(".")[0]
