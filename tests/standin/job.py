"""One generation in flight at the stand-in server, and the two shapes of its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from standin.faults import Rule
from standin.http11 import Reply, Request
from standin.tokens import EOS

if TYPE_CHECKING:
    from standin.server import Standin


class Job:
    """One generation in flight."""

    def __init__(
        self, server: Standin, request: Request, body: Mapping[str, Any], prompt: str, shape: Callable[..., Reply]
    ) -> None:
        self.server, self.body, self.prompt, self.shape = server, body, prompt, shape
        self.rid = str(body.get("rid") or body.get("request_id") or "")
        self.path = request.path
        self._connection = request.connection
        self._timer: asyncio.TimerHandle | None = None
        self._done = False
        self._text = server.answer(prompt)

    def begin(self, rule: Rule | None) -> None:
        """Count it and schedule its answer."""
        self.server.load.begin()
        self._connection.pending.add(self)
        if self.rid:
            self.server.by_rid[self.rid] = self
        fault = rule.fault if rule is not None else ""
        if fault == "hang":
            return
        delay_s = rule.delay_s if rule is not None and fault == "slow" else self.server.latency_s
        if self.server.token_s:
            delay_s += self.server.token_s * len(self.server.tokenizer.encode(self._text))
        if delay_s <= 0:
            self._answer(rule)
        else:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._answer, rule)

    def finish(self, reply: Reply | None) -> None:
        """End it, with an answer or without."""
        if self._done:
            return
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        self._connection.pending.discard(self)
        self.server.by_rid.pop(self.rid, None)
        self.server.load.end()
        if reply is not None:
            self._connection.send(reply)

    def _answer(self, rule: Rule | None) -> None:
        fault = rule.fault if rule is not None else ""
        if rule is not None and fault == "status":
            headers = {} if rule.retry_after is None else {"Retry-After": f"{rule.retry_after:g}"}
            body = self.server.error(self.path, rule.status, f"scripted {rule.status}")
            self.finish(Reply(body, rule.status, headers))
        elif fault == "drop":
            self.finish(None)
            self._connection.drop()
        elif fault == "malformed":
            self.finish(Reply(b'{"text": "half a bo'))
        else:
            self.finish(self._generated(fault))

    def _generated(self, fault: str) -> Reply:
        text: str | None = self._text
        if fault in ("empty", "null"):
            text = "" if fault == "empty" or "messages" not in self.body else None
        if fault == "think":
            text = "<think>Let me see. It could be 41, or"
        ids = [*self.server.tokenizer.encode(text or ""), EOS]
        sampling = self.body.get("sampling_params", self.body)
        names = ("max_new_tokens", "max_completion_tokens", "max_tokens")
        limit = next((sampling[name] for name in names if sampling.get(name)), len(ids))
        if len(ids) > limit:
            ids, fault = ids[:limit], "length"
            text = self.server.tokenizer.decode(ids)
        reason = (
            {"type": "length", "length": len(ids)} if fault in ("length", "think") else {"type": "stop", "matched": EOS}
        )
        if fault == "abort":
            ids, reason = ids[:2], {"type": "abort", "message": "Aborted"}
            text = self.server.tokenizer.decode(ids)
        return self.shape(self, text, ids, reason)


def generate_shape(job: Job, text: str | None, ids: list[int], reason: Mapping[str, Any]) -> Reply:
    """SGLang's native answer."""
    prompt_tokens = len(job.body.get("input_ids") or job.server.tokenizer.encode(job.prompt))
    meta = {
        "id": job.rid,
        "finish_reason": reason,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "weight_version": "default",
    }
    return Reply({"text": text, "output_ids": ids, "meta_info": meta})


def chat_shape(job: Job, text: str | None, ids: list[int], reason: Mapping[str, Any]) -> Reply:
    """OpenAI's, with SGLang's ``matched_stop`` and vLLM's token ids."""
    prompt_ids = job.server.tokenizer.encode(job.prompt)
    usage = {
        "prompt_tokens": len(prompt_ids),
        "completion_tokens": len(ids),
        "total_tokens": len(prompt_ids) + len(ids),
    }
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None},
        "logprobs": None,
        "finish_reason": reason["type"],
        "matched_stop": reason.get("matched"),
        "token_ids": ids,
    }
    return Reply(
        {
            "id": job.rid,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": job.body.get("model", "stand-in"),
            "choices": [choice],
            "prompt_token_ids": prompt_ids,
            "usage": usage,
        }
    )
