"""AReaL's evaluation script, written against this package, as a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.sessions import TINY

ROOT = TINY.parents[1]


def test_the_six_steps_of_areals_script_run_on_the_shipped_checkpoint(tmp_path: Path) -> None:
    rows = (ROOT / "evals/data/arithmetic.jsonl").read_text().splitlines()[:6]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    script = [sys.executable, "-W", "error", ROOT / "examples/gsm8k_eval.py", ROOT / "examples/gsm8k_eval.yaml"]
    overrides = [f"actor.path={TINY}", f"valid_dataset.path={tmp_path / 'rows.jsonl'}", "gconfig.n_samples=3"]
    done = subprocess.run([*script, *overrides], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"│ (\S+) +│ (\S+) ", done.stdout))
    assert float(found["eval-rollout/reward"]) > 0.8, done.stdout
    assert float(found["eval-rollout/reward__count"]) == float(found["eval-rollout/accepted"]) == 18.0
    assert float(found["eval-rollout/rejected"]) == 0.0
    assert re.search(r"^worst item: \w+-\d{5} \[", done.stdout, re.M)
