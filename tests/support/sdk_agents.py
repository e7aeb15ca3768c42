"""Agents for the tests, each against one SDK or none."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
ADD = {"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": SCHEMA}}


class Agent:
    """Keeps the address that it is given."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def openai(self, where: dict[str, Any]) -> Any:
        """An OpenAI client."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(**where, max_retries=0)

    def anthropic(self, where: dict[str, Any]) -> Any:
        """An Anthropic client."""
        from anthropic import AsyncAnthropic

        return AsyncAnthropic(**where, max_retries=0)


class Chat(Agent):
    """One chat request; the reward says whether the answer is the record's."""

    async def run(self, data: dict[str, Any], **where: Any) -> Any:
        reply = await self.openai(where).chat.completions.create(
            model="default", messages=[{"role": "user", "content": data["q"]}], **self.settings
        )
        return reply.choices[0].message.content == data["answer"]


class Ids(Agent):
    """Two requests; the reward of each by its id."""

    async def run(self, data: dict[str, Any], **where: Any) -> Any:
        client = self.openai(where)
        ask = {"model": "default", "messages": [{"role": "user", "content": data["q"]}]}
        first = await client.chat.completions.create(**ask)
        second = await client.chat.completions.create(**ask)
        return {second.id: 0.25, first.id: 1.0, **self.settings}


class Closes(Agent):
    """Closes its client, as ``async with`` does."""

    async def run(self, data: dict[str, Any], **where: Any) -> Any:
        async with self.openai(where) as client:
            ask = {"model": "default", "messages": [{"role": "user", "content": data["q"]}]}
            reply = await client.chat.completions.create(**ask)
        return float(bool(reply.id))


class Silent(Agent):
    """Never asks the model."""

    async def run(self, data: dict[str, Any], **where: Any) -> float:
        return 1.0


class Environment:
    """Takes the record alone and reads the rest from the environment."""

    async def run(self, data: dict[str, Any]) -> float:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(max_retries=0) as client:
            ask = {"model": "default", "messages": [{"role": "user", "content": data["q"]}]}
            reply = await client.chat.completions.create(**ask)
        return float(reply.choices[0].message.content == data["answer"])


class Blocking(Environment):
    """A synchronous client in ``async def``: it blocks its process until the model answers."""

    async def run(self, data: dict[str, Any]) -> float:
        from openai import OpenAI

        with OpenAI(max_retries=0) as client:
            ask = {"model": "default", "messages": [{"role": "user", "content": data["q"]}]}
            reply = client.chat.completions.create(**ask)
        return float(reply.choices[0].message.content == data["answer"])


class Either(Agent):
    """Says where it found the address: among its keywords, or in the environment."""

    async def run(self, data: dict[str, Any], **where: Any) -> dict[str, float]:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(**where, max_retries=0) as client:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": data["q"]}])
        return {"reward": 1.0, "keywords": len(where), "process": os.getpid()}


class Broken(Agent):
    """Does what ``how`` says instead of working."""

    async def run(self, data: dict[str, Any], **where: Any) -> Any:
        how = self.settings["how"]
        if how == "raises":
            raise ValueError("no such luck")
        if how == "exits":
            sys.exit(3)
        if how == "dies":
            os._exit(7)
        if how == "babbles":
            os.write(int(sys.argv[2]), b"\0\0\0\4nope")  # the process's own socket
            await asyncio.sleep(60)
        if how == "blocks" and data["q"] == "block":
            time.sleep(60)  # noqa: ASYNC251 - the fault to be noticed
        if how == "returns":
            return object()
        return await Chat().run(data, **where)


class Calculator(Agent):
    """A loop with one tool over the chat API."""

    async def run(self, data: dict[str, Any], **where: Any) -> float:
        client, messages = self.openai(where), [{"role": "user", "content": data["q"]}]
        for _ in range(3):
            reply = await client.chat.completions.create(model="default", messages=messages, tools=[ADD])
            message = reply.choices[0].message
            if not message.tool_calls:
                return float(message.content == data["answer"])
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                numbers = json.loads(call.function.arguments)
                result = str(numbers["a"] + numbers["b"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return 0.0
