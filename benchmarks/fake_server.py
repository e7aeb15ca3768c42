"""A server that costs next to nothing: raw asyncio, one canned answer after a fixed latency, and ``/stat``.

It speaks what the embedded engine's server does, but parses no body.  One core answers several thousand requests a
second, so that a benchmark on the other core measures the client.

    python benchmarks/fake_server.py --latency-ms 50
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from typing import Any

TEXT = "She has 12 + 5 = 17 apples. The answer is \\boxed{17}."
TOKENS = [
    53,
    74,
    71,
    355,
    223,
    19,
    20,
    359,
    223,
    23,
    285,
    223,
    19,
    25,
    664,
    16,
    430,
    71,
    361,
    583,
    444,
    353,
    93,
    19,
    25,
    95,
    16,
]
"""``TEXT`` by the tokenizer of ``models/tiny-math``."""
ANSWERS: dict[bytes, Any] = {
    b"/model_info": {"context_length": 4096, "max_batch": 64, "served_model_name": "fake"},
    b"/v1/models": {"object": "list", "data": [{"id": "tiny-math", "owned_by": "pytest-areal-eval"}]},
    b"/abort_request": {},
    b"/generate": {
        "text": TEXT,
        "output_ids": TOKENS,
        "meta_info": {
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": 40,
            "completion_tokens": len(TOKENS),
        },
    },
    b"/v1/chat/completions": {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": TEXT},
                "finish_reason": "stop",
                "token_ids": TOKENS,
            }
        ],
        "prompt_token_ids": list(range(300, 340)),
        "usage": {"prompt_tokens": 40, "completion_tokens": len(TOKENS), "total_tokens": 40 + len(TOKENS)},
    },
}
GENERATIONS = (b"/generate", b"/v1/chat/completions")


def encode(body: Any) -> bytes:
    """A whole response."""
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
CANNED = {path: encode(body) for path, body in ANSWERS.items()}


class Seen:
    """When requests began and ended, since the last ``/reset``."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, int]] = []
        self.in_flight = 0
        self.cpu_s = time.process_time()

    def move(self, by: int) -> None:
        """A request begins (+1) or ends (-1)."""
        self.in_flight += by
        self.steps.append((time.monotonic(), self.in_flight))

    def report(self) -> dict[str, float]:
        """What ``/stat`` answers; times are the machine's ``time.monotonic()``, the mean is over the middle 80 %."""
        if not self.steps:
            return {"n": 0}
        first, last = self.steps[0][0], self.steps[-1][0]
        low, high = first + 0.1 * (last - first), last - 0.1 * (last - first)
        pairs = itertools.pairwise(self.steps)
        area = sum(level * max(0.0, min(until, high) - max(at, low)) for (at, level), (until, _) in pairs)
        return {
            "n": len(self.steps) / 2,
            "peak": max(level for _, level in self.steps),
            "mean": area / (high - low),
            "first": first,
            "last": last,
            "busy": (time.process_time() - self.cpu_s) / (last - first),
        }


class Connection(asyncio.Protocol):
    """One client; requests are not pipelined."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.buffer = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer once head and body are there."""
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self.buffer) < end + 4 + length:
            return
        path = self.buffer.split(b" ", 2)[1]
        self.buffer = b""
        self.server.answer(path, self.transport)


class Server:
    """All connections' common state."""

    def __init__(self, latency_s: float, nonce: str) -> None:
        self.latency_s = latency_s
        self.health = encode({"status": "ok", "nonce": nonce})
        self.seen = Seen()

    def answer(self, path: bytes, transport: asyncio.Transport) -> None:
        """Answer now, or a generation after the latency."""
        if path in GENERATIONS:
            self.seen.move(+1)
            asyncio.get_running_loop().call_later(self.latency_s, self._generated, path, transport)
        elif path == b"/health":
            transport.write(self.health)
        elif path == b"/stat":
            transport.write(encode(self.seen.report()))
        elif path == b"/reset":
            self.seen = Seen()
            transport.write(encode({}))
        else:
            transport.write(CANNED.get(path, NOT_FOUND))

    def _generated(self, path: bytes, transport: asyncio.Transport) -> None:
        self.seen.move(-1)
        transport.write(CANNED[path])


async def serve(latency_s: float, host: str, port: int, nonce: str) -> None:
    """Serve for ever; the first line on standard output is the address."""
    server = Server(latency_s, nonce)
    listening = await asyncio.get_running_loop().create_server(lambda: Connection(server), host, port, backlog=4096)
    print(f"http://{host}:{listening.sockets[0].getsockname()[1]}", flush=True)
    await listening.serve_forever()


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--nonce", default="")
    options = parser.parse_args()
    asyncio.run(serve(options.latency_ms / 1000, options.host, options.port, options.nonce))


if __name__ == "__main__":
    main()
