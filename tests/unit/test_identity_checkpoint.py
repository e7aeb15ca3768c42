"""A checkpoint's fingerprint: a copy keeps it, other weights change it."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from pytest_areal_eval.errors import CheckpointError
from pytest_areal_eval.journal import checkpoint_fingerprint
from pytest_areal_eval.journal import fingerprint as module

TENSOR_BYTES = 200_000
TENSORS = 20


def make_checkpoint(folder: Path, name: str = "model.safetensors") -> Path:
    """Twenty tensors of 200 kB, each filled with its number."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    (folder / "generation_config.json").write_text("{}")
    (folder / "tokenizer.json").write_text('{"vocab": {}}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    spans = {
        f"layers.{i}": {
            "dtype": "U8",
            "shape": [TENSOR_BYTES],
            "data_offsets": [i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES],
        }
        for i in range(TENSORS)
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **spans}).encode()
    data = b"".join(bytes([i]) * TENSOR_BYTES for i in range(TENSORS))
    (folder / name).write_bytes(len(header).to_bytes(8, "little") + header + data)
    return folder


def train_tensor(file: Path, number: int) -> None:
    """Change every value of one tensor, and nothing else."""
    content = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little") + number * TENSOR_BYTES
    content[start : start + TENSOR_BYTES] = b"\xee" * TENSOR_BYTES
    file.write_bytes(content)


@pytest.fixture(params=["whole", "sampled"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "sampled":
        monkeypatch.setattr(module, "WHOLE_LIMIT_BYTES", 1000)
    return str(request.param)


@pytest.mark.usefixtures("mode")
def test_a_copy_elsewhere_at_another_time_keeps_the_fingerprint(tmp_path: Path) -> None:
    original = make_checkpoint(tmp_path / "a")
    copy = shutil.copytree(original, tmp_path / "deep" / "b")
    for file in copy.iterdir():
        os.utime(file, (1, 1))
    assert checkpoint_fingerprint(str(copy)) == checkpoint_fingerprint(f"{original}/")


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("number", range(TENSORS))
def test_training_any_one_tensor_changes_it(tmp_path: Path, number: int) -> None:
    """C29b: the old model's results came back after the checkpoint changed under its path."""
    folder = make_checkpoint(tmp_path / "a")
    file = folder / "model.safetensors"
    before, stat = checkpoint_fingerprint(str(folder)), file.stat()
    train_tensor(file, number)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = checkpoint_fingerprint(str(folder))
    assert after.digest != before.digest
    assert {name for name in after.files if after.files[name] != before.files[name]} == {"model.safetensors"}


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_changed_config_tokenizer_or_template_changes_it(tmp_path: Path, name: str) -> None:
    folder = make_checkpoint(tmp_path / "a")
    before = checkpoint_fingerprint(str(folder)).digest
    (folder / name).write_text((folder / name).read_text() + " ")
    assert checkpoint_fingerprint(str(folder)).digest != before


def test_what_a_trainer_leaves_beside_the_model_does_not_change_it(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "a")
    before = checkpoint_fingerprint(str(folder))
    for name in ("optimizer.pt", "rng_state_0.pth", "trainer_state.json", "training_args.bin", "README.md", ".x.json"):
        (folder / name).write_bytes(os.urandom(8))
    (folder / "logs").mkdir()
    assert checkpoint_fingerprint(str(folder)) == before


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.gguf", "broken.safetensors"])
def test_weights_of_unknown_layout_are_told_apart(tmp_path: Path, name: str) -> None:
    content = bytearray(os.urandom(5_000_000))
    file = tmp_path / name
    file.write_bytes(content)
    before = checkpoint_fingerprint(str(tmp_path)).digest
    assert checkpoint_fingerprint(str(tmp_path)).digest == before
    content[2_000_000:2_100_000] = bytes(100_000)
    file.write_bytes(content)
    assert checkpoint_fingerprint(str(tmp_path)).digest != before


@pytest.mark.parametrize(
    "header", [b"[]", b"{", b'{"a": 1}', b'{"a": {"data_offsets": 5}}', b'{"a": {"data_offsets": ["x", 1]}}']
)
def test_a_header_that_makes_no_sense_is_sampled_as_bytes(
    tmp_path: Path, header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WHOLE_LIMIT_BYTES", 10)
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"a" * 50_000)
    before = checkpoint_fingerprint(str(tmp_path)).digest
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"b" * 50_000)
    assert checkpoint_fingerprint(str(tmp_path)).digest != before


def test_a_truncated_shard_changes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHOLE_LIMIT_BYTES", 1000)
    folder = make_checkpoint(tmp_path / "a")
    before = checkpoint_fingerprint(str(folder)).digest
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 1)
    assert checkpoint_fingerprint(str(folder)).digest != before


def test_a_checkpoint_of_16_gb_takes_under_a_second(tmp_path: Path) -> None:
    """Sparse files: four shards of 4 GB, 100 tensors each."""
    (tmp_path / "config.json").write_text("{}")
    size = 40 * 2**20
    spans = {f"t{i}": {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]} for i in range(100)}
    header = json.dumps(spans).encode()
    for shard in range(4):
        with (tmp_path / f"model-{shard}.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + 100 * size)
    started = time.monotonic()
    assert checkpoint_fingerprint(str(tmp_path)).kind == "files"
    assert time.monotonic() - started < 1


def test_a_checkpoint_reached_through_links_is_the_same(tmp_path: Path) -> None:
    """The hub's cache links its files to blobs."""
    folder = make_checkpoint(tmp_path / "blobs")
    links = tmp_path / "snapshot"
    links.mkdir()
    for file in folder.iterdir():
        (links / file.name).symlink_to(file)
    assert checkpoint_fingerprint(str(links)) == checkpoint_fingerprint(str(folder))


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HOME", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repo = tmp_path / "models--org--model"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee")
    (repo / "snapshots" / "c0ffee").mkdir(parents=True)
    return repo


def test_a_hub_name_in_the_cache_is_its_commit(hub_cache: Path) -> None:
    before = checkpoint_fingerprint("org/model")
    assert before.kind == "hub"
    assert checkpoint_fingerprint("org/model", revision="c0ffee") == before
    (hub_cache / "refs" / "main").write_text("beef")
    assert checkpoint_fingerprint("org/model").digest != before.digest


@pytest.mark.usefixtures("hub_cache")
def test_a_name_known_nowhere_is_only_a_name() -> None:
    names = [
        checkpoint_fingerprint("org/other"),
        checkpoint_fingerprint("gpt-5"),
        checkpoint_fingerprint("org/other", revision="v2"),
    ]
    assert {one.kind for one in names} == {"name"}
    assert len({one.digest for one in names}) == 3


@pytest.mark.parametrize("path", ["/no/such/checkpoint", "./missing", "~/missing", "runs/missing/step_100"])
def test_a_path_that_does_not_exist_is_no_hub_name(path: str) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*\n.*--model=PATH"):
        checkpoint_fingerprint(path)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        checkpoint_fingerprint(str(tmp_path))
