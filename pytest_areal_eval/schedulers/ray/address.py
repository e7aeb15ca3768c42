"""Where the Ray cluster is, and what can be said against an address before Ray is imported."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import socket
from pathlib import Path
from typing import Any

from pytest_areal_eval.errors import ConfigError

LOCAL = "local"
AUTO = "auto"
TCP_LIMIT_S = 3.0


def resolve(address: str | None) -> str:
    """``host:port``, or ``local`` where a cluster is to be started here.

    Raises:
        ConfigError: malformed, or ``auto`` without a cluster.
    """
    if not address or address == LOCAL:
        return LOCAL
    if address == AUTO:
        return _from_file()
    host, colon, port = address.rpartition(":")
    if "//" in address or not (host and colon and port.isdecimal()):
        raise ConfigError(
            f"--ray-address={address}: not an address of a Ray cluster",
            "Give its head's host:port, auto or local, and run pytest on one of its nodes.",
        )
    return address


def check(address: str) -> None:
    """Find in seconds what ``ray.init`` finds in minutes or never.

    Args:
        address: as :func:`resolve` gives it.

    Raises:
        ConfigError: Ray is not installed, or nobody listens there.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "--scheduler=ray: ray is not installed in this environment",
            "Install it (pip install 'pytest-areal-eval[ray]'), or use --scheduler=local.",
        )
    if address == LOCAL:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), TCP_LIMIT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address}: {error}",
            "See whether its head runs (ray status), or leave --ray-address and RAY_ADDRESS out to start one here.",
        ) from error


def read_runtime_env(text: str) -> dict[str, Any]:
    """A runtime environment: a JSON object, or the path of a file that holds one.

    Raises:
        ConfigError: it is neither.
    """
    try:
        found = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--ray-runtime-env={text}: {error}",
            """Give a JSON file, or JSON: '{"env_vars": {"HF_HUB_OFFLINE": "1"}}'.""",
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"--ray-runtime-env={text}: holds a {type(found).__name__}, not a JSON object")
    return found


def own_address(address: str) -> str | None:
    """The head's address where this machine is the head, by which Ray then knows it too; None elsewhere.

    Ray guesses a node's address from its route to the internet, which a machine with several networks may have on
    another one than the cluster's.
    """
    host = address.rpartition(":")[0]
    if host in ("", "localhost", "127.0.0.1"):
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((found := socket.gethostbyname(host), 0))
    except OSError:
        return None
    return found


def _from_file() -> str:
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    file = Path(folder, "ray", "ray_current_cluster")
    try:
        address = file.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"--ray-address=auto: no Ray cluster is known on this machine ({error})",
            "Start one (ray start --head), or give its host:port.",
        ) from error
    try:
        check(address)
    except ConfigError as error:
        said = f"--ray-address=auto: {file} is stale: {error.args[0]}"
        raise ConfigError(said, f"Remove it: rm {shlex.quote(str(file))}") from error
    return address
