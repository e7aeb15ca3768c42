"""The batched decoders against transformers' own generate, on small random models of many families."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.embedded_server import CHECKPOINT

from pytest_areal_eval.engines.hf_server.batcher import Batcher
from pytest_areal_eval.engines.hf_server.decoders import RowDecoder, SlotDecoder, bind, pick_decoder
from pytest_areal_eval.engines.hf_server.generation import Generation, Sampling
from pytest_areal_eval.engines.hf_server.loading import load
from pytest_areal_eval.engines.hf_server.text import TextStream

CONTEXT = 64
TOKENS = 20
IDS = {"vocab_size": 97, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}
OWN_NAMES = frozenset({"gpt2", "bloom", "mamba"})
"""Families whose configurations call their shape otherwise."""
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("llama", {}, "lean"),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}, "lean"),
    "qwen2": ("qwen2", {}, "lean"),
    "qwen3": ("qwen3", {"head_dim": 16}, "lean"),
    "mistral": ("mistral", {"sliding_window": None}, "lean"),
    "mistral-sliding": ("mistral", {"sliding_window": 8}, "slots"),
    "gemma2": ("gemma2", {"head_dim": 8, "sliding_window": 8}, "slots"),
    "phi3": ("phi3", {}, "slots"),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}, "slots"),
    "bloom": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "rows"),
    "mamba": ("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}, "rows"),
}
PROMPTS = [
    torch.randint(3, 97, (size,), generator=torch.Generator().manual_seed(size)).tolist()
    for size in (1, 5, 9, 3, 12, 7, 6, 20)
]


def random_model(kind: str, settings: dict[str, Any]) -> Any:
    """A small model with weights large enough that greedy answers vary."""
    config = transformers.AutoConfig.for_model(kind, **(IDS | (SHAPE if kind not in OWN_NAMES else {}) | settings))
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    return model


def generated(model: Any, prompt: Sequence[int]) -> list[int]:
    ids = torch.tensor([list(prompt)])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS, eos_token_id=None
        )
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer


def greedy(prompt: Sequence[int], tokens: int = TOKENS, **settings: Any) -> Generation:
    sampling = Sampling(max_new_tokens=tokens, temperature=settings.pop("temperature", 0.0), **settings)
    return Generation("r", list(prompt), sampling, TextStream(lambda ids, _: " ".join(map(str, ids))))


def run(decoder: Any, generations: list[Generation], rows: int = 4) -> None:
    """Batch to the end, in this thread."""

    def deliver(_: list[Generation]) -> None:
        if all(g.finish for g in generations):
            batcher.close()

    batcher = Batcher(decoder, rows, deliver)
    batcher.submit(generations)
    batcher.run()


@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_batches_give_the_answers_of_generate(family: str) -> None:
    kind, settings, expected_decoder = FAMILIES[family]
    model = random_model(kind, settings)
    with torch.inference_mode():
        decoder, why = pick_decoder(model, 4, CONTEXT)
    assert (decoder.name, bool(why)) == (expected_decoder, expected_decoder == "rows")
    generations = [greedy(p) for p in PROMPTS]
    run(decoder, generations)
    assert [g.output for g in generations] == [generated(model, p) for p in PROMPTS]
    assert len({tuple(g.output) for g in generations}) > 4


@pytest.fixture(scope="module")
def llama() -> Any:
    return random_model("llama", {})


def test_buffers_grow_beyond_their_first_columns(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_areal_eval.engines.hf_server.cache.FIRST_COLUMNS", 4)
    generations = [greedy(p) for p in PROMPTS]
    run(SlotDecoder(llama, 4, bind(llama)), generations)
    assert [g.output for g in generations] == [generated(llama, p) for p in PROMPTS]


def test_equal_prompts_are_read_once_and_answered_alike(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = SlotDecoder(llama, 4, bind(llama))
    prefilled: list[int] = []
    prefill = decoder._prefill
    monkeypatch.setattr(decoder, "_prefill", lambda rows: (prefilled.extend(rows), prefill(rows)))
    generations = [greedy(PROMPTS[4]) for _ in range(4)]
    run(decoder, generations)
    assert prefilled == [0]
    assert {tuple(g.output) for g in generations} == {tuple(generated(llama, PROMPTS[4]))}


def test_a_short_request_finishes_before_a_long_one_that_started_earlier(llama: Any) -> None:
    order: list[int] = []
    generations = [greedy(PROMPTS[1], 40), greedy(PROMPTS[2], 3), greedy(PROMPTS[3], 3)]

    def deliver(news: list[Generation]) -> None:
        order.extend(len(g.output) for g in news)
        if len(order) == 3:
            batcher.close()

    batcher = Batcher(RowDecoder(llama), 2, deliver)
    batcher.submit(generations)
    batcher.run()
    assert order == [3, 3, 40]


def test_a_cancelled_sequence_leaves_its_row_to_the_next(llama: Any) -> None:
    first, second = greedy(PROMPTS[1], 40), greedy(PROMPTS[2], 3)
    first.cancelled = True
    run(SlotDecoder(llama, 1, bind(llama)), [first, second], rows=1)
    assert (first.finish and first.finish.kind, first.output) == ("abort", [])
    assert second.output == generated(llama, PROMPTS[2])[:3]


def test_a_failing_forward_ends_its_sequences_with_an_error_and_the_rest_goes_on(llama: Any) -> None:
    forward, calls = bind(llama), iter(range(100))

    def failing(**inputs: Any) -> torch.Tensor:
        if next(calls) == 1:
            raise RuntimeError("out of memory")
        return forward(**inputs)

    first, second = greedy(PROMPTS[1]), greedy(PROMPTS[2])
    run(SlotDecoder(llama, 1, failing), [first, second], rows=1)
    assert first.finish is not None
    assert (first.finish.kind, "out of memory" in first.finish.message) == ("error", True)
    assert second.output == generated(llama, PROMPTS[2])


def test_weights_that_are_not_numbers_are_an_error_not_an_answer() -> None:
    model = random_model("llama", {})
    model.lm_head.weight.data[5] = torch.nan
    generation = greedy(PROMPTS[1])
    run(SlotDecoder(model, 1, bind(model)), [generation], rows=1)
    assert generation.finish is not None
    assert generation.finish.kind == "error"
    assert generation.output == []


def test_one_row_is_served_by_the_fast_decoder_too(llama: Any) -> None:
    with torch.inference_mode():
        decoder, why = pick_decoder(llama, 1, CONTEXT)
    assert (decoder.name, why) == ("lean", "")


def test_a_decoder_that_disagrees_with_its_model_is_not_used(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_: Any) -> Any:
        return lambda **inputs: bind(llama)(**inputs) + 1.0

    monkeypatch.setattr("pytest_areal_eval.engines.hf_server.decoders.LeanForward", wrong)
    with torch.inference_mode():
        decoder, _ = pick_decoder(llama, 4, CONTEXT)
    assert decoder.name == "slots"


def test_a_seed_decides_the_answer_whatever_the_batch(llama: Any) -> None:
    def sampled() -> list[Generation]:
        return [greedy(p, temperature=1.0, seed=i, top_p=0.9) for i, p in enumerate(PROMPTS)]

    together, alone = sampled(), sampled()
    run(SlotDecoder(llama, 8, bind(llama)), together, rows=8)
    for generation in reversed(alone):
        run(SlotDecoder(llama, 1, bind(llama)), [generation], rows=1)
    assert [g.output for g in together] == [g.output for g in alone]
    assert [g.output for g in together] != [generated(llama, p) for p in PROMPTS]


def test_a_checkpoint_is_served_with_a_tokenizer_of_another_folder(tmp_path: Path) -> None:
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(CHECKPOINT / name)
    options: dict[str, Any] = {"dtype": "auto", "rows": 1, "context_length": 64, "trust_remote_code": False}
    model = load(str(tmp_path), threads=1, tokenizer=str(CHECKPOINT), **options)
    ids = model.tokenizer.encode("12 apples", add_special_tokens=False)
    assert ids  # transformers makes an empty tokenizer where there are no files
    assert model.decode(ids, True) == "12 apples"
