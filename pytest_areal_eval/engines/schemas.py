"""An answer that is held to a JSON schema: ``metadata["response_format"]``, OpenAI's, in the words of each engine.

Invariant: an engine that cannot hold an answer to a schema refuses the request; none is sent as if nothing was asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytest_areal_eval.api import ModelRequest
from pytest_areal_eval.engines.base import Engine
from pytest_areal_eval.errors import RequestError

FORMAT, CHOICE = "response_format", "tool_choice"
"""Keys of a request's metadata: what OpenAI's chat API knows by these names; the latter for hosted endpoints alone."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def refuse_schemas(request: ModelRequest, engine: Engine) -> None:
    """Refuse what the engine cannot do, by its name.

    Raises:
        RequestError: the request asks for a form of its answer, and the engine knows none.
    """
    asked = next((name for name in (FORMAT, CHOICE) if request.metadata.get(name)), None)
    if asked is not None and not engine.info.schemas:
        hint = "Use --backend=vllm (0.12 or later) or sglang (with a grammar backend), or leave it out."
        raise RequestError(
            f"{asked}: this {engine.name} engine cannot hold an answer to a JSON schema", status=400, hint=hint
        )


def of_vllm(request: ModelRequest) -> dict[str, Any]:
    """``structured_outputs``, from 0.12 on; older ones ignore a schema in ``response_format`` beside token ids."""
    form = request.metadata.get(FORMAT)
    if not form:
        return {}
    return {"structured_outputs": {"json_object": True} if form["type"] == "json_object" else {"json": _schema(form)}}


def of_sglang(request: ModelRequest) -> dict[str, str]:
    """``json_schema`` of the sampling parameters, which is text."""
    form = request.metadata.get(FORMAT)
    return {"json_schema": json.dumps(_schema(form))} if form else {}


def of_openai(request: ModelRequest) -> dict[str, Any]:
    """As it is."""
    return {name: request.metadata[name] for name in (FORMAT, CHOICE) if request.metadata.get(name)}


def _schema(form: Mapping[str, Any]) -> Any:
    return ANY_OBJECT if form["type"] == "json_object" else form["json_schema"]["schema"]
