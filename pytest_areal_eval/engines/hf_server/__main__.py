"""The server's command line and its life: listen, load, serve, and leave on SIGTERM or SIGINT at once.

It listens before it loads, so that ``/health`` can answer 503; torch and transformers are imported by the model's
thread meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import os
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import NoReturn

from aiohttp import web

from pytest_areal_eval.engines.hf_server import openai_api, sglang_api
from pytest_areal_eval.engines.hf_server.fields import RequestRefusedError
from pytest_areal_eval.engines.hf_server.generation import Generation
from pytest_areal_eval.engines.hf_server.service import Service
from pytest_areal_eval.errors import CheckpointError

TOKEN_VARIABLE = "AREAL_EVAL_TOKEN"
NEVER_EXIT = 78
"""EX_CONFIG of sysexits.h: this checkpoint or environment will never serve, so another start is no use."""
MAX_BODY_BYTES = 256 * 2**20
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the server until it is told to end, then end the process."""
    options = _parser().parse_args(argv)
    token = os.environ.pop(TOKEN_VARIABLE, "")
    try:
        status = asyncio.run(_serve(options, token))
    except OSError as e:
        print(f"cannot listen on {options.host}:{options.port}: {e.strerror or e}", file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # The model's thread may be deep in a forward or an import, which the interpreter's own exit would wait for.
    os._exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_areal_eval.engines.hf_server",
        description=f"Serve a checkpoint.  {TOKEN_VARIABLE} in the environment is asked of every request.",
    )
    parser.add_argument("--model", required=True, help="checkpoint directory or hub name")
    parser.add_argument("--tokenizer", metavar="PATH", help="its tokenizer, where that is not with the checkpoint")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--max-batch", type=_positive, default=32, metavar="N", help="sequences at once")
    parser.add_argument("--context-length", type=_positive, metavar="N", help="prompt and answer together, in tokens")
    parser.add_argument("--threads", type=_positive, metavar="N", help="CPU threads of one forward")
    parser.add_argument("--served-model-name", default="default", metavar="NAME")
    parser.add_argument("--nonce", default="", help="returned by /health, so that a caller knows this server")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the checkpoint's own code")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


async def _serve(options: argparse.Namespace, token: str) -> int:
    service = Service(options.served_model_name, options.nonce, options.max_batch)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    failure: list[tuple[int, str]] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    # A client that goes away cancels its handler, and so frees its rows.
    runner = web.AppRunner(_app(service, token), handler_cancellation=True, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, options.host, options.port).start()

    def give_up(status: int, message: str) -> None:
        failure.append((status, message))
        ended.set()

    threading.Thread(target=_own_the_model, args=(options, service, loop, give_up), daemon=True).start()
    await ended.wait()
    if service.batcher is not None:
        service.batcher.close()
    await runner.cleanup()
    for _, message in failure:
        print(message, file=sys.stderr)
    return failure[0][0] if failure else 0


def _own_the_model(
    options: argparse.Namespace,
    service: Service,
    loop: asyncio.AbstractEventLoop,
    give_up: Callable[[int, str], None],
) -> None:
    """The model's thread: load, then batch until the server ends."""
    try:
        _load_and_run(options, service, loop)
    except CheckpointError as e:
        status, message = NEVER_EXIT, str(e)
    except ImportError as e:
        status = NEVER_EXIT
        message = f"cannot import {e.name}: {e}\nInstall the embedded engine: pip install 'pytest-areal-eval[hf]'"
    except Exception:  # a bug of this server: without its thread it would answer nothing, so it ends and says why
        status, message = 1, traceback.format_exc()
    else:
        return
    loop.call_soon_threadsafe(give_up, status, message)


def _load_and_run(options: argparse.Namespace, service: Service, loop: asyncio.AbstractEventLoop) -> None:
    path: str | None = options.model
    while path is not None:
        _serve_checkpoint(path, options, service, loop)
        path, service.next_path = service.next_path, None


def _serve_checkpoint(
    path: str, options: argparse.Namespace, service: Service, loop: asyncio.AbstractEventLoop
) -> None:
    """Load a checkpoint and batch until the server ends or another one is to take its place."""
    from pytest_areal_eval.engines.hf_server.batcher import Batcher
    from pytest_areal_eval.engines.hf_server.loading import load

    model = load(
        path,
        dtype=options.dtype,
        rows=options.max_batch,
        context_length=options.context_length,
        trust_remote_code=options.trust_remote_code,
        threads=options.threads,
        tokenizer=options.tokenizer,
    )
    batcher = Batcher(model.decoder, options.max_batch, lambda news: _announce(loop, news))
    service.batcher = batcher
    service.model = model  # from here on /health answers 200
    loop.call_soon_threadsafe(service.loaded.set)
    note = f" because of {model.decoder_note}" if model.decoder_note else ""
    print(
        f"ready: {model.path} in {model.dtype} on {model.device}, {options.max_batch} sequences at once, "
        f"context {model.context_length} tokens, decoder '{model.decoder.name}'{note}",
        file=sys.stderr,
        flush=True,
    )
    batcher.run()
    service.batcher = None  # its cache and the model must not stand beside the next ones


def _announce(loop: asyncio.AbstractEventLoop, news: list[Generation]) -> None:
    """Wake the handlers of these generations, in the event loop."""

    def wake() -> None:
        for generation in news:
            generation.news.set()

    with contextlib.suppress(RuntimeError):  # the loop has closed: the server is ending and nobody waits
        loop.call_soon_threadsafe(wake)


def _app(service: Service, token: str) -> web.Application:
    """All endpoints behind the token, errors in one shape."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.path != "/health" and not _allowed(request, token):
                raise RequestRefusedError("wrong or missing bearer token", status=401)
            return await handler(request)
        except RequestRefusedError as e:
            return web.json_response(e.body, status=e.status)
        except web.HTTPException as e:
            reason = f"{request.method} {request.path}: {e.reason}"
            return web.json_response(RequestRefusedError(reason, status=e.status).body, status=e.status)

    async def health(_: web.Request) -> web.Response:
        state = {"status": "ready" if service.model else "loading", "nonce": service.nonce}
        return web.json_response(state, status=200 if service.model else 503)

    app = web.Application(middlewares=[guard], client_max_size=MAX_BODY_BYTES)
    app.add_routes([web.get("/health", health), *sglang_api.routes(service), *openai_api.routes(service)])
    return app


def _allowed(request: web.Request, token: str) -> bool:
    sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return not token or hmac.compare_digest(sent.encode(), token.encode())


if __name__ == "__main__":
    main()
