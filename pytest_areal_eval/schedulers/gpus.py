"""Which GPUs this process may use, as the tokens that CUDA_VISIBLE_DEVICES takes: indices, UUIDs, MIG slices.

Invariant: tokens stay strings, and a mask that is set is final: what it hides is never used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pytest_areal_eval.errors import ConfigError, SchedulerError
from pytest_areal_eval.schedulers import locks, nvidia

Pairs = Sequence[tuple[str, str]]

_END_OF_MASK = {"-1", "NoDevFiles", "none", "void"}


@dataclass(frozen=True)
class Gpu:
    """One device.  ``token`` goes into CUDA_VISIBLE_DEVICES; ``uuid`` is the same whatever token names the device."""

    token: str
    uuid: str

    @property
    def key(self) -> str:
        """The name of its lock."""
        return f"gpu-{self.uuid}"


@dataclass(frozen=True)
class Visible:
    """The devices that may be used, and for messages how they were found."""

    gpus: tuple[Gpu, ...]
    source: str
    by_bus_order: bool = False


def visible(mask: str | None, origin: str = "CUDA_VISIBLE_DEVICES") -> Visible:
    """Find the devices.

    Args:
        mask: CUDA_VISIBLE_DEVICES as inherited; None if it is not set, empty for "no GPU".
        origin: what gave the mask, for messages.

    Raises:
        ConfigError: the mask names a device twice.
    """
    if mask is not None and not tokens_of(mask):
        return Visible((), f"{origin}={mask!r}")
    listing = nvidia.devices()
    if mask is not None:
        return Visible(named(tokens_of(mask), listing.pairs), f"{origin}={mask!r}")
    return Visible(listed(listing.pairs), listing.source, by_bus_order=True)


def take(visible: Visible, count: int, lock_folder: Path, holder: str, held: ExitStack) -> dict[str, locks.Lock]:
    """Lock some of the devices.

    Args:
        visible: the devices to choose from, first come first taken.
        count: how many.
        lock_folder: where runs on this machine keep their locks.
        holder: who takes them, for other runs' messages.
        held: closes this process's locks in the end.

    Returns:
        the locks by token.

    Raises:
        SchedulerError: too few of them are free.
    """
    taken: dict[str, locks.Lock] = {}
    busy: list[str] = []
    for gpu in visible.gpus:
        if len(taken) == count:
            break
        lock = locks.try_lock(lock_folder, gpu.key, holder)
        if lock is None:
            busy.append(f"GPU {gpu.token} is taken by {locks.held_by(lock_folder, gpu.key)}")
        else:
            taken[gpu.token] = held.enter_context(lock)
    if len(taken) < count:
        raise SchedulerError(
            f"{holder} asks for {counted(count)}; {len(taken)} of {len(visible.gpus)} free now: {'; '.join(busy)}.",
            "Wait for that run or end it, or choose other devices with CUDA_VISIBLE_DEVICES.",
        )
    return taken


def counted(number: int, what: str = "GPU") -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def tokens_of(mask: str) -> tuple[str, ...]:
    """Split a mask as CUDA does: it ends at the first token that names no device."""
    tokens: list[str] = []
    for token in (part.strip() for part in mask.split(",")):
        if not token or token in _END_OF_MASK:
            break
        tokens.append(token)
    return tuple(tokens)


def named(tokens: Iterable[str], pairs: Pairs) -> tuple[Gpu, ...]:
    """The devices that tokens name; the UUID is the token itself where the listing does not know it."""
    known = dict(pairs)
    found: dict[str, Gpu] = {}
    for token in tokens:
        by_prefix = [uuid for uuid in known.values() if uuid.startswith(token) and token.startswith("GPU-")]
        gpu = Gpu(token, known.get(token) or (by_prefix[0] if len(by_prefix) == 1 else token))
        if gpu.uuid in found:
            raise ConfigError(
                f"GPU {token} is named twice: {found[gpu.uuid].token} and {token} are the same device.",
                "Name each device once.",
            )
        found[gpu.uuid] = gpu
    return tuple(found.values())


def listed(pairs: Pairs) -> tuple[Gpu, ...]:
    """All devices: a GPU by its index, or its MIG slices by their UUIDs where it is cut up."""
    found: list[Gpu] = []
    for token, uuid in pairs:
        if token.startswith("MIG-") and found and not found[-1].token.startswith("MIG-"):
            found.pop()  # the first slice: CUDA cannot use the whole GPU beside it
        found.append(Gpu(token, uuid))
    return tuple(found)
