"""A run as one HTML file that needs nothing else: no network, no server, no second file.

Invariant: whatever a model, a dataset or a checkpoint's name says is data.  It is escaped where Python writes it
and reaches the page as ``textContent`` where the script does, and the page's own policy runs no script but this one.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.report.export.html.data import CHUNK_ITEMS, chunks, index, pack, text_limit
from pytest_areal_eval.report.export.html.steps import models_html
from pytest_areal_eval.report.export.html.summary import gates_html, notes_html, summary_html
from pytest_areal_eval.report.saved import SavedEvaluation, SavedRun, digests_of
from pytest_areal_eval.report.text import seconds


def write_html(run: SavedRun, path: Path) -> None:
    """Write the report of a run.

    Args:
        run: with at least one item that has all of its episodes.
        path: of the file; its folder exists.

    Raises:
        JournalError: the file cannot be written.
    """
    shown = [e for e in run.evaluations.values() if e.row.results]
    try:
        with path.open("w", encoding="utf-8", errors="replace") as file:
            file.write(_page(run, shown))
            for number, evaluation in enumerate(shown):
                file.writelines(_data_blocks(number, evaluation, text_limit(shown)))
            file.write(f"<script>{_script()}</script>\n</body>\n</html>\n")
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror}", "Give another file: --html=FILE") from error


def _page(run: SavedRun, shown: list[SavedEvaluation]) -> str:
    css, js = _asset("report.css"), _script()
    allowed = f"script-src '{_digest(js)}'; style-src '{_digest(css)}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    title = _title(run, shown)
    return Template(_asset("page.html")).substitute(
        policy=escape(policy),
        css=css,
        title=escape(title),
        facts=_facts(run),
        summary=summary_html(run.rows),
        gates=gates_html(run.gates),
        notes=notes_html(run),
        models=models_html(run.rows),
    )


def _title(run: SavedRun, shown: list[SavedEvaluation]) -> str:
    names = list(dict.fromkeys(e.row.evaluation for e in shown))
    what = ", ".join(names) if len(names) <= 3 else f"{len(names)} evaluations"
    models = [Path(name).name for name in run.models]
    return f"{what} on {', '.join(models) or 'no model' if len(models) <= 3 else f'{len(models)} checkpoints'}"


def _facts(run: SavedRun) -> str:
    """What was run, when, on what, from which code."""
    info = run.info
    commit = str((info.get("git") or {}).get("commit") or "")[:10]
    machine, versions = info.get("machine", {}), info.get("versions", {})
    started = info.get("started_at")
    facts = {
        "run": run.name,
        "started": datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%d %H:%M UTC") if started else "",
        "took": seconds(float(info["wall_s"])) if "wall_s" in info else "",
        "model": ", ".join(run.models),
        "fingerprint": ", ".join(digest[:12] for digest in digests_of(info)),
        "machine": f"{machine.get('host')}, {machine.get('cores')} cores{_gpus(machine.get('gpus'))}"
        if machine
        else "",
        "code": f"{commit}{' with changes' if (info.get('git') or {}).get('dirty') else ''}" if commit else "",
        "versions": ", ".join(
            f"{n} {versions[n]}" for n in ("pytest-areal-eval", "torch", "vllm", "sglang") if n in versions
        ),
        "command": " ".join(map(str, info.get("command_line", []))),
    }
    return "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items() if value)


def _gpus(names: object) -> str:
    return f", {len(names)} x {names[0]}" if isinstance(names, list) and names else ""


def _data_blocks(number: int, evaluation: SavedEvaluation, limit: int) -> Iterator[str]:
    yield _block(
        f"index-{number}", pack(index(evaluation)), f' data-name="{escape(evaluation.name)}" data-chunk="{CHUNK_ITEMS}"'
    )
    for part, chunk in enumerate(chunks(evaluation, limit)):
        yield _block(f"texts-{number}-{part}", pack(chunk))


def _block(name: str, packed: str, attributes: str = "") -> str:
    return f'<script type="application/octet-stream" id="{name}"{attributes}>{packed}</script>\n'


def _script() -> str:
    """All of the page's script, in a scope of its own."""
    return "".join(['"use strict";\n(() => {\n', *map(_asset, ("charts.js", "item.js", "report.js")), "})();\n"])


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
