"""One job into the queue, through submitit; and what Slurm's refusal of it means.

Invariant: sbatch has a limit like every program of Slurm's, and what it complains about is raised, not printed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit

from pytest_areal_eval.errors import CannotFit, SchedulerError
from pytest_areal_eval.schedulers.slurm.commands import LIMIT_S

TIMED_OUT = 124
"""What timeout(1) ends with."""

_FOR_NOW = ("unable to contact", "timed out", "temporarily", "connection", "job submit limit", "try again")
_ASSOCIATIONS = "sacctmgr show associations user=$USER format=account,partition,qos"
_SEE = {
    "account": f"See which are yours: {_ASSOCIATIONS}",
    "qos": f"See which are yours: {_ASSOCIATIONS}",
    "reservation": "See which there are: scontrol show reservations",
    "node": "See what there is: sinfo -o '%P %N %G %c %m %f %l'",
}


def submit(name: str, agent: Sequence[str], folder: Path, parameters: Mapping[str, Any], given: Sequence[str]) -> str:
    """Submit a job that becomes Python with the agent's arguments; returns its id.

    Args:
        name: the instance, for messages.
        agent: the arguments.
        folder: for submitit's files.
        parameters: of submitit's executor.
        given: the options that the person chose, for messages.

    Raises:
        CannotFit: Slurm refuses it.
        SchedulerError: Slurm cannot take it now.
    """
    # A single node's agent takes the place of the batch shell; several need a step, which srun starts.
    python = f"{'' if parameters['use_srun'] else 'exec '}{shlex.quote(sys.executable)}"
    executor = _Executor(folder=folder, python=python)
    executor.update_parameters(**parameters)
    try:
        with _outside_any_job():
            job = str(executor.submit(os.execv, sys.executable, [sys.executable, *agent]).job_id)
        executor.complaints.unlink()
    except submitit.core.utils.FailedJobError as error:
        raise _refusal(name, _said(executor.complaints, error), given) from error
    except OSError as error:
        raise SchedulerError(f"{name} cannot be submitted with its files in {folder}: {error}.") from error
    return job


class _Executor(submitit.SlurmExecutor):
    """Submitit's own waits for sbatch for ever and prints what it says."""

    complaints: Path

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        self.complaints = Path(f"{submission_file_path}.err")
        bounded = ["timeout", f"{LIMIT_S:g}", "sbatch", str(submission_file_path)]
        return ["sh", "-c", f"exec {shlex.join(bounded)} 2>{shlex.quote(str(self.complaints))}"]


def _said(complaints: Path, error: BaseException) -> str:
    words = [re.sub("^sbatch: (error: )?", "", line) for line in complaints.read_text().splitlines()]
    if getattr(error.__cause__, "returncode", None) == TIMED_OUT:
        words.append(f"sbatch timed out after {LIMIT_S:g} s")
    return " ".join(words) or "no message"


def _refusal(name: str, said: str, given: Sequence[str]) -> SchedulerError:
    if any(word in said.lower() for word in _FOR_NOW):
        return SchedulerError(f"{name} cannot be submitted now: {said}", "Is Slurm up? scontrol ping")
    options = f" with {' '.join(given)}" if given else ""
    see = next((see for word, see in _SEE.items() if word in said.lower()), _SEE["node"])
    return CannotFit(f"Slurm refuses {name}{options}: {said}", see)


@contextlib.contextmanager
def _outside_any_job() -> Iterator[None]:
    """Hide the variables of a job that this process runs in; what the person set for sbatch stays."""
    kept = {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or k.startswith("SBATCH_")}
    with submitit.helpers.clean_env():
        os.environ.update(kept)
        yield
