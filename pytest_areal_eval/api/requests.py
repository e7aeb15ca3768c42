"""What goes to an engine and comes back, and the workflow's contract.

Names and defaults of ``GenerationHyperparameters``, ``ModelRequest`` and ``ModelResponse`` are AReaL's, so that a
workflow written for AReaL runs unchanged.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

StopReason = Literal["stop", "length", "tool_calls", "abort"]

_logger = logging.getLogger(__name__)

TOP_K_OFF = 100_000_000
"""AReaL's value for "no top-k"."""


@dataclass
class GenerationHyperparameters:
    """How to sample.  Every field is sent explicitly, so a checkpoint's own defaults change nothing unseen.

    ``seed`` is this product's addition (AReaL has none); None leaves the choice to the engine.  ``stop`` may be given
    as one text.
    """

    n_samples: int = 1
    max_new_tokens: int = 16384
    min_new_tokens: int = 0
    max_tokens: int = 32768
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = TOP_K_OFF
    temperature: float = 1.0
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stop: list[str] | None = None
    frequency_penalty: float = 0.0
    lora_name: str = "default_lora"
    use_beam_search: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        given: Any = self.stop
        if isinstance(given, str):  # copied as a list it would be its letters
            self.stop = [given]

    @classmethod
    def of(cls, settings: Any) -> GenerationHyperparameters:
        """These settings, or AReaL's own object of that name or a mapping of its fields as one of ours.

        Raises:
            TypeError: the mapping has a key that is no field.
        """
        if isinstance(settings, Mapping):
            fields = [known.name for known in dataclasses.fields(cls)]
            unknown = [str(name) for name in settings if name not in fields]
            if unknown:
                raise TypeError(f"no generation setting is called {', '.join(unknown)}; there are: {', '.join(fields)}")
            return cls(**settings)
        return settings if isinstance(settings, cls) else cls(**_shared_fields(cls, settings))

    def new(self, **changes: Any) -> GenerationHyperparameters:
        """A copy with some fields changed; lists are copied too."""
        stop = None if self.stop is None else list(self.stop)
        return dataclasses.replace(self, **{"stop_token_ids": list(self.stop_token_ids), "stop": stop, **changes})

    def new_with_stop_and_pad_token_ids(self, tokenizer: Any) -> GenerationHyperparameters:
        """A copy whose ``stop_token_ids`` also hold the tokenizer's pad and eos ids."""
        ids = [tokenizer.pad_token_id, tokenizer.eos_token_id]
        return self.new_with_stop_token_ids([token for token in ids if token is not None])

    def new_with_stop_token_ids(self, token_ids: Iterable[int]) -> GenerationHyperparameters:
        """A copy whose ``stop_token_ids`` also hold these."""
        return self.new(stop_token_ids=list(dict.fromkeys([*self.stop_token_ids, *token_ids])))

    def to_openai_completions_args_dict(self, exclude_args: Collection[str] | None = None) -> dict[str, Any]:
        """:meth:`to_openai_args_dict` for chat."""
        return self.to_openai_args_dict(exclude_args)

    def to_openai_responses_args_dict(self, exclude_args: Collection[str] | None = None) -> dict[str, Any]:
        """:meth:`to_openai_args_dict` for Responses."""
        return self.to_openai_args_dict(exclude_args, "responses")

    def to_openai_agents_model_settings_dict(self, exclude_args: Collection[str] | None = None) -> dict[str, Any]:
        """:meth:`to_openai_args_dict` for the Agents SDK's ``ModelSettings``."""
        return self.to_openai_args_dict(exclude_args, "openai-agents")

    def to_openai_args_dict(
        self, exclude_args: Collection[str] | None = None, api_format: str = "completions"
    ) -> dict[str, Any]:
        """The arguments of an OpenAI client's call, as AReaL's agents make it.

        What OpenAI's API has no argument for is left out, with a warning in the log where it says something.  Other
        than AReaL's, a greedy configuration gives temperature 0, and a seed is passed on where the API takes one.

        Args:
            exclude_args: further fields to leave out, silently; None for none.
            api_format: ``completions`` (chat), ``responses`` or ``openai-agents``.

        Raises:
            ValueError: ``api_format`` is none of these.
        """
        if api_format not in _OPENAI_LENGTH:
            raise ValueError(f"Unsupported API format: {api_format}; there are {', '.join(_OPENAI_LENGTH)}")
        names = {"n_samples": "n", "max_new_tokens": _OPENAI_LENGTH[api_format]}
        kept = {*names, "top_p", "temperature", "stop", "frequency_penalty"}
        kept |= {"seed"} if api_format == "completions" and self.seed is not None else set()
        found: dict[str, Any] = {}
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if entry.name in (exclude_args or ()):
                continue
            if entry.name in kept:
                found[names.get(entry.name, entry.name)] = value
            elif entry.name != "greedy" and value != getattr(_DEFAULT_SAMPLING, entry.name):
                _logger.warning("Unsupported arg for openai format: `%s` with value %r", entry.name, value)
        if self.greedy and "temperature" in found:
            found["temperature"] = 0.0
        return found

    @property
    def effective_temperature(self) -> float:
        """0.0 when greedy, else the temperature."""
        return 0.0 if self.greedy else self.temperature


def _ids(value: Any) -> list[int]:
    """Token ids as a list."""
    value = value["input_ids"] if isinstance(value, Mapping) else value
    value = list(value.tolist() if hasattr(value, "tolist") else value)
    return list(value[0]) if len(value) == 1 and isinstance(value[0], list) else value


def _shared_fields(cls: type, other: Any) -> dict[str, Any]:
    """The fields of a dataclass that another object has."""
    return {f.name: getattr(other, f.name) for f in dataclasses.fields(cls) if hasattr(other, f.name)}


_DEFAULT_SAMPLING = GenerationHyperparameters()
_OPENAI_LENGTH = {
    "completions": "max_completion_tokens",
    "responses": "max_output_tokens",
    "openai-agents": "max_tokens",
}
"""How each form of OpenAI's API calls the longest answer."""


@dataclass
class ModelRequest:
    """One generation: token ids in, with its sampling settings.

    ``messages`` is set instead of ``input_ids`` where the server applies the chat template itself.
    """

    rid: str = field(default_factory=lambda: secrets.token_hex(16))
    input_ids: list[int] = field(default_factory=list)
    gconfig: GenerationHyperparameters = field(default_factory=GenerationHyperparameters)
    metadata: dict[str, Any] = field(default_factory=dict)
    tokenizer: Any = None
    image_data: list[str] = field(default_factory=list)
    processor: Any = None
    vision_msg_vllm: list[Any] | None = None
    messages: list[dict[str, Any]] | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the chat template (``enable_thinking``, ``tools``), sent along with ``messages``."""
    prompt_text: str | None = None
    """``input_ids`` decoded, where somebody has done it already."""

    @classmethod
    def of(cls, request: Any) -> ModelRequest:
        """This request, or AReaL's own object of that name as one of ours: then with log-probabilities, as there.

        Ids may be what a tokenizer of transformers 5 returns, an array, or a batch of one.
        """
        if isinstance(request, cls):
            ids = request.input_ids
            return request if type(ids) is list else dataclasses.replace(request, input_ids=_ids(ids))
        fields = _shared_fields(cls, request)
        fields["gconfig"] = GenerationHyperparameters.of(fields.get("gconfig", GenerationHyperparameters()))
        ids, metadata = _ids(fields.get("input_ids", [])), {"logprobs": True, **fields.get("metadata", {})}
        return cls(**{**fields, "input_ids": ids, "metadata": metadata})

    def copy(self) -> ModelRequest:
        """A copy that shares the tokenizer and the processor."""
        return dataclasses.replace(
            self, input_ids=list(self.input_ids), gconfig=self.gconfig.new(), metadata=dict(self.metadata)
        )


def is_message(value: object) -> bool:
    """Whether a chat template has something to write: most take a message without content for an empty one."""
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        return False
    content = value.get("content")
    return isinstance(content, str | list | tuple) or (content is None and bool(value.get("tool_calls")))


def has_pictures(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any message holds a picture: then the server applies the chat template, and its processor."""
    parts = (part for message in messages if isinstance(content := message.get("content"), list) for part in content)
    return any(isinstance(part, Mapping) and part.get("type") == "image_url" for part in parts)


@dataclass
class ModelResponse:
    """What an engine answered.

    Attributes:
        input_tokens: the prompt's ids (empty where the server does not tell).
        output_tokens: the generated ids, the stop token included.
        output_logprobs: one for each output token (empty unless asked for).
        stop_reason: why generation ended.
        stop_string: the stop string that ended it, if one did.
        text: the decoded answer where the server sent one, without the stop token.
        reasoning: the reasoning that the server split off, if it did.
        tool_calls: the calls that the server split off, if it did: ``id``, ``name`` and ``arguments`` (JSON text).
        input_count: number of prompt tokens where ``input_tokens`` is empty.
        output_count: number of output tokens where ``output_tokens`` is empty.
        replica: name of the replica that answered.
        attempts: HTTP attempts that it took.
        served: what the server calls the model and the weights that answered, where it tells.
    """

    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    output_versions: list[int] = field(default_factory=list)
    stop_reason: StopReason = "stop"
    tokenizer: Any = None
    input_images: list[str] = field(default_factory=list)
    processor: Any = None
    latency: float = float("inf")
    ttft: float = float("inf")
    itl: list[float] = field(default_factory=list)
    routed_experts: Any = None
    text: str | None = None
    reasoning: str = ""
    tool_calls: list[dict[str, str]] = field(default_factory=list)
    stop_string: str | None = None
    input_count: int = 0
    output_count: int = 0
    replica: str = ""
    attempts: int = 1
    served: str = ""

    @property
    def input_len(self) -> int:
        """Number of prompt tokens."""
        return len(self.input_tokens) or self.input_count

    @property
    def output_len(self) -> int:
        """Number of generated tokens, the stop token included."""
        return len(self.output_tokens) or self.output_count

    @property
    def end_with_stop(self) -> bool:
        """Whether the last token is one that the tokenizer calls eos or pad."""
        ends = (self.tokenizer.eos_token_id, self.tokenizer.pad_token_id)
        return bool(self.output_tokens) and self.output_tokens[-1] in ends

    @property
    def output_tokens_without_stop(self) -> list[int]:
        """The generated ids without trailing eos and pad tokens."""
        ids = list(self.output_tokens)
        if self.tokenizer is None:
            return ids
        ends = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id}
        while ids and ids[-1] in ends:
            ids.pop()
        return ids


class InferenceEngine(Protocol):
    """What a workflow talks to."""

    async def agenerate(self, req: ModelRequest) -> ModelResponse:
        """Generate once; retried and balanced over the replicas by the controller."""
        ...

    def get_version(self) -> int:
        """Version of the weights; 0 for a checkpoint that does not change."""
        ...


class RolloutWorkflow(ABC):
    """How an item becomes an episode.  AReaL's own abstract class is accepted as well, by duck typing."""

    @abstractmethod
    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> Any:
        """Run one episode.

        Args:
            engine: ``await engine.agenerate(ModelRequest(...))``.
            data: the item's record (a copy).

        Returns:
            A reward (float, int, bool, numpy scalar), a dict with ``rewards`` (a one-element tensor, array or list) or
            ``reward`` and further numbers as metrics, a :class:`Score`, or None for "rejected".
        """
