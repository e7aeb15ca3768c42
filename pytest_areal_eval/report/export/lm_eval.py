"""A run in the shape of lm-evaluation-harness: ``results_*.json`` and one ``samples_*.jsonl`` for each evaluation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_areal_eval.api import Episode
from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.report.saved import SavedEvaluation, SavedRun
from pytest_areal_eval.stats import Estimate


def write_lm_eval(run: SavedRun, folder: Path) -> list[Path]:
    """Write the results and the samples.

    Args:
        run: what to write.
        folder: made if missing.

    Raises:
        JournalError: a file cannot be written.
    """
    shown = [e for e in run.evaluations.values() if e.row.results]
    stamp = datetime.fromtimestamp(float(run.info.get("started_at", 0.0)), UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")
    files: dict[Path, Iterator[str]] = {
        folder / f"results_{stamp}.json": iter([json.dumps(_results(run, shown), indent=2)])
    }
    for e in shown:
        name = "".join(c if c.isalnum() or c in "._-" else "-" for c in e.name)
        files[folder / f"samples_{name}_{stamp}.jsonl"] = (json.dumps(row) for row in _samples(e))
    for path, lines in files.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            raise JournalError(
                f"cannot write {path}: {error.strerror}", "Give another folder: --lm-eval=DIR"
            ) from error
    return list(files)


def _results(run: SavedRun, shown: Sequence[SavedEvaluation]) -> dict[str, Any]:
    info, git = run.info, run.info.get("git") or {}
    return {
        "results": {e.name: _scores(e) for e in shown},
        "group_subtasks": {e.name: [] for e in shown},
        "configs": {e.name: _config(e) for e in shown},
        "versions": {e.name: e.described.get("dataset", {}).get("content_hash", "") for e in shown},
        "n-shot": {e.name: 0 for e in shown},
        "higher_is_better": {e.name: {"reward": True} for e in shown},
        "n-samples": {e.name: {"original": e.row.n_total, "effective": len(e.row.results)} for e in shown},
        "config": {"model": ", ".join(run.models), "model_args": "", "limit": None},
        "git_hash": git.get("commit"),
        "date": info.get("started_at"),
        "total_evaluation_time_seconds": str(info.get("wall_s", "")),
        "model_name": ", ".join(run.models),
        "areal_eval_run": run.name,
    }


def _scores(e: SavedEvaluation) -> dict[str, Any]:
    s = e.row.summary()
    estimates: dict[str, Estimate | None] = {"reward": s.headline, "reward_scored": s.scored_only}
    estimates |= {f"pass@{k}": found for k, found in s.pass_at.items()}
    estimates |= {f"maj@{k}": found for k, found in s.maj_at.items()}
    estimates |= dict(s.metrics)
    scores: dict[str, Any] = {"alias": e.name}
    for name, estimate in estimates.items():
        if estimate is not None:
            scores[f"{name},none"] = estimate.value
            scores[f"{name}_stderr,none"] = "N/A" if estimate.se is None else estimate.se
    return scores | {f"{rate},none": getattr(s, rate) for rate in ("error_rate", "truncation_rate", "empty_rate")}


def _config(e: SavedEvaluation) -> dict[str, Any]:
    sampling: Mapping[str, Any] = e.described.get("sampling", {})
    return {
        "task": e.name,
        "dataset_path": e.described.get("dataset", {}).get("name", ""),
        "output_type": "generate_until",
        "generation_kwargs": {
            "temperature": sampling.get("temperature"),
            "top_p": sampling.get("top_p"),
            "do_sample": not sampling.get("greedy", False),
            "max_gen_toks": sampling.get("max_new_tokens"),
            "until": sampling.get("stop") or [],
        },
        "repeats": e.row.n_samples,
        "num_fewshot": 0,
        "metadata": {"workflow": e.described.get("workflow"), "reward_fn": e.described.get("reward_fn")},
    }


def _samples(e: SavedEvaluation) -> Iterator[dict[str, Any]]:
    for number, (item_id, episodes) in enumerate(e.episodes.items()):
        yield _sample(e, number, item_id, episodes)


def _sample(e: SavedEvaluation, number: int, item_id: str, episodes: Sequence[Episode]) -> dict[str, Any]:
    first = episodes[0]
    columns = dict(e.items[item_id].columns) if item_id in e.items else {}
    answers = [episode.extracted if episode.extracted is not None else episode.completion for episode in episodes]
    return {
        "doc_id": number,
        "doc": {"id": item_id, **columns},
        "target": first.gold or "",
        "arguments": {"gen_args_0": {"arg_0": first.prompt, "arg_1": _config(e)["generation_kwargs"]}},
        "resps": [[episode.completion for episode in episodes]],
        "filtered_resps": answers,
        "filter": "none",
        "metrics": ["reward"],
        "doc_hash": e.items[item_id].hash if item_id in e.items else _hash(item_id),
        "prompt_hash": _hash(first.prompt),
        "target_hash": _hash(first.gold or ""),
        "reward": e.row.results[item_id].reward,
        "statuses": [episode.status.value for episode in episodes],
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
