"""AReaL's ``logging.getLogger``: the standard library's, whose configuration stays whoever's it is."""

from __future__ import annotations

import logging


def getLogger(name: str | None = None, type_: str | None = None) -> logging.Logger:  # noqa: N802 - AReaL's name
    """The logger of that name; ``type_``, AReaL's choice of colours, is not looked at."""
    return logging.getLogger(name)
