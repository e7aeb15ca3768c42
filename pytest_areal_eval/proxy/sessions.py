"""An episode as the proxy knows it: its key, its engine, the calls that its agent made."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.api import ModelRequest, ModelResponse, has_pictures
from pytest_areal_eval.proxy.ask import Answer, Ask, RefusedError
from pytest_areal_eval.proxy.held import hold
from pytest_areal_eval.proxy.parsing import ToolCall, find_tool_calls, split_reasoning

if TYPE_CHECKING:
    from pytest_areal_eval.controller import EpisodeEngine
    from pytest_areal_eval.proxy.server import Server


class ProxySession:
    """One episode's calls.

    Args:
        engine: the episode's.
        base_url: the proxy's root, without ``/v1``.

    Attributes:
        key: what the agent authenticates with.
        answers: in the order in which they came.
        fault: why the last call got no answer, if it got none.
    """

    def __init__(self, engine: EpisodeEngine, base_url: str) -> None:
        self.key = f"areal-{secrets.token_urlsafe(24)}"
        self.base_url = base_url
        self.answers: list[Answer] = []
        self.fault: Exception | None = None
        self._engine = engine
        self._last: list[dict[str, Any]] = []
        self._conversations: dict[str, list[dict[str, Any]]] = {}
        self._context = contextvars.copy_context()
        self._calls: set[asyncio.Task[Answer]] = set()

    async def answer(self, ask: Ask, prefix: str) -> Answer:
        """Ask the model; cancelled with the episode.

        Args:
            ask: the request.
            prefix: what the answer's id begins with.

        Raises:
            RefusedError: the chat template refused the messages, or the engine takes no such request.
            ArealEvalError: what the engine raised.
        """
        call = self._start(self._answers(ask, f"{prefix}{uuid.uuid4().hex}"))
        try:
            answer = await call
        except Exception as error:
            self.fault = error
            raise
        self.fault = None
        return answer

    @property
    def model(self) -> str:
        """The served model's name."""
        return self._engine.info.model

    def cancel(self) -> None:
        """End the calls that nobody waits for any more."""
        for call in self._calls:
            call.cancel()

    def _start(self, work: Coroutine[Any, Any, Answer]) -> asyncio.Task[Answer]:
        """Run in the episode's own context, which the server's connections know nothing of."""
        call = asyncio.get_running_loop().create_task(work, context=self._context)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    async def _answers(self, ask: Ask, answer_id: str) -> Answer:
        """All that were asked for, at the same time; the first one holds the others."""
        ask = self._continued(ask)
        if ask.n == 1:
            return await self._answer(ask, answer_id)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._answer(one, answer_id)) for one in _each(ask)]
        except ExceptionGroup as error:
            raise error.exceptions[0] from None
        first, *others = (task.result() for task in tasks)
        return replace(first, others=tuple(others))

    async def _answer(self, ask: Ask, answer_id: str) -> Answer:
        began = time.perf_counter()
        if ask.messages is None:
            response, text = await self._complete(ask)
        else:
            response, text = await self._chat(ask)
        answer = self._read(ask, response, text, answer_id)
        self.answers.append(answer)
        if ask.messages is not None:
            self._conversations[answer_id] = [*ask.messages[ask.instructions :], _message(answer)]
        entry = self._said(ask) | _entry(ask, answer, response, time.perf_counter() - began)
        self._engine.transcript.append(entry)
        return answer

    def _continued(self, ask: Ask) -> Ask:
        """With the whole conversation, where the request names the answer that it goes on from."""
        if ask.previous is None or ask.messages is None:
            return ask
        earlier = self._conversations.get(ask.previous)
        if earlier is None:
            said = f"previous_response_id={ask.previous!r}: no answer of this episode has this id"
            raise RefusedError(said, param="previous_response_id")
        own, new = ask.messages[: ask.instructions], ask.messages[ask.instructions :]
        return replace(ask, messages=[*own, *earlier, *new], previous=None)

    def _said(self, ask: Ask) -> dict[str, Any]:
        """What an agent sent; of a conversation that goes on only what is new, so that a record grows linearly."""
        if ask.messages is None:
            return {"prompt": ask.prompt}
        pairs = zip(self._last, ask.messages, strict=False)
        same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        self._last = ask.messages
        return {"repeated": same, "messages": [_without_pictures(message) for message in ask.messages[same:]]}

    async def _chat(self, ask: Ask) -> tuple[ModelResponse, str]:
        assert ask.messages is not None
        messages, template = ask.messages, dict(ask.template_kwargs)
        if ask.tools:
            template["tools"] = ask.tools
        if self._engine.tokenizer is not None and not has_pictures(messages):
            messages = [_with_parsed_arguments(message) for message in messages]
        try:
            request = self._engine.chat_request(messages, template_kwargs=template, **ask.sampling)
        except Exception as error:  # a template raises whatever its author chose
            said = f"the chat template refused the messages: {type(error).__name__}: {error}"
            raise RefusedError(said, param="messages") from error
        if ask.logprobs:
            if self._engine.tokenizer is None:
                raise RefusedError("logprobs: this engine does not tell its tokens; leave it out", param="logprobs")
            request.metadata["logprobs"] = True
        lead = hold(ask, request, self._engine)
        response = await self._engine.agenerate(request)
        return response, lead + self._engine.text(response)

    async def _complete(self, ask: Ask) -> tuple[ModelResponse, str]:
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise RefusedError("this engine takes messages only; use /v1/chat/completions", status=404)
        prompt = ask.prompt or ""
        ids = tokenizer.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
        gconfig = self._engine.gconfig.new(**{"n_samples": 1, **ask.sampling})
        gconfig = gconfig.new_with_stop_and_pad_token_ids(tokenizer)
        response = await self._engine.agenerate(ModelRequest(input_ids=ids, gconfig=gconfig, tokenizer=tokenizer))
        return response, self._engine.text(response)

    def _read(self, ask: Ask, response: ModelResponse, text: str, answer_id: str) -> Answer:
        reasoning, content = response.reasoning, text
        calls = [ToolCall(**call) for call in response.tool_calls]
        # JSON may have any tag in its texts; vLLM and SGLang with a reasoning parser begin it after the reasoning.
        held = (ask.form is not None or ask.forced) and not text.lstrip().startswith("<think>")
        if ask.messages is not None and not reasoning and not held:
            reasoning, content = split_reasoning(text, opened=self._opens_thinking(response))
        if ask.tools and not calls:
            content, calls = find_tool_calls(content, ask.tools)
        return Answer(
            id=answer_id,
            content=content,
            reasoning=reasoning,
            tool_calls=tuple(calls),
            stop_reason="tool_calls" if calls else response.stop_reason,
            stop_string=response.stop_string,
            input_tokens=response.input_len,
            output_tokens=response.output_len,
            logprobs=self._logprobs(response) if ask.logprobs else None,
        )

    def _logprobs(self, response: ModelResponse) -> tuple[tuple[str, float], ...]:
        decode = self._engine.tokenizer.decode
        pairs = zip(response.output_tokens, response.output_logprobs, strict=False)
        return tuple((str(decode([token])), logprob) for token, logprob in pairs)

    def _opens_thinking(self, response: ModelResponse) -> bool:
        tokenizer, end = self._engine.tokenizer, response.input_tokens[-8:]
        return tokenizer is not None and str(tokenizer.decode(end)).rstrip().endswith("<think>")


class Proxy:
    """The server of a run, started with the first session.  All of it belongs to one event loop."""

    def __init__(self) -> None:
        self._sessions: dict[str, ProxySession] = {}
        self._server: Server | None = None
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def session(self, engine: EpisodeEngine) -> AsyncIterator[ProxySession]:
        """A key that is valid inside."""
        session = ProxySession(engine, await self._url())
        self._sessions[session.key] = session
        try:
            yield session
        finally:
            del self._sessions[session.key]
            session.cancel()

    def find(self, key: str) -> ProxySession | None:
        """The running episode that a key belongs to."""
        return self._sessions.get(key)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.stop()
            self._server = None

    async def _url(self) -> str:
        async with self._starting:
            if self._server is None:
                from pytest_areal_eval.proxy.server import Server

                server = Server(self.find)
                await server.start()
                self._server = server
            return self._server.url


def _each(ask: Ask) -> Iterator[Ask]:
    """One request for each answer; with a seed of the agent's own they shall differ all the same."""
    for index in range(ask.n):
        seed = ask.sampling.get("seed")
        own = {} if seed is None else {"seed": (seed + index) % 2**31}
        yield replace(ask, n=1, sampling={**ask.sampling, **own})


def _message(answer: Answer) -> dict[str, Any]:
    """An answer as a message of its conversation."""
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in answer.tool_calls
    ]
    return {"role": "assistant", "content": answer.content} | ({"tool_calls": calls} if calls else {})


def _without_pictures(message: dict[str, Any]) -> dict[str, Any]:
    """For the record: that there was one, and not its megabyte."""
    if not isinstance(message.get("content"), list):
        return message
    parts = [part if part["type"] == "text" else {"type": part["type"]} for part in message["content"]]
    return message | {"content": parts}


def _with_parsed_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Chat templates expect a call's arguments as an object; the APIs send its text."""
    if not message.get("tool_calls"):
        return message
    return message | {"tool_calls": [_parsed(call) for call in message["tool_calls"]]}


def _parsed(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    try:
        function["arguments"] = json.loads(function.get("arguments") or "{}")
    except (ValueError, TypeError):
        return call
    return call | {"function": function}


def _entry(ask: Ask, answer: Answer, response: ModelResponse, latency_s: float) -> dict[str, Any]:
    """What the episode's record keeps of a call."""
    calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in answer.tool_calls]
    return {
        "id": answer.id,
        "tools": [tool["function"]["name"] for tool in ask.tools],
        "content": answer.content,
        "reasoning": answer.reasoning,
        "tool_calls": calls,
        "stop_reason": answer.stop_reason,
        "input_tokens": answer.input_tokens,
        "output_tokens": answer.output_tokens,
        "latency_s": round(latency_s, 4),
        "replica": response.replica,
        "attempts": response.attempts,
    }
