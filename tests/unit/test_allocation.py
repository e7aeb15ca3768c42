"""Allocations: AReaL's expressions give AReaL's objects, ``str()`` parses back, and garbage is one clear error."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_areal_eval.allocation import (
    Allocation,
    AllocationMode,
    AllocationSyntaxError,
    AllocationValidationError,
    InvalidAllocationModeError,
    ModelAllocation,
    ParallelStrategy,
    SchedulingStrategy,
    parse_allocation,
)
from pytest_areal_eval.errors import ConfigError

HYBRID = "megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)"
COLOCATED = "sglang[rollout]:d2+fsdp[actor]:d4|fsdp[critic]:d4"


@pytest.mark.parametrize(
    ("text", "backend", "sizes"),
    [
        ("fsdp:d4", "fsdp", {"dp_size": 4, "tp_size": 1, "world_size": 4}),
        ("sglang:d4t2", "sglang", {"dp_size": 4, "tp_size": 2}),
        ("sglang:d12p1t1", "sglang", {"dp_size": 12, "world_size": 12}),
        ("vllm:d2t4p2", "vllm", {"dp_size": 2, "tp_size": 4, "pp_size": 2}),
        ("megatron:d4t2p2", "megatron", {"dp_size": 4, "tp_size": 2, "pp_size": 2}),
        ("archon:d2", "archon", {"dp_size": 2}),
        ("megatron:(attn:d1p12t4|ffn:d1p12e4)", "megatron", {"tp_size": 4, "pp_size": 12, "ep_size": 4}),
        ("megatron:attn:d1p12t4|ffn:d1p12e4", "megatron", {"tp_size": 4, "pp_size": 12, "ep_size": 4}),
        (HYBRID, "megatron", {"etp_size": 4, "cp_size": 2, "ep_size": 2, "edp_size": 2, "world_size": 32}),
        ("megatron:(attn:d4p2t2c2|ffn:p2t4e2)", "megatron", {"edp_size": 2}),
        ("megatron:d4e4", "megatron", {"ep_size": 4, "edp_size": 1, "world_size": 4}),
        ("fsdp:d4t2", "fsdp", {"world_size": 8}),
        ("fsdp:d4c2", "fsdp", {"cp_size": 2, "edp_size": 4}),
        ("fsdp:d1", "fsdp", {"world_size": 1}),
        ("sglang:d1", "sglang", {"world_size": 1}),
        (" sglang\n:\td 4 t\n2 ", "sglang", {"dp_size": 4, "tp_size": 2}),
        ("hf", "hf", {"world_size": 1}),
    ],
)
def test_a_specification_gives_areals_object(text: str, backend: str, sizes: dict[str, int]) -> None:
    found = ModelAllocation.from_str(text)
    assert found.backend == backend
    assert {name: getattr(found.parallel, name) for name in sizes} == sizes


def test_a_name_and_a_strategy_that_are_given_replace_those_of_the_text() -> None:
    assert ModelAllocation.from_str("fsdp[x]:d4").name == "x"
    shared = SchedulingStrategy("colocation", "actor")
    found = ModelAllocation.from_str("fsdp[x]:d4", name="actor", scheduling_strategy=shared)
    assert (found.name, found.scheduling_strategy) == ("actor", shared)
    assert (found.world_size, found.parallel.world_size) == (0, 4)
    assert ModelAllocation.from_str("fsdp:d4").scheduling_strategy == SchedulingStrategy("separation", None)


@pytest.mark.parametrize(
    ("text", "backends", "names"),
    [
        ("sglang:d4p2t2", ["sglang"], [None]),
        ("sglang:d2+fsdp:d4", ["sglang", "fsdp"], [None, None]),
        ("sglang:d4p2t2+megatron:(attn:d2p2t2c2|ffn:d2p2t2e2)", ["sglang", "megatron"], [None, None]),
        ("fsdp:d4", ["fsdp"], [None]),
        ("megatron:d2p2t1", ["megatron"], [None]),
        ("vllm:d2t4+megatron:d2p2t1", ["vllm", "megatron"], [None, None]),
        (HYBRID, ["megatron"], [None]),
        (f"sglang:d4p1t2+{HYBRID}", ["sglang", "megatron"], [None, None]),
        ("sglang[rollout]:d2+fsdp[actor]:d4", ["sglang", "fsdp"], ["rollout", "actor"]),
        (
            "sglang[rollout]:d2+fsdp[actor]:d4+fsdp[critic]:d4",
            ["sglang", "fsdp", "fsdp"],
            ["rollout", "actor", "critic"],
        ),
        (COLOCATED, ["sglang", "fsdp", "fsdp"], ["rollout", "actor", "critic"]),
        (
            "vllm[rollout1]:d2t2 + fsdp[actor1]:d4 + vllm[rollout2]:d4 + fsdp[actor2]:d4",
            ["vllm", "fsdp", "vllm", "fsdp"],
            ["rollout1", "actor1", "rollout2", "actor2"],
        ),
        ("megatron[actor]:(attn:d1p12t4|ffn:d1p12e4)", ["megatron"], ["actor"]),
    ],
)
def test_an_expression_gives_its_allocations_in_order(text: str, backends: list[str], names: list[str | None]) -> None:
    mode = AllocationMode.from_str(text)
    assert [a.backend for a in mode.allocations] == backends
    assert [a.name for a in mode.allocations] == names
    assert AllocationMode.from_str(str(mode)) == mode


def test_colocated_allocations_share_the_first_ones_devices() -> None:
    mode = AllocationMode.from_str(COLOCATED)
    assert mode["actor"].scheduling_strategy.type == "separation"
    assert mode["critic"].scheduling_strategy == SchedulingStrategy("colocation", "actor")
    assert (mode.world_size, mode["critic"].world_size, mode["critic"].parallel.world_size) == (6, 0, 4)


def test_an_expression_knows_what_generates_and_what_trains() -> None:
    mode = AllocationMode.from_str(f"sglang:d4p1t2+{HYBRID}")
    assert (mode.gen.parallel.world_size, mode.train.parallel.world_size, mode.train.parallel.cp_size) == (8, 32, 2)
    assert (mode.gen_backend, mode.train_backend, mode.gen_instance_size) == ("sglang", "megatron", 2)
    assert AllocationMode.from_str("fsdp:d4").gen_backend is None


def test_what_is_not_one_is_ambiguous() -> None:
    with pytest.raises(AttributeError, match="Ambiguous 'gen' property"):
        _ = AllocationMode.from_str("sglang[r1]:d2+sglang[r2]:d2+fsdp[actor]:d4").gen
    with pytest.raises(AttributeError, match="Ambiguous 'train' property"):
        _ = AllocationMode.from_str("sglang[rollout]:d2+fsdp[actor]:d4+fsdp[critic]:d4").train
    with pytest.raises(AttributeError, match="no 'gen' allocation"):
        _ = AllocationMode.from_str("fsdp:d4").gen
    with pytest.raises(KeyError, match="nonexistent"):
        AllocationMode.from_str("sglang:d2+fsdp:d4")["nonexistent"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fsdp:d4p2", "FSDP backend only supports data/tensor/context parallelism"),
        ("fsdp:d2e2", "FSDP backend only supports data/tensor/context parallelism"),
        ("sglang:d2+fsdp[actor]:d4+fsdp:d4", "all must have names. Found 2 unnamed"),
        ("sglang[actor]:d2+fsdp[actor]:d4", "Duplicate component name: actor"),
        ("fsdp:d4|fsdp:d4", "must have names"),
        ("fsdp:d4|fsdp[b]:d4", "must have names"),
        ("fsdp[a]:d4|fsdp[b]:d2", "must have matching world sizes. 'a' has 4, 'b' has 2"),
        ("(attn:d2p2t1c4|ffn:d2p4t1e2)", r"Pipeline parallel size.*must be identical. Got attention: 2, FFN: 4"),
        ("megatron:(attn:d4t4|ffn:e2t3)", r"Cannot derive expert dp: attn world_size \(16\) .* ep\*tp\*pp \(6\)"),
        ("megatron:d2e4", "Expert model parallel size 4 cannot divide world size 2"),
        ("d1", "must be explicitly specified"),
        ("d2p2t1", "must be explicitly specified"),
        ("[actor]:d4", "must be explicitly specified"),
        ("sglang:d4+d4", "must be explicitly specified"),
        ("vllm:d4+[actor]:d4", "must be explicitly specified"),
        ("attn:d4p2t2c2|ffn:d2p2t4e2", "must be explicitly specified"),
        ("(attn:d4p2t2c2|ffn:d2p2t4e2)", "must be explicitly specified"),
    ],
)
def test_an_impossible_expression_is_a_validation_error(text: str, message: str) -> None:
    with pytest.raises(AllocationValidationError, match=message):
        AllocationMode.from_str(text)


def test_attention_and_experts_must_fill_the_same_devices() -> None:
    with pytest.raises(
        InvalidAllocationModeError, match=r"World size.*must be identical\. Got attention: 8, expert: 16"
    ):
        AllocationMode.from_str("(attn:d4p2t1c1|ffn:d2p2t2e2)")


@pytest.mark.parametrize("text", ["sglang:d4+fsdp:d4", "sglang:d2+fsdp:d4+megatron:d8"])
def test_one_model_is_not_several_components(text: str) -> None:
    with pytest.raises(ValueError, match="Multi-component strings containing"):
        ModelAllocation.from_str(text)


def test_one_model_is_not_several_colocated() -> None:
    with pytest.raises(ValueError, match=r"Expected a single allocation from spec '.*', got 2 allocations"):
        ModelAllocation.from_str("fsdp[a]:d4|fsdp[b]:d4")


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("", 1, "the allocation is empty"),
        (" \n", 1, "the allocation is empty"),
        ("sglang:", 8, "unexpected end, expected d, t or p"),
        ("sglang:d", 9, "unexpected end, expected a size"),
        ("sglang:d4d2", 10, "'d' is given twice"),
        ("sglang:d0", 8, "d0 asks for nothing; sizes start at 1"),
        ("sglang:d04", 8, "d04"),
        ("sglang:d4c2", 10, "unexpected 'c', expected d, t or p"),
        ("sglang:d4e2", 10, "unexpected 'e'"),
        ("sglang:d9999999", 8, "more than any cluster has"),
        ("SGLANG:d4", 1, "no such engine 'SGLANG'"),
        ("sglnag:d4", 1, "no such engine 'sglnag', did you mean 'sglang'?"),
        ("sglang:d4+", 11, "unexpected end, expected a backend"),
        ("sglang:d4 fsdp:d4", 11, "unexpected 'f', expected d, t or p, the end, '+' or '|'"),
        ("sglang[]:d4", 8, "unexpected ']', expected a name"),
        ("sglang[a:d4", 9, "unexpected ':', expected ']'"),
        ("fsdp", 5, "unexpected end, expected ':' or '['"),
        ("megatron:(attn:d4|ffn:d4", 25, "unexpected end, expected"),
        ("megatron:attn:d4|ffn:d4)", 24, "unexpected ')'"),
        ("megatron:(ffn:d4|attn:d4)", 11, "unexpected 'f', expected 'attn'"),
    ],
)
def test_what_cannot_be_read_shows_the_place(text: str, column: int, said: str) -> None:
    with pytest.raises(AllocationSyntaxError) as caught:
        AllocationMode.from_str(text)
    message, _, caret = str(caught.value.args[0]).split("\n")
    assert said in message
    assert f"at column {column}" in message
    assert caret.index("^") == column + 1


def test_a_backend_option_is_one_engine_that_serves() -> None:
    assert parse_allocation("sglang[rollout]:d12p1t1") == Allocation("sglang", 12, 1, 1)
    assert parse_allocation("vllm") == Allocation("vllm")
    with pytest.raises(ConfigError, match=r"--backend=fsdp:d4: fsdp trains and serves nothing"):
        parse_allocation("fsdp:d4")
    with pytest.raises(ConfigError, match=r"rollout\.backend: sglang:d4d4: 'd' is given twice"):
        parse_allocation("sglang:d4d4", source="rollout.backend: ")
    with pytest.raises(ConfigError, match=r"--backend=sglang:d4\+fsdp:d4: Multi-component"):
        parse_allocation("sglang:d4+fsdp:d4")


def test_sizes_below_one_are_refused_in_the_constructor_too() -> None:
    with pytest.raises(AllocationValidationError, match="sizes start at 1"):
        ParallelStrategy(tensor_parallel_size=0)


def test_strategies_compare_and_print_as_areals() -> None:
    one = ModelAllocation.from_str(HYBRID).parallel
    assert str(one) == "Parallel(tp=2,pp=2,dp=4,cp=2,ep=2,ep_tp=4)"
    assert ParallelStrategy.parallelism_eq(one, ModelAllocation.from_str(HYBRID).parallel)
    assert not ParallelStrategy.parallelism_eq(one, ParallelStrategy())


sizes = st.integers(1, 64)
names = st.none() | st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)


@st.composite
def allocations(draw: st.DrawFn) -> ModelAllocation:
    """Any allocation that is possible."""
    backend = draw(st.sampled_from(["sglang", "vllm", "hf", "openai", "fsdp", "megatron", "archon"]))
    if backend == "fsdp":
        split = ParallelStrategy(draw(sizes), 1, draw(sizes), draw(sizes))
    elif backend in ("megatron", "archon"):
        ep, etp, pp = draw(sizes), draw(sizes), draw(sizes)
        split = ParallelStrategy(draw(sizes), pp, draw(sizes) * ep * etp, draw(sizes), ep, etp)
    else:
        split = ParallelStrategy(draw(sizes), draw(sizes), draw(sizes))
    return ModelAllocation(backend, draw(names), split)


@given(allocations())
def test_what_is_printed_parses_back(made: ModelAllocation) -> None:
    assert ModelAllocation.from_str(str(made)) == made


@given(st.text() | st.text(alphabet="sglanvmfdpht:[]()|+dtpce0123456789 \n", max_size=40))
def test_any_text_is_an_allocation_or_one_clear_error(text: str) -> None:
    with contextlib.suppress(AllocationValidationError):
        mode = AllocationMode.from_str(text)
        assert AllocationMode.from_str(str(mode)) == mode
