"""Finding a reward function again in another process: by dotted name, by its module's file, or by value.

Invariant: a reference is made where the function lives and resolved where it is called; making one runs nothing.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from pytest_areal_eval import areal_shim


def import_from_string(path: str) -> Any:
    """Import ``package.module.name``.

    Raises:
        ValueError: ``path`` is no dotted name.
        ImportError: the module cannot be found or its own imports fail.
        AttributeError: the module has no such name; the message offers the nearest one.
    """
    if not isinstance(path, str) or not all(path.rpartition(".")):
        raise ValueError(f"Invalid module path: {path!r}; write it as 'package.module.name'")
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        needs_areal = error.name == "areal" and not areal_shim.is_installed()
        hint = "; --areal-shim answers for it where AReaL is not installed" if needs_areal else ""
        raise ImportError(f"Failed to import module {module_name!r} from path {path!r}: {error}{hint}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        near = difflib.get_close_matches(name, dir(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"Module {module_name!r} has no attribute {name!r}{hint}") from None


@dataclass(frozen=True)
class FunctionRef:
    """A function, as it can be sent to another process.

    Attributes:
        name: how messages call it.
        module: the module to import it from, with ``file`` if it has one; empty for a dotted name.
        file: the module's source file.
        by_value: the pickled callable where it is no module-level function.
        sys_path: ``sys.path`` where it lives, so that its module's imports find the same modules.
        areal_shim: whether its module's imports of AReaL are answered by this package there.
    """

    name: str
    module: str = ""
    file: str = ""
    by_value: bytes = b""
    sys_path: tuple[str, ...] = ()
    areal_shim: bool = False

    def resolve(self) -> Callable[..., Any]:
        """The function.  Raises what its module raises as it is imported."""
        sys.path[:] = [*self.sys_path, *(entry for entry in sys.path if entry not in self.sys_path)]
        if self.areal_shim:
            areal_shim.install()
        if not self.module and not self.by_value:
            return _callable(import_from_string(self.name), self.name)
        found: Any = _import_module(self.module, self.file) if self.module else None
        if self.by_value:
            return _callable(pickle.loads(self.by_value), self.name)
        for part in self.name.split("."):
            found = getattr(found, part)
        return _callable(found, self.name)


def refer_to(fn: str | Callable[..., Any]) -> FunctionRef:
    """A reference to ``fn``: a dotted name, or any callable.

    Raises:
        TypeError: ``fn`` is neither, or holds something that cannot be pickled.
    """
    sys_path, shim = tuple(os.path.abspath(entry) for entry in sys.path), areal_shim.is_installed()
    if isinstance(fn, str):
        return FunctionRef(fn, sys_path=sys_path, areal_shim=shim)
    owner = _owner(_callable(fn, repr(fn)))
    module = sys.modules.get(getattr(owner, "__module__", None) or "")
    file = os.path.abspath(getattr(module, "__file__", None) or "") if _has_file(module) else ""
    module_name = module.__name__ if module is not None and module.__name__ != "__main__" else ""
    if isinstance(fn, FunctionType) and module_name and _lookup(module, fn.__qualname__) is fn:
        return FunctionRef(fn.__qualname__, module_name, file, sys_path=sys_path, areal_shim=shim)
    return FunctionRef(_name(fn), module_name, file, dump(fn), sys_path, shim)


def dump(value: Any) -> bytes:
    """Pickle ``value``; lambdas, closures and what ``__main__`` defines by value.

    Raises:
        TypeError: something in it cannot be pickled.
    """
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise TypeError(f"{_name(value)} cannot be sent to another process: {error}") from error


def _import_module(name: str, file: str) -> ModuleType | None:
    """The module ``name`` if it is the one in ``file``, else that file loaded under ``name``.

    pytest's importlib mode names modules that no ``sys.path`` leads to, and its prepend mode may leave two files with
    one name.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not file or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
    else:
        if not file or os.path.abspath(getattr(module, "__file__", None) or "") == file:
            return module
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be loaded as module {name!r}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _owner(fn: Any) -> Any:
    """Whose module must be importable where ``fn`` is unpickled."""
    inner = fn.func if isinstance(fn, partial) else fn
    bound = getattr(inner, "__self__", None)
    if bound is not None and not isinstance(bound, ModuleType):
        return bound if isinstance(bound, type) else type(bound)
    return inner if isinstance(inner, FunctionType | type) else type(inner)


def _lookup(module: ModuleType | None, qualname: str) -> Any:
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _has_file(module: ModuleType | None) -> bool:
    return (getattr(module, "__file__", None) or "").endswith(".py")


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", None) or type(value).__qualname__


def _callable(value: Any, name: str) -> Callable[..., Any]:
    if not callable(value):
        raise TypeError(f"{name} is a {type(value).__name__}, not a function")
    return value  # type: ignore[no-any-return]
