"""HTTP to servers that are not what they should be: which failure each is, and that none is anything else."""

from __future__ import annotations

import asyncio
import gzip
import time
from email.utils import formatdate
from typing import Any

import pytest
from standin.http11 import Reply, Request
from standin.server import Standin, in_thread

from pytest_areal_eval.controller.client import open_session
from pytest_areal_eval.engines import http
from pytest_areal_eval.engines.base import Endpoint, TransientError
from pytest_areal_eval.errors import RequestError


def get(reply: Reply) -> Any:
    """What one page comes to."""

    class Odd(Standin):
        def pages(self) -> Any:
            def page(request: Request) -> Reply:
                return reply

            return {"/page": page}

    async def ask(url: str) -> Any:
        async with open_session() as session:
            return await http.get_json(session, Endpoint("server/0", url), "/page")

    with in_thread(Odd) as server:
        return asyncio.run(ask(server.url))


def test_a_redirect_is_refused_with_where_it_leads() -> None:
    """Followed, a POST would become a GET."""
    with pytest.raises(RequestError, match="HTTP 301: it redirects to https://elsewhere/") as refusal:
        get(Reply(b"", 301, {"Location": "https://elsewhere/"}))
    assert refusal.value.status == 301


@pytest.mark.parametrize("status", [200, 500])
def test_a_body_that_is_nested_too_deep_is_no_json(status: int) -> None:
    with pytest.raises(TransientError, match=r"\[\["):
        get(Reply(b"[" * 200_000, status))


def test_a_small_body_that_unpacks_to_a_large_one_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_LIMIT", 2**20)
    assert get(Reply(gzip.compress(b'"' + b"0" * 2**19 + b'"'), 200, {"Content-Encoding": "gzip"}))
    with pytest.raises(TransientError, match="longer than 1048576 bytes"):
        get(Reply(gzip.compress(b"0" * 2**24), 200, {"Content-Encoding": "gzip"}))


@pytest.mark.parametrize(
    ("asked", "waits_s"),
    [
        ("2", 2.0),
        ("1.5", 1.5),
        ("1000000000", 60.0),
        ("9" * 400, 60.0),
        (formatdate(time.time() + 86_400), 60.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", None),
        ("-5", None),
        ("nan", None),
        ("soon", None),
        ("", None),
    ],
)
def test_what_a_server_asks_to_wait_is_seconds_or_a_date_and_a_minute_at_most(asked: str, waits_s: float) -> None:
    with pytest.raises(TransientError) as refusal:
        get(Reply({}, 429, {"Retry-After": asked}))
    assert refusal.value.retry_after_s == waits_s
