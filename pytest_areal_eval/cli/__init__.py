"""The ``areal-eval`` command: everything that can be learnt from run folders, with no engine and no test session."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from pytest_areal_eval.errors import ArealEvalError

EXIT_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        argv: the arguments; None for the process's own.

    Returns:
        The exit status: 0 for done, 1 for an answer of "no" (runs that cannot be compared, a gate that fails), 2 for
        a mistake or a run that cannot be read.
    """
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(arguments, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # argparse gives up on a list of words once an option has parted it
        arguments.overrides += rest
    try:
        return int(arguments.run(arguments))
    except ArealEvalError as error:
        print(f"areal-eval {arguments.command}: {error}", file=sys.stderr)
        return EXIT_ERROR
    except BrokenPipeError:  # `areal-eval show | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    from pytest_areal_eval.cli import calibrate, compare, config, merge, report, runs, show

    parser = argparse.ArgumentParser(
        prog="areal-eval",
        description="Read, compare, merge and report the runs that pytest-areal-eval leaves in eval-results/.",
        epilog="A RUN is a folder, the name of one in --results-dir, or the part of a name that no other has.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('pytest-areal-eval')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (runs, show, report, compare, merge, calibrate, config):
        command.add(commands)
    return parser
