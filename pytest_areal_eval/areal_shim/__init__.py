"""``from areal.… import …`` without AReaL: its names resolve to this package's.

Invariant: AReaL itself, where it is installed, always wins: the finder stands behind all others, and nothing on disk is
named ``areal``.  ``--areal-shim`` turns it on for a session; a script calls :func:`install` before its imports.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from pytest_areal_eval.areal_shim import training
from pytest_areal_eval.areal_shim.surface import SURFACE

__all__ = ["install", "is_installed", "uninstall"]


def install() -> bool:
    """Let ``areal`` resolve to this package wherever AReaL is not installed.

    Returns:
        False where it was on before.
    """
    if is_installed():
        return False
    sys.meta_path.append(_Finder())
    return True


def uninstall() -> None:
    """Undo :func:`install`; what was imported meanwhile keeps what it imported."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "areal" and _is_ours(name)]:
        del sys.modules[name]


def is_installed() -> bool:
    """Whether :func:`install` was called in this process."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of :data:`SURFACE` and those for training.

    All are packages: so a name that one lacks is asked for here as well.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "areal" or ("areal" in sys.modules and not _is_ours("areal")):
            return None
        if fullname in SURFACE or training.is_module(fullname):
            return ModuleSpec(fullname, self, is_package=True)
        # Not the name that was asked for: an error that bears it would be replaced by a shorter one.
        raise ModuleNotFoundError(_missing(fullname), name="areal")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name, f"This package's part of ``{spec.name}``.")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: names are looked up when they are asked for."""


class _Module(ModuleType):
    """A module whose names live elsewhere, or are only for training."""

    def __getattr__(self, name: str) -> Any:
        home = SURFACE.get(self.__name__, {}).get(name)
        if home is None and training.is_name(self.__name__, name):
            return training.stand_in(self.__name__, name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, _, attribute = home.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            said = (
                f"{self.__name__} needs {error.name}, which is not installed: pip install 'pytest-areal-eval[agents]'"
            )
            raise ModuleNotFoundError(said, name=error.name) from error

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *SURFACE.get(self.__name__, ())]


def _is_ours(name: str) -> bool:
    return isinstance(sys.modules.get(name), _Module)


def _missing(fullname: str) -> str:
    """What is not here, and what is."""
    parent, _, name = fullname.rpartition(".")
    while parent not in SURFACE:
        parent, _, name = parent.rpartition(".")
    below = [module.rpartition(".")[2] for module in SURFACE if module.rpartition(".")[0] == parent]
    has = ", ".join(sorted({*SURFACE[parent], *below}))
    return (
        f"cannot import {name!r} from {parent!r}: AReaL is not installed, and what stands in for it has no {fullname}\n"
        f"{parent} has: {has}.  For the rest install AReaL."
    )
