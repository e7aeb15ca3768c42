"""A run as logs of the Inspect framework (schema version 2), which ``inspect view`` and ``read_eval_log`` open.

One ``.eval`` file (a zip of JSON, written by the standard library alone) for each evaluation.  Its samples are
episodes: an item's k episodes are its epochs 1 to k.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_areal_eval.api import Episode
from pytest_areal_eval.errors import JournalError
from pytest_areal_eval.report.export.inspect_messages import answer_message, messages_of
from pytest_areal_eval.report.saved import SavedEvaluation, SavedRun, digests_of, settings_of
from pytest_areal_eval.stats import Estimate

SCHEMA = 2
SCORER = "reward"
_ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_STOP = {"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls"}


@dataclass(frozen=True)
class _Log:
    """What all parts of one log need."""

    evaluation: SavedEvaluation
    model: str
    task: str
    created: str
    spec: Mapping[str, Any]
    plan: Mapping[str, Any]


def write_inspect_logs(run: SavedRun, folder: Path) -> list[Path]:
    """Write a log for each evaluation.

    Args:
        run: what to write.
        folder: made if missing; ``inspect view --log-dir FOLDER`` lists it.

    Returns:
        The files, named as Inspect names them.

    Raises:
        JournalError: a file cannot be written.
    """
    paths = []
    for evaluation in run.evaluations.values():
        if evaluation.row.results:
            log = _log(run, evaluation)
            path = folder / f"{log.created.replace(':', '-')}_{log.task}_{log.spec['task_id']}.eval"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                _write(log, path, is_finished=run.info.get("status") == "finished")
            except OSError as error:
                raise JournalError(
                    f"cannot write {path}: {error.strerror}", "Give another folder: --inspect=DIR"
                ) from error
            paths.append(path)
    return paths


def _write(log: _Log, path: Path, *, is_finished: bool) -> None:
    summaries = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        _put(archive, "_journal/start.json", {"version": SCHEMA, "eval": log.spec, "plan": log.plan})
        for item_id, episode in _episodes(log.evaluation):
            sample = _sample(log, item_id, episode)
            _put(archive, f"samples/{item_id}_epoch_{episode.index + 1}.json", sample)
            summaries.append(_sample_summary(sample))
        _put(archive, "_journal/summaries/1.json", summaries)
        _put(archive, "summaries.json", summaries)
        _put(archive, "reductions.json", _reductions(log.evaluation))
        _put(archive, "header.json", _header(log, "success" if is_finished else "started"))


def _put(archive: zipfile.ZipFile, name: str, value: Any) -> None:
    """UTF-8 JSON; a lone surrogate, which UTF-8 has no form for, becomes a question mark."""
    archive.writestr(name, json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace"))


def _episodes(evaluation: SavedEvaluation) -> Iterator[tuple[str, Episode]]:
    return ((item_id, e) for item_id, group in evaluation.episodes.items() for e in group)


def _log(run: SavedRun, evaluation: SavedEvaluation) -> _Log:
    created = _time(float(run.info.get("started_at", 0.0)))
    model = _model(run, evaluation)
    name = evaluation.row.evaluation or "evaluation"
    task = "".join(c if c.isalnum() or c == "." else "-" for c in name)  # it becomes a file's name
    sampling = evaluation.described.get("sampling", {})
    generate = {name: sampling[name] for name in ("temperature", "top_p", "seed") if sampling.get(name) is not None}
    if "max_new_tokens" in sampling:
        generate["max_tokens"] = sampling["max_new_tokens"]
    spec = {
        "eval_id": _short_id(run.name, evaluation.name, "eval"),
        "run_id": _short_id(run.name),
        "task_id": _short_id(run.name, evaluation.name),
        "created": created,
        "task": name,
        "task_version": 0,
        "task_file": evaluation.row.file,
        "dataset": {
            "name": str(evaluation.described.get("dataset", {}).get("name", "")),
            "samples": len(evaluation.episodes),
            "sample_ids": list(evaluation.episodes),
            "shuffled": False,
        },
        "model": model,
        "model_generate_config": generate,
        "model_args": {},
        "config": {"epochs": evaluation.row.n_samples, "epochs_reducer": ["mean"]},
        "packages": dict(run.info.get("versions", {})),
        "scorers": [{"name": SCORER}],
        "metadata": {"run": run.name, "command_line": run.info.get("command_line", []), **_identity(run, evaluation)},
    }
    git = run.info.get("git") or {}
    if git.get("commit"):
        spec["revision"] = {"type": "git", "origin": "", "commit": git["commit"], "dirty": bool(git.get("dirty"))}
    plan = {
        "name": "plan",
        "steps": [{"solver": str(evaluation.described.get("workflow") or "workflow"), "params": {}}],
    }
    return _Log(evaluation, model, task, created, spec, plan)


def _identity(run: SavedRun, evaluation: SavedEvaluation) -> dict[str, Any]:
    content = evaluation.described.get("dataset", {}).get("content_hash")
    return {
        "checkpoint_fingerprint": digests_of(run.info),
        "dataset_hash": content,
        "pass_mark": evaluation.row.pass_mark,
    }


def _model(run: SavedRun, evaluation: SavedEvaluation) -> str:
    """``provider/name``, as Inspect writes models; of several checkpoints the evaluation's own."""
    models = [str(evaluation.described.get("model") or "")] if evaluation.row.model else run.models
    backend = str(settings_of(run.info).get("backend", "hf")).partition(":")[0]
    return f"{backend}/{Path(models[0]).name}" if models else "none/none"


def _sample(log: _Log, item_id: str, e: Episode) -> dict[str, Any]:
    usage = {
        "input_tokens": e.input_tokens,
        "output_tokens": e.output_tokens,
        "total_tokens": e.input_tokens + e.output_tokens,
    }
    message = answer_message(e.completion, e.reasoning, log.model)
    columns = log.evaluation.items[item_id].columns if item_id in log.evaluation.items else {}
    sample: dict[str, Any] = {
        "id": item_id,
        "epoch": e.index + 1,
        "input": e.prompt,
        "target": e.gold or "",
        "messages": messages_of(e, log.model),
        "output": {
            "model": log.model,
            "choices": [{"message": message, "stop_reason": _STOP.get(e.stop_reason, "unknown")}],
            "completion": e.completion,
            "usage": usage,
            "time": e.latency_s,
        },
        "scores": {SCORER: _score(e)},
        "metadata": dict(columns),
        "store": {},
        "events": [],
        "model_usage": {log.model: usage},
        "started_at": _time(e.started_at),
        "completed_at": _time(e.started_at + e.latency_s),
        "total_time": e.latency_s,
        "working_time": e.latency_s,
        "uuid": _short_id(str(log.spec["eval_id"]), item_id, str(e.index)),
        "attachments": {},
    }
    if e.status.kind == "error":
        sample["error"] = {"message": e.error, "traceback": e.traceback, "traceback_ansi": e.traceback}
    return sample


def _score(e: Episode) -> dict[str, Any]:
    """An episode without a reward counts 0, as it does in the headline; the metadata says why."""
    about = {"status": e.status.value, "replica": e.replica, "seed": e.seed, **dict(e.metrics)}
    return {"value": e.counted_reward, "answer": e.extracted, "explanation": e.error or e.completion, "metadata": about}


def _sample_summary(sample: Mapping[str, Any]) -> dict[str, Any]:
    names = (
        "id",
        "epoch",
        "target",
        "metadata",
        "model_usage",
        "started_at",
        "completed_at",
        "total_time",
        "working_time",
        "uuid",
    )
    summary = {name: sample[name] for name in names}
    scores = {name: {**score, "explanation": None} for name, score in sample["scores"].items()}
    error = sample.get("error", {}).get("message")
    return {
        **summary,
        "input": sample["input"][:1000],
        "scores": scores,
        "error": error,
        "completed": True,
        "retries": 0,
    }


def _reductions(evaluation: SavedEvaluation) -> list[dict[str, Any]]:
    samples = [
        {"value": result.reward or 0.0, "sample_id": item_id} for item_id, result in evaluation.row.results.items()
    ]
    return [{"scorer": SCORER, "reducer": "mean", "samples": samples}]


def _header(log: _Log, status: str) -> dict[str, Any]:
    s = log.evaluation.row.summary()
    estimates = {
        "mean": s.headline,
        **{f"pass@{k}": e for k, e in s.pass_at.items()},
        **{f"maj@{k}": e for k, e in s.maj_at.items()},
    }
    metrics = {name: value for label, e in estimates.items() if e for name, value in _metric(label, e)}
    score = {"name": SCORER, "scorer": SCORER, "reducer": "mean", "params": {}, "metrics": metrics}
    counts = {"scored_samples": s.n_items, "unscored_samples": 0}
    usage = {
        "input_tokens": s.input_tokens,
        "output_tokens": s.output_tokens,
        "total_tokens": s.input_tokens + s.output_tokens,
    }
    row = log.evaluation.row
    return {
        "version": SCHEMA,
        "status": status,
        "eval": log.spec,
        "plan": log.plan,
        "results": {
            "total_samples": s.requested,
            "completed_samples": s.requested - s.errors,
            "scores": [{**score, **counts}],
        },
        "stats": {
            "started_at": _time(row.spans.began),
            "completed_at": _time(row.spans.ended),
            "model_usage": {log.model: usage},
        },
    }


def _metric(label: str, estimate: Estimate) -> Sequence[tuple[str, dict[str, Any]]]:
    error = [] if estimate.se is None else [(f"{label}_stderr" if label != "mean" else "stderr", estimate.se)]
    return [(name, {"name": name, "value": value, "params": {}}) for name, value in [(label, estimate.value), *error]]


def _time(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="seconds")


def _short_id(*parts: str) -> str:
    """22 characters of the alphabet that Inspect's ids use; the same for the same parts."""
    value, text = int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest(), "big"), ""
    for _ in range(22):
        value, rest = divmod(value, len(_ALPHABET))
        text += _ALPHABET[rest]
    return text
