"""``--config``, ``--set`` and ``--show-config``: an AReaL configuration as one more layer of settings."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.options.declarations import BY_NAME
from pytest_areal_eval.options.settings import Settings

if TYPE_CHECKING:
    from pytest_areal_eval.config import Config
    from pytest_areal_eval.config.options import OptionValue


def configured(config: pytest.Config, settings: Settings) -> Settings:
    """The settings with a configuration's below the ini file's, and its overrides' among the command line's.

    Raises:
        pytest.UsageError: the configuration cannot be read, or a value in it is wrong.
    """
    from pytest_areal_eval.config.options import option_values, remarks

    decided = _decided(settings)
    try:
        loaded = _load(config, settings)
        found = option_values(loaded, decided)
        values = {name: _checked(name, option) for name, option in found.items()}
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error
    typed = {name: value for name, value in values.items() if found[name].origin.typed}
    written = {name: value for name, value in values.items() if name not in typed}
    for layer, above in ((written, settings.ini), (typed, settings.given)):
        if "temperature" in above:  # which outdoes a "greedy" of less standing
            layer.pop("greedy", None)
    merged = dataclasses.replace(settings, given={**typed, **settings.given}, yaml=written)
    found_remarks = remarks(loaded, decided, merged.get("scheduler", "local"))
    return dataclasses.replace(merged, remarks=tuple(f"{settings.get('config')}: {one}" for one in found_remarks))


def show(config: pytest.Config, settings: Settings) -> None:
    """Print the configuration and what follows from it."""
    from pytest_areal_eval.cli.config import print_config

    print_config(_load(config, settings), _decided(settings))


def _decided(settings: Settings) -> set[str]:
    """The options that a configuration has no say in: typed ones, and an engine where none is to be started."""
    decided = set(settings.given)
    if settings.get("base-url") or settings.get("replay"):
        decided.add("backend")
    if settings.get("replay"):
        decided.add("model")
    return decided


def _load(config: pytest.Config, settings: Settings) -> Config:
    from pytest_areal_eval.config import load_config

    name = str(settings.get("config"))
    ini = None if "config" in settings.given else config.inipath
    base = config.invocation_params.dir if ini is None else ini.parent
    overrides = [*settings.ini.get("set", []), *settings.given.get("set", [])]
    model = next(iter(settings.get("model") or ()), "")
    return load_config(base / Path(name).expanduser(), overrides, name=name, label="--set", model=model)


def _checked(name: str, found: OptionValue) -> Any:
    """The value, in the bounds of the option of that name, or of the decorator's argument where there is none."""
    from pytest_areal_eval.collection.arguments import CHECKS

    option, value = BY_NAME.get(name), found.value
    try:
        if option is None and value is not None and name.replace("-", "_") in CHECKS:
            return CHECKS[name.replace("-", "_")](name, value)
        return option.parse(str(value)) if option is not None and option.kind == "value" else value
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{found.origin}: {name}: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{found.origin}: {str(error).removeprefix('@evaluation: ')}") from None
