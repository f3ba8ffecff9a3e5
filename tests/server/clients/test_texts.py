"""The clients that people use, each against SmolLM2: they are told what plain decoding says."""

import asyncio
import json
import subprocess
import sys
from functools import partial
from typing import Literal

import pytest

pytestmark = pytest.mark.clients

QUESTIONS = (
    "Name three colours.",
    "Repeat this sentence twice: The quick brown fox jumps over the lazy dog.",
)
LENGTH = 200
CLIENTS = {}


def client(ask):
    """Registers a client: a function of a server's address, a question, and whether to stream."""
    CLIENTS[ask.__name__] = ask
    return ask


@client
def openai_chat(url, question, is_streamed):
    import openai

    asked = openai.OpenAI(base_url=f"{url}/v1").chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": question}],
        max_completion_tokens=LENGTH,
        temperature=0,
        stream=is_streamed,
    )
    if not is_streamed:
        return asked.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in asked if chunk.choices)


@client
def openai_responses(url, question, is_streamed):
    import openai

    asked = openai.OpenAI(base_url=f"{url}/v1").responses.create(
        model="smollm2", input=question, max_output_tokens=LENGTH, temperature=0, stream=is_streamed
    )
    if not is_streamed:
        return asked.output_text
    return "".join(event.delta for event in asked if event.type == "response.output_text.delta")


@client
def openai_completions(url, question, is_streamed):
    import openai

    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    asked = openai.OpenAI(base_url=f"{url}/v1").completions.create(
        model="smollm2", prompt=prompt, max_tokens=LENGTH, temperature=0, stream=is_streamed
    )
    if not is_streamed:
        return asked.choices[0].text
    return "".join(chunk.choices[0].text for chunk in asked if chunk.choices)


@client
def anthropic(url, question, is_streamed):
    from anthropic import Anthropic

    messages = Anthropic(base_url=url).messages
    asked = {
        "model": "smollm2",
        "max_tokens": LENGTH,
        "messages": [{"role": "user", "content": question}],
    }
    if not is_streamed:
        return "".join(block.text for block in messages.create(**asked).content)
    with messages.stream(**asked) as stream:
        return "".join(stream.text_stream)


@client
def ollama_chat(url, question, is_streamed):
    from ollama import Client

    messages = [{"role": "user", "content": question}]
    options = {"num_predict": LENGTH, "temperature": 0}
    asked = Client(url).chat("smollm2", messages, options=options, stream=is_streamed)
    if not is_streamed:
        return asked.message.content
    return "".join(chunk.message.content for chunk in asked)


@client
def ollama_generate(url, question, is_streamed):
    from ollama import Client

    options = {"num_predict": LENGTH, "temperature": 0}
    asked = Client(url).generate("smollm2", question, options=options, stream=is_streamed)
    return "".join(chunk.response for chunk in asked) if is_streamed else asked.response


def _litellm(model, url, question, is_streamed):
    import litellm

    asked = litellm.completion(
        model=model,
        api_base=url,
        messages=[{"role": "user", "content": question}],
        max_tokens=LENGTH,
        temperature=0,
        stream=is_streamed,
    )
    if not is_streamed:
        return asked.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in asked)


@client
def litellm_openai(url, question, is_streamed):
    return _litellm("openai/smollm2", f"{url}/v1", question, is_streamed)


@client
def litellm_anthropic(url, question, is_streamed):
    return _litellm("anthropic/smollm2", url, question, is_streamed)


@client
def litellm_ollama(url, question, is_streamed):
    return _litellm("ollama_chat/smollm2", url, question, is_streamed)


@client
def langchain(url, question, is_streamed):
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        base_url=f"{url}/v1", model="smollm2", temperature=0, max_tokens=LENGTH, max_retries=0
    )
    if is_streamed:
        return "".join(chunk.content for chunk in model.stream(question))
    return model.invoke(question).content


@client
def pydantic_ai(url, question, is_streamed):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("smollm2", provider=OpenAIProvider(base_url=f"{url}/v1"))
    agent = Agent(model, model_settings={"temperature": 0, "max_tokens": LENGTH})

    async def streamed():
        async with agent.run_stream(question) as run:
            return "".join([text async for text in run.stream_text(delta=True, debounce_by=None)])

    return asyncio.run(streamed()) if is_streamed else agent.run_sync(question).output


@client
def openai_agents(url, question, is_streamed):
    from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner
    from openai import AsyncOpenAI

    async def run():
        model = OpenAIResponsesModel("smollm2", AsyncOpenAI(base_url=f"{url}/v1"))
        settings = ModelSettings(temperature=0, max_tokens=LENGTH)
        agent = Agent("asked", model=model, model_settings=settings)
        if not is_streamed:
            return (await Runner.run(agent, question)).final_output
        running = Runner.run_streamed(agent, question)
        return "".join(
            [
                event.data.delta
                async for event in running.stream_events()
                if getattr(event, "data", None) and event.data.type == "response.output_text.delta"
            ]
        )

    return asyncio.run(run())


@pytest.fixture(scope="session")
def llm_folder(tmp_path_factory):
    """A folder of the settings of `llm`."""
    return tmp_path_factory.mktemp("llm")


def _llm(folder, url, question, is_streamed):
    model = {"model_id": "local", "model_name": "smollm2", "api_base": f"{url}/v1"}
    (folder / "extra-openai-models.yaml").write_text(json.dumps([model]))  # JSON is YAML
    options = ["-o", "temperature", "0", "-o", "max_tokens", str(LENGTH)]
    command = [sys.executable, "-m", "llm", "-m", "local", question, *options]
    done = subprocess.run(
        command + ["--no-stream"] * (not is_streamed),
        capture_output=True,
        text=True,
        env={"LLM_USER_PATH": str(folder), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


def _instructor(mode, url, question, is_streamed):
    """A client for answers of a form; without one it is that of OpenAI."""
    import instructor
    from openai import OpenAI
    from pydantic import BaseModel

    class Colour(BaseModel):
        name: Literal["red", "green", "blue"]
        is_warm: bool

    client = instructor.from_openai(OpenAI(base_url=f"{url}/v1"), mode=instructor.Mode[mode])
    asked = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": LENGTH,
        "temperature": 0,
        "max_retries": 1,
    }
    if is_streamed:
        *_, last = client.create_partial(response_model=Colour, **asked)
        return last.model_dump_json()
    return client.create(response_model=Colour, **asked).model_dump_json()


CLIENTS |= {
    f"instructor_{mode.lower()}": partial(_instructor, mode)
    for mode in ("JSON_SCHEMA", "TOOLS", "TOOLS_STRICT", "RESPONSES_TOOLS")
}


def paint(colour: Literal["red", "green", "blue"]) -> str:
    """Paint it.

    Args:
        colour: The colour.
    """
    return f"It is {colour}."


@client
def instructor_iterable(url, question, is_streamed):
    """A list of a form, always as it comes: a small model never ends it."""
    import instructor
    from openai import OpenAI
    from pydantic import BaseModel

    class Colour(BaseModel):
        name: Literal["red", "green", "blue"]

    found = instructor.from_openai(OpenAI(base_url=f"{url}/v1")).create_iterable(
        model="smollm2",
        messages=[{"role": "user", "content": question}],
        response_model=Colour,
        max_tokens=LENGTH,
        temperature=0,
    )
    return [one.name for one in found]


@client
def anthropic_tools(url, question, is_streamed):
    """A tool that is named, by the client's own loop, which goes on without it."""
    from anthropic import Anthropic, beta_tool

    runner = Anthropic(base_url=url).beta.messages.tool_runner(
        model="smollm2",
        max_tokens=LENGTH,
        messages=[{"role": "user", "content": question}],
        tools=[beta_tool(paint)],
        tool_choice={"type": "tool", "name": "paint"},
        stream=is_streamed,
        max_iterations=2,
    )
    (call,) = runner.until_done().content
    return call.input


def _openai_agents_tools(choice, url, question, is_streamed):
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    async def run():
        agent = Agent(
            "painter",
            model=OpenAIChatCompletionsModel("smollm2", AsyncOpenAI(base_url=f"{url}/v1")),
            model_settings=ModelSettings(temperature=0, max_tokens=LENGTH, tool_choice=choice),
            tools=[function_tool(paint)],
            tool_use_behavior="stop_on_first_tool",
        )
        if not is_streamed:
            return (await Runner.run(agent, question)).final_output
        running = Runner.run_streamed(agent, question)
        async for _ in running.stream_events():
            pass
        return running.final_output

    return asyncio.run(run())


CLIENTS |= {
    f"openai_agents_{choice}": partial(_openai_agents_tools, choice)
    for choice in ("required", "paint")
}


@client
def smolagents(url, question, is_streamed):
    """One step of an agent that has to call something."""
    from smolagents import OpenAIModel, ToolCallingAgent, tool

    model = OpenAIModel("smollm2", f"{url}/v1", temperature=0, max_tokens=LENGTH)
    agent = ToolCallingAgent(
        [tool(paint)], model, max_steps=1, verbosity_level=0, stream_outputs=is_streamed
    )
    agent.run(question)
    calls = agent.memory.steps[1].tool_calls  # in the order in which they were carried out
    return sorted(json.dumps(call.arguments) for call in calls)


@client
def langchain_ollama(url, question, is_streamed):
    from langchain_ollama import ChatOllama

    model = ChatOllama(base_url=url, model="smollm2", temperature=0, num_predict=LENGTH)
    if is_streamed:
        return "".join(chunk.content for chunk in model.stream(question))
    return model.invoke(question).content


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", [*CLIENTS, "llm"])
def test_drafts_change_nothing_that_a_client_is_told(
    name, is_streamed, drafting, plain, llm_folder
):
    def ask(url, question):
        if name == "llm":
            return _llm(llm_folder, url, question, is_streamed)
        return CLIENTS[name](url, question, is_streamed)

    for question in QUESTIONS:
        told = [ask(url, question) for url in (plain, drafting, drafting)]
        assert told[0]
        assert told == [told[0]] * 3
