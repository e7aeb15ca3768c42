"""What NVIDIA's driver lists: asked through NVML where its Python binding is installed, else through nvidia-smi.

Neither makes a CUDA context, which would take memory of every GPU for as long as this process lives.
"""

from __future__ import annotations

import re
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytest_areal_eval.programs import ask

SMI = ("nvidia-smi", "-L")
SMI_LIMIT_S = 5.0

_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")
_MIG = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")


@dataclass(frozen=True)
class Listing:
    """The machine's devices.

    Attributes:
        pairs: CUDA_VISIBLE_DEVICES token and UUID: a GPU by its index, then each of its MIG slices by its UUID.
        source: who said so, or why nobody could.
    """

    pairs: tuple[tuple[str, str], ...]
    source: str


def devices() -> Listing:
    """List the devices; an empty listing says why."""
    found = _from_nvml()
    if found is not None and found.pairs:
        return found
    other = _from_smi()
    if found is None or other.pairs:
        return other
    return Listing((), f"{found.source}; {other.source}")


def _from_nvml() -> Listing | None:
    """None where the binding (nvidia-ml-py) is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an older package of that name tells of its successor
            import pynvml  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Listing((), f"NVML: {error}")
    try:
        return Listing(tuple(_nvml_pairs(pynvml)), "NVML")
    except pynvml.NVMLError as error:
        return Listing((), f"NVML: {error}")
    finally:
        pynvml.nvmlShutdown()


def _nvml_pairs(nvml: Any) -> Iterator[tuple[str, str]]:
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        yield str(index), nvml.nvmlDeviceGetUUID(gpu)
        try:
            cut_up = nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE
            places = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if cut_up else 0
        except nvml.NVMLError_NotSupported:
            continue
        for place in range(places):
            try:
                uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place))
            except nvml.NVMLError_NotFound:
                continue  # there is room for one more
            yield uuid, uuid


def _from_smi() -> Listing:
    command = " ".join(SMI)
    try:
        done = ask(SMI, SMI_LIMIT_S)
    except FileNotFoundError:
        return Listing((), "no nvidia-smi on PATH")
    except subprocess.TimeoutExpired:
        return Listing((), f"{command} gave no answer in {SMI_LIMIT_S:g} s")
    if done.returncode != 0:
        return Listing((), f"{command} exited with {done.returncode}: {(done.stdout + done.stderr).strip()}")
    return Listing(tuple(_smi_pairs(done.stdout)), command)


def _smi_pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if gpu := _GPU.match(line):
            yield gpu[1], gpu[2]
        elif mig := _MIG.match(line):
            yield mig[1], mig[1]
