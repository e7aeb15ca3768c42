"""Servers that load another checkpoint: none may answer with the weights of the one before."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standin.engine import LocalEngine, StandinEngine
from standin.server import DEADLY, OTHER, REFUSED
from standin.tokens import ByteTokenizer
from support.waiting import until

from pytest_areal_eval.checkpoint import Checkpoint, same_form
from pytest_areal_eval.controller import ControllerSettings, Event, RolloutController
from pytest_areal_eval.errors import ConfigError, EngineStartError
from pytest_areal_eval.schedulers.local import LocalScheduler

REPLICAS = 2


class Ask:
    """The reward is the answer."""

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
        reply = await engine.chat([{"role": "user", "content": "Question."}], max_new_tokens=64)
        return float(reply.text.partition("{")[2].partition("}")[0])


def rewards(controller: RolloutController) -> set[float | None]:
    return {rollout.reward for rollout in controller.rollout_batch([{} for _ in range(16)], Ask())}


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def controller(tmp_path: Path, events: list[Event]) -> Iterator[RolloutController]:
    """Two servers, each with an answer given."""
    scheduler = LocalScheduler(log_dir=tmp_path / "logs", gpus=())
    settings = ControllerSettings(backoff_s=0.02, health_interval_s=0.1, restarts=0)
    with RolloutController(
        StandinEngine(REPLICAS), scheduler, settings=settings, tokenizer=ByteTokenizer(), on_event=events.append
    ) as made:
        made.initialize()
        until(lambda: made.snapshot().replicas_ready == REPLICAS, "both replicas")
        assert rewards(made) == {42.0}
        yield made
    scheduler.close()


def held(controller: RolloutController) -> list[str]:
    """Which checkpoint each server has."""
    found = []
    for endpoint in controller.endpoints:
        request = urllib.request.Request(endpoint.base_url + "/model_info")
        request.add_header("Authorization", f"Bearer {endpoint.token}")
        with urllib.request.urlopen(request, timeout=5) as reply:
            found.append(json.loads(reply.read())["model_path"])
    return found


def test_all_servers_stay_and_have_it_before_the_next_request(controller: RolloutController) -> None:
    before = controller.endpoints
    controller.update_weights(OTHER)
    assert held(controller) == [OTHER] * REPLICAS
    assert rewards(controller) == {41.0}
    assert controller.endpoints == before
    controller.update_weights("stand-in")
    assert rewards(controller) == {42.0}


@pytest.mark.parametrize(("path", "said"), [(REFUSED, "HTTP 400: the weights do not fit"), (DEADLY, "Disconnected")])
def test_servers_that_cannot_are_started_anew(
    controller: RolloutController, events: list[Event], path: str, said: str
) -> None:
    before = controller.endpoints
    controller.update_weights(path)
    until(lambda: controller.snapshot().replicas_ready == REPLICAS, "both replicas")
    assert held(controller) == [path] * REPLICAS
    assert not {e.base_url for e in before} & {e.base_url for e in controller.endpoints}
    told = [e.text for e in events if e.kind == "warning"]
    assert len(told) == REPLICAS
    assert all("is started anew" in text and said in text for text in told), told
    assert rewards(controller) == {42.0}


def test_what_is_outstanding_is_dropped(controller: RolloutController) -> None:
    class Waits:
        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> float:
            await engine.chat([{"role": "user", "content": "hang"}])
            raise AssertionError("it was to be cancelled")

    controller.pause()
    controller.submit({}, Waits())
    controller.update_weights(OTHER)
    controller.resume()
    assert controller.wait() == []
    assert rewards(controller) == {41.0}


def test_no_server_with_it_is_an_error_that_says_why(
    controller: RolloutController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller.engine, "_arguments", ("--exit-at-start", "1"))
    with pytest.raises(EngineStartError, match="CUDA out of memory"):
        controller.update_weights(REFUSED)
    assert isinstance(controller.failure, EngineStartError)


def test_an_engine_without_servers_cannot() -> None:
    with RolloutController(LocalEngine()) as made:
        made.initialize()
        with pytest.raises(ConfigError, match="'local' cannot load another checkpoint"):
            made.update_weights(OTHER)


# Which checkpoints one server can serve in turn


def checkpoint(folder: Path, **files: str) -> Checkpoint:
    folder.mkdir()
    (folder / "model.safetensors").write_text(folder.name)
    base = {"config.json": '{"hidden_size": 64}', "tokenizer.json": "{}"}
    for name, text in {**base, **files}.items():
        (folder / name).write_text(text)
    return Checkpoint(path=str(folder), name=folder.name, local=True)


@pytest.mark.parametrize(
    ("files", "same"),
    [
        ({}, True),
        ({"config.json": '{"transformers_version": "5.1", "hidden_size": 64}'}, True),
        ({"trainer_state.json": '{"step": 7}', "README.md": "x"}, True),
        ({"config.json": '{"hidden_size": 128}'}, False),
        ({"config.json": '{"hidden_size": 64, "dtype": "bfloat16"}'}, False),
        ({"tokenizer.json": '{"added": 1}'}, False),
        ({"chat_template.jinja": "other"}, False),
        ({"generation_config.json": '{"eos_token_id": 5}'}, False),
        ({"model.bin": "x"}, False),
    ],
    ids=str,
)
def test_checkpoints_that_differ_in_weights_alone_share_servers(
    tmp_path: Path, files: dict[str, str], same: bool
) -> None:
    assert same_form(checkpoint(tmp_path / "one"), checkpoint(tmp_path / "two", **files)) is same


def test_a_checkpoint_of_the_hub_gets_servers_of_its_own(tmp_path: Path) -> None:
    assert not same_form(checkpoint(tmp_path / "one"), Checkpoint(path="org/two", name="two", local=False))
