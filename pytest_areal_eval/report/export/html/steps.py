"""Several checkpoints on the page: their rewards in a table, and against the training step where names tell one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from pytest_areal_eval.report.grid import Grid, grid_of
from pytest_areal_eval.report.scoreboard import Row
from pytest_areal_eval.report.table import score_text
from pytest_areal_eval.stats import Estimate

WIDTH, HEIGHT = 760, 270
LEFT, RIGHT, TOP, BOTTOM = 48, 16, 12, 34
MOST_LINES = 8
Points = Sequence[tuple[int, str, Estimate]]


def models_html(rows: Sequence[Row]) -> str:
    """The section; nothing where there is one checkpoint."""
    grid = grid_of(rows)
    if grid is None:
        return ""
    head = "".join(f"<th>{escape(model)}</th>" for model in grid.models)
    body = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f"<td>{score_text(grid.reward(name, model))}</td>" for model in grid.models)
        + "</tr>"
        for name in grid.evaluations
    )
    table = f"<table><thead><tr><th>reward</th>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<section class="summary models"><div class="wide">{table}</div></section>{_chart(grid)}'


def _chart(grid: Grid) -> str:
    found = {name: grid.by_step(name) for name in grid.evaluations}
    lines = {name: points for name, points in found.items() if len(points) > 1}
    if not lines:
        return ""
    shown = dict(list(lines.items())[:MOST_LINES])
    more = f" (the first {MOST_LINES} of {len(lines)} evaluations)" if len(lines) > MOST_LINES else ""
    keys = "".join(
        f'<span><svg width="18" height="8"><line class="s{i}" x1="0" x2="18" y1="4" y2="4"/></svg>{escape(name)}</span>'
        for i, name in enumerate(shown)
    )
    legend = f'<span class="lines">{keys}</span>'
    return (
        f'<section class="card steps"><div><h2>Reward by training step{more}</h2>{legend}</div>{_svg(shown)}</section>'
    )


def _svg(lines: Mapping[str, Points]) -> str:
    points = [point for line in lines.values() for point in line]
    steps = [step for step, _, _ in points]
    low, high, ticks = _scale([end for _, _, e in points for end in (e.ci or (e.value, e.value))])
    span = max(max(steps) - min(steps), 1)

    def x(step: int) -> float:
        return LEFT + (step - min(steps)) / span * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y(t) + 4:.1f}" text-anchor="end">{t:.4g}</text>'
        for t in ticks
    ]
    parts += [
        f'<text x="{x(step):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{step}</text>'
        for step in _labels(sorted(set(steps)))
    ]
    for number, line in enumerate(lines.values()):
        way = " ".join(f"{x(step):.1f},{y(e.value):.1f}" for step, _, e in line)
        parts.append(f'<polyline class="s{number}" points="{way}"/>')
        parts += [_mark(f"s{number}", model, e, x(step), y) for step, model, e in line]
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="reward by step">{"".join(parts)}</svg>'


def _mark(tone: str, model: str, reward: Estimate, x: float, y: Callable[[float], float]) -> str:
    """A point with its interval; its name where the mouse is."""
    low, high = reward.ci or (reward.value, reward.value)
    return (
        f'<g class="{tone}"><title>{escape(model)}: {score_text(reward)}</title>'
        f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}"/>'
        f'<circle class="dot" cx="{x:.1f}" cy="{y(reward.value):.1f}" r="4"/></g>'
    )


def _scale(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """Ends of the axis and its marks: multiples of 1, 2 or 5 times a power of ten, about five of them."""
    low, high = min(values), max(values)
    raw = max(high - low, 0.02) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1.0, 2.0, 5.0, 10.0) if raw <= power * m * (1 + 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    return first * step, last * step, [n * step for n in range(first, last + 1)]


def _labels(steps: Sequence[int], most: int = 10) -> Sequence[int]:
    """The steps that are written under the axis: all, or evenly chosen ones."""
    if len(steps) <= most:
        return steps
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]
