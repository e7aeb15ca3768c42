"""Which weights were evaluated: the same for a copy of a checkpoint, another for other weights at the same path.

Invariant: neither path nor time enters the digest.  Everything small is hashed whole.  Of weights over 256 MB in all,
the header and 16 kB from the middle of *every tensor* are hashed, so that a checkpoint in which one layer alone was
trained still differs; a 7B model reads about 6 MB.  What goes unseen is an edit that leaves those 16 kB of each tensor
as they were (a few patched values); no training step does that.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_areal_eval.errors import CheckpointError

WHOLE_LIMIT_BYTES = 256 * 2**20
BLOCK_BYTES = 16 * 2**10
SPREAD_BLOCKS = 256
"""Blocks of a weights file whose layout is unknown (``.bin``, ``.gguf``), evenly spaced."""

_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
_SETTINGS = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken", ".py", ".yaml"})
_TRAINERS_STATE = ("optimizer", "scheduler", "rng_state", "trainer_state", "training_args", "scaler", "global_step")
_MAX_HEADER_BYTES = 100_000_000
"""The safetensors format's own limit."""


@dataclass(frozen=True)
class Fingerprint:
    """A checkpoint's identity.

    Attributes:
        kind: what was hashed: a local checkpoint's files, or a hub name with its commit, or the name alone.
        digest: 32 hex digits.
        files: each file's own digest (16 hex digits), to name what differs between two checkpoints.
    """

    kind: Literal["files", "hub", "name"]
    digest: str
    files: Mapping[str, str]


def checkpoint_fingerprint(path_or_name: str, *, revision: str = "main") -> Fingerprint:
    """Identify a checkpoint.

    Args:
        path_or_name: a local directory or weights file, or a hub name, looked up in the local cache only.
        revision: branch, tag or commit of a hub name.

    Raises:
        CheckpointError: the path does not exist, cannot be read, or holds no checkpoint.
    """
    path = Path(path_or_name).expanduser()
    if path.exists():
        try:
            return _of_files(path)
        except OSError as error:
            raise CheckpointError(f"cannot read the checkpoint {path}: {error}") from error
    if path.is_absolute() or path_or_name.startswith((".", "~")) or path_or_name.count("/") > 1:
        raise CheckpointError(
            f"there is no checkpoint at {path_or_name}", "Give a Hugging Face checkpoint's directory: --model=PATH"
        )
    commit = _cached_commit(path_or_name, revision)
    identity = f"{path_or_name}@{commit or revision}"
    return Fingerprint("hub" if commit else "name", hashlib.sha256(identity.encode()).hexdigest()[:32], {})


def _of_files(path: Path) -> Fingerprint:
    files = {path.name: path} if path.is_file() else _checkpoint_files(path)
    if not files:
        raise CheckpointError(
            f"{path} holds no checkpoint: no config.json, tokenizer or weights",
            "Point --model at the folder with config.json.",
        )
    weights = sum(file.stat().st_size for file in files.values() if file.suffix in _WEIGHTS)
    whole = weights <= WHOLE_LIMIT_BYTES

    def digest(file: Path) -> str:
        return _hash_whole(file) if whole or file.suffix not in _WEIGHTS else _hash_sample(file)

    with ThreadPoolExecutor(8) as pool:  # reading and hashing both release the GIL
        digests = dict(zip(files, pool.map(digest, files.values()), strict=True))
    total = hashlib.sha256(json.dumps(sorted(digests.items())).encode())
    return Fingerprint("files", total.hexdigest()[:32], digests)


def _checkpoint_files(folder: Path) -> dict[str, Path]:
    """What a server would load, without the trainer's own state beside it."""
    candidates = [*folder.iterdir(), *folder.glob("additional_chat_templates/*")]
    return {
        file.relative_to(folder).as_posix(): file
        for file in sorted(candidates)
        if file.suffix in _WEIGHTS | _SETTINGS and not file.name.startswith((".", *_TRAINERS_STATE)) and file.is_file()
    }


def _hash_whole(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]


def _hash_sample(file: Path) -> str:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        header = _safetensors_header(fd, size) if file.suffix == ".safetensors" else b""
        digest = hashlib.sha256(size.to_bytes(8, "little") + header)
        for offset in _tensor_middles(header) or _spread(size):
            digest.update(os.pread(fd, BLOCK_BYTES, offset))
        return digest.hexdigest()[:16]
    finally:
        os.close(fd)


def _safetensors_header(fd: int, size: int) -> bytes:
    """The header's JSON; empty where the file does not follow the format."""
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    return os.pread(fd, length, 8) if length <= min(size - 8, _MAX_HEADER_BYTES) else b""


def _tensor_middles(header: bytes) -> list[int]:
    """Offset in the file of the block in each tensor's middle; none where the header tells none."""
    start = 8 + len(header)
    try:
        spans = [tensor["data_offsets"] for name, tensor in json.loads(header).items() if name != "__metadata__"]
        return sorted(start + max(first, (first + end - BLOCK_BYTES) // 2) for first, end in spans)
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def _spread(size: int) -> list[int]:
    last = max(size - BLOCK_BYTES, 0)
    return [last * i // (SPREAD_BLOCKS - 1) for i in range(SPREAD_BLOCKS)]


def _cached_commit(name: str, revision: str) -> str | None:
    """The commit that the local cache has for a hub name; asks no network and imports no client."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or home / "hub")
    repo = cache / f"models--{name.replace('/', '--')}"
    try:
        return (repo / "refs" / revision).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return revision if (repo / "snapshots" / revision).is_dir() else None
