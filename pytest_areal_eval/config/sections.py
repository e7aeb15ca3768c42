"""The sections of a configuration that an evaluation reads: references followed, unknown keys found, types checked.

Invariant: what is not read is not resolved either, so a training section can break nothing.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from pytest_areal_eval.config.overrides import REFERENCE, keys_of, nearest
from pytest_areal_eval.config.schema import IGNORED, Config, Origin, Sections
from pytest_areal_eval.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_KINDS = {"Integer": "a whole number", "Float": "a number", "bool": "true or false", "tring": "text"}


class Reader:
    """Resolves and checks the sections that are read, one after the other."""

    def __init__(self, tree: dict[str, Any], origins: Mapping[str, Origin]) -> None:
        self._tree, self._places = tree, origins
        self._found: dict[str, Origin] = {}
        self._unknown: list[str] = []

    def read(self) -> Config:
        """Every section, or one error."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            root = OmegaConf.create(self._tree)
        except OmegaConfBaseException as error:  # an override's reference that cannot be read
            raise self._unresolved(getattr(error, "full_key", None) or "", error) from None
        values: dict[str, Any] = {}
        kinds = get_type_hints(Sections)
        self._look_for_unknown("", self._tree, [f.name for f in dataclasses.fields(Sections)])
        for entry in dataclasses.fields(Sections):
            if entry.name in self._tree:
                value = self._resolve(root, entry.name)
                if value is not _MISSING and not (value is None and _is_container(entry)):
                    values[entry.name] = self._known_part(entry.name, kinds[entry.name], value)
        self._inherit(values)
        sections = self._checked(values)
        return Config(**sections, origins=self._found, unknown=tuple(self._unknown))

    def _inherit(self, values: dict[str, Any]) -> None:
        """``eval_gconfig`` is ``gconfig`` where it does not say otherwise."""
        base, own = values.get("gconfig", {}), values.get("eval_gconfig", {})
        if isinstance(base, dict) and isinstance(own, dict):
            values["eval_gconfig"] = base | own
            for name in base.keys() - own.keys():
                origin = self._found[f"gconfig.{name}"]
                self._found[f"eval_gconfig.{name}"] = dataclasses.replace(origin, through=("gconfig", *origin.through))

    def _resolve(self, root: Any, name: str) -> Any:
        """A section with its references followed."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            if OmegaConf.is_missing(root, name):
                return _MISSING
            return _resolved(root[name], get_type_hints(Sections)[name])
        except (OmegaConfBaseException, RecursionError) as error:
            raise self._unresolved(getattr(error, "full_key", None) or name, error) from None

    def _unresolved(self, key: str, error: BaseException) -> ConfigError:
        said = str(error).splitlines()[0] if str(error) else "nested too deeply"
        variable = re.search(r"Environment variable '(.+)' not found", said)
        key = re.sub(r"\[(\d+)\]", r".\1", key)
        key = self._chain(key)[-1] if variable else key
        place, text = self._places.get(key), self._text_at(key)
        where = f"{place.place}: {key}" if place else key
        if variable is not None:
            hint = f"Set it, or override the key: {key}=VALUE."
            return ConfigError(f"{where}: {text}: the environment variable {variable[1]} is not set", hint)
        missing = re.search(r"Interpolation key '(.+)' not found", said)
        if missing is not None:
            close = nearest(missing[1], keys_of(self._tree))
            hint = f"Did you mean ${{{close}}}?" if close else "A reference is the whole path of another key: ${a.b}."
            return ConfigError(f"{where}: {text} refers to {missing[1]}, which does not exist", hint)
        if isinstance(error, RecursionError) or "Recursive" in said or "parent node" in said:
            chain = " -> ".join(self._chain(key))
            return ConfigError(f"{where}: {text} refers to itself: {chain}", "Give one of them a value.")
        return ConfigError(f"{where}: {text}: {said}")

    def _chain(self, key: str) -> list[str]:
        chain = [key]
        while (match := REFERENCE.search(str(self._text_at(chain[-1])))) and match[1] not in chain:
            chain.append(match[1])
        return [*chain, match[1]] if match else chain

    def _text_at(self, key: str) -> Any:
        node: Any = self._tree
        for part in key.replace("[", ".").replace("]", "").split("."):
            if isinstance(node, dict) and part in node:
                node = node[part]
            elif isinstance(node, list) and part.isdecimal() and int(part) < len(node):
                node = node[int(part)]
            else:
                return ""
        return node

    def _known_part(self, key: str, kind: Any, value: Any) -> Any:
        """What a section's class has fields for; where each came from is noted."""
        shape = _shape(kind)
        if shape is not None and value is not None and not isinstance(value, shape):
            what = "a list" if shape is list else "a mapping of keys to values"
            raise ConfigError(f"{self._origin(key).place}: {key}: {value!r} is not {what}")
        if not is_class(kind):
            self._found[key] = self._origin(key)
            if isinstance(value, dict):
                self._found |= {f"{key}.{below}": self._origin(f"{key}.{below}") for below in value}
            inner = next((part for part in get_args(kind) if is_class(part)), None)
            if inner is not None and isinstance(value, list):
                return [self._known_part(f"{key}.{i}", inner, one) for i, one in enumerate(value)]
            return value
        hints, entries = get_type_hints(kind), {entry.name: entry for entry in dataclasses.fields(kind)}
        self._look_for_unknown(key, value, list(hints))
        return {
            name: self._known_part(f"{key}.{name}", hints[name], child)
            for name, child in value.items()
            if name in entries and not (child is None and _is_container(entries[name]))
        }

    def _look_for_unknown(self, key: str, value: Mapping[Any, Any], known: Sequence[str]) -> None:
        section = ".".join(part for part in key.split(".") if not part.isdecimal())
        if section == "actor":
            return
        for name in value:
            if name not in known and name not in IGNORED.get(section, ()):
                close = difflib.get_close_matches(str(name), [*known, *IGNORED.get(section, ())], n=1, cutoff=0.86)
                full = f"{key}.{name}".lstrip(".")
                self._unknown.append(f"{full} (did you mean {close[0]}?)" if close else full)

    def _origin(self, key: str, seen: tuple[str, ...] = ()) -> Origin:
        """Where a key's value came from, following references of the key itself and of what holds it."""
        parts = key.split(".")
        for depth in range(len(parts), 0, -1):
            held = ".".join(parts[:depth])
            text = self._text_at(held)
            match = REFERENCE.search(text) if isinstance(text, str) else None
            if match is not None and held not in seen:
                rest = "".join(f".{part}" for part in parts[depth:])
                own, there = self._places.get(held), self._origin(match[1] + rest, (*seen, held))
                typed = there.typed or (own is not None and own.typed)
                return Origin((own or there).place, typed, (match[1] + rest, *there.through))
            if held in self._places:
                return self._places[held]
        return Origin("")

    def _checked(self, values: dict[str, Any]) -> dict[str, Any]:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            merged: DictConfig = OmegaConf.merge(OmegaConf.structured(Sections), values)  # type: ignore[assignment]
            made: Any = OmegaConf.to_object(merged)
        except OmegaConfBaseException as error:
            raise self._wrong(error) from None
        return {entry.name: getattr(made, entry.name) for entry in dataclasses.fields(Sections)}

    def _wrong(self, error: Any) -> ConfigError:
        key = (getattr(error, "full_key", None) or "").replace("[", ".").replace("]", "")
        origin = self._found.get(key) or self._origin(key)
        value, said = getattr(error, "value", None), str(error).splitlines()[0]
        kind = next((words for name, words in _KINDS.items() if name in said), None)
        where = f"{origin.place}: {key}" if origin.place else key
        if value is None and "None" in said:
            return ConfigError(f"{where}: null is no value for it", f"Leave {key} out for AReaL's default.")
        if kind is not None and value is not None:
            return ConfigError(f"{where}: {value!r} is not {kind}")
        return ConfigError(f"{where}: {said}")


class _Missing:
    """``???``: to be given by somebody else."""


_MISSING: Any = _Missing()


def _resolved(node: Any, kind: Any) -> Any:
    """What a node holds, with references followed; of a class's mapping only its fields, and ``???`` left out."""
    from omegaconf import OmegaConf

    if not OmegaConf.is_config(node):
        return node
    cls = next((part for part in (kind, *get_args(kind)) if is_class(part)), None)
    if OmegaConf.is_list(node):
        return [_resolved(node[i], cls) for i in range(len(node))]
    fields = None if cls is None else get_type_hints(cls)
    result: dict[Any, Any] = {}
    for name in node:
        if fields is not None and name not in fields:
            result[name] = None  # its name is looked at, and not its value
        elif not OmegaConf.is_missing(node, name):
            result[name] = _resolved(node[name], fields and fields[name])
    return result


def _is_container(entry: dataclasses.Field[Any]) -> bool:
    """Whether null means "all defaults" for a field."""
    return entry.default_factory is not dataclasses.MISSING


def _shape(kind: Any) -> type | None:
    """``list`` or ``dict`` where a field holds one or a class's fields; None for a single value."""
    if is_class(kind):
        return dict
    origins = [get_origin(part) for part in (kind, *get_args(kind))]
    return next((shape for shape in (list, dict) if shape in origins), None)


def is_class(kind: Any) -> bool:
    """Whether a field's type is one of the section classes."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)
