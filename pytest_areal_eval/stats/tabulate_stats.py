"""AReaL's table of statistics, byte for byte, and as wide as the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def tabulate_stats(data: Mapping[str, Any], col: int = 4, floatfmt: str = ".4e") -> str:
    """Lay names and values out in ``col`` pairs of columns, filled from top to bottom.

    Args:
        data: what ``export_stats`` returns; an empty mapping gives an empty string.
        col: number of name/value pairs side by side.
        floatfmt: format of the numbers.

    Raises:
        ValueError: ``col`` is below 1.
    """
    from tabulate import tabulate

    if col < 1:
        raise ValueError(f"tabulate_stats needs at least one column, got col={col}")
    pairs = list(data.items())
    n_rows = -(-len(pairs) // col)
    rows = [[cell for pair in pairs[row::n_rows] for cell in pair] for row in range(n_rows)]
    return tabulate(rows, floatfmt=floatfmt, tablefmt="fancy_grid")


def fitting_table(data: Mapping[str, Any], width: int) -> list[str]:
    """The lines of :func:`tabulate_stats` with as many columns, at most AReaL's four, as ``width`` has room for."""
    for col in (4, 3, 2, 1):
        lines = tabulate_stats(data, col).splitlines()
        if max(map(len, lines), default=0) <= width:
            break
    return lines
