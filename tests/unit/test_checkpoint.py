"""A checkpoint's tokenizer: what cannot be used is one error that says so."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_areal_eval.checkpoint import inspect_checkpoint, load_tokenizer
from pytest_areal_eval.errors import CheckpointError, ConfigError

TINY = Path(__file__).parents[2] / "models/tiny-math"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the tiny model without its weights."""
    for file in TINY.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def drop(*names: str) -> Callable[[Path], None]:
    return lambda model: [(model / name).unlink() for name in names] and None


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda model: (model / name).write_text(text)


def contradict(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 99}))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (drop("tokenizer.json", "tokenizer_config.json"), "no usable tokenizer"),
        (drop("tokenizer.json"), "no usable tokenizer"),
        (write("tokenizer.json", "{"), "no usable tokenizer: "),
        (write("tokenizer_config.json", "{"), "no usable tokenizer: "),
        (contradict, "no usable tokenizer: "),
        (drop("chat_template.jinja"), "its tokenizer has no chat template"),
        (write("chat_template.jinja", "{% for m in messages %}"), "its chat template is no template: line 1: "),
        (write("chat_template.jinja", "{{ messages[0]..content }}"), "its chat template is no template: line 1: "),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_one_error(model: Path, spoil: Callable[[Path], object], said: str) -> None:
    spoil(model)
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(str(model), need_template=True)
    assert str(caught.value).startswith(f"--model={model}: {said}")
    assert caught.value.hint


def test_what_a_library_says_in_several_lines_is_kept(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": "2048"}))
    with pytest.raises(CheckpointError, match=r"max_position_embeddings': .*int"):
        load_tokenizer(str(model))


@pytest.mark.parametrize("length", [0, -1, True, "2048", 1.5])
def test_a_context_length_that_is_none_is_unknown(model: Path, length: object) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": length}))
    (model / "model.safetensors").touch()
    assert inspect_checkpoint(str(model)).context_length is None


def test_a_config_that_is_nested_too_deep_is_one_error(model: Path) -> None:
    (model / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read: "):
        inspect_checkpoint(str(model))


@pytest.mark.parametrize("template", ["{{ range(10 ** 9) }}", "{{ 1 / (tools | length) }}", "{{ messages + 1 }}"])
def test_a_template_that_fails_on_a_bare_question_is_left_to_the_rows(model: Path, template: str) -> None:
    (model / "chat_template.jinja").write_text(template)
    assert load_tokenizer(str(model), need_template=True).chat_template == template


def test_a_template_that_asks_for_arguments_is_taken(model: Path) -> None:
    template = "{% if not style %}{{ raise_exception('no style') }}{% endif %}{{ messages[0].content }}"
    (model / "chat_template.jinja").write_text(template)
    assert load_tokenizer(str(model), need_template=True).chat_template == template


def test_a_long_prompt_is_no_matter_of_the_tokenizer(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = load_tokenizer(str(model))
    assert len(tokenizer.encode("a " * 2000)) > tokenizer.model_max_length
    assert capfd.readouterr().err == ""


def test_without_a_template_a_tokenizer_is_taken_where_none_is_needed(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    assert load_tokenizer(str(model)).pad_token_id is not None


def test_a_library_that_cannot_be_imported_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="transformers, which reads tokenizers, cannot be imported"):
        load_tokenizer(str(TINY))


def test_a_name_whose_first_part_is_a_folder_here_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/final").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"no such directory\nDid you mean models/final\?"):
        inspect_checkpoint("models/fina")
    assert not inspect_checkpoint("org/fina").local


def test_a_name_that_the_hub_does_not_know_is_said_to_be_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    class Unknown(huggingface_hub.errors.RepositoryNotFoundError):
        def __init__(self) -> None:
            """Without the response that the client gives it."""

    def model_info(self: object, name: str, timeout: float) -> None:
        raise Unknown

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    with pytest.raises(CheckpointError, match="no such folder, and the hub shows no such model"):
        load_tokenizer("lab/never-uploaded")


def test_a_pad_token_that_the_model_cannot_say_ends_no_answer(model: Path) -> None:
    """Added for training, without a row in the embedding: vLLM refuses every request that names it as a stop token."""
    tokenizer = load_tokenizer(str(model))
    tokenizer.add_special_tokens({"pad_token": "<|added|>"})
    tokenizer.save_pretrained(model)
    assert load_tokenizer(str(model)).pad_token == "<|added|>"  # there is room for it in the embedding
    config = json.loads((model / "config.json").read_text())
    write("config.json", json.dumps({**config, "vocab_size": tokenizer.pad_token_id}))(model)
    assert load_tokenizer(str(model)).pad_token_id == tokenizer.eos_token_id
