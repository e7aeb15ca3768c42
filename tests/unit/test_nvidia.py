"""What NVIDIA's driver lists, by NVML and by nvidia-smi: the same devices, however they are asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from pytest_areal_eval.schedulers import gpus, nvidia

SMI = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa)
  MIG 3g.20gb     Device  0: (UUID: MIG-a0)
  MIG 3g.20gb     Device  1: (UUID: MIG-a1)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb)
"""
PAIRS = (("0", "GPU-aaaa"), ("MIG-a0", "MIG-a0"), ("MIG-a1", "MIG-a1"), ("1", "GPU-bbbb"))


class NVML(ModuleType):
    """The binding's functions over a machine with one GPU that is cut up and one that cannot be."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception): ...

    class NVMLError_NotSupported(NVMLError): ...  # noqa: N801

    class NVMLError_NotFound(NVMLError): ...  # noqa: N801

    def __init__(self, trouble: str = "") -> None:
        super().__init__("pynvml")
        self.trouble, self.open = trouble, 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.trouble:
            raise self.NVMLError(self.trouble)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return ("GPU-aaaa", "GPU-bbbb")[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        if handle == "GPU-bbbb":
            raise self.NVMLError_NotSupported
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:  # noqa: N802
        if index not in (0, 3):
            raise self.NVMLError_NotFound
        return "MIG-a0" if index == 0 else "MIG-a1"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is to become nvidia-smi."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "nvidia-smi"


def says(smi: Path, text: str) -> None:
    smi.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
    smi.chmod(0o755)


def test_nvml_lists_gpus_and_slices_and_is_let_go(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = NVML()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert nvidia.devices() == nvidia.Listing(PAIRS, "NVML")
    assert nvml.open == 0
    assert [gpu.token for gpu in gpus.visible(None).gpus] == ["MIG-a0", "MIG-a1", "1"]
    assert gpus.visible("1,MIG-a1").gpus == (gpus.Gpu("1", "GPU-bbbb"), gpus.Gpu("MIG-a1", "MIG-a1"))


def test_nvidia_smi_lists_the_same_where_the_binding_is_missing(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    says(smi, SMI)
    assert nvidia.devices() == nvidia.Listing(PAIRS, "nvidia-smi -L")


def test_an_nvml_that_fails_leaves_it_to_nvidia_smi(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", NVML("Driver/library version mismatch"))
    says(smi, SMI)
    assert nvidia.devices() == nvidia.Listing(PAIRS, "nvidia-smi -L")


def test_where_both_fail_both_reasons_are_told(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", NVML("NVML Shared Library Not Found"))
    assert nvidia.devices() == nvidia.Listing((), "NVML: NVML Shared Library Not Found; no nvidia-smi on PATH")
