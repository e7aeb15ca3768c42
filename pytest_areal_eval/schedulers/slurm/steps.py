"""Instances as steps of the allocation that this process runs in (salloc, sbatch), each on a part of its own.

Invariant: ``srun --exact`` and never ``--overlap``: two steps never have the same GPU.  srun runs under
``supervise.py``, so that a step ends at once when this process does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_areal_eval.errors import ConfigError, SchedulerError
from pytest_areal_eval.schedulers import logs, processes, supervise
from pytest_areal_eval.schedulers.base import GRACE_S, InstanceSpec, Lost, NodeFree
from pytest_areal_eval.schedulers.slurm import commands
from pytest_areal_eval.schedulers.slurm.launcher import Ending, Seen

_REFUSED = (
    "Requested node configuration is not available",
    "More processors requested than permitted",
    "Memory required by task is not available",
    "Invalid generic resource (gres) specification",
    "Invalid node name specified",
    "unrecognized option",
)
"""What srun says of a step that the allocation can never hold."""


class Steps:
    """Starts, watches and ends steps.

    Args:
        allocation: the job's id.
        folder: srun's output.
        run_name: begins the steps' names.
        srun_args: further words for srun.
    """

    own_jobs = False

    def __init__(self, allocation: str, folder: Path, run_name: str, srun_args: Sequence[str] = ()) -> None:
        self._srun_args = srun_args
        self._allocation, self._folder, self._run_name = allocation, folder, run_name
        self._sruns: dict[str, subprocess.Popen[bytes]] = {}
        self._outputs: dict[str, Path] = {}

    @property
    def place(self) -> str:
        """What the nodes belong to, for messages."""
        return f"the allocation {self._allocation}"

    def nodes(self) -> list[NodeFree]:
        """The allocation's nodes, with its part of each; what of it is free, Slurm keeps to itself: none that we know.

        Raises:
            ConfigError: there is no such allocation any more.
        """
        try:
            text = commands.run("scontrol", "show", "job", "-d", self._allocation)
        except SchedulerError as error:
            if "Invalid job id" not in str(error):
                raise
            text = ""
        if "JobState=RUNNING" not in text:
            raise ConfigError(
                f"SLURM_JOB_ID={self._allocation}: no allocation of that id runs any more",
                "Make a new one (salloc), or submit jobs instead: env -u SLURM_JOB_ID pytest …",
            )
        parts = commands.parts_in(text)
        return [replace(part, name=name) for part in parts for name in commands.hostnames(part.name)]

    def submit(self, key: str, spec: InstanceSpec, agent: list[str], exclude: Collection[str]) -> str:
        """Start srun, which waits for a free part of the allocation; returns its supervisor's pid."""
        output = self._folder / f"{key}.out"
        supervisor = [sys.executable, "-I", "-S", supervise.__file__, str(os.getpid()), str(GRACE_S), "--"]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SRUN_")) or k == "SLURM_CONF"}
        env |= {"SLURM_JOB_ID": self._allocation, processes.MARK: key}
        try:
            with open(output, "wb") as file:
                process = subprocess.Popen(
                    [*supervisor, *self._srun(key, spec, exclude), sys.executable, *agent],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=env,
                    start_new_session=True,
                )
        except OSError as error:
            raise SchedulerError(f"{spec.name} cannot be started with its output in {output}: {error}.") from error
        self._sruns[str(process.pid)], self._outputs[str(process.pid)] = process, output
        return str(process.pid)

    def look(self, ids: Sequence[str], *, anew: bool) -> dict[str, Seen]:
        """Where they are; no program is run for it."""
        return {pid: self._seen(pid) for pid in ids}

    def alive(self, ids: Sequence[str]) -> list[str]:
        """Those whose srun has not ended: it ends after the last of its tasks."""
        return [pid for pid in ids if processes.is_up(self._sruns[pid])]

    def end(self, ids: Sequence[str], how: Ending) -> str:
        """SIGTERM to srun, which passes it on to its step; else a signal to the step itself."""
        for pid in ids:
            supervise.send(self._sruns[pid].pid, signal.SIGTERM)
        if how == "TERM":
            return ""
        steps = commands.run("squeue", "-h", "-s", "-j", self._allocation, "-o", "%i|%j").splitlines()
        names = {self._step_name(self._outputs[pid].stem) for pid in ids}
        ours = [step for step, _, name in (line.partition("|") for line in steps) if name in names]
        return commands.scancel(ours, *(("--signal=USR1",) if how == "NOW" else ())) if ours else ""

    def output(self, which: str) -> Path:
        """What srun and the agent printed."""
        return self._outputs[which]

    def _srun(self, key: str, spec: InstanceSpec, exclude: Collection[str]) -> list[str]:
        shape = spec.shape
        words = ["srun", "--exact", "--kill-on-bad-exit=1", "--unbuffered", f"--job-name={self._step_name(key)}"]
        words += [f"--nodes={shape.nodes}", f"--ntasks={shape.nodes}", "--ntasks-per-node=1"]
        words += [f"--cpus-per-task={shape.cpus_per_node}"]
        words += [f"--gpus-per-node={shape.gpus_per_node}"] if shape.gpus_per_node else ["--gres=none"]
        # 0 lets steps share the allocation's memory; without it the first step takes all.
        words += [f"--mem={round((shape.mem_gb_per_node or 0) * 1024)}M"]
        words += [f"--exclude={','.join(sorted(exclude))}"] if exclude else []
        return [*words, *self._srun_args]

    def _step_name(self, key: str) -> str:
        return f"{self._run_name}-{key}"

    def _seen(self, pid: str) -> Seen:
        status = self._sruns[pid].poll()
        if status is None:
            return Seen("waiting", f"srun {pid} waits for a free part of {self.place}")
        said = logs.tail(str(self._outputs[pid]), 5)
        reason = f"srun exited with {status}"
        return Seen("gone", reason, never=any(words in said for words in _REFUSED), lost=Lost.EXITED)
