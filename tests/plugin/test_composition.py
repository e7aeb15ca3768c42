"""An evaluation composes with pytest's marks, classes and parametrization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Suite = Callable[..., pytest.Pytester]
Counts = Callable[[], dict[str, int]]

HEAD = """
import pytest
from pytest_areal_eval import evaluation

ROWS = [{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(3)]
"""


def test_each_parameter_set_is_a_row_with_gates_of_its_own(suite: Suite) -> None:
    source = (
        HEAD
        + """
@pytest.mark.parametrize("style", ["short", "long"])
@evaluation(ROWS, workflow="support.ask.Ask", gates=["reward >= 0.5"])
def test_styles(rollout, style):
    pass
"""
    )
    result = suite(source=source).runpytest("-v")
    assert result.parseoutcomes() == {"passed": 2 * 2 + 2, "missed": 2}
    result.stdout.fnmatch_lines_random(
        [
            "*::test_styles?short-g0? PASSED*",
            "*::test_styles?long-g1? MISSED*",
            "test_styles?short? *0.6667*",
            "test_styles?long? *0.6667*",
            "gate PASS  test_styles?short?: *",
            "*::test_styles?long?::gate?reward >= 0.5? PASSED*",
        ]
    )


def test_a_parameter_named_like_a_sampling_setting_replaces_it(suite: Suite, journal_rows: Any) -> None:
    source = (
        HEAD
        + """
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("n_samples", [1, 2])
@evaluation(ROWS, workflow="support.ask.Ask", temperature=0.2)
def test_hot(rollout, temperature, n_samples):
    pass
"""
    )
    result = suite(source=source).runpytest()
    result.stdout.fnmatch_lines(
        ["*test_hot?1-0.0?: 3 of 3 items x 1, greedy*", "*test_hot?1-0.7?: * x 1, temperature 0.7*"]
    )
    result.stdout.fnmatch_lines(["*test_hot?2-0.7?: 3 of 3 items x 2, temperature 0.7*"])
    assert len(journal_rows()) == 3 * (1 + 1 + 2 + 2)


def test_classes_and_module_marks_give_defaults(suite: Suite) -> None:
    source = (
        HEAD
        + """
pytestmark = evaluation(ROWS, workflow="support.ask.Ask", gates=["reward >= 0.5"])

@evaluation(pass_mark=0.0)
class TestMath:
    def test_a(self, rollout):
        pass

    @evaluation(ROWS[:1])
    def test_b(self, rollout):
        pass

def test_c(rollout):
    pass
"""
    )
    result = suite(source=source).runpytest("-v")
    assert result.parseoutcomes() == {"passed": 3 + 1 + 2 + 3, "missed": 1}
    result.stdout.fnmatch_lines(["*::TestMath::test_a?g1? PASSED*", "*::TestMath::test_b?g0? PASSED*"])


@pytest.mark.parametrize("mark", ["skipif(True, reason='no GPU')", "skip(reason='no GPU')"])
def test_a_skipped_evaluation_submits_nothing(suite: Suite, engine_counts: Counts, mark: str) -> None:
    source = (
        HEAD
        + f"""
@evaluation(ROWS, workflow="support.ask.Ask")
def test_first(rollout):
    pass

@pytest.mark.{mark}
@evaluation(ROWS, workflow="support.ask.Ask", gates=["reward >= 0.5"])
def test_skipped(rollout):
    pass
"""
    )
    result = suite(source=source).runpytest("-rs")
    assert result.parseoutcomes() == {"passed": 2, "missed": 1, "skipped": 4}
    result.stdout.fnmatch_lines(["*no GPU*", "*0 of 3 items were reported*"])
    assert engine_counts()["requests"] == 3


def test_xfail_on_a_strict_item_is_pytests_own(suite: Suite) -> None:
    source = (
        HEAD
        + """
@pytest.mark.xfail(reason="hard", strict=False)
@evaluation(ROWS, workflow="support.ask.Ask")
def test_strict(rollout):
    assert rollout.reward == 1.0
"""
    )
    assert suite(source=source).runpytest().parseoutcomes() == {"passed": 2, "xfailed": 1}


def test_usefixtures_and_ids_with_a_keyword(suite: Suite, pytester: pytest.Pytester) -> None:
    source = (
        HEAD
        + """
@pytest.fixture
def seen(request):
    with open("seen.txt", "a") as file:
        file.write(request.node.name + " ")

@pytest.mark.usefixtures("seen")
@evaluation(ROWS, workflow="support.ask.Ask")
def test_used(rollout):
    pass
"""
    )
    assert suite(source=source).runpytest("-k", "not g1").parseoutcomes() == {"passed": 2, "deselected": 1}
    assert sorted((pytester.path / "seen.txt").read_text().split()) == ["test_used[g0]", "test_used[g2]"]


def test_an_id_of_any_text_is_made_fit_and_can_be_selected(suite: Suite) -> None:
    """B5.8: brackets, colons and length would break --lf and node ids."""
    source = """
from pytest_areal_eval import evaluation

ROWS = [{"id": name, "question": "q1", "answer": "a1"} for name in ("a[1]", "b::2", "c/ü", "d" * 300)]

@evaluation(ROWS, workflow="support.ask.Ask")
def test_odd(rollout):
    pass
"""
    made = suite(source=source)
    listed = [line for line in made.runpytest("--co", "-q").outlines if "::" in line]
    assert len(listed) == 4
    assert all(len(line) < 100 and line.count("[") == 1 and line.count("::") == 1 for line in listed)
    assert made.runpytest(listed[0]).parseoutcomes() == {"missed": 1}
    made.runpytest()
    assert made.runpytest("--lf").parseoutcomes() == {"missed": 4}


def test_duplicate_ids_are_one_collection_error_that_names_both_rows(suite: Suite) -> None:
    source = (
        HEAD
        + """
@evaluation([*ROWS, ROWS[1]], workflow="support.ask.Ask")
def test_twice(rollout):
    pass
"""
    )
    result = suite(source=source).runpytest()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert result.parseoutcomes() == {"errors": 1}
    result.stdout.fnmatch_lines(["*test_twice*g1*"])


@pytest.mark.parametrize(
    ("decorator", "signature", "message"),
    [
        ("ROWS, rewardfn=print", "rollout", "*unknown argument 'rewardfn'; did you mean 'reward_fn'?"),
        ("ROWS", "rollout", "*neither reward_fn= nor workflow=*"),
        ("reward_fn=print", "rollout", "*no dataset*"),
        ("ROWS, reward_fn=lambda *a, **k: 1.0", "", "*takes rollout as argument*"),
        ("ROWS, reward_fn=print, n_samples=0", "rollout", "*n_samples=0 is not a whole number of at least 1*"),
        ("ROWS, reward_fn=print, gates=['reward >> 1']", "rollout", "*reward >> 1*"),
        ("'missing.jsonl', reward_fn=print", "rollout", "*missing.jsonl*"),
        ("ROWS, reward_fn='no.such.thing'", "rollout", "*no.such.thing*"),
        ("[{'question': 'x'}], reward_fn=print, answer='gold'", "rollout", "*gold*question*"),
    ],
)
def test_a_mistake_is_one_collection_error_that_names_the_argument(
    suite: Suite, engine_counts: Counts, decorator: str, signature: str, message: str
) -> None:
    source = HEAD + f"@evaluation({decorator})\ndef test_wrong({signature}):\n    pass\n\ndef test_plain():\n    pass\n"
    result = suite(source=source).runpytest("-q")
    assert result.parseoutcomes() == {"error": 1} or result.parseoutcomes() == {"errors": 1}
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([message])
    assert "INTERNALERROR" not in result.stdout.str()
    assert engine_counts() == {}


def test_an_empty_dataset_is_an_error(suite: Suite) -> None:
    """A marked test that evaluates nothing must not look like a pass."""
    source = HEAD + "@evaluation([], workflow='support.ask.Ask')\ndef test_none(rollout):\n    pass\n"
    result = suite(source=source).runpytest()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert result.parseoutcomes() == {"errors": 1}


def test_several_models_are_evaluated_in_turn(suite: Suite, pytester: pytest.Pytester) -> None:
    """Each model's controller is made and ended before the next one's; each has its row and its gates."""
    made = suite(
        source=HEAD
        + """
@evaluation(ROWS, workflow="support.ask.Ask", gates=["reward >= 0.5"])
def test_gsm(rollout):
    pass

@evaluation(ROWS, workflow="support.ask.Ask")
def test_other(rollout):
    pass
"""
    )
    made.makeconftest(MODELS)
    for name in ("old", "new"):
        (made.path / "ckpt" / name).mkdir(parents=True)
        (made.path / "ckpt" / name / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 64}')
        (made.path / "ckpt" / name / "model.safetensors").touch()
    result = made.runpytest("--model=ckpt/old", "--model=ckpt/new", "-v")
    assert result.parseoutcomes() == {"passed": 2 * 4 + 2, "missed": 4}, result.outlines
    result.stdout.fnmatch_lines_random(
        ["*::test_gsm?old-g0? PASSED*", "*::test_other?new-g2? PASSED*", "gate PASS  test_gsm?new?*"]
    )
    result.stdout.fnmatch_lines(["reward of *old *new", "test_gsm *0.6667 * 0.6667 *", "test_other *0.6667 *"])
    assert (made.path / "events.txt").read_text().split() == ["+ckpt/old", "-ckpt/old", "+ckpt/new", "-ckpt/new"]


MODELS = """
import pytest
from pytest_areal_eval.controller import RolloutController
from support.rule_engine import RuleEngine

def log(text):
    with open("events.txt", "a") as file:
        file.write(text + " ")

@pytest.fixture(scope="session")
def controller(areal_model):
    log("+" + areal_model)
    made = RolloutController(RuleEngine(lambda question, n: "a" + question[1:] if question != "q1" else "?"))
    made.initialize()
    yield made
    made.destroy()
    log("-" + areal_model)
"""
