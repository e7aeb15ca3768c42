"""A checkpoint's folder is no place to find pytest's own settings.

pytest looks for its rootdir and its ini file before it loads any plugin.  It takes every existing path on the command
line for a place of tests, also the value in ``--model /ckpt``, which it cannot know to be one; so a suite could be run
with the settings of the folder that the checkpoint happens to lie in, and with another cache.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest


def refuse_moved_rootdir(config: pytest.Config, values: Sequence[tuple[str, str]]) -> None:
    """Stop where the value of one of our options changed what pytest takes for its rootdir or its ini file.

    Args:
        config: with the rootdir, the ini file and the places of tests that pytest found.
        values: option as typed and value, of those typed as two words.

    Raises:
        pytest.UsageError: it did; the message gives the spelling that cannot.
    """
    known = config.known_args_namespace
    paths = [(option, value) for option, value in values if os.path.exists(value)]
    if not paths or known.rootdir or known.inifilename:
        return
    here = config.invocation_params.dir
    places = [here, *(here / str(place).partition("::")[0] for place in known.file_or_dir)]
    if config.inipath is not None:
        moved = not any(config.inipath.parent in (place, *place.parents) for place in places)
    else:
        own = Path(os.path.commonpath(places))
        moved = config.rootpath != own and not (config.rootpath / "setup.py").is_file()
    if moved:
        option, value = paths[0]
        raise pytest.UsageError(
            f"{option} {value}: pytest took it for a place of tests, which made {config.rootpath} its rootdir\n"
            f"Write {option}={value}"
        )
