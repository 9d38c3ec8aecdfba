#!/usr/bin/env python3
"""Makes expected.json: what Python's transformers renders of the chats in chats.json by many models' templates.

usage: make.py MODELS

MODELS is the folder with `chat-templates` and `vocabularies` that tools/fetch_model.py makes. Needs the Python packages transformers and
jinja2 (5.23 and 3.1.6 made the file that is here), and gguf. For each template and chat the file has the text, or the error: the words of
raise_exception, or {"refused": ...} for what Python itself refuses. A date stands as its format between U+0001 and U+0002.
"""

import json
import os
import re
import sys

import gguf
import jinja2
from transformers.utils import chat_template_utils

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# Templates in llama.cpp's own test.
OF_TEST = [
    "mistralai/Mistral-7B-Instruct-v0.2 (NOTE: Old pre-v1 without a system prompt)",
    "mistralai/Mistral-7B-Instruct-v0.2 (mistralai 'v1' template with a system prompt)",
    "Mistral-Large-Instruct-2407 (mistralai 'v3' template; modified to have system prompt at start)",
    "Mistral-Nemo-Instruct-2407 (mistralai 'v3-tekken' template; modified to have system prompt at start)",
    "mistralai/Mistral-Large-Instruct-2411 (mistralai 'v7' template)",
    "teknium/OpenHermes-2.5-Mistral-7B",
    "TheBloke/FusionNet_34Bx2_MoE-AWQ",
    "bofenghuang/vigogne-2-70b-chat",
    "google/gemma-7b-it",
    "Llama-3",
    "Phi-3-mini",
    "Phi-3-small",
    "Phi-3-medium",
    "phi-4",
    "ChatGLM3",
    "deepseek-ai/deepseek-coder-33b-instruct",
    "DeepSeek-V2",
    "ibm-granite/granite-3.0-8b-instruct",
    "CohereForAI/c4ai-command-r-plus",
]


class FormatsDates:
    """In place of datetime: keeps the format."""

    @staticmethod
    def now():
        return FormatsDates()

    @staticmethod
    def strftime(text):
        return f"\x01{text}\x02"


def templates(models):
    """Where a template stands, and its text."""
    folder = os.path.join(models, "chat-templates")
    for name in sorted(n for n in os.listdir(HERE) if n.endswith(".jinja")):
        with open(os.path.join(HERE, name), encoding="utf-8") as file:
            yield f"data:{name}", file.read()
    with open(os.path.join(folder, "test-chat-template.cpp"), encoding="utf-8") as file:
        source = file.read()
    for name in OF_TEST:
        literal = re.search(r'\.name= \*/ "' + re.escape(name) + r'",\s*/\* \.template_str= \*/ (".*"),\n', source)
        yield f"test:{name}", json.loads(literal.group(1))
    for name in sorted(n for n in os.listdir(folder) if n.endswith(".jinja")):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            yield f"file:{name}", file.read()
    for name in ("phi-3", "qwen2"):
        reader = gguf.GGUFReader(os.path.join(models, "vocabularies", f"{name}.gguf"))
        yield f"gguf:{name}", reader.fields["tokenizer.chat_template"].contents()


def render(template, chat):
    values = {"add_generation_prompt": True, "date_string": "26 Jul 2024", **chat}
    messages = values.pop("messages")
    try:
        # Newer versions rename what a message calls its thoughts; templates see it here as it is given.
        chat_template_utils._alias_reasoning_fields = lambda chat: chat
        text = chat_template_utils.render_jinja_template([messages], chat_template=template, **TOKENS, **values)
        return {"text": text[0][0]}
    except jinja2.exceptions.UndefinedError as e:
        return {"refused": str(e)}
    except jinja2.exceptions.TemplateError as e:
        return {"error": str(e)}
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as e:
        return {"refused": str(e)}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    chat_template_utils.datetime = FormatsDates
    read = lambda name: json.load(open(os.path.join(HERE, name), encoding="utf-8"))
    chats, tools = read("chats.json"), read("tools.json")
    for chat in chats.values():
        if "tools" in chat:
            chat["tools"] = tools
    made = {where: {name: render(text, chat) for name, chat in chats.items()} for where, text in templates(sys.argv[1])}
    with open(os.path.join(HERE, "expected.json"), "w", encoding="utf-8") as file:
        json.dump(made, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
