"""Tools and forms by the clients that people use, over a model that follows a script.

A model of 135M parameters cannot carry out such tasks; here only what the server makes of a model's
words is looked at: calls, whole and streamed, what tools have answered, and answers of a form.
"""

import asyncio
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.clients

QUESTION = "What is the weather in Oslo?"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ANSWER = "It is cold in Oslo: 7 degrees."
RULES = (("7 degrees, says", ANSWER), ("Oslo", CALL))
"""Once the tool has answered, the model does."""


def weather(city: str) -> str:
    """Tell the weather of a city."""
    assert city == "Oslo"
    return "7 degrees, says the thermometer"


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "The weather", "parameters": PARAMETERS}


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_openai_chat(scripted, is_streamed):
    import openai

    chat = openai.OpenAI(base_url=f"{scripted(*RULES)}/v1").chat.completions
    messages = [{"role": "user", "content": QUESTION}]
    asked = {"model": "scripted", "tools": [{"type": "function", "function": FUNCTION}]}
    if is_streamed:
        with chat.stream(messages=messages, **asked) as stream:
            stream.until_done()
            choice = stream.get_final_completion().choices[0]
    else:
        choice = chat.create(messages=messages, **asked).choices[0]
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "weather",
        {"city": "Oslo"},
    )
    told = {"role": "tool", "tool_call_id": call.id, "content": weather("Oslo")}
    said = {"role": "assistant", "content": None, "tool_calls": [call.model_dump(mode="json")]}
    answer = chat.create(messages=[*messages, said, told], **asked)
    assert answer.choices[0].message.content == ANSWER


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_openai_responses(scripted, is_streamed):
    import openai

    responses = openai.OpenAI(base_url=f"{scripted(*RULES)}/v1").responses
    asked = {"model": "scripted", "tools": [{"type": "function", **FUNCTION}]}
    dialogue = [{"role": "user", "content": QUESTION}]
    if is_streamed:
        with responses.stream(input=dialogue, **asked) as stream:
            stream.until_done()
            response = stream.get_final_response()
    else:
        response = responses.create(input=dialogue, **asked)
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo"})
    output = {"type": "function_call_output", "call_id": call.call_id, "output": weather("Oslo")}
    dialogue += [item.model_dump(mode="json") for item in response.output] + [output]
    assert responses.create(input=dialogue, **asked).output_text == ANSWER


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_anthropic(scripted, is_streamed):
    from anthropic import Anthropic

    messages = Anthropic(base_url=scripted(*RULES)).messages
    tool = {"name": "weather", "description": "The weather", "input_schema": PARAMETERS}
    asked = {"model": "scripted", "max_tokens": 100, "tools": [tool]}
    dialogue = [{"role": "user", "content": QUESTION}]
    if is_streamed:
        with messages.stream(messages=dialogue, **asked) as stream:
            message = stream.get_final_message()
    else:
        message = messages.create(messages=dialogue, **asked)
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert message.stop_reason == "tool_use"
    assert (call.name, call.input) == ("weather", {"city": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": weather("Oslo")}
    dialogue.append({"role": "assistant", "content": message.content})
    dialogue.append({"role": "user", "content": [result]})
    answer = messages.create(messages=dialogue, **asked)
    assert [block.text for block in answer.content] == [ANSWER]
    assert answer.stop_reason == "end_turn"


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_ollama(scripted, is_streamed):
    from ollama import Client

    client = Client(scripted(*RULES))
    messages = [{"role": "user", "content": QUESTION}]

    def ask():
        told = client.chat("scripted", messages, tools=[weather], stream=is_streamed)
        return list(told) if is_streamed else [told]

    calls = [call for part in ask() for call in part.message.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", {"city": "Oslo"})
    ]
    messages.append({"role": "assistant", "tool_calls": [call.model_dump() for call in calls]})
    messages.append({"role": "tool", "tool_name": "weather", "content": weather("Oslo")})
    assert "".join(part.message.content for part in ask()) == ANSWER


@pytest.mark.parametrize(
    ("provider", "path"), [("openai", "/v1"), ("anthropic", ""), ("ollama_chat", "")]
)
def test_litellm(scripted, provider, path):
    import litellm

    url = scripted(*RULES)
    messages = [{"role": "user", "content": QUESTION}]
    tools = [{"type": "function", "function": FUNCTION}]

    def ask():
        asked = litellm.completion(
            model=f"{provider}/scripted", api_base=url + path, messages=messages, tools=tools
        )
        return asked.choices[0].message

    message = ask()
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "weather",
        {"city": "Oslo"},
    )
    told = {"role": "tool", "tool_call_id": call.id, "content": weather("Oslo")}
    messages += [message.model_dump(), told]
    assert ask().content == ANSWER


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_anthropics_own_loop(scripted, is_streamed):
    from anthropic import Anthropic, beta_tool

    runner = Anthropic(base_url=scripted(*RULES)).beta.messages.tool_runner(
        model="scripted",
        max_tokens=100,
        messages=[{"role": "user", "content": QUESTION}],
        tools=[beta_tool(weather)],
        stream=is_streamed,
    )
    assert [block.text for block in runner.until_done().content] == [ANSWER]


@pytest.mark.parametrize("provider", ["openai", "ollama"])
def test_langchain(scripted, provider):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_ollama import ChatOllama
    from langchain_openai import ChatOpenAI

    told, url = tool(weather), scripted(*RULES)
    if provider == "openai":
        model = ChatOpenAI(base_url=f"{url}/v1", model="scripted", max_retries=0)
    else:
        model = ChatOllama(base_url=url, model="scripted")
    model = model.bind_tools([told])
    messages = [HumanMessage(QUESTION)]
    whole, *chunks = [model.invoke(messages), *model.stream(messages)]
    streamed = chunks[0]
    for chunk in chunks[1:]:
        streamed += chunk
    assert [call["args"] for call in streamed.tool_calls] == [{"city": "Oslo"}]
    (call,) = whole.tool_calls
    messages += [whole, ToolMessage(told.invoke(call["args"]), tool_call_id=call["id"])]
    assert model.invoke(messages).content == ANSWER


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_pydantic_ai(scripted, api):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    provider = OpenAIProvider(base_url=f"{scripted(*RULES)}/v1")
    agent = Agent(kind("scripted", provider=provider), tools=[weather])
    assert agent.run_sync(QUESTION).output == ANSWER

    async def streamed():
        async with agent.run_stream(QUESTION) as run:
            return await run.get_output()

    assert asyncio.run(streamed()) == ANSWER


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_openai_agents(scripted, api):
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
    )
    from openai import AsyncOpenAI

    kind = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
    url = f"{scripted(*RULES)}/v1"

    async def run():
        agent = Agent(
            "forecaster",
            tools=[function_tool(weather)],
            model=kind("scripted", AsyncOpenAI(base_url=url)),
        )
        whole = await Runner.run(agent, QUESTION)
        streamed = Runner.run_streamed(agent, QUESTION)
        async for _ in streamed.stream_events():
            pass
        return whole.final_output, streamed.final_output

    assert asyncio.run(run()) == (ANSWER, ANSWER)


MODES = ["TOOLS", "TOOLS_STRICT", "RESPONSES_TOOLS", "JSON", "JSON_SCHEMA"]


@pytest.mark.parametrize("mode", MODES)
def test_instructor(scripted, mode):
    import instructor
    from openai import OpenAI
    from pydantic import BaseModel

    class Weather(BaseModel):
        city: str
        degrees: int

    arguments = {"city": "Oslo", "degrees": 7}
    call = json.dumps({"name": "Weather", "arguments": arguments})
    said = f"<tool_call>\n{call}\n</tool_call>" if "TOOLS" in mode else json.dumps(arguments)
    client = OpenAI(base_url=f"{scripted(('Oslo', said))}/v1")
    client = instructor.from_openai(client, mode=instructor.Mode[mode])
    told = client.create(
        model="scripted",
        response_model=Weather,
        messages=[{"role": "user", "content": QUESTION}],
        max_retries=1,
    )
    assert told.model_dump() == arguments


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_smolagents(scripted, is_streamed):
    from smolagents import OpenAIModel, ToolCallingAgent, tool

    def told(city: str) -> str:
        """Tell the weather of a city.

        Args:
            city: The city.
        """
        return weather(city)

    final = json.dumps({"name": "final_answer", "arguments": {"answer": ANSWER}})
    call = CALL.replace("weather", "told")
    url = scripted(("7 degrees, says", f"<tool_call>{final}</tool_call>"), ("Oslo", call))
    model = OpenAIModel("scripted", f"{url}/v1")
    agent = ToolCallingAgent([tool(told)], model, verbosity_level=0, stream_outputs=is_streamed)
    assert agent.run(QUESTION) == ANSWER


@pytest.mark.parametrize(("provider", "path"), [("openai", "/v1"), ("anthropic", "")])
def test_a_coding_agent_carries_out_what_the_model_calls_for(scripted, tmp_path, provider, path):
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import get_config_from_spec
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    def bash(command):
        call = json.dumps({"name": "bash", "arguments": {"command": command}})
        return f"I do it.\n<tool_call>{call}</tool_call>"

    url = scripted(
        ("written-by-the-agent", bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
        ("bash", bash("echo written-by-the-agent | tee done.txt")),
    )
    config = get_config_from_spec("mini.yaml")["agent"]
    model = LitellmModel(
        model_name=f"{provider}/scripted",
        model_kwargs={"api_base": url + path, "drop_params": True},
        cost_tracking="ignore_errors",
    )
    agent = DefaultAgent(
        model,
        LocalEnvironment(cwd=str(tmp_path)),
        system_template=config["system_template"],
        instance_template=config["instance_template"],
        step_limit=5,
    )
    result = agent.run("Write the file.")
    assert result["exit_status"] == "Submitted"
    assert (tmp_path / "done.txt").read_text() == "written-by-the-agent\n"


def test_llm_calls_a_function(scripted, tmp_path):
    models = [
        {
            "model_id": "local",
            "model_name": "scripted",
            "api_base": f"{scripted(*RULES)}/v1",
            "supports_tools": True,
        }
    ]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    function = 'def weather(city: str) -> str:\n    return "7 degrees, says the thermometer"\n'
    command = [sys.executable, "-m", "llm", "-m", "local", QUESTION, "--functions", function]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"LLM_USER_PATH": str(tmp_path)},
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == (ANSWER, 0), done.stderr
