"""The same agent with each SDK: four tools, one question, the last number is the answer."""

from __future__ import annotations

from typing import Any

from calculator_agent import DESCRIPTIONS, TOOLS, last_number, schema

TURNS = 10
TASK = "Answer math questions using the calculator tools."


def graded(text: Any, data: dict[str, Any]) -> float:
    """1 where the last number is the record's."""
    return float(last_number(str(text)) == last_number(data["answer"]))


class AgentsSdk:
    """OpenAI's Agents SDK, over the Responses API or, with ``chat=True``, over chat completions."""

    def __init__(self, chat: bool = False, streamed: bool = False) -> None:
        self.chat, self.streamed = chat, streamed

    async def run(self, data: dict[str, Any], **where: Any) -> float:
        from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool
        from openai import AsyncOpenAI

        def made(name: str) -> Any:
            def call(a: float, b: float) -> float:
                return float(TOOLS[name](a, b))

            return function_tool(call, name_override=name, description_override=DESCRIPTIONS[name])

        client = AsyncOpenAI(**where, max_retries=0)
        provider = OpenAIProvider(openai_client=client, use_responses=not self.chat)
        config = RunConfig(model_provider=provider, model="default", tracing_disabled=True)
        agent = Agent(name="calculator", instructions=TASK, tools=[made(name) for name in TOOLS])
        question = data["messages"][-1]["content"]
        if self.streamed:
            result: Any = Runner.run_streamed(agent, input=question, run_config=config)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, input=question, run_config=config)
        return graded(result.final_output, data)


class Anthropic:
    """Anthropic's SDK; with ``streamed=True`` over its streams."""

    def __init__(self, streamed: bool = False) -> None:
        self.streamed = streamed

    async def run(self, data: dict[str, Any], **where: Any) -> float:
        from anthropic import AsyncAnthropic

        client, messages = AsyncAnthropic(**where, max_retries=0), list(data["messages"])
        functions = [schema(name)["function"] for name in TOOLS]
        tools = [
            {"input_schema": f["parameters"], "name": f["name"], "description": f["description"]} for f in functions
        ]
        request = {"model": "default", "max_tokens": 200, "system": TASK, "tools": tools, "messages": messages}
        for _ in range(TURNS):
            if self.streamed:
                async with client.messages.stream(**request) as stream:
                    reply = await stream.get_final_message()
            else:
                reply = await client.messages.create(**request)
            if reply.stop_reason != "tool_use":
                return graded(reply.content[0].text, data)
            messages.append({"role": "assistant", "content": reply.content})
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": use.id,
                    "content": str(float(TOOLS[use.name](use.input["a"], use.input["b"]))),
                }
                for use in reply.content
                if use.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results})
        return 0.0


class LangChain:
    """LangChain's model with tools bound to it, and a loop by hand."""

    async def run(self, data: dict[str, Any], **where: Any) -> float:
        from langchain_core.messages import HumanMessage, SystemMessage

        tools = langchain_tools()
        model = langchain_model(where).bind_tools(list(tools.values()))
        messages: list[Any] = [SystemMessage(TASK), HumanMessage(data["messages"][-1]["content"])]
        for _ in range(TURNS):
            reply = await model.ainvoke(messages)
            if not reply.tool_calls:
                return graded(reply.content, data)
            messages += [reply, *[await tools[call["name"]].ainvoke(call) for call in reply.tool_calls]]
        return 0.0


class LangGraph:
    """LangChain's model and LangGraph's agent."""

    async def run(self, data: dict[str, Any], **where: Any) -> float:
        from langgraph.prebuilt import create_react_agent

        agent = create_react_agent(langchain_model(where), list(langchain_tools().values()), prompt=TASK)
        result = await agent.ainvoke({"messages": data["messages"]})
        return graded(result["messages"][-1].content, data)


def langchain_model(where: dict[str, Any]) -> Any:
    """The chat model that both of LangChain's agents use."""
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model="default",
        base_url=where["base_url"],
        api_key=where["api_key"],
        http_async_client=where["http_client"],
        max_retries=0,
    )


def langchain_tools() -> dict[str, Any]:
    """The four tools in LangChain's form, by name."""
    from langchain_core.tools import StructuredTool

    def made(name: str) -> Any:
        def call(a: float, b: float) -> float:
            return float(TOOLS[name](a, b))

        return StructuredTool.from_function(call, name=name, description=DESCRIPTIONS[name])

    return {name: made(name) for name in TOOLS}
