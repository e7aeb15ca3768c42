"""An agent with a calculator: the model asks for one tool at a time until it knows the answer.

Written against the OpenAI SDK alone; it knows nothing of the plugin that runs it.
"""

import json
import operator
import re

TOOLS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv}
DESCRIPTIONS = {
    "add": "Add two numbers.",
    "subtract": "Subtract the second number from the first.",
    "multiply": "Multiply two numbers.",
    "divide": "Divide the first number by the second.",
}


def schema(name):
    """A tool's description for the model."""
    number = {"type": "number"}
    parameters = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
    return {
        "type": "function",
        "function": {"name": name, "description": DESCRIPTIONS[name], "parameters": parameters},
    }


def call(name, arguments):
    """What a tool answers; a mistake is told to the model, which may do better."""
    try:
        numbers = json.loads(arguments)
        return str(float(TOOLS[name](numbers["a"], numbers["b"])))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        return f"error: {error}"


class CalculatorAgent:
    """Answers ``data["messages"]``; reward 1 where the last number is that of ``data["answer"]``."""

    def __init__(self, max_turns=10):
        self.max_turns = max_turns

    async def run(self, data, base_url=None, api_key=None, http_client=None):
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        messages = [{"role": "system", "content": "Use the tools to do the arithmetic."}, *data["messages"]]
        for _ in range(self.max_turns):
            reply = await client.chat.completions.create(
                model="default", messages=messages, tools=[schema(name) for name in TOOLS]
            )
            message = reply.choices[0].message
            if not message.tool_calls:
                return float(last_number(message.content) == last_number(data["answer"]))
            messages.append(message.model_dump(exclude_none=True))
            for wanted in message.tool_calls:
                result = call(wanted.function.name, wanted.function.arguments)
                messages.append({"role": "tool", "tool_call_id": wanted.id, "content": result})
        return 0.0


def last_number(text):
    """The last number in a text."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text or "")
    return float(numbers[-1]) if numbers else None
