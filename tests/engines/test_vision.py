"""Pictures: AReaL's workflow on both engines' forms, on stand-ins that see what a picture is made of."""

from __future__ import annotations

import asyncio
import base64
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engines.servers import MODEL, attached, spec
from standin.engine import LocalEngine
from standin.engines import VLLM, SGLang
from standin.server import Standin, in_thread
from standin.tokens import ByteTokenizer

from pytest_areal_eval.api import Episode, EpisodeStatus, ModelRequest
from pytest_areal_eval.controller import ControllerSettings, RolloutController
from pytest_areal_eval.engines.base import EngineInfo
from pytest_areal_eval.engines.hf import HFEngine
from pytest_areal_eval.engines.pictures import pictured_chat_body
from pytest_areal_eval.engines.sglang import SGLangEngine
from pytest_areal_eval.engines.vllm import VLLMEngine
from pytest_areal_eval.errors import DatasetError, RequestError
from pytest_areal_eval.workflows import VisionRLVRWorkflow

KINDS: dict[str, tuple[type[VLLMEngine] | type[SGLangEngine], type[Standin]]] = {
    "vllm": (VLLMEngine, VLLM),
    "sglang": (SGLangEngine, SGLang),
}
ANSWERS = {"circle": "\\boxed{3}", "square": "\\boxed{4}"}
PAD = "<pad>"


def picture(what: str) -> bytes:
    """A picture as the stand-ins see it."""
    return f"\x89PNG id: {what}.".encode("latin-1")


def equals(prompt: str, completions: str, prompt_ids: Any, completion_ids: Any, answer: str, **columns: Any) -> float:
    """Whether the box holds the answer; never sees the pictures."""
    assert "images" not in columns
    return float(completions.startswith(f"\\boxed{{{answer}}}"))


def counts(*, completions: str, images: Sequence[bytes], **columns: Any) -> float:
    """By name alone, with the pictures."""
    return float(len(images))


class Processor:
    """As transformers' processors: a template with places, and four placeholders for each picture."""

    tokenizer = ByteTokenizer()

    def apply_chat_template(self, messages: Any, *, tokenize: bool, add_generation_prompt: bool, **options: Any) -> str:
        """``<user>…</user>``."""
        parts = [(m["role"], "".join(p.get("text", PAD) for p in m["content"])) for m in messages]
        return "".join(f"<{role}>{text}</{role}>" for role, text in parts) + "<assistant>"

    def __call__(self, *, images: Any, text: list[str], padding: bool) -> dict[str, Any]:
        """Refuses what does not fit together."""
        assert text[0].count(PAD) == len(images or ())
        return {"input_ids": [self.tokenizer.encode(text[0].replace(PAD, PAD * 4))]}


def opened(image: Any, where: str) -> Any:
    """In place of PIL, which these pictures are none of."""
    return image


@pytest.fixture(autouse=True)
def _no_pil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_areal_eval.workflows.vision._opened", opened)


def rows(**more: Any) -> list[dict[str, Any]]:
    """One about each picture."""
    said = [
        {"role": "user", "content": [{"type": "text", "text": "How many? "}, {"type": "image_url", "image_url": {}}]}
    ]
    return [
        {"messages": said, "images": [picture(what)], "answer": answer, **more}
        for what, answer in (("circle", "3"), ("square", "4"))
    ]


@pytest.mark.parametrize("processor", [Processor(), None], ids=["processor", "messages"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_question_is_answered_by_its_own_picture(kind: str, processor: Processor | None) -> None:
    engine, standin = KINDS[kind]
    kwargs = {"reward_fn": equals, "tokenizer": ByteTokenizer(), "processor": processor}
    with in_thread(standin, answers=ANSWERS) as server, attached(engine(spec(kind)), server) as controller:
        done = controller.rollout_batch(rows(), VisionRLVRWorkflow, kwargs)
        bodies = list(server.server.bodies)
    assert [(r.reward, r.errors) for r in done] == [(1.0, ())] * 2
    if kind == "sglang" and processor:
        ids = ByteTokenizer().encode(f"<user>How many? {PAD * 4}</user><assistant>")
        assert [(b["input_ids"], len(b["image_data"])) for b in bodies] == [(ids, 1)] * 2
        assert {base64.b64decode(b["image_data"][0]) for b in bodies} == {picture("circle"), picture("square")}
    else:
        urls = [b["messages"][0]["content"][1]["image_url"]["url"] for b in bodies]
        assert len(set(urls)) == 2
        assert all(url.startswith("data:image/png;base64,") for url in urls)
    prompt = f"<user>How many? {PAD}</user><assistant>" if processor else "How many? <image>"
    assert {r.episodes[0].prompt for r in done} == {prompt}


def run(*data: dict[str, Any], engine: Any = None, **kwargs: Any) -> list[Episode]:
    """Episodes on an engine in this process."""
    kwargs = {"reward_fn": counts, **kwargs}
    with RolloutController(engine or LocalEngine(), settings=ControllerSettings(max_attempts=1)) as controller:
        controller.initialize()
        made = VisionRLVRWorkflow(**kwargs, reward_range=(0, 9))
        return [r.episodes[0] for r in controller.rollout_batch(data, made)]


def test_a_reward_is_called_by_name_and_may_ask_for_the_pictures() -> None:
    (episode,) = run({"question": "<image> and <image>?", "images": [b"a", b"b"]})
    assert (episode.reward, episode.error) == (2.0, "")


@pytest.mark.parametrize(
    ("record", "parts"),
    [
        ({"question": "Which?", "image": b"a"}, ["a", "Which?"]),
        ({"question": "Is <image> above <image>?", "images": [b"a", b"b"]}, ["Is ", "a", " above ", "b", "?"]),
        ({"messages": [{"role": "user", "content": ["Which? ", {"type": "image"}]}], "image": b"a"}, ["Which? ", "a"]),
        ({"messages": "<user>…", "messages_chat": [{"role": "user", "content": "Q"}], "images": [b"a"]}, ["a", "Q"]),
        ({"question": "None?"}, ["None?"]),
        ({"question": "Q", "image": {"bytes": b"a", "path": None}}, ["a", "Q"]),
        ({"question": "Q", "image": "data:image/png;base64,YQ=="}, ["a", "Q"]),
    ],
)
def test_pictures_take_their_places_in_the_conversation(record: dict[str, Any], parts: list[str]) -> None:
    engine = LocalEngine()
    run(record, engine=engine)
    (request,) = engine.requests
    content = request.messages[-1]["content"]
    assert [
        base64.b64decode(p["image_url"]["url"].partition(",")[2]).decode() if "image_url" in p else p["text"]
        for p in content
    ] == parts


def test_a_file_and_a_decoded_picture_are_sent_as_png_or_as_they_are(tmp_path: Path) -> None:
    class Decoded:
        mode = "CMYK"

        def convert(self, mode: str) -> Decoded:
            self.mode = mode
            return self

        def save(self, file: Any, format: str) -> None:  # noqa: A002 - PIL's name
            file.write(f"{self.mode} as {format}".encode())

    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff file")
    request = VisionRLVRWorkflow(counts).build_request(
        {"question": "Q", "images": [str(tmp_path / "a.jpg"), Decoded()]}
    )
    assert request.messages is not None
    first, second, _ = request.messages[0]["content"]
    assert first["image_url"]["url"] == "data:image/jpeg;base64," + base64.b64encode(b"\xff\xd8\xff file").decode()
    assert base64.b64decode(second["image_url"]["url"].partition(",")[2]) == b"RGB as PNG"


def test_a_templated_text_goes_through_the_processor_alone() -> None:
    """As AReaL's own datasets have it; without messages_chat vLLM has no form for it, and says so."""
    data = {"messages": f"<user>Q {PAD}</user>", "images": [b"a"], "answer": "3"}
    request = VisionRLVRWorkflow(equals, processor=Processor()).build_request(data)
    assert (request.input_ids, request.vision_msg_vllm) == (list(f"<user>Q {PAD * 4}</user>".encode()), None)
    with pytest.raises(RequestError, match="vLLM takes images in messages, and the request has none\nSet vision_msg"):
        pictured_chat_body(request, EngineInfo())
    (episode,) = run(data)
    assert episode.status is EpisodeStatus.WORKFLOW_ERROR
    assert "messages is text that has been through a chat template" in episode.error


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            {"question": "<image><image>?", "images": [b"a"]},
            "the record has 1 images, and its messages have places for 2",
        ),
        ({"question": "<image>?", "images": []}, "the record has 0 images, and its messages have places for 1"),
        ({"question": "Q", "image": 3}, "images[0]: a int is no picture\nGive a PIL image, bytes"),
        ({"question": "Q", "image": "nope.png"}, "images[0]: nope.png: No such file or directory"),
        ({"question": "Q", "image": "data:image/png;base64,%%%"}, "images[0]: a data: URI that is no base64"),
        ({"image": b"a"}, "no prompt: none of messages, prompt"),
    ],
)
def test_a_record_that_cannot_be_asked_says_why(record: dict[str, Any], said: str) -> None:
    with pytest.raises(DatasetError, match=re.escape(said)):
        VisionRLVRWorkflow(counts).build_request(record)


SEEN = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,YQ=="}}]}


@pytest.mark.parametrize("request_", [{"input_ids": [1], "image_data": ["YQ=="]}, {"messages": [SEEN]}])
def test_an_engine_without_eyes_refuses_by_name(request_: dict[str, Any]) -> None:
    request = ModelRequest(**request_)
    with pytest.raises(RequestError, match="the hf engine takes no images\nUse --backend=sglang or vllm"):
        asyncio.run(HFEngine("tiny").generate(request, None, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_that_the_server_cannot_read_costs_its_own_row(kind: str) -> None:
    engine, standin = KINDS[kind]
    kwargs = {"reward_fn": equals, "tokenizer": ByteTokenizer(), "processor": Processor()}
    data = [*rows(), {**rows()[0], "images": [picture("broken")]}]
    with in_thread(standin, answers=ANSWERS) as server, attached(engine(spec(kind)), server) as controller:
        done = controller.rollout_batch(data, VisionRLVRWorkflow, kwargs)
    assert [r.episodes[0].status for r in done] == [EpisodeStatus.SCORED] * 2 + [EpisodeStatus.WORKFLOW_ERROR]
    assert "HTTP 400: cannot identify image file" in done[2].episodes[0].error


def test_a_processor_of_transformers_gives_ids_with_its_placeholders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLaVA's, on the shipped tokenizer: pictures of 28 × 28 in patches of 14 are four tokens each."""
    pil = pytest.importorskip("PIL.Image")
    monkeypatch.undo()
    processor = llava_processor()
    processor.save_pretrained(tmp_path)
    decoded, encoded = pil.new("CMYK", (40, 30)), io.BytesIO()
    pil.new("RGB", (40, 30), "red").save(encoded, format="PNG")
    workflow = VisionRLVRWorkflow(counts, processor=str(tmp_path))
    request = workflow.build_request({"question": "<image> and <image>?", "images": [decoded, encoded.getvalue()]})
    place = processor.tokenizer.convert_tokens_to_ids("<image>")
    assert request.input_ids.count(place) == 8
    assert request.prompt_text == "<user><image> and <image>?</user><assistant>"
    assert request.image_data[1] == base64.b64encode(encoded.getvalue()).decode()
    assert pil.open(io.BytesIO(base64.b64decode(request.image_data[0]))).mode == "RGB"
    with pytest.raises(DatasetError, match=r"images\[0\]: cannot identify image file"):
        workflow.build_request({"question": "Q", "images": [b"nonsense"]})


def llava_processor() -> Any:
    """A small one."""
    import transformers

    template = (
        "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}"
        "{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}</{{ m.role }}>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    return transformers.LlavaProcessor(
        images, tokenizer, patch_size=14, vision_feature_select_strategy="full", chat_template=template
    )
