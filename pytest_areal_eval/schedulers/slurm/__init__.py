"""Instances as Slurm jobs, or as steps of the allocation that this process runs in."""

from pytest_areal_eval.schedulers.slurm.options import SlurmOptions
from pytest_areal_eval.schedulers.slurm.scheduler import SlurmScheduler

__all__ = ["SlurmOptions", "SlurmScheduler"]
