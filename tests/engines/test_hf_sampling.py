"""Choosing tokens: filters, penalties, seeds, and the distribution that comes out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from scipy import stats

from pytest_areal_eval.engines.hf_server.generation import Generation, Sampling
from pytest_areal_eval.engines.hf_server.sampling import choose
from pytest_areal_eval.engines.hf_server.text import TextStream

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0])


def row(output: tuple[int, ...] = (), index: int = 0, **settings: Any) -> Generation:
    sampling = Sampling(max_new_tokens=100, **settings)
    return Generation("r", [1], sampling, TextStream(lambda ids, _: ""), index=index, output=list(output))


def drawn(count: int, **settings: Any) -> Counter[int]:
    rows = [row(seed=seed, **settings) for seed in range(count)]
    return Counter(choose(LOGITS.repeat(count, 1), rows).tokens)


def test_greedy_takes_the_most_likely_token() -> None:
    assert choose(LOGITS[None].clone(), [row(temperature=0.0)]).tokens == [4]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    count = 20_000
    got = drawn(count, temperature=temperature)
    expected = (LOGITS.double() / temperature).softmax(0) * count
    assert stats.chisquare([got[i] for i in range(5)], expected.numpy()).pvalue > 1e-4


def test_top_k_keeps_that_many() -> None:
    assert set(drawn(2000, top_k=2)) == {4, 0}


def test_top_p_keeps_the_smallest_set_with_the_mass() -> None:
    probabilities = LOGITS.softmax(0)
    assert float(probabilities[4]) < 0.7 < float(probabilities[[4, 0]].sum())
    assert set(drawn(2000, top_p=0.7)) == {4, 0}
    assert set(drawn(200, top_p=1e-9)) == {4}


def test_filters_of_one_row_leave_the_others_alone() -> None:
    rows = [row(top_k=1), row(temperature=0.0), *(row(seed=s) for s in range(500))]
    tokens = choose(LOGITS.repeat(len(rows), 1), rows).tokens
    assert tokens[:2] == [4, 4]
    assert set(tokens[2:]) == {0, 1, 2, 3, 4}


def test_a_draw_depends_on_seed_index_and_position_alone() -> None:
    def tokens(batch: int, seed: int, index: int = 0) -> list[int]:
        others = [row() for _ in range(batch)]
        mine = row(seed=seed, index=index)
        return [choose(LOGITS.repeat(batch + 1, 1), [*others, mine]).tokens[-1] for _ in range(30)]

    assert tokens(0, 7) == tokens(5, 7)
    assert tokens(0, 7) != tokens(0, 8)
    assert tokens(0, 7) != tokens(0, 7, index=1)


def test_frequency_penalty_counts_and_presence_penalty_does_not() -> None:
    def best(**settings: Any) -> int:
        return choose(LOGITS[None].clone(), [row((4, 4, 4), temperature=0.0, **settings)]).tokens[0]

    assert best(frequency_penalty=0.3) == 4  # 3.0 - 0.9 is still above 2.0
    assert best(frequency_penalty=0.4) == 0  # 3.0 - 1.2 is not
    assert best(presence_penalty=0.9) == 4
    assert best(presence_penalty=1.1) == 0


def test_no_stop_token_before_the_least_number_of_tokens() -> None:
    def best(output: tuple[int, ...]) -> int:
        settings = {"temperature": 0.0, "min_new_tokens": 2, "stop_ids": frozenset({4})}
        return choose(LOGITS[None].clone(), [row(output, **settings)]).tokens[0]

    assert [best(()), best((0,)), best((0, 0))] == [0, 0, 4]


def test_logprobs_are_the_models_own_whatever_the_temperature() -> None:
    rows = [row(temperature=0.3, seed=1, top_k=1, logprobs=True), row(temperature=0.0)]
    choice = choose(LOGITS.repeat(2, 1), rows)
    assert choice.logprobs == [pytest.approx(float(LOGITS.log_softmax(0)[4])), None]


def test_a_row_that_is_not_a_number_does_not_touch_its_neighbour() -> None:
    logits = LOGITS.repeat(2, 1)
    logits[0, 2] = torch.nan
    assert choose(logits, [row(seed=0), row(temperature=0.0)]).tokens == [-1, 4]


def test_a_stop_token_that_the_model_cannot_choose_harms_no_row_of_its_batch() -> None:
    rows = [row(temperature=0.0, min_new_tokens=2, stop_ids=frozenset({4, 10**9})), row(temperature=0.0)]
    assert choose(LOGITS.repeat(2, 1), rows).tokens == [0, 4]
