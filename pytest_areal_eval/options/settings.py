"""Command line and ini keys: registered as :mod:`.declarations` has them, read once into :class:`Settings`.

Invariant: only ``--areal-*`` spellings are registered, so no other plugin or conftest can ever collide with them.  A
short spelling (``--model``) is translated when nobody else owns it.  Precedence: built-in < YAML < ini < decorator <
``--set`` < command line.  Nothing travels through environment variables.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pytest_areal_eval.errors import ArealEvalError, ConfigError, UserError
from pytest_areal_eval.options.declarations import NEWEST, OPTIONS, RESULTS_DIR, Option

GROUP = "areal-eval"
_BY_LONG = {option.long: option for option in OPTIONS}


@dataclass(frozen=True)
class Settings:
    """The options as typed, written in the ini file or in a configuration; None where nobody said anything.

    ``given`` holds the command line's values alone, ``--set`` among them, which win over a decorator; ``ini`` and
    ``yaml`` those which do not.  ``remarks`` says what of a configuration is not followed.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    ini: Mapping[str, Any] = field(default_factory=dict)
    yaml: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def get(self, name: str, default: Any = None) -> Any:
        """Value of an option that no decorator sets: command line, else ini, else YAML, else ``default``."""
        return self.given.get(name, self.ini.get(name, self.yaml.get(name, default)))

    def resolve(self, name: str, decorated: Any, default: Any) -> Any:
        """Value of an option that a decorator may set: command line, else decorator, else :meth:`get`'s."""
        if name in self.given or decorated is None:
            return self.get(name, default)
        return decorated

    def words(self, name: str) -> tuple[str, ...]:
        """An option's words, as a shell takes them apart.

        Raises:
            ConfigError: a quotation mark is left open.
        """
        try:
            return tuple(shlex.split(self.get(name, "")))
        except ValueError as error:
            raise ConfigError(f"--{name}={self.get(name)}: {error}", "Write it as in a shell.") from None


def add_options(parser: pytest.Parser) -> None:
    """Register the prefixed spellings and the ini keys."""
    group = parser.getgroup(GROUP, "evaluation of language-model checkpoints (areal-eval)")
    for option in OPTIONS:
        also = f" (also {option.spelling})" if option.short else ""
        attrs: dict[str, Any] = {"dest": option.dest, "default": None, "help": (option.help + also).replace("%", "%%")}
        if option.kind == "flag":
            attrs |= {"action": "store_true"}
        else:
            attrs |= {"metavar": option.metavar}
            attrs |= {"action": "append"} if option.kind == "list" else {}
            attrs |= {"nargs": "?", "const": NEWEST} if option.kind == "optional" else {}
        group.addoption(option.long, **attrs)
        kind: Any = {"flag": "bool", "list": "linelist"}.get(option.kind, "string")
        parser.addini(option.dest, f"Default of {option.spelling}", type=kind, default=None)


def translate_short_spellings(args: list[str], parser: pytest.Parser) -> list[str]:
    """``--model=x`` → ``--areal-model=x`` for each short spelling in ``args`` that no registered option owns."""
    shorts = {option.spelling: option for option in OPTIONS if option.short}
    typed = {arg.partition("=")[0] for arg in _before_double_dash(args)} & shorts.keys()
    free = {name: shorts[name].long for name in typed if not _owned(name, parser)}
    if not free:
        return args
    end = args.index("--") if "--" in args else len(args)
    return [_translated(arg, free) for arg in args[:end]] + args[end:]


def values_apart(typed: Sequence[str], translated: Sequence[str]) -> list[tuple[str, str]]:
    """Options of ours, as typed, whose value is the next word, with it.

    Args:
        typed: the command line.
        translated: the same from :func:`translate_short_spellings`.
    """
    valued = {option.long for option in OPTIONS if option.kind in ("value", "list")}
    names = zip(typed, _before_double_dash(translated), typed[1:], strict=False)
    return [(name, value) for name, long, value in names if long in valued]


def read_settings(config: pytest.Config) -> Settings:
    """Collect what was typed and what the ini file says.

    Raises:
        pytest.UsageError: a value does not parse, options exclude each other, or one checkpoint is named twice; the
            message names the option as it was typed, or the ini key.
    """
    given: dict[str, Any] = {}
    ini: dict[str, Any] = {}
    for option in OPTIONS:
        typed, written = config.getoption(option.dest, None), _ini_value(config, option)
        if typed not in (None, []):
            given[option.name] = _typed_value(config, option, typed)
        if written is not False and written not in (None, "", []):  # but 0 is something
            ini[option.name] = written
    settings = _with_folders(_with_configuration(config, _with_earlier_run(config, Settings(given, ini))))
    _refuse_same_model(settings.get("model", []))
    if given.get("greedy") and given.get("temperature"):
        raise pytest.UsageError(f"--greedy and --temperature={given['temperature']:g} exclude each other; give one")
    return settings


def _with_earlier_run(config: pytest.Config, settings: Settings) -> Settings:
    """``--rescore`` and ``--from-run`` take the run's own settings where nothing else is typed."""
    typed = [name for name in ("resume", "rescore", "from-run") if name in settings.given]
    if len(typed) > 1:
        raise pytest.UsageError(f"--{typed[0]} and --{typed[1]} exclude each other; give one")
    if not typed or typed == ["resume"]:
        return settings
    from pytest_areal_eval.report.saved import find_run
    from pytest_areal_eval.runs.history import with_settings_of

    try:
        results_dir = config.invocation_params.dir / settings.get("results-dir", RESULTS_DIR)
        return with_settings_of(find_run(settings.given[typed[0]], results_dir), settings)
    except ArealEvalError as error:
        raise pytest.UsageError(f"--{typed[0]}: {error}") from error


def _with_configuration(config: pytest.Config, settings: Settings) -> Settings:
    """Add what ``--config`` says; an override is typed, so it counts as the command line's."""
    if settings.get("config") is None:
        unused = next((name for name in ("set", "show-config") if settings.get(name)), None)
        if unused is not None:
            raise pytest.UsageError(f"--{unused} needs a configuration\nGive --config=FILE.")
        return settings
    from pytest_areal_eval.options.configuration import configured

    return configured(config, settings)


def _with_folders(settings: Settings) -> Settings:
    """``--model='run/step-*'`` becomes the folders that it matches."""
    models = settings.get("model", [])
    if not any(mark in model for model in models for mark in "*?["):
        return settings
    from pytest_areal_eval.options.models import expand

    try:
        found = {"model": expand(models)}
    except UserError as error:
        raise pytest.UsageError(str(error)) from error
    if "model" in settings.given:
        return replace(settings, given={**settings.given, **found})
    return replace(settings, ini={**settings.ini, **found})


def _typed_value(config: pytest.Config, option: Option, value: Any) -> Any:
    """Parsed here and not by argparse, which would name a spelling that nobody typed."""
    try:
        return _parsed(option, value)
    except (argparse.ArgumentTypeError, ValueError) as error:
        names = [arg.partition("=")[0] for arg in config.invocation_params.args if isinstance(arg, str)]
        spelling = option.long if option.long in names else option.spelling
        raise pytest.UsageError(f"{spelling}: {error}") from None


def _parsed(option: Option, value: Any) -> Any:
    if option.kind == "flag":
        return value
    return [option.parse(v) for v in value] if option.kind == "list" else option.parse(value)


def _ini_value(config: pytest.Config, option: Option) -> Any:
    try:
        value = config.getini(option.dest)
        return value if value in (None, "") else _parsed(option, value)
    except (argparse.ArgumentTypeError, ValueError, pytest.UsageError) as error:  # pytest names no key
        raise pytest.UsageError(f"ini key {option.dest}: {error}") from None


def _refuse_same_model(models: Sequence[str]) -> None:
    places = [os.path.realpath(model) for model in models]
    twice = next((model for model, place in zip(models, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise pytest.UsageError(f"--model={twice} is given twice; give each checkpoint once")


def _before_double_dash(args: Sequence[str]) -> Sequence[str]:
    return args[: args.index("--")] if "--" in args else args


def _translated(arg: str, free: Mapping[str, str]) -> str:
    name, equals, value = arg.partition("=")
    if not equals and name in free and _BY_LONG[free[name]].kind == "optional":
        return f"{free[name]}={NEWEST}"  # else argparse would take the next word for its value
    return free[name] + equals + value if name in free else arg


def _owned(name: str, parser: pytest.Parser) -> bool:
    """Whether a registered option has this spelling; asked of the parser itself, by parsing it alone."""
    try:
        _, unknown = parser.parse_known_and_unknown_args([name])
    except pytest.UsageError:  # "expected one argument": it is known
        return True
    return name not in unknown
