"""What may be named as a dataset, where it is looked for, and what is said when it is not there."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_areal_eval.datasets import LoadedDataset, hub, item_ids, load_dataset, prepare
from pytest_areal_eval.errors import DatasetError

ROWS = [{"question": f"{i} + 1?", "answer": str(i + 1)} for i in range(5)]
LISTED = ROWS[:2]


def give_rows(count: int = 3) -> Iterator[dict[str, Any]]:
    yield from ROWS[:count]


async def give_rows_async() -> list[dict[str, Any]]:
    return ROWS


def give_nothing() -> list[dict[str, Any]]:
    return []


def give_text() -> list[str]:
    return ["a", "b"]


def give_a_dataset() -> Any:
    import datasets

    return datasets.Dataset.from_list(ROWS)


def fail_midway() -> Iterator[dict[str, Any]]:
    yield ROWS[0]
    raise RuntimeError("no more")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(source: Any, **options: Any) -> LoadedDataset:
    return load_dataset(source, **{"base_dir": Path.cwd(), **options})


def failure(source: Any, **options: Any) -> str:
    with pytest.raises(DatasetError) as caught:
        load(source, **options)
    assert caught.value.hint
    return str(caught.value)


# ---- files and folders ------------------------------------------------------------------------------------------


def test_a_relative_path_starts_at_the_base_folder_then_at_the_current_one(tmp_path: Path) -> None:
    write(tmp_path / "evals" / "a.jsonl", ROWS[:1])
    write(tmp_path / "a.jsonl", ROWS[:2])
    write(tmp_path / "b.jsonl", ROWS[:3])
    assert len(load("a.jsonl", base_dir=tmp_path / "evals").records) == 1
    assert len(load("b.jsonl", base_dir=tmp_path / "evals").records) == 3
    assert len(load(tmp_path / "a.jsonl", base_dir=tmp_path / "evals").records) == 2
    assert load("a.jsonl", base_dir=tmp_path / "evals").where(0) == "evals/a.jsonl:1"


def test_a_missing_file_names_a_near_one(tmp_path: Path) -> None:
    write(tmp_path / "data" / "arithmetic.jsonl")
    said = failure("data/aritmetic.jsonl")
    assert "no such file" in said
    assert "did you mean 'data/arithmetic.jsonl'" in said
    assert "did you mean 'data/arithmetic.jsonl'" in failure("data/arithmetic.json")
    assert "no such file" in failure("nowhere/x.csv")
    assert "no such file" in failure("gsm8k")
    assert "no such file" in failure("")
    assert "no such file" in failure('[{"question": "1 + 1?"}]' * 1000)


def test_a_file_has_no_split_and_no_config(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    assert "a.jsonl: split='test' was given" in failure("a.jsonl", split="test")
    assert "config='main' was given" in failure(give_rows, config="main")


def test_a_folder_of_files_is_split_by_their_names(tmp_path: Path) -> None:
    write(tmp_path / "my-gsm8k" / "train.jsonl", ROWS[:4])
    write(tmp_path / "my-gsm8k" / "test-00000-of-00002.jsonl", ROWS[:2])
    write(tmp_path / "my-gsm8k" / "test-00001-of-00002.jsonl", ROWS[2:5])
    (tmp_path / "my-gsm8k" / "README.md").write_text("not data")
    write(tmp_path / "my-gsm8k" / ".hidden.jsonl")
    dataset = load("my-gsm8k")
    assert dataset.name == "my-gsm8k:test"
    assert list(dataset.records) == ROWS
    assert dataset.where(2) == "my-gsm8k/test-00001-of-00002.jsonl:1"
    assert len(load("my-gsm8k", split="train").records) == 4
    said = failure("my-gsm8k", split="tset")
    assert "no split 'tset'; there are: test, train" in said
    assert "split='test'" in said


def test_a_folder_with_a_choice_and_none_made_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "f" / "easy.jsonl")
    write(tmp_path / "f" / "hard.jsonl")
    assert "which split?  There are: easy, hard" in failure("f")
    (tmp_path / "empty").mkdir()
    assert "the folder holds no data files" in failure("empty")


def test_a_downloaded_hub_repository_is_read_from_its_folder(tmp_path: Path) -> None:
    """C105: a data set needs no network, only its files."""
    for config in ("main", "socratic"):
        write(tmp_path / "gsm8k" / config / "test-00000-of-00001.jsonl", ROWS if config == "main" else LISTED)
    assert len(load("gsm8k").records) == 5
    assert len(load("gsm8k", config="socratic", split="test").records) == 2
    assert "no config 'mian'; there are: main, socratic" in failure("gsm8k", config="mian")


# ---- Python -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "name", "place"),
    [
        (give_rows, "give_rows", f"callable {__name__}.give_rows() row 2"),
        (f"{__name__}.give_rows", "give_rows", f"callable {__name__}.give_rows() row 2"),
        (f"{__name__}:give_rows", "give_rows", f"callable {__name__}:give_rows() row 2"),
        (functools.partial(give_rows, 3), "give_rows", f"callable {__name__}.give_rows() row 2"),
        (tuple(ROWS[:3]), "records", "tuple of 3 records row 2"),
    ],
)
def test_callables_their_names_and_sequences_give_records(source: Any, name: str, place: str) -> None:
    dataset = load(source)
    assert list(dataset.records) == ROWS[:3]
    assert dataset.where(2) == place
    assert dataset.name.endswith(name)


def test_a_dotted_name_may_be_a_list() -> None:
    assert list(load(f"{__name__}.LISTED").records) == LISTED


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (give_rows_async, "a dataset function cannot be async"),
        (give_nothing, "holds no records"),
        (give_text, "row 0: a record must be a mapping from field names to values, got str"),
        (fail_midway, "fail_midway(): raised RuntimeError: no more"),
        (lambda row: [row], "missing 1 required positional argument"),
        (f"{__name__}.no_such_function", "nor such a Python name"),
        ("no_such_module.rows", "nor such a Python name: No module named 'no_such_module'"),
        ("sys.maxsize", "sys.maxsize: an object of type int is no dataset"),
        ([], "holds no records"),
        ([{1: 2}], "field names must be text, got 1"),
        (7, "a dataset cannot be of type int"),
        ({"a": 1}, "a dataset cannot be of type dict"),
    ],
)
def test_what_gives_no_records_is_an_error(source: Any, said: str) -> None:
    assert said in failure(source)


def test_a_record_without_stable_content_cannot_be_fingerprinted() -> None:
    with pytest.raises(
        DatasetError, match="row 1: the record cannot be fingerprinted: an object of type object has no stable content"
    ):
        _ = load([{"a": 1}, {"a": object()}]).content_hash


def test_bytes_arrays_and_dates_are_fingerprinted_by_content() -> None:
    import datetime

    import numpy as np

    def rows(last: int) -> list[dict[str, Any]]:
        return [{"b": b"x", "d": datetime.date(2026, 1, 2), "s": {3, 1}, "n": np.array([1, last])}]

    assert load(rows(2)).content_hash == load(rows(2)).content_hash != load(rows(3)).content_hash


# ---- the datasets library ---------------------------------------------------------------------------------------


def test_plain_files_and_lists_import_neither_datasets_nor_pyarrow(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    code = (
        "import sys, pathlib; from pytest_areal_eval.datasets import load_dataset, prepare, item_ids\n"
        "item_ids(prepare(load_dataset('a.jsonl', base_dir=pathlib.Path.cwd())))\n"
        "print([m for m in ('datasets', 'pyarrow', 'numpy', 'torch', 'pytest') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(root)}, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_without_the_library_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("datasets", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a.parquet").write_bytes(b"")
    for source in ("a.parquet", "org/name"):
        assert "pip install 'pytest-areal-eval[datasets]'" in failure(source)


class TestWithTheLibrary:
    """Each of these imports the datasets library (a second or two, once)."""

    @pytest.fixture(autouse=True)
    def _library(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        datasets = pytest.importorskip("datasets")
        import huggingface_hub.constants

        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def test_a_saved_dataset_and_a_saved_dict_are_read(self) -> None:
        import datasets

        rows = datasets.Dataset.from_list(ROWS)
        rows.save_to_disk("one")
        datasets.DatasetDict(train=rows.select([0]), test=rows).save_to_disk("many")
        assert list(load("one").records) == ROWS
        assert load("one").content_hash == load(ROWS).content_hash
        assert load("many").name == "many:test"
        assert load("many").where(3) == "many[test] row 3"
        assert len(load("many", split="train").records) == 1
        assert "many: no split 'x'; there are: test, train" in failure("many", split="x")
        assert "split 'test' was asked of a dataset without splits" in failure("one", split="test")

    def test_a_damaged_saved_dataset_is_an_error(self) -> None:
        import datasets

        datasets.Dataset.from_list(ROWS).save_to_disk("one")
        next(Path("one").glob("*.arrow")).unlink()
        assert "one: cannot be loaded as a saved dataset" in failure("one")

    def test_the_librarys_own_objects_are_taken_as_they_are(self) -> None:
        import datasets

        assert list(load(give_a_dataset).records) == ROWS
        both = datasets.DatasetDict(train=give_a_dataset().select([0]), test=give_a_dataset())
        assert len(load(both).records) == 5
        assert len(load(both, split="train").records) == 1

    def test_a_hub_dataset_takes_the_usual_config_and_split(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The real library, over a folder laid out like a hub repository."""
        configs = [
            {"config_name": c, "data_files": [{"split": s, "path": f"{c}/{s}.jsonl"} for s in ("train", "test")]}
            for c in ("main", "socratic")
        ]
        repository = tmp_path / "elsewhere" / "gsm8k"
        for config in ("main", "socratic"):
            write(repository / config / "train.jsonl", ROWS[:1])
            write(repository / config / "test.jsonl", ROWS if config == "main" else LISTED)
        (repository / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
        name = str(repository)
        dataset = hub.load_hub(name, config=None, split=None)
        assert list(dataset.records) == ROWS
        assert (dataset.name, dataset.where(2)) == ("gsm8k:test", f"{name}[main, test] row 2")
        assert len(hub.load_hub(name, config="socratic", split="train").records) == 1
        for config, split, said in (("mian", "test", "['main', 'socratic']"), ("main", "tset", "['train', 'test']")):
            with pytest.raises(DatasetError) as caught:
                hub.load_hub(name, config=config, split=split)
            assert said in str(caught.value)
            assert "Give one that exists" in str(caught.value)

    def test_a_hub_dataset_that_cannot_be_reached_says_how_to_do_without(self, tmp_path: Path) -> None:
        """C104, C105: offline is one clear error."""
        said = failure("openai/gsm8k", config="main", split="test")
        assert "openai/gsm8k: cannot be loaded from the Hugging Face hub" in said
        assert 'dataset="data/test.jsonl"' in said
        write(tmp_path / "data" / "questions")
        assert "did you mean 'data/questions'" in failure("data/question")
        assert "split='train' says otherwise" in failure("openai/gsm8k:test", split="train")

    def test_a_single_config_is_left_to_the_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """C104: from its cache the library lists "default" for a config that it knows under another name."""
        import datasets

        asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def load_dataset(*args: Any, **options: Any) -> Any:
            asked.append((args, options))
            return give_a_dataset()

        monkeypatch.setattr(datasets, "get_dataset_config_names", lambda name: ["default"])
        monkeypatch.setattr(datasets, "get_dataset_split_names", lambda name, config: ["validation"])
        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        assert load("openai/gsm8k").name == "gsm8k:validation"
        assert asked == [(("openai/gsm8k", None), {"split": "validation"})]
        load("openai/gsm8k:test", config="main", trust_remote_code=True)
        assert asked[1] == (("openai/gsm8k", "main"), {"split": "test", "trust_remote_code": True})

    def test_images_are_decoded_only_when_their_row_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import datasets

        rows = [{"question": "what?", "image": {"bytes": b"%d" % i, "path": "x.png"}} for i in range(3)]
        dataset = load(datasets.Dataset.from_list(rows).cast_column("image", datasets.Image()))

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("an image was decoded")

        with monkeypatch.context() as patched:
            patched.setattr(datasets.Image, "decode_example", refuse)
            prepared = prepare(dataset)
            assert item_ids(prepared) == ["0000", "0001", "0002"]
            assert len(prepared.content_hash) == 16
        monkeypatch.setattr(datasets.Image, "decode_example", lambda self, value, **_: (b"decoded", value["bytes"]))
        assert prepared.records[2]["image"] == (b"decoded", b"2")
        assert prepared.records[2]["messages"][0]["content"] == "what?"
