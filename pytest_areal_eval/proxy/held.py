"""Answers that are held to a form: JSON by a schema, or a call that the model must make.

Invariant: a forced call has the form in which the checkpoint's own chat template writes calls, or there is none.  Its
opening tag ends the prompt, the rest follows a schema, so a grammar for JSON is all that an engine needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.api import ModelRequest
from pytest_areal_eval.engines.schemas import CHOICE, FORMAT
from pytest_areal_eval.proxy.ask import Ask, RefusedError

if TYPE_CHECKING:
    from pytest_areal_eval.controller import EpisodeEngine

_PROBE = "areal_eval_probe"
_LEAD = re.compile(r'(<tool_call>\s*)\{"name": ?"' + _PROBE + r'", ?"arguments": ?')
_DEFINITIONS = ("$defs", "definitions")
_MOVED = tuple(f"#/{key}/" for key in _DEFINITIONS)


def hold(ask: Ask, request: ModelRequest, engine: EpisodeEngine) -> str:
    """Ask for the form; returns with what the answer begins, which then ends the prompt.

    Args:
        ask: what the agent wants.
        request: gets the schema, and the opening of a forced call.
        engine: the episode's.

    Raises:
        RefusedError: the engine, the model's template or the request itself does not allow it.
    """
    if ask.form is None and not ask.forced:
        return ""
    param = CHOICE if ask.forced else ask.form_field
    if not engine.info.schemas:
        said = "this engine cannot hold an answer to a JSON schema; leave it out, or use --backend=vllm or sglang"
        raise RefusedError(f"{param}: {said}", param=param)
    if engine.tokenizer is None:  # OpenAI's own API has both
        _pass_on(ask, request)
        return ""
    if ask.tools and not ask.forced:
        said = "an answer that is held to it can make no call; leave out the tools, or force a call"
        raise RefusedError(f"{param} beside tools: {said}", param=param)
    if request.input_ids and str(engine.tokenizer.decode(request.input_ids[-8:])).rstrip().endswith("<think>"):
        said = "the prompt ends inside of <think>, where no form can be asked for; switch thinking off"
        raise RefusedError(f"{param}: {said} (chat_template_kwargs={{'enable_thinking': false}})", param=param)
    if not ask.forced:
        request.metadata[FORMAT] = ask.form
        return ""
    lead = _lead(engine.tokenizer, ask, request)
    request.input_ids = [*request.input_ids, *engine.tokenizer.encode(lead, add_special_tokens=False)]
    if request.prompt_text is not None:
        request.prompt_text += lead
    request.metadata[FORMAT] = _call(ask)
    return lead


def _pass_on(ask: Ask, request: ModelRequest) -> None:
    if ask.form is not None:
        request.metadata[FORMAT] = ask.form
    if ask.forced:
        (name, *others) = ask.forced
        one = {"type": "function", "function": {"name": name}}
        request.metadata[CHOICE] = "required" if others or len(ask.tools) == 1 else one


def _lead(tokenizer: Any, ask: Ask, request: ModelRequest) -> str:
    """What stands before a call's JSON, read from a conversation with a call that the template renders."""
    if request.messages is not None:
        raise RefusedError("tool_choice: no call can be forced beside images; use 'auto'", param=CHOICE)
    called = {"name": _PROBE, "arguments": {"value": 1}}
    call = {"id": "call_0", "type": "function", "function": called}
    probe = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    rendered = tokenizer.apply_chat_template(probe, tools=ask.tools, tokenize=False)
    found = _LEAD.search(str(rendered))
    if found is None:
        said = "this model's chat template writes calls in another form than <tool_call>{JSON}; use 'auto'"
        raise RefusedError(f"tool_choice: {said}", param=CHOICE)
    return found[1]


def _call(ask: Ask) -> dict[str, Any]:
    """The form of one call of any forced function."""
    functions = [tool["function"] for tool in ask.tools if tool["function"]["name"] in ask.forced]
    calls, definitions = [], dict[str, Any]()
    for function in functions:
        parameters = dict(function.get("parameters") or {"type": "object"})
        _hoist(parameters, definitions)
        calls.append(_object({"name": {"enum": [function["name"]]}, "arguments": parameters}))
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {"type": "json_schema", "json_schema": {"name": "call", "schema": {**schema, **definitions}}}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    required: Sequence[str] = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _hoist(parameters: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Move a schema's definitions to where its references, which begin at the root, find them."""
    other = next((ref for ref in _references(parameters) if not ref.startswith(_MOVED)), None)
    if other is not None:
        said = f"$ref {other!r} of a tool's parameters does not point into their $defs; put there what it means"
        raise RefusedError(f"tool_choice: {said}", param=CHOICE)
    for key in _DEFINITIONS:
        own, known = parameters.pop(key, None) or {}, definitions.get(key, {})
        if not isinstance(own, Mapping):
            raise RefusedError(f"tool_choice: {key} of a tool's parameters is no object", param=CHOICE)
        clash = next((name for name in own if known.get(name, own[name]) != own[name]), None)
        if clash is not None:
            said = f"two tools define {clash!r} differently; force one of them by its name"
            raise RefusedError(f"tool_choice: {said}", param=CHOICE)
        if own:
            definitions[key] = {**known, **own}


def _references(schema: Any) -> Iterator[str]:
    inner = schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ()
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"]
    for part in inner:
        yield from _references(part)
