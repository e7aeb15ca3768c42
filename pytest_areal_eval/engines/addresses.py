"""The addresses of servers that run already, and their key, as a user gives them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

from pytest_areal_eval.engines.base import Endpoint
from pytest_areal_eval.errors import ConfigError
from pytest_areal_eval.redact import redact_text

PAGES = ("/chat/completions", "/completions", "/models", "/generate", "/responses")
"""What belongs behind an address, and is often pasted with it."""
_USER_INFO = re.compile(r"^(\w+://)?.*@")


def given_endpoints(urls: Sequence[str], key: str) -> list[Endpoint]:
    """The servers that ``--base-url`` names: roots, with or without ``/v1``.

    Raises:
        ConfigError: no http address, or one given twice; a key that none can be.
    """
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            "--api-key-env: the variable's value is no key: it holds a line break, or letters beyond ASCII",
            "See what it holds with printf %q.",
        )
    roots = [_root(url.strip()) for url in urls]
    for i, root in enumerate(roots):
        if root in roots[:i]:
            raise ConfigError(f"--base-url={urls[i]} is given twice; each address is one replica")
    return [Endpoint(f"server/{i}", root, key) for i, root in enumerate(roots)]


def _root(url: str) -> str:
    """What goes before ``/v1``, or the whole address where it has a path of its own."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        usable = parts.scheme in ("http", "https") and host and parts.port != 0 and url.split() == [url]
    except ValueError:  # a port or a host's name that is none
        usable = False
    if not usable:
        shown = redact_text(_USER_INFO.sub(r"\1***@", url))
        raise ConfigError(f"--base-url={shown}: not an address", "Write it whole, such as http://127.0.0.1:8000/v1.")
    if "@" in parts.netloc:
        raise ConfigError(
            f"--base-url: the address of {parts.hostname} holds a user's name or password, which would be shown",
            "Give a key with --api-key-env=NAME of the variable that holds it.",
        )
    page = next((page for page in PAGES if parts.path.rstrip("/").endswith(page)), "")
    plain = url.partition("#")[0].partition("?")[0]
    surplus = page or url.removeprefix(plain)
    if surplus:
        raise ConfigError(
            f"--base-url={redact_text(url)}: this is a page, not what pages are under",
            f"Leave out {redact_text(surplus)}",
        )
    root = urlunsplit(parts).rstrip("/")
    return root.removesuffix("/v1") if parts.path.rstrip("/") == "/v1" else root
