"""What bad input gets: one message with what, which and what to type next; 4 for usage, 2 for collection errors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from support.plugins import without
from support.refusals import refused

USAGE, COLLECTION = pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERRUPTED
GRADE = """
from pytest_areal_eval import evaluation

def grade(prompt, completions, prompt_ids, completion_ids, answer="", **columns):
    return float(completions == str(answer))
"""
ROWS = '[{"id": f"g{n}", "question": f"q{n}", "answer": f"a{n}"} for n in range(4)]'
GOOD = f"{GRADE}\n@evaluation({ROWS}, reward_fn=grade)\ndef test_gsm(rollout):\n    pass\n"
RECORDED = [{"id": f"g{n}", "completion": f"a{n}"} for n in range(4)]

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, warm: None) -> Run:
    """Run a test file with the default fixtures; ``files`` are written beside it."""
    monkeypatch.delenv("CI", raising=False)

    def go(
        *args: str, source: str = GOOD, files: Mapping[str, str] | None = None, ini: Sequence[str] = ()
    ) -> pytest.RunResult:
        pytester.makeini("\n".join(["[pytest]", f"addopts = {without()}", *ini]))
        (pytester.path / "test_evals.py").write_text(source, encoding="utf-8")
        for name, text in (files or {}).items():
            path = pytester.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return pytester.runpytest(*args)

    return go


def evaluated(arguments: str, before: str = "", body: str = "def test_gsm(rollout):\n    pass\n") -> str:
    """A test file with one evaluation."""
    return f"{GRADE}\n{before}\n@evaluation({arguments})\n{body}"


def jsonl(rows: Sequence[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# ---- the dataset ----------------------------------------------------------------------------------------------------

RAISES = "def load():\n    raise RuntimeError('boom')\n"
EXITS = "def load():\n    raise SystemExit(3)\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (evaluated('"d.jsonl", reward_fn=grade'), ["dataset 'd.jsonl': no such file or folder*", "Give a path*"]),
        (evaluated("[], reward_fn=grade"), ["test_gsm: list of 0 records: holds no records"]),
        (evaluated('["a", "b"], reward_fn=grade'), ["row 0: a record must be a mapping*got str", "Give each record*"]),
        (evaluated("5, reward_fn=grade"), ["a dataset cannot be of type int", "Give a path*"]),
        (evaluated("load, reward_fn=grade", RAISES), ["load(): raised RuntimeError: boom", "*takes no arguments*"]),
        (evaluated("load, reward_fn=grade", EXITS), ["load(): raised SystemExit: 3"]),
        (
            evaluated('[{"question": "q"}, {"question": "q"}], reward_fn=grade, answer="gold"'),
            ["list of 2 records row 0: there is no field 'gold', which is the answer; the fields are: question"],
        ),
        (
            evaluated('[{"id": "a", "question": "q"}], reward_fn=grade, prompt="questoin"'),
            ["row 0 (id 'a'): there is no field 'questoin', which is the prompt*", "Did you mean 'question'?"],
        ),
        (
            evaluated('[{"id": "a", "question": "q"}], reward_fn=grade, prompt=lambda r: r["nope"]'),
            ["row 0 (id 'a'): the prompt or answer function raised KeyError: 'nope'", "The row's fields are: id*"],
        ),
        (
            evaluated('[{"id": "a", "question": "q"}], reward_fn=grade, prompt=lambda r: exit(1)'),
            ["row 0 (id 'a'): the prompt or answer function raised SystemExit: 1"],
        ),
        (
            evaluated('[{"id": "a", "question": "q"}], reward_fn=grade, prompt=lambda r: None'),
            ["row 0 (id 'a'): the prompt * is neither text nor a list of messages but None"],
        ),
        (
            evaluated('[{"id": "a", "question": "q"}, {"id": "a", "question": "r"}], reward_fn=grade'),
            ["row 1: the id 'a' is already that of list of 2 records row 0", "Give each record its own id*"],
        ),
        (
            evaluated('[{"id": 1.5, "question": "q"}], reward_fn=grade'),
            ["row 0: the id 1.5 is no text or whole number"],
        ),
        (
            evaluated('[{"question": "q", "answer": "none"}], reward_fn="pytest_areal_eval.rewards.gsm8k_reward_fn"'),
            ["1 gold answer does not verify against itself:", "row 0: the gold answer 'none'*", "*check_gold=False*"],
        ),
    ],
)
def test_wrong_data_is_one_collection_error_that_names_the_row(run: Run, source: str, said: list[str]) -> None:
    """C106: file, row, the missing field, the fields that there are."""
    refused(run(source=source), COLLECTION, *said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "d.jsonl: holds no records"),
        ('{"question": "q"}\n{"question":\n', "d.jsonl:2: not valid JSON*"),
        ('{"question": "q"}\n[1]\n', "d.jsonl:2*"),
    ],
)
def test_a_torn_data_file_is_an_error_with_its_line(run: Run, text: str, said: str) -> None:
    source = evaluated('"d.jsonl", reward_fn=grade')
    refused(run(source=source, files={"d.jsonl": text}), COLLECTION, said)


def test_ids_of_any_text_become_short_distinct_test_ids(run: Run) -> None:
    """Ids that differ only in characters that a test id may not have stay apart; a long one is cut."""
    ids = ["a b", "a/b", "ü[]::", "x" * 300, "x" * 299 + "y", "", " "]
    rows = [{"id": text, "question": "q"} for text in ids]
    result = run("--collect-only", "-q", source=evaluated(f"{rows!r}, reward_fn=grade"))
    if result.ret == COLLECTION:
        refused(result, COLLECTION, "row 5*id*")
        rows = [row for row in rows if str(row["id"]).strip()]
        result = run("--collect-only", "-q", source=evaluated(f"{rows!r}, reward_fn=grade"))
    found = [line.split("[")[1].rstrip("]") for line in result.outlines if "::test_gsm[" in line]
    assert len(set(found)) == len(rows)
    assert all(len(text) <= 60 and text.isascii() for text in found)


def test_a_huge_row_is_no_problem(run: Run) -> None:
    rows = [{"id": "big", "question": "q" * 2_000_000, "answer": "a"}]
    result = run("--replay=r.jsonl", source=evaluated('"d.jsonl", reward_fn=grade'), files={
        "d.jsonl": jsonl(rows), "r.jsonl": jsonl([{"id": "big", "completion": "a" * 2_000_000}])
    })  # fmt: skip
    assert result.ret == 0
    assert result.parseoutcomes() == {"missed": 1}
    assert max(len(line) for line in result.outlines) < 1000


# ---- the decorator --------------------------------------------------------------------------------------------------

ONE = '[{"id": "a", "question": "q", "answer": "a"}]'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("reward_fn=grade, n_sample=3", ["unknown argument 'n_sample'; did you mean 'n_samples'?"]),
        ("reward_fn=grade, zzz=3", ["unknown argument 'zzz'; there are: dataset, *"]),
        ("reward_fn=grade, n_samples='3'", ["n_samples='3' is not a whole number of at least 1"]),
        ("reward_fn=grade, temperature=-1", ["temperature=-1 is not a number of at least 0"]),
        ("reward_fn=grade, stop=['']", ["stop=?''? is not a string or a list of strings"]),
        ("reward_fn=grade, reward_range=(None, 1)", ["reward_range=(None, 1) is not (lowest, highest)"]),
        ("reward_fn=grade, stop_token_ids='7'", ["stop_token_ids='7' is not a list of token ids"]),
        ("reward_fn=grade, gates=['reward => 0.5']", ["gate 'reward => 0.5': expected one of >=*", "Write METRIC OP*"]),
        ("reward_fn=grade, gates=['reward >= nan']", ["expected a number or a percentage at position 11*"]),
        ("reward_fn=grade, gates=['pass@0 >= 0.5']", ["'pass@0' needs a whole number of draws*"]),
        ("reward_fn='no.where.grade'", ["reward_fn='no.where.grade': *No module named 'no'"]),
        (
            "reward_fn='pytest_areal_eval.rewards.gsm8k_rewrd_fn'",
            ["reward_fn='*gsm8k_rewrd_fn': *did you mean 'gsm8k_reward_fn'?"],
        ),
        ("reward_fn='os.path', answer='answer', check_gold=False", ["reward_fn='os.path' is a module, not a function"]),
        ("reward_fn=3", ["reward_fn=3 is not a function or its dotted name"]),
        (
            "reward_fn=lambda completions, answer: 1.0",
            [
                "reward_fn: <lambda>(completions, answer): multiple values for argument ?answer?",
                "Write def *, **columns); the columns are: id, qu*",
            ],
        ),
        ("reward_fn=lambda p, c, i, o, gold, **columns: 1.0", ["missing a required argument: 'gold'", "Write def *"]),
        ("reward_fn=lambda p, c, i, o, answer: 1.0", ["got an unexpected keyword argument 'id'", "Write def *"]),
        ("workflow='no.where.Flow'", ["workflow='no.where.Flow': *No module named 'no'"]),
        ("workflow='os.path'", ["workflow=os.path: module has no 'async def arun_episode(self, engine, data)'*"]),
        (
            "workflow=type('Flow', (), {'arun_episode': print})",
            ["Flow: its 'arun_episode' is not async", "Write 'async def arun_episode(self, engine, data)'."],
        ),
        (
            "reward_fn=grade, workflow_kwargs={'nope': 1}",
            ["*unexpected keyword argument 'nope'", "Its signature is RLV*"],
        ),
        (
            "workflow=Theirs",
            ["Theirs: missing a required argument: 'config'", "Its signature is Theirs(gconfig, config)*"],
        ),
        ("", ["neither reward_fn= nor workflow=", "Name the reward*"]),
    ],
)
def test_a_mistake_in_the_decorator_names_the_argument(run: Run, arguments: str, said: list[str]) -> None:
    theirs = "class Theirs:\n    def __init__(self, gconfig, config):\n        pass\n"
    theirs += "    async def arun_episode(self, engine, data):\n        return 1.0\n"
    refused(run(source=evaluated(f"{ONE}, {arguments}", before=theirs)), COLLECTION, *said)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (f"{GRADE}\n@evaluation\ndef test_a(rollout):\n    pass\n", "test_a: @evaluation without arguments"),
        (f"{GRADE}\n@evaluation()\ndef test_a(rollout):\n    pass\n", "test_a: @evaluation: no dataset"),
        (
            evaluated(f"{ONE}, reward_fn=grade", body="def test_a():\n    pass\n"),
            "test_a: an evaluation takes rollout*",
        ),
        (
            evaluated(ONE, body="async def test_a(item):\n    return 1.0\n"),
            "test_a: an evaluation takes engine as argument",
        ),
        (
            evaluated(f"{ONE}, reward_fn=grade", body="async def test_a(item, engine):\n    return 1.0\n"),
            "reward_fn= on an async test",
        ),
    ],
)
def test_a_function_of_the_wrong_form_is_told_the_right_one(run: Run, source: str, said: str) -> None:
    refused(run(source=source), COLLECTION, said)


def test_a_workflow_that_cannot_be_built_is_one_usage_error(run: Run) -> None:
    picky = "class Picky:\n    def __init__(self):\n        raise ValueError('not today')\n"
    picky += "    async def arun_episode(self, engine, data):\n        return 1.0\n"
    source = evaluated(f"{ONE}, workflow=Picky", before=picky)
    said = "workflow=test_evals.Picky: its constructor raised ValueError: not today"
    refused(run("--replay=r.jsonl", source=source, files={"r.jsonl": jsonl([{"id": "a", "output": "a"}])}), USAGE, said)


# ---- options and ini keys -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--n-samples=0", "ERROR: --n-samples: 0 is below 1"),
        ("--n-samples=many", "ERROR: --n-samples: 'many' is not a whole number"),
        ("--temperature=-1", "ERROR: --temperature: -1 is not 0 or more"),
        ("--temperature=nan", "ERROR: --temperature: nan is not 0 or more"),
        ("--top-p=0", "ERROR: --top-p: 0 is not above 0 and at most 1"),
        ("--limit=0", "ERROR: --limit: 0 is below 1"),
        ("--shard=0/4", "'0/4' is not i/n with 1 <= i <= n, such as 1/4"),
        ("--shard=5/4", "'5/4' is not i/n with 1 <= i <= n, such as 1/4"),
        ("--episode-timeout=0", "ERROR: --episode-timeout: 0 is not above 0 seconds"),
        ("--scheduler=slrm", "ERROR: --scheduler: 'slrm' is not local, ray or slurm"),
        ("--areal-order=random", "'random' is not auto, completion or collection"),
        ("--dataset=d.jsonl", "'d.jsonl' is not NAME=SOURCE, such as test_gsm8k=data/test.jsonl"),
        ("--model=", "ERROR: --model: the value is empty; is a shell variable unset?"),
        ("--results-dir=", "ERROR: --results-dir: the value is empty*"),
        ("--n-sample=3", "unrecognized arguments: --n-sample=3"),
    ],
)
def test_an_option_that_cannot_be_read_is_refused_by_name(run: Run, option: str, said: str) -> None:
    refused(run(option), USAGE, said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backend=sglnag"], ["--backend=sglnag: no such engine", "There are: hf, sglang*"]),
        (["--backend=sglang"], ["sglang is not installed in this environment", "Install it (pip install 'sglang*"]),
        (["--backend=hf:d0"], ["--backend=hf:d0: d0 asks for nothing; sizes start at 1"]),
        (["--backend=hf:t2"], ["the embedded engine runs on one device"]),
        (["--backend=hf:"], ["--backend=hf:: unexpected*"]),
        (["--gate=test_gms:reward >= 0.5"], ["no selected evaluation is named 'test_gms'", "There are: test_gsm."]),
        (["--gate=reward => 0.5"], ["expected one of >=*found '=>'"]),
        (["--dataset=test_gms=d.jsonl"], ["no evaluation is named 'test_gms'", "There are: test_gsm."]),
    ],
)
def test_an_option_that_cannot_work_is_refused_before_anything_starts(
    run: Run, options: list[str], said: list[str]
) -> None:
    """C109: what names nothing is no silent no-op."""
    refused(run("--model=model", *options, files=checkpoint()), USAGE, *said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("areal_n_samples = zero", "ini key areal_n_samples: 'zero' is not a whole number"),
        ("areal_greedy = perhaps", "ini key areal_greedy: *'perhaps'*"),
        ("areal_shard = 1:4", "ini key areal_shard: '1:4' is not i/n*"),
        ("areal_dataset =\n    test_gsm", "ini key areal_dataset: 'test_gsm' is not NAME=SOURCE*"),
    ],
)
def test_an_ini_value_that_cannot_be_read_is_one_usage_error_with_its_key(run: Run, line: str, said: str) -> None:
    refused(run(ini=[line]), USAGE, said)


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("pass@8 >= 0.5", "gate 'pass@8 >= 0.5' will fail: n_samples is 1; run with --n-samples=8 or more"),
        ("rewrad >= 0.5", "gate 'rewrad >= 0.5' will fail unless the reward gives a 'rewrad'; did you mean 'reward'?"),
    ],
)
def test_a_gate_that_will_fail_is_known_before_the_run_and_fails_after_it(run: Run, gate: str, said: str) -> None:
    """C109: a typo in a gate neither passes nor costs a night."""
    result = run("--replay=r.jsonl", f"--gate={gate}", files={"r.jsonl": jsonl(RECORDED)})
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"*{said}"])
    assert result.parseoutcomes() == {"passed": 4, "failed": 1}


def test_an_unknown_plain_option_of_another_plugin_is_left_alone(run: Run) -> None:
    refused(run("--modle=x"), USAGE, "unrecognized arguments: --modle=x")


# ---- the checkpoint -------------------------------------------------------------------------------------------------


def checkpoint(**files: str) -> dict[str, str]:
    """A folder ``model`` that looks like a checkpoint as long as nobody loads it."""
    return {"model/config.json": json.dumps({"max_position_embeddings": 64}), "model/model.safetensors": "-"} | files


def test_no_checkpoint_at_all(run: Run) -> None:
    refused(run(), USAGE, "no checkpoint to evaluate", "Give --model=PATH, or --replay=FILE*")


@pytest.mark.parametrize(
    ("model", "files", "said"),
    [
        ("/nowhere/ckpt", {}, ["--model=/nowhere/ckpt: no such directory", "/nowhere does not exist either."]),
        (
            "models/finl",
            {"models/final/x": ""},
            ["--model=models/finl: no such directory", "Did you mean models/final?"],
        ),
        ("m.txt", {"m.txt": ""}, ["--model=m.txt: not a directory", "Give the folder that holds config.json."]),
        ("m", {"m/x": ""}, ["--model=m: no config.json there", "Give the folder that save_pretrained wrote."]),
        (
            "run",
            {"run/step-2/config.json": "{}", "run/step-1/config.json": "{}"},
            ["--model=run: no config.json there", "There are checkpoints in it: run/step-1, run/step-2. Give one*"],
        ),
        ("m", {"m/config.json": "{}"}, ["--model=m: no weights there (looked for *"]),
        (
            "m",
            {"m/config.json": "{", "m/a.safetensors": ""},
            ["--model=m: config.json cannot be read: *", "Copy it anew*"],
        ),
        ("m", {"m/config.json": "[]", "m/a.safetensors": ""}, ["--model=m: config.json holds no JSON object"]),
        (
            "m",
            {
                "m/config.json": json.dumps({"text_config": [1]}),
                "m/a.safetensors": "",
                "m/generation_config.json": "no",
            },
            ["--model=m: generation_config.json cannot be read: *"],
        ),
    ],
)
def test_what_is_no_checkpoint_is_refused_before_anything_starts(
    run: Run, model: str, files: dict[str, str], said: list[str]
) -> None:
    refused(run(f"--model={model}", files=files), USAGE, *said)


def test_one_checkpoint_twice_is_refused_whatever_it_is_called(run: Run) -> None:
    refused(run("--model=model", "--model=./model/", files=checkpoint()), USAGE, "--model=*model* is given twice*")


def test_more_new_tokens_than_the_context_holds(run: Run) -> None:
    result = run("--model=model", "--max-new-tokens=64", files=checkpoint())
    refused(result, USAGE, "--max-new-tokens=64: model has a context of 64 tokens", "*ask for fewer than 64.")


# ---- replay ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--replay=r.jsonl: no completions there"),
        ("\n\n", "--replay=r.jsonl: no completions there"),
        (jsonl(RECORDED) + '{"id": "g', "--replay=r.jsonl:5: not JSON: *"),
        (jsonl(RECORDED) + "[]\n", "--replay=r.jsonl:5: not a JSON object"),
        (jsonl([{"id": "g0"}]), "--replay=r.jsonl:1: no completion (one of completion*); the row has: id"),
        (jsonl([{"text": "a"}]), "--replay=r.jsonl:1: no id or index; the row has: text"),
        (jsonl([{"index": "0", "text": "a"}]), "--replay=r.jsonl:1: index '0' is not a whole number"),
        (jsonl([{"id": "g0", "text": 5}]), "--replay=r.jsonl:1: text is neither a string nor a list of strings"),
        (jsonl(RECORDED[:1]), "3 of 4 items have fewer than 1 recorded completions: g1, g2, g3"),
    ],
)
def test_a_recording_that_cannot_be_scored_is_one_usage_error(run: Run, text: str, said: str) -> None:
    refused(run("--replay=r.jsonl", files={"r.jsonl": text}), USAGE, said)


@pytest.mark.parametrize("name", ["nope.jsonl", "folder"])
def test_a_recording_that_is_no_file(run: Run, name: str) -> None:
    refused(run(f"--replay={name}", files={"folder/x": ""}), USAGE, f"--replay={name}: cannot be read: *")


def test_empty_completions_are_counted_and_not_hidden(run: Run) -> None:
    """C7: empty is a status of its own, beside the score that it costs."""
    rows = [{**row, "completion": "" if row["id"] == "g1" else row["completion"]} for row in RECORDED]
    rows[2]["completion"] = None
    result = run("--replay=r.jsonl", files={"r.jsonl": jsonl(rows)})
    assert result.parseoutcomes() == {"passed": 2, "missed": 2}
    result.stdout.fnmatch_lines(["evaluation * empty *", "test_gsm * 0.5000 * 2 *"])


def test_paths_ids_and_texts_of_any_script(run: Run, pytester: pytest.Pytester) -> None:
    rows = [
        {"id": "größe", "question": "Wie groß? 🦔", "answer": "größe"},
        {"id": "数", "question": "数?", "answer": "数"},
    ]
    recorded = [{"id": row["id"], "completion": row["answer"]} for row in rows]
    source = evaluated('"daten/fragen ä.jsonl", reward_fn=grade')
    files = {"daten/fragen ä.jsonl": jsonl(rows), "antworten 数.jsonl": jsonl(recorded)}
    result = run("--replay=antworten 数.jsonl", "--results-dir=ergebnisse ß", source=source, files=files)
    assert result.parseoutcomes() == {"passed": 2}
    assert len(list((pytester.path / "ergebnisse ß").glob("2*/episodes.jsonl"))) == 1


# ---- the results folder ---------------------------------------------------------------------------------------------


def test_a_results_folder_that_is_a_file(run: Run) -> None:
    result = run("--replay=r.jsonl", files={"r.jsonl": jsonl(RECORDED), "eval-results": ""})
    refused(result, USAGE, "results cannot be written to *eval-results: File exists", "*--results-dir=PATH")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_results_folder_that_is_read_only(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "eval-results").mkdir(mode=0o500)
    result = run("--replay=r.jsonl", files={"r.jsonl": jsonl(RECORDED)})
    refused(result, USAGE, "results cannot be written to *Permission denied", "*--results-dir=PATH")


def test_a_results_folder_where_nothing_can_be_made(run: Run) -> None:
    result = run("--replay=r.jsonl", "--results-dir=/proc/eval-results", files={"r.jsonl": jsonl(RECORDED)})
    refused(result, USAGE, "results cannot be written to /proc/eval-results: *", "*--results-dir=PATH")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_full_disk_stops_the_run_with_one_message(run: Run, pytester: pytest.Pytester) -> None:
    """The journal is a device that is always full: what cannot be recorded is not reported as if it were."""
    conftest = """
        from pathlib import Path
        import pytest
        from pytest_areal_eval.journal import RunFolder

        @pytest.fixture(autouse=True, scope="session")
        def full_disk():
            create = RunFolder.create
            def on_a_full_disk(*args, **kwargs):
                folder = create(*args, **kwargs)
                Path(folder.path, "episodes.jsonl").symlink_to("/dev/full")
                return folder
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(RunFolder, "create", on_a_full_disk)
                yield
    """
    pytester.makeconftest(conftest)
    result = run("--replay=r.jsonl", files={"r.jsonl": jsonl(RECORDED)})
    assert result.ret not in (0, 1, 16)
    text = "\n".join([*result.outlines, *result.errlines])
    assert "No space left on device" in text
    assert "Traceback" not in text
