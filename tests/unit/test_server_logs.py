"""What of a server's log is shown."""

from __future__ import annotations

from pathlib import Path

from pytest_areal_eval.schedulers import logs

ENV = {"VLLM_API_KEY": "k3y-of-vllm", "AREAL_EVAL_TOKEN": "t0k3n", "HF_TOKEN": "hf-s3cret", "EMPTY_TOKEN": ""}


def test_keys_and_tokens_of_the_environment_are_blotted_out(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("first\nkeys: k3y-of-vllm t0k3n hf-s3cret\n")
    assert logs.tail(str(log), 1, logs.secrets_of(ENV)) == "keys: *** *** ***"


def test_a_setting_whose_name_only_sounds_like_a_token_stays_readable(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("enforce_eager=false, 256 sequences\n")
    env = {"TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "256"}
    assert logs.tail(str(log), 5, logs.secrets_of(env)) == "enforce_eager=false, 256 sequences"


def test_a_log_that_is_not_there_is_said_and_raises_nothing(tmp_path: Path) -> None:
    assert logs.tail(str(tmp_path / "none.log"), 5).startswith("[the log cannot be read: ")
