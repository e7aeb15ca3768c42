"""Answers that are held to a JSON schema, as vLLM and SGLang give them: the first one that a schema allows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from standin.http11 import Reply
from standin.job import Job
from standin.tokens import EOS

_LEAST: Mapping[str, Any] = {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "null": None, "array": []}


def schema_of(body: Mapping[str, Any]) -> Any:
    """What a request asks for in any of the ways; None where it asks for nothing."""
    text = body.get("sampling_params", {}).get("json_schema")
    outputs, form = body.get("structured_outputs") or {}, body.get("response_format") or {}
    if outputs.get("json_object") or form.get("type") == "json_object":
        return {"type": "object"}
    return json.loads(text) if text else outputs.get("json") or form.get("json_schema", {}).get("schema")


def fault(schema: Any) -> str:
    """The first type in a schema that there is not; "" if there is none."""
    if not isinstance(schema, Mapping):
        return ""
    kind = schema.get("type", "object")
    if isinstance(kind, str) and kind not in ("object", *_LEAST):
        return kind
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    return next(filter(None, map(fault, inner)), "")


def instance(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> Any:
    """The first value that a schema allows."""
    root = root or schema
    if "$ref" in schema:
        found: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return instance(found, root)
    if "anyOf" in schema:
        return instance(schema["anyOf"][0], root)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type", "object") == "object":
        return {name: instance(inner, root) for name, inner in schema.get("properties", {}).items()}
    return _LEAST[schema["type"]]


def held(shape: Callable[..., Reply]) -> Callable[..., Reply]:
    """The form of an answer, which says what the request's schema allows."""

    def shaped(job: Job, text: str | None, ids: list[int], reason: Mapping[str, Any]) -> Reply:
        schema = schema_of(job.body)
        if schema is not None:
            text = json.dumps(instance(schema))
            ids = [*job.server.tokenizer.encode(text), EOS]
        return shape(job, text, ids, reason)

    return shaped
