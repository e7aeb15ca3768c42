"""Record a real server's answers for the parsers' tests: ``python record.py URL NAME``, with its key in API_KEY.

The server runs the shipped checkpoint as ``tiny-math``, and gives JSON without white space between its parts, which the
checkpoint would write without end (vLLM: ``--structured-outputs-config '{"backend": "xgrammar",
"disable_any_whitespace": true}'``, SGLang: ``--constrained-json-disable-any-whitespace``).
Kept as ``recorded/NAME.json``: case → status and body.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SAMPLING: dict[str, Any] = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "stop_token_ids": [2, 0]}

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "unit": {"enum": ["apples", "pears"]}},
    "required": ["answer", "unit"],
    "additionalProperties": False,
}
NO_SCHEMA = {"type": "nonsense"}

MOST = "effective_max_running_requests_per_dp"
SERVER_INFO = ("dp_size", "grammar_backend", "max_running_requests", "max_total_num_tokens", "version")
"""What the engine reads of it; the rest holds the server's key."""


def ask(url: str, path: str, body: Any = None, key: str | None = None) -> dict[str, Any]:
    """One request; the status and the decoded body."""
    request = urllib.request.Request(url + path, None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    request.add_header("Authorization", f"Bearer {os.environ.get('API_KEY', '') if key is None else key}")
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            raw, status = reply.read().decode(), reply.status
    except urllib.error.HTTPError as error:
        with error:
            raw, status = error.read().decode(), error.code
    try:
        return {"status": status, "body": json.loads(raw)}
    except ValueError:
        return {"status": status, "text": raw}


def cases(url: str, ids: list[int]) -> dict[str, Any]:
    """Every form that the engines read."""

    def completion(**more: Any) -> dict[str, Any]:
        body = {"model": "tiny-math", "prompt": ids, "max_tokens": 64, "return_token_ids": True}
        return ask(url, "/v1/completions", SAMPLING | body | more)

    def generate(**more: Any) -> dict[str, Any]:
        logprob = bool(more.pop("return_logprob", False))
        sampling = SAMPLING | {"max_new_tokens": 64} | more
        return ask(
            url,
            "/generate",
            {"input_ids": ids, "sampling_params": sampling, "return_logprob": logprob, "logprob_start_len": -1},
        )

    def chat(**more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": "What is 12 + 7?"}]
        body = {"model": "tiny-math", "messages": messages, "max_completion_tokens": 64, "return_token_ids": True}
        return ask(url, "/v1/chat/completions", SAMPLING | body | more)

    def held(schema: dict[str, Any]) -> dict[str, Any]:
        return {"json_schema": json.dumps(schema)} if native else {"structured_outputs": {"json": schema}}

    def form(schema: dict[str, Any]) -> dict[str, Any]:
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}

    native = ask(url, "/generate", {})["status"] != 404
    mine, limit = (generate, "max_new_tokens") if native else (completion, "max_tokens")
    found = {
        "models": ask(url, "/v1/models"),
        "unauthorized": ask(url, "/v1/models", key="wrong"),
        "ids_stop": mine(),
        "ids_length": mine(**{limit: 5}),
        "ids_stop_string": mine(stop=["####"]),
        "ids_logprobs": mine(**({"return_logprob": True} if native else {"logprobs": 0})),
        "ids_too_long": mine(**{limit: 100_000}),
        "ids_schema": mine(**held(SCHEMA)),
        "ids_bad_schema": mine(**held(NO_SCHEMA)),
        "chat_stop": chat(),
        "chat_length": chat(max_completion_tokens=5),
        "chat_stop_string": chat(stop=["####"]),
        "chat_logprobs": chat(logprobs=True),
        "chat_schema": chat(response_format=form(SCHEMA)),
        "chat_unknown_model": chat(model="nope"),
        "unknown_path": ask(url, "/nope"),
    }
    if native:
        server = ask(url, "/server_info")
        states = server["body"]["internal_states"]
        server["body"] = {key: server["body"][key] for key in SERVER_INFO}
        server["body"]["internal_states"] = [{MOST: state.get(MOST)} for state in states]
        return found | {"server_info": server, "bad_value": generate(temperature=-1)}
    metrics = ask(url, "/metrics")["text"].splitlines()
    kept = [line for line in metrics if line.startswith("vllm:cache_config_info")]
    return found | {
        "metrics": {"status": 200, "text": "\n".join(kept)},
        "version": ask(url, "/version"),
        "bad_value": completion(temperature=-1),
    }


if __name__ == "__main__":
    import transformers

    where, name = sys.argv[1:]
    tokenizer = transformers.AutoTokenizer.from_pretrained(HERE.parents[1] / "models/tiny-math")
    question = [{"role": "user", "content": "What is 12 + 7?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
    lines = [f'"{case}": {json.dumps(answer)}' for case, answer in cases(where, list(prompt)).items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (HERE / "recorded" / f"{name}.json").write_text(text.replace(f"{HERE.parents[1]}/", ""))
