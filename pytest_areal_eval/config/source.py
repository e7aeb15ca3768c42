"""A YAML file as plain dicts and lists, with the line of each key.

AReaL's reading of YAML: ``1e-8`` is a number, a date is text, a key that is given twice is an error.  ``.yaml`` and
``.yml`` alike; nothing is written anywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.errors import ConfigError

if TYPE_CHECKING:
    import yaml


def read_yaml(path: Path, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A file's content and, for each path in it, ``FILE:LINE``.

    Args:
        path: the file.
        name: how messages call it.

    Raises:
        ConfigError: it is missing, empty, no YAML (with line and column), or holds no keys.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    text = _text(path, name)
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        if root is None:
            raise ConfigError(f"{name} is empty", "Give one of AReaL's YAML files, such as gsm8k_grpo.yaml.")
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{name} holds no keys", "Give one of AReaL's YAML files, such as gsm8k_grpo.yaml.")
        tree: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}{_mark(error)}: {_problem(error)}", "Correct the YAML there.") from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply, or contains itself") from None
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "a key"
        raise ConfigError(f"{name}: {key}: {str(error).splitlines()[0]}", "A reference is written ${a.b}.") from None
    return tree, {key: f"{name}:{line}" for key, line in _lines(root, "").items()}


def _text(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file", "Give --config the path of a YAML file.") from None
    except IsADirectoryError:
        raise ConfigError(f"{name} is a directory", "Give --config the path of a YAML file.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from None


def _mark(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error).splitlines()[0]


def _lines(node: yaml.Node, prefix: str) -> dict[str, int]:
    import yaml

    found: dict[str, int] = {}
    pairs: Any = ()
    if isinstance(node, yaml.MappingNode):
        pairs = ((key.value, key.start_mark.line, child) for key, child in node.value)
    elif isinstance(node, yaml.SequenceNode):
        pairs = ((str(i), child.start_mark.line, child) for i, child in enumerate(node.value))
    for name, line, child in pairs:
        found[f"{prefix}{name}"] = line + 1
        found |= _lines(child, f"{prefix}{name}.")
    return found
