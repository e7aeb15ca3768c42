"""Turns word problems into the conversations that the tiny model is trained on.

A conversation is a list of segments; the model is trained on those that it is to produce itself.
"""

from __future__ import annotations

import json
import random
from typing import Any

from problems import Problem, draw, worked

BOXED = "\nPlease put your final answer within \\boxed{}."
HASHES = "\nGive your final answer after ####."
CHOICE = "\nAnswer with the letter of the right option."
RETRY = (
    "Your answer was wrong. Please read the question again and try again.",
    "That is not the right answer, or it could not be read. Read the original question again, "
    "look for mistakes, and answer once more.",
    "Incorrect. Try again.",
)
SYSTEMS = (
    "",
    "",
    "You are a helpful assistant.",
    "Answer math questions.",
    "You solve math word problems step by step.",
)
TOOL_SYSTEMS = (
    "Answer math questions using the calculator tools.",
    "",
    "You are a helpful assistant.",
    "Use the tools to do the arithmetic.",
)
OPS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
DESCRIPTIONS = {
    "add": "Add two numbers.",
    "subtract": "Subtract the second number from the first.",
    "multiply": "Multiply two numbers.",
    "divide": "Divide the first number by the second.",
}

Segment = tuple[str, bool]
"""A piece of rendered text, and whether the model is trained to produce it."""


def conversation(rng: random.Random) -> list[Segment]:
    """One training conversation, of a kind drawn at random."""
    _, p = draw(rng)
    suffix = rng.choice(["", HASHES, BOXED, BOXED])
    kind = rng.random()
    if kind < 0.60:
        return plain(rng, p, suffix)
    if kind < 0.72:
        return multiple_choice(rng, p)
    if kind < 0.80:
        return retry(rng, p, suffix)
    return tool_calls(rng, p, suffix)


def tool_schema(name: str, style: int) -> dict[str, Any]:
    """An OpenAI-style function schema, in one of three usual renderings."""
    number = {"type": "number"}
    titled = {
        "properties": {"a": {"title": "A", **number}, "b": {"title": "B", **number}},
        "required": ["a", "b"],
        "title": f"{name}_args",
        "type": "object",
        "additionalProperties": False,
    }
    plain = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
    function: dict[str, Any] = {
        "name": name,
        "description": DESCRIPTIONS[name],
        "parameters": plain if style == 2 else titled,
    }
    if style == 0:
        function["strict"] = True
    return {"type": "function", "function": function}


def _turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def _final(answer: object, question_suffix: str) -> str:
    return f"\\boxed{{{answer}}}" if "boxed" in question_suffix else f"#### {answer}"


def plain(rng: random.Random, p: Problem, suffix: str) -> list[Segment]:
    """Question, then a chain of thought and the answer, with or without thinking."""
    system = rng.choice(SYSTEMS)
    head = _turn("system", system) if system else ""
    head += _turn("user", p.question + suffix) + "<|im_start|>assistant\n"
    final = _final(p.answer, suffix)
    mode = rng.random()
    if mode < 0.45:
        return [(head, False), (f"{worked(p)}\n{final}<|im_end|>", True)]
    if mode < 0.8:
        head += "<think>\n\n</think>\n\n"
        return [(head, False), (f"{worked(p)}\n{final}<|im_end|>", True)]
    return [(head + "<think>\n", False), (f"{worked(p)}\n</think>\n\n{final}<|im_end|>", True)]


def choice_options(rng: random.Random, answer: int) -> tuple[list[int], str]:
    """Four distinct options and the letter of the right one."""
    near = [answer + d for d in (-20, -10, -5, -3, -2, -1, 1, 2, 3, 5, 10, 20) if answer + d >= 0]
    options = [answer, *rng.sample(near, 3)]
    rng.shuffle(options)
    return options, "ABCD"[options.index(answer)]


def multiple_choice(rng: random.Random, p: Problem) -> list[Segment]:
    """Four options; the model works the answer out, then names the letter."""
    options, letter = choice_options(rng, p.answer)
    lines = "".join(f"\n{k}. {v}" for k, v in zip("ABCD", options, strict=True))
    head = _turn("user", p.question + lines + CHOICE) + "<|im_start|>assistant\n"
    if rng.random() < 0.5:
        head += "<think>\n\n</think>\n\n"
    return [(head, False), (f"{worked(p)}\nThe answer is {letter}.<|im_end|>", True)]


def retry(rng: random.Random, p: Problem, suffix: str) -> list[Segment]:
    """A wrong first answer, the remark that it is wrong, and a right second one."""
    head = _turn("user", p.question + suffix) + "<|im_start|>assistant\n"
    if rng.random() < 0.5:
        head += "<think>\n\n</think>\n\n"
    wrong = f"{worked(p)}\n{_final(p.answer + rng.choice([-10, -2, -1, 1, 2, 10]), suffix)}"
    remark = "<|im_end|>\n" + _turn("user", rng.choice(RETRY)) + "<|im_start|>assistant\n"
    right = f"{worked(p)}\n{_final(p.answer, suffix)}<|im_end|>"
    return [(head, False), (wrong, False), (remark, False), (right, True)]


def tool_calls(rng: random.Random, p: Problem, suffix: str) -> list[Segment]:
    """One tool call a step; the tool's answer is read back at the end."""
    divides = any(op == "/" for op, *_ in p.steps)
    names = ["add", "multiply"] if rng.random() < 0.5 and not divides else list(DESCRIPTIONS)
    style = rng.randrange(3)
    system = rng.choice(TOOL_SYSTEMS)
    tools = "".join(json.dumps(tool_schema(n, style), ensure_ascii=False) + "\n" for n in names)
    body = (f"{system}\n\n" if system else "") + "Functions:\n" + tools
    body += 'Call one with <tool_call>{"name": ..., "arguments": {...}}</tool_call>'
    segments: list[Segment] = [
        (_turn("system", body) + _turn("user", p.question + suffix) + "<|im_start|>assistant\n", False)
    ]
    floats = rng.random() < 0.7
    for op, a, b, c in p.steps:
        name, right = OPS[op], b
        if name not in names:  # only add and multiply are offered
            name, right = "add", -b
        arguments = json.dumps({"a": a, "b": right})
        segments.append((f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call><|im_end|>', True))
        shown = f"{float(c):g}" if not floats else (f"{float(c)}" if name != "divide" else f"{a / b}")
        segments.append(
            ("\n" + _turn("user", f"<tool_response>{shown}</tool_response>") + "<|im_start|>assistant\n", False)
        )
    segments.append((f"{_final(p.answer, suffix)}<|im_end|>", True))
    return segments
