"""The engine as one episode sees it; every request and answer is kept, so no status depends on the workflow's word."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pytest_areal_eval.api import GenerationHyperparameters, ModelRequest, ModelResponse, has_pictures, is_message
from pytest_areal_eval.controller.client import EngineClient, Progress
from pytest_areal_eval.controller.clock import Clock
from pytest_areal_eval.controller.place import Place
from pytest_areal_eval.engines.base import EngineInfo
from pytest_areal_eval.errors import PromptTooLong
from pytest_areal_eval.journal.answers import Answer, request_key, response_of, response_to_dict
from pytest_areal_eval.workflows.prompts import Prompts

Note = Callable[[int, str, Mapping[str, Any], bool], None]
"""Receives each answer before the workflow does: (number of the request, its key, the response, whether it is old)."""


@dataclass(frozen=True)
class Reply:
    """An answer in a conversation.

    Attributes:
        text: what the model said.
        reasoning: its reasoning, where the server split it off.
        stop_reason: why it ended: ``stop``, ``length``, ``tool_calls``, ``abort``.
        response: the whole answer, with token ids and counts.
    """

    text: str
    reasoning: str
    stop_reason: str
    response: ModelResponse


class EpisodeEngine:
    """What a workflow talks to during one episode.

    Args:
        client: sends the requests.
        clock: the episode's time limit.
        info: the engine's context length.
        tokenizer: None: messages are sent and the server applies the chat template.
        gconfig: the evaluation's sampling, which :meth:`chat` uses.
        template_kwargs: the evaluation's chat template arguments.
        place: the episode's place among those in flight, which each request needs.
        seed: the episode's; request ``i`` gets ``seed + i`` unless it brings its own or is greedy.
        prompts: the run's rendered ones.
        answers: what was answered in an earlier run; the same request at the same place gets the same answer.
        note: receives each answer before the workflow does.
    """

    def __init__(
        self,
        client: EngineClient,
        clock: Clock,
        *,
        info: EngineInfo,
        tokenizer: Any = None,
        gconfig: GenerationHyperparameters | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        seed: int | None = None,
        place: Place | None = None,
        prompts: Prompts | None = None,
        answers: Sequence[Answer] = (),
        note: Note | None = None,
    ) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self.gconfig = gconfig or GenerationHyperparameters()
        self.template_kwargs = dict(template_kwargs or {})
        self.exchanges: list[tuple[ModelRequest, ModelResponse]] = []
        self.transcript: list[dict[str, Any]] = []
        self.requests = 0
        self.asked: ModelRequest | None = None
        self.progress = Progress()
        self._client = client
        self._clock = clock
        self._seed = seed
        self._place = place
        self._prompts = prompts or Prompts()
        self._answers = {(answer.request, answer.key): answer for answer in answers}
        self._note = note

    async def agenerate(self, req: ModelRequest) -> ModelResponse:
        """Generate once.  ``req`` is not changed; its answer is cut to what context and ``max_tokens`` leave.

        Its ``rid`` need not be its own: servers know each request by that and something new behind it.

        Raises:
            PromptTooLong: not one token fits after the prompt; nothing was sent.
            RequestError: the servers refused it, or it failed too often.
            EngineLost: no replica is left.
        """
        req = ModelRequest.of(req)
        if req.gconfig.n_samples != 1:
            raise ValueError(
                f"n_samples={req.gconfig.n_samples} in a request: one request is one sample; "
                "use gconfig.new(n_samples=1) and call agenerate again for another"
            )
        # AReaL's workflows send one request object several times at once, or name requests by their item.
        request = dataclasses.replace(req, rid=f"{req.rid}-{secrets.token_hex(6)}", gconfig=self._sampling(req))
        self.requests += 1
        number = self.requests
        self.asked = request
        if self._place is not None:
            await self._place.back()
        response = await self._answer(number, req, request)
        self.exchanges.append((request, response))
        return response

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        **overrides: Any,
    ) -> Reply:
        """Send a conversation and read the answer.

        Args:
            messages: ``[{"role": "user", "content": "..."}]``; a picture is a part of type ``image_url``.
            template_kwargs: arguments of the chat template on top of the evaluation's (``tools``, ``enable_thinking``).
            **overrides: fields of :class:`~pytest_areal_eval.api.GenerationHyperparameters` for this request; with a
                temperature it is not greedy, unless that is said, too.

        Raises:
            ValueError: that is no list of messages.
        """
        if not all(map(is_message, messages)):
            said = repr(messages)
            raise ValueError(
                f"engine.chat([{{'role': 'user', 'content': '...'}}]) takes messages, and these are none: {said[:100]}"
            )
        request = self.chat_request(messages, template_kwargs=template_kwargs, **overrides)
        response = await self.agenerate(request)
        return Reply(answer_text(response, self.tokenizer), response.reasoning, response.stop_reason, response)

    def chat_request(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        **overrides: Any,
    ) -> ModelRequest:
        """The request that :meth:`chat` sends; raises what the chat template raises."""
        if "temperature" in overrides:  # which says how to sample, whatever the evaluation's default
            overrides.setdefault("greedy", overrides["temperature"] == 0)
        gconfig = self.gconfig.new(**{"n_samples": 1, **overrides})
        template = {**self.template_kwargs, **(template_kwargs or {})}
        if self.tokenizer is None or has_pictures(messages):
            return ModelRequest(messages=[dict(m) for m in messages], template_kwargs=template, gconfig=gconfig)
        return ModelRequest(
            input_ids=self._prompts.ids(self.tokenizer, list(messages), template),
            gconfig=gconfig.new_with_stop_and_pad_token_ids(self.tokenizer),
            tokenizer=self.tokenizer,
        )

    def text(self, response: ModelResponse) -> str:
        """What an answer says."""
        return answer_text(response, self.tokenizer)

    def waiting(self) -> AbstractContextManager[None]:
        """While the episode waits for its turn at something that is taken, its time limit stands still."""
        return self._clock.stopped()

    def get_version(self) -> int:
        """0: a checkpoint under evaluation does not change."""
        return 0

    def prompt(self) -> str:
        """The last request's rendered prompt, or its last message."""
        request = self.asked
        if request is None:
            return ""
        if request.prompt_text is not None:
            return request.prompt_text
        tokenizer = request.tokenizer or self.tokenizer
        if request.input_ids and tokenizer is not None:
            request.prompt_text = self._prompts.text(tokenizer, request.input_ids)
            return request.prompt_text
        return _content((request.messages or [{}])[-1].get("content"))

    def completion(self) -> str:
        """The last answer's text."""
        if not self.exchanges:
            return ""
        request, response = self.exchanges[-1]
        return answer_text(response, request.tokenizer or self.tokenizer)

    async def _answer(self, number: int, asked: ModelRequest, request: ModelRequest) -> ModelResponse:
        """The earlier run's answer, else the engine's.  The key is what was asked for, before any limit cut it."""
        if self._note is None and not self._answers:
            return await self._client.generate(request, self._clock, self.progress)
        key = request_key(asked)
        old = self._answers.get((number, key))
        if old is not None:
            response = response_of(old, request)
            self.progress.total_attempts += response.attempts
            self.progress.replica = response.replica
        else:
            response = await self._client.generate(request, self._clock, self.progress)
        if self._note is not None:
            said = old.response if old is not None else response_to_dict(response)
            self._note(number, key, said, old is not None)
        return response

    def _sampling(self, req: ModelRequest) -> GenerationHyperparameters:
        gconfig = req.gconfig
        prompt = len(req.input_ids)
        room = gconfig.max_tokens - prompt
        if self.info.context_length is not None:
            room = min(room, self.info.context_length - prompt)
        if room < 1:
            limit = "max_tokens" if room == gconfig.max_tokens - prompt else "the model's context length"
            raise PromptTooLong(
                f"the prompt has {prompt} tokens, and {limit} is {prompt + room}",
                "Shorten the prompt or raise the limit.",
            )
        seed = gconfig.seed
        if seed is None and self._seed is not None and gconfig.effective_temperature > 0:
            seed = (self._seed + self.requests) % 2**31
        return dataclasses.replace(gconfig, max_new_tokens=min(room, gconfig.max_new_tokens), seed=seed)


def answer_text(response: ModelResponse, tokenizer: Any) -> str:
    """The answer as the server decoded it, else decoded here, without special tokens."""
    if response.text is not None:
        return response.text
    if tokenizer is None or not response.output_tokens:
        return ""
    return str(tokenizer.decode(response.output_tokens, skip_special_tokens=True))


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)
