"""``areal-eval config``: an AReaL configuration as an evaluation reads it, and the options that follow from it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.cli.common import say, say_table
from pytest_areal_eval.report.text import printable

if TYPE_CHECKING:
    from pytest_areal_eval.config import Config


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "config",
        help="print an AReaL configuration as an evaluation reads it",
        description="Print what an evaluation reads of an AReaL YAML file, where each value came from, and the options "
        "that follow from it.  Nothing is started and nothing is written.",
    )
    parser.add_argument("file", metavar="FILE", help="AReaL's YAML file")
    parser.add_argument("overrides", metavar="OVERRIDE", nargs="*", help="KEY=VALUE, +KEY=VALUE, ++KEY=VALUE or ~KEY")
    parser.add_argument("--given", action="store_true", help="leave out AReaL's defaults")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the tables."""
    from pytest_areal_eval.config import load_config
    from pytest_areal_eval.config.options import remarks

    config = load_config(arguments.file, arguments.overrides)
    print_config(config, given_only=arguments.given)
    for remark in remarks(config, scheduler=config.scheduler.type or "local"):
        print(printable(f"areal-eval: {arguments.file}: {remark}"), file=sys.stderr)
    return 0


def print_config(config: Config, decided: Collection[str] = (), *, given_only: bool = False) -> None:
    """Print a configuration and the options that follow from it.

    Args:
        config: the configuration.
        decided: options that are given otherwise.
        given_only: leave out AReaL's defaults.
    """
    from pytest_areal_eval.config.options import option_values
    from pytest_areal_eval.config.show import config_rows

    options = option_values(config, decided)
    say_table(
        ("key", "value", "from"), [row for row in config_rows(config) if not (given_only and row[2] == "default")]
    )
    say("\nas options")
    found = [(name, json.dumps(o.value, ensure_ascii=False), str(o.origin)) for name, o in options.items()]
    say_table(("option", "value", "from"), found)
