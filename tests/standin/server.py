"""The stand-in server: SGLang's ``/generate``, OpenAI's chat, ``/health``, scripted faults, and ``/stat`` about itself.

Run as a program it is a replica that a scheduler can start; :func:`in_thread` runs it inside a test.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a program, it is started by its path

from standin.faults import Rule, rules_from
from standin.http11 import Connection, Reply, Request
from standin.job import Job, chat_shape, generate_shape
from standin.load import Load
from standin.pictures import problems, said, shown
from standin.tokens import ByteTokenizer

DEFAULT_ANSWER = "The answer is \\boxed{42}."
OTHER_ANSWER = "The answer is \\boxed{41}."
OTHER, REFUSED, DEADLY = "other", "refused", "deadly"
"""Checkpoints that it can be asked to load: one answers otherwise, one is refused, one ends it."""
KEY = re.compile(r"(?:Question|Item|id)\s*:?\s*([\w.-]+)")
CUDA_MESSAGE = """\
Traceback (most recent call last):
  File "scheduler.py", line 2043, in run_scheduler_process
    self.model_runner = ModelRunner(self.server_args)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.00 GiB. GPU 0 has a total capacity of 23.69 GiB."""


class Standin:
    """One server.

    Args:
        latency_s: time that an answer takes.
        token_s: time that each of its tokens takes beside.
        answers: texts by key; the key is the prompt itself, what follows "Question" in it, or any part of it.  A list
            is gone through in turn, whatever is asked.
        faults: scripted faults, first match wins.
        nonce: what ``/health`` tells.
        token: the bearer token that every path but ``/health`` and ``/stat`` demands; "" for none.
        context_length: prompt and answer together, in tokens.
        concurrency: what ``/model_info`` recommends.
        die_after: exit after so many generation requests.
        ready_after_s: ``/health`` answers 503 before.
        tokenizer: has ``encode(text)`` and ``decode(ids)``.
    """

    def __init__(
        self,
        *,
        latency_s: float = 0.0,
        token_s: float = 0.0,
        answers: Mapping[str, str] | Sequence[str] | None = None,
        faults: Sequence[Rule] = (),
        nonce: str = "",
        token: str = "",
        context_length: int = 32768,
        concurrency: int = 64,
        die_after: int | None = None,
        ready_after_s: float = 0.0,
        tokenizer: Any = None,
    ) -> None:
        self.latency_s, self.token_s = latency_s, token_s
        self._turns = itertools.cycle(answers) if isinstance(answers, Sequence) else None
        self.answers = dict(answers) if isinstance(answers, Mapping) else {}
        self.faults = list(faults)
        self.nonce = nonce
        self.token = token
        self.context_length = context_length
        self.concurrency = concurrency
        self.die_after = die_after
        self.tokenizer = tokenizer or ByteTokenizer()
        self.load = Load()
        self.health_delay_s: float | None = 0.0
        self.model_path = "stand-in"
        self._ready_at = time.monotonic() + ready_after_s
        self.by_rid: dict[str, Job] = {}
        self.bodies: deque[dict[str, Any]] = deque(maxlen=64)  # of the last requests
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Start serving; returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, host, port, backlog=4096)
        return int(self._server.sockets[0].getsockname()[1])

    def shut(self) -> None:
        """Close the port and every connection, as a server that was killed does."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.drop()

    def _connect(self) -> Connection:
        connection = Connection(self._handle, self._closed)
        self._connections.add(connection)
        self.load.connections += 1
        return connection

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        for job in tuple(connection.pending):
            self.load.aborted += 1
            job.finish(None)

    def pages(self) -> dict[str, Callable[[Request], Reply | None]]:
        """What is answered at once."""
        return {
            "/model_info": self._model_info,
            "/v1/models": self._models,
            "/abort_request": self._abort,
            "/update_weights_from_disk": lambda request: self.load_weights(request.json()["model_path"]),
        }

    def forms(self) -> dict[str, Callable[..., Reply]]:
        """Where there is generation, and the form of its answer."""
        return {"/generate": generate_shape, "/v1/chat/completions": chat_shape}

    def refusal(self, path: str, body: Mapping[str, Any]) -> Reply | None:
        """Why a request is refused before anything is generated."""
        return None

    def error(self, path: str, status: int, message: str) -> Any:
        """The body of an error."""
        return {"error": {"message": message}}

    def _handle(self, request: Request) -> None:
        own = {"/health": self._health, "/stat": lambda r: Reply(self.load.report()), "/reset": self._reset}
        answer = own.get(request.path) or self.pages().get(request.path)
        if request.path not in own and not self._allowed(request):
            request.connection.send(Reply({"error": "Unauthorized"}, 401))
        elif answer is not None:
            reply = answer(request)
            if reply is not None:
                request.connection.send(reply)
        elif request.path in self.forms():
            self._generate(request)
        else:
            request.connection.send(Reply({"detail": "Not Found"}, 404))

    def _allowed(self, request: Request) -> bool:
        return not self.token or request.headers.get("authorization") == f"Bearer {self.token}"

    def _health(self, request: Request) -> Reply | None:
        if self.health_delay_s is None:
            return None  # a server that hangs
        if time.monotonic() < self._ready_at:
            return Reply(b"", 503)
        return Reply({"status": "ok", "nonce": self.nonce})

    def _reset(self, request: Request) -> Reply:
        self.load = Load(in_flight=self.load.in_flight)
        return Reply({})

    def _model_info(self, request: Request) -> Reply:
        return Reply(
            {
                "model_path": self.model_path,
                "served_model_name": "stand-in",
                "is_generation": True,
                "context_length": self.context_length,
                "max_batch": self.concurrency,
            }
        )

    def load_weights(self, path: str) -> Reply:
        """Load another checkpoint."""
        if path == DEADLY:
            self.die()
        if path == REFUSED:
            return Reply({"success": False, "message": "the weights do not fit"}, 400)
        self.model_path = path
        return Reply({"success": True, "message": "Succeeded to update model weights."})

    def _models(self, request: Request) -> Reply:
        model = {"id": "stand-in", "object": "model", "owned_by": "sglang", "max_model_len": self.context_length}
        return Reply({"object": "list", "data": [model]})

    def _abort(self, request: Request) -> Reply:
        job = self.by_rid.get(request.json().get("rid", ""))
        if job is not None:
            self.load.aborted += 1
            job.finish(job.shape(job, "", [], {"type": "abort", "message": "Aborted"}))
        return Reply(b"")

    def _generate(self, request: Request) -> None:
        body = request.json()
        self.bodies.append(body)
        problem = next(problems(body), None)
        refusal = Reply(self.error(request.path, 400, problem), 400) if problem else self.refusal(request.path, body)
        if refusal is not None:
            request.connection.send(refusal)
            return
        job = Job(self, request, body, self._prompt(body), self.forms()[request.path])
        rule = next((r for r in self.faults if r.applies(job.prompt)), None)
        job.begin(rule)
        if self.die_after is not None and self.load.requests >= self.die_after:
            self.die()

    def die(self) -> None:
        """As a server that crashed: nothing is answered any more."""
        self.shut()

    def _prompt(self, body: Mapping[str, Any]) -> str:
        if "messages" in body:
            return "\n".join(said(m.get("content")) for m in body["messages"])
        ids = body.get("input_ids", body.get("prompt"))
        if isinstance(ids, list):
            return "".join([str(self.tokenizer.decode(ids)), *map(shown, body.get("image_data") or ())])
        return str(body.get("text", ""))

    def answer(self, prompt: str) -> str:
        """The next text in turn, or that for a prompt: by the whole of it, by its key, by a part of it, the default."""
        if self._turns is not None:
            return next(self._turns)
        if not self.answers or prompt in self.answers:
            return self.answers.get(prompt, OTHER_ANSWER if self.model_path == OTHER else DEFAULT_ANSWER)
        found = KEY.search(prompt)
        if found is not None and found[1] in self.answers:
            return self.answers[found[1]]
        return next((text for key, text in self.answers.items() if key in prompt), DEFAULT_ANSWER)


class Running:
    """A server in a thread of this process."""

    def __init__(self, server: Standin, host: str) -> None:
        self.server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stand-in", daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(server.listen(host, 0), self._loop).result(10)
        self.url = f"http://{host}:{self.port}"

    @property
    def load(self) -> Load:
        """What it saw."""
        return self.server.load

    def die(self) -> None:
        """Stop answering, as if it had been killed."""
        self._loop.call_soon_threadsafe(self.server.die)

    def revive(self) -> None:
        """Listen again on the same port."""
        asyncio.run_coroutine_threadsafe(self.server.listen("127.0.0.1", self.port), self._loop).result(10)

    def stop(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self.server.shut)
        self._loop.call_soon_threadsafe(self._loop.call_soon, self._loop.stop)
        self._thread.join(5)
        self._loop.close()


@contextlib.contextmanager
def in_thread(kind: type[Standin] = Standin, **options: Any) -> Iterator[Running]:
    """A running server; ``options`` are :class:`Standin`'s."""
    running = Running(kind(**options), "127.0.0.1")
    try:
        yield running
    finally:
        running.stop()


def main(argv: Sequence[str] | None = None) -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--nonce", default="")
    parser.add_argument("--model", default="stand-in")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--answers", type=Path, help="JSON object: key to text")
    parser.add_argument("--faults", type=json.loads, default=[], help="JSON list of rules, see faults.Rule")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; bytes otherwise")
    parser.add_argument("--context-length", type=int, default=32768)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--die-after", type=int, help="exit with 9 after so many requests")
    parser.add_argument("--ready-after", type=float, default=0.0, help="seconds of 503 from /health")
    parser.add_argument("--exit-at-start", type=int, help="print a CUDA error and exit with this status")
    options = parser.parse_args(argv)
    if options.exit_at_start is not None:
        print(CUDA_MESSAGE, file=sys.stderr, flush=True)
        sys.exit(options.exit_at_start)
    asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    tokenizer = None
    if options.tokenizer is not None:
        import tokenizers

        loaded = tokenizers.Tokenizer.from_file(str(options.tokenizer))
        tokenizer = Loaded(loaded)
    server = _Process(
        latency_s=options.latency_ms / 1000,
        answers=json.loads(options.answers.read_text()) if options.answers else None,
        faults=rules_from(options.faults),
        nonce=options.nonce,
        token=os.environ.pop("AREAL_EVAL_TOKEN", ""),
        context_length=options.context_length,
        concurrency=options.concurrency,
        die_after=options.die_after,
        ready_after_s=options.ready_after,
        tokenizer=tokenizer,
    )
    server.model_path = options.model
    port = await server.listen(options.host, options.port)
    print(f"stand-in listens on http://{options.host}:{port}", flush=True)
    await asyncio.Event().wait()


class _Process(Standin):
    def die(self) -> None:
        print("stand-in: CUDA error: an illegal memory access was encountered", file=sys.stderr, flush=True)
        os._exit(9)


class Loaded:
    """A ``tokenizers`` tokenizer with the two methods that the server needs."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._ids = functools.lru_cache(lambda text: tuple(inner.encode(text, add_special_tokens=False).ids))

    def encode(self, text: str) -> list[int]:
        return list(self._ids(text))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._inner.decode(list(ids), skip_special_tokens=False))


if __name__ == "__main__":
    main()
