"""From an AReaL YAML file and overrides to a :class:`Config` that knows where each value came from.

Invariant: only what an evaluation reads is resolved and checked, so a training section can break nothing; nothing is
written to disk and nothing else is touched.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from pytest_areal_eval.config.overrides import REFERENCE, Override, apply, keys_of, nearest, parse_override
from pytest_areal_eval.config.schema import IGNORED, Sections
from pytest_areal_eval.config.source import read_yaml
from pytest_areal_eval.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_KINDS = {"Integer": "a whole number", "Float": "a number", "bool": "true or false", "tring": "text"}


@dataclass(frozen=True)
class Origin:
    """Where a value came from.

    Attributes:
        place: ``FILE:LINE``, or the override as it was typed.
        typed: whether an override had a part in it.
        through: the references that led there, such as ``actor.path``.
    """

    place: str
    typed: bool = False
    through: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.place + "".join(f", ${{{key}}}" for key in self.through)


@dataclass(frozen=True)
class Config(Sections):
    """What an evaluation reads of a configuration.

    Attributes:
        origins: for each key that was given (``rollout.backend``), where it came from.
        unknown: keys that neither evaluation nor AReaL knows, each with the nearest known one; they are ignored.
    """

    origins: Mapping[str, Origin] = field(default_factory=dict)
    unknown: Sequence[str] = ()

    def given(self, key: str) -> bool:
        """Whether the file or an override says something about a key."""
        return key in self.origins


def load_config(path: str | Path, overrides: Sequence[str] = (), *, name: str = "", label: str = "") -> Config:
    """Read a configuration.

    Args:
        path: AReaL's YAML file.
        overrides: ``k=v``, ``+k=v``, ``++k=v``, ``~k``, with Hydra's meaning.
        name: what messages call the file; default: its path.
        label: what stands before an override in messages, such as ``--set``.

    Raises:
        ConfigError: the file cannot be read, an override names nothing, a reference leads nowhere or round in a circle,
            or a value has the wrong type; the message names the file and line, or the override.
    """
    tree, places = read_yaml(Path(path), name or str(path))
    origins = {key: Origin(place) for key, place in places.items()}
    for text in overrides:
        try:
            override = parse_override(text)
            _refuse_unknown(override)
            apply(override, tree, known_keys())
        except ConfigError as error:
            raise ConfigError(f"{label} {error.args[0]}".strip(), error.hint) from None
        _note(override, origins, f"{label} {override.text}".strip())
    return _Reader(tree, origins).read()


def known_keys(cls: type = Sections, prefix: str = "") -> Iterator[str]:
    """Every key that an evaluation reads; a list's by its first index."""
    for name, kind in get_type_hints(cls).items():
        yield f"{prefix}{name}"
        for part in (kind, *get_args(kind)):
            if dataclasses.is_dataclass(part) and isinstance(part, type):
                yield from known_keys(part, f"{prefix}{name}." + ("0." if part is not kind else ""))


def _refuse_unknown(override: Override) -> None:
    """Adding a key that nobody reads is a slip of the pen, as it is in AReaL."""
    if override.sign not in ("+", "++"):
        return
    known, problem = list(known_keys()), _unknown_part(override.key)
    if problem is not None:
        close = nearest(override.key, known)
        hint = f"Did you mean {close}?" if close else "areal-eval config FILE lists the keys that an evaluation reads."
        raise ConfigError(f"{override.text}: there is no {problem}", hint)


def _unknown_part(key: str) -> str | None:
    """The first part of a key that no section has; None where all is known, passed over, or free."""
    kind: Any = Sections
    section: list[str] = []
    for part in key.split("."):
        if part.isdecimal():
            continue
        here = ".".join(section)
        if not _is_class(kind) or part in IGNORED.get(here, ()) or here == "actor":
            return None
        hints = get_type_hints(kind)
        if part not in hints:
            return f"{here}.{part}".lstrip(".")
        kind = hints[part]
        kind = next((inner for inner in get_args(kind) if _is_class(inner)), kind)
        section.append(part)
    return None


def _is_container(entry: dataclasses.Field[Any]) -> bool:
    """Whether null means "all defaults" for a field."""
    return entry.default_factory is not dataclasses.MISSING


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _note(override: Override, origins: dict[str, Origin], place: str) -> None:
    """An override's key and all below it come from the override now."""
    below = override.key + "."
    if override.sign == "~":
        gone = [key for key in origins if key == override.key or key.startswith(below)]
        for key in gone:
            del origins[key]
        return
    if not isinstance(override.value, dict):
        for key in [key for key in origins if key.startswith(below)]:
            del origins[key]
    for key in [override.key, *(below + key for key in keys_of(override.value))]:
        origins[key] = Origin(place, typed=True)
    parts = override.key.split(".")
    for depth in range(1, len(parts)):  # parents that the override made
        origins.setdefault(".".join(parts[:depth]), Origin(place, typed=True))


class _Reader:
    """Resolves and checks the sections that are read, one after the other."""

    def __init__(self, tree: dict[str, Any], origins: Mapping[str, Origin]) -> None:
        self._tree, self._places = tree, origins
        self._found: dict[str, Origin] = {}
        self._unknown: list[str] = []

    def read(self) -> Config:
        from omegaconf import OmegaConf

        root = OmegaConf.create(self._tree)
        assert OmegaConf.is_dict(root)
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
            value = root[name]
            return _resolved(value, self._wanted(name)) if OmegaConf.is_config(value) else value
        except (OmegaConfBaseException, RecursionError) as error:
            raise self._unresolved(getattr(error, "full_key", None) or name, error) from None

    def _wanted(self, name: str) -> set[str] | None:
        """The keys of a section that are read; None for all."""
        kind = get_type_hints(Sections)[name]
        return {f.name for f in dataclasses.fields(kind)} if _is_class(kind) else None

    def _unresolved(self, key: str, error: BaseException) -> ConfigError:
        place, text = self._places.get(key), self._text_at(key)
        where = f"{place.place}: {key}" if place else key
        said = str(error).splitlines()[0] if str(error) else "nested too deeply"
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
        if _is_class(kind) and not isinstance(value, dict):
            raise ConfigError(f"{self._origin(key).place}: {key}: {value!r} is not a mapping of keys to values")
        if not _is_class(kind):
            self._found[key] = self._origin(key)
            if isinstance(value, dict):
                self._found |= {f"{key}.{below}": self._origin(f"{key}.{below}") for below in value}
            inner = next((part for part in get_args(kind) if _is_class(part)), None)
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


def _resolved(node: Any, wanted: set[str] | None) -> Any:
    """A container's content with references followed; of a mapping, only what is wanted, and ``???`` left out."""
    from omegaconf import OmegaConf

    if not OmegaConf.is_config(node):
        return node
    if OmegaConf.is_list(node):
        return [_resolved(node[i], None) for i in range(len(node))]
    result: dict[Any, Any] = {}
    for name in node:
        if wanted is not None and name not in wanted:
            result[name] = None  # its name is looked at, and not its value
        elif not OmegaConf.is_missing(node, name):
            result[name] = _resolved(node[name], None)
    return result
