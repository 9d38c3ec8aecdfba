#!/usr/bin/env python3
"""Checks `tlite serve` with OpenAI's client for Python, which validates every response.

    pip install openai pydantic
    python3 tools/server/openai_client.py TLITE MODEL

MODEL is a model folder. Prints a line for each check; the exit code is 1 if one fails.
"""
import json
import math
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import openai
from pydantic import BaseModel

CHECKS = []
# The model's name in requests.
NAME = []
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def check(function):
    CHECKS.append(function)
    return function


def ask(client, **more):
    options = {"model": NAME[0], "messages": QUESTION, "temperature": 0, "max_tokens": 24} | more
    return client.chat.completions.create(**options)


@check
def answers(client):
    # Prompts share whole pages of 64 tokens.
    messages = [{"role": "system", "content": "You answer in a sentence. " * 16}, *QUESTION]
    made = ask(client, messages=messages)
    assert "Paris" in made.choices[0].message.content, made
    assert made.choices[0].finish_reason == "stop"
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens
    again = ask(client, messages=messages)
    assert again.choices[0].message.content == made.choices[0].message.content
    assert again.usage.prompt_tokens == made.usage.prompt_tokens
    assert again.usage.prompt_tokens_details.cached_tokens > 0, again.usage


@check
def streams(client):
    whole = ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == "stop"


@check
def parses_schemas(client):
    class City(BaseModel):
        name: str
        population: int
        capital: bool

    made = client.chat.completions.parse(
        model=NAME[0], messages=[{"role": "user", "content": "Describe Paris."}], response_format=City, max_tokens=200, temperature=0
    )
    assert isinstance(made.choices[0].message.parsed, City), made
    assert made.choices[0].finish_reason == "stop"


@check
def log_probabilities(client):
    made = ask(client, logprobs=True, top_logprobs=5)
    tokens = made.choices[0].logprobs.content
    assert len(tokens) == made.usage.completion_tokens
    assert "".join(t.token for t in tokens) == made.choices[0].message.content
    for token in tokens:
        assert bytes(token.bytes).decode(errors="replace") == token.token
        assert len(token.top_logprobs) == 5 and token.top_logprobs[0].logprob >= token.logprob
        assert sum(math.exp(t.logprob) for t in token.top_logprobs) < 1.001


@check
def several_answers_and_seeds(client):
    more = {"n": 3, "temperature": 1.2, "seed": 5}
    first, second = ask(client, **more), ask(client, **more)
    texts = [c.message.content for c in first.choices]
    assert texts == [c.message.content for c in second.choices]
    assert len(set(texts)) > 1
    assert ask(client, temperature=1.2, seed=6).choices[0].message.content != texts[0]


@check
def stops(client):
    made = ask(client, stop=["Par"])
    assert "Par" not in made.choices[0].message.content
    assert ask(client, max_tokens=2).choices[0].finish_reason == "length"


@check
def calls_tools(client):
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        made = ask(client, tools=[tool], tool_choice=choice, max_tokens=100)
        call = made.choices[0].message.tool_calls[0]
        assert made.choices[0].finish_reason == "tool_calls", made
        assert call.function.name == "weather" and set(json.loads(call.function.arguments)) == {"city"}
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        told = ask(client, messages=QUESTION + [made.choices[0].message.model_dump(exclude_none=True), result], tools=[tool])
        assert told.choices[0].message.content
    calls = []
    for chunk in ask(client, tools=[tool], tool_choice="required", max_tokens=100, stream=True):
        for choice in chunk.choices:
            calls += choice.delta.tool_calls or []
    assert [c.index for c in calls] == [0] and calls[0].function.name == "weather"


@check
def completions(client):
    made = client.completions.create(model=NAME[0], prompt=["The capital of France is", "1, 2, 3,"], max_tokens=4, temperature=0, logprobs=2)
    assert [c.index for c in made.choices] == [0, 1] and "Paris" in made.choices[0].text
    assert len(made.choices[1].logprobs.tokens) == 4
    # OpenAI's own events lack the reason that its client's types demand, so they are not validated.
    lenient = openai.OpenAI(base_url=client.base_url, api_key=client.api_key)
    chunks = lenient.completions.create(model=NAME[0], prompt="The capital of France is", max_tokens=4, temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in chunks) == made.choices[0].text


@check
def typed_errors(client):
    for error, more in (
        (openai.NotFoundError, {"model": "nothing"}),
        (openai.BadRequestError, {"temperature": 3e38, "top_p": 7}),
        (openai.BadRequestError, {"messages": [{"role": "user", "content": "word " * 20000}]}),
        (openai.BadRequestError, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}}),
    ):
        try:
            ask(client, **more)
        except error as e:
            assert e.body["message"]
        else:
            raise AssertionError(f"{more} was accepted")
    try:
        ask(client.with_options(api_key="wrong"))
    except openai.AuthenticationError:
        return
    raise AssertionError("a wrong key was accepted")


@check
def many_at_once(client):
    def one(number):
        schema = {"const": f"answer-{number}"}
        made = ask(client, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, max_tokens=60)
        return json.loads(made.choices[0].message.content) == schema["const"]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(64)))


@check
def leaving_ends_an_answer(client):
    stream = ask(client, messages=[{"role": "user", "content": "Count to 1000."}], max_tokens=1000, stream=True)
    next(iter(stream))
    stream.close()
    for _ in range(100):
        figures = client.get("../metrics", cast_to=str)
        if re.search(r'tlite_sequences_running{model=\S+} 0', figures):
            return
    raise AssertionError(figures)


def main():
    tlite, model = sys.argv[1:]
    command = [tlite, "serve", model, "--port", "0", "--api-key", "key", "--backend", "cpu"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        base = None
        for line in server.stderr:
            found = re.search(r"base URL: (http\S+)", line)
            if found:
                base = found[1]
                break
        client = openai.OpenAI(base_url=base, api_key="key", _strict_response_validation=True, max_retries=0, timeout=120)
        NAME.append(client.models.list().data[0].id)
        failed = 0
        for function in CHECKS:
            try:
                function(client)
                print(f"ok      {function.__name__}")
            except Exception as e:  # Every failure is listed.
                failed += 1
                print(f"FAILED  {function.__name__}: {type(e).__name__}: {e}")
        return 1 if failed else 0
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    sys.exit(main())
