"""What the server costs and saves: HTTP's own time a token, and prompts that are not read again.

In: a bundle. Out: figures on stdout. Each answer is compared with the one before; exit code 1 if
one differs. It needs httpx, and reads the server's time in /proc.

    python benches/server_cost.py build/embedded-fp32 --turns 8
"""

import json
import time
from pathlib import Path
from statistics import median

import httpx

from server_load import PROMPTS, server
from support.script import add_counts, parser_of, run_script


def streamed(http, prompt, length, **more):
    """Text, seconds until the first of it, seconds in all, and the last chunk's figures."""
    body = {"prompt": prompt, "max_tokens": length, "stream": True, "ignore_eos": True, **more}
    begun, first, text, last = time.perf_counter(), None, "", None
    with http.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            first = first or time.perf_counter() - begun
            last = json.loads(line.removeprefix("data: "))
            text += last["choices"][0]["text"]
    return text, first, time.perf_counter() - begun, last


def cpu_s(pid):
    """Seconds that all threads of a process have computed."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def overhead(http, pid, prompt, num_turns, length):
    """What a stream adds, by the clock of a client and by the processor's time of the server."""
    asked = {"prompt": prompt, "max_tokens": length, "ignore_eos": True}
    plain = {"coordgen": {"drafts": False}}
    waited, share, texts, computed = [], [], set(), {"streamed": 0.0, "whole": 0.0}
    for _ in range(num_turns):
        start = cpu_s(pid)
        whole = http.post("/v1/completions", json=asked | plain).json()
        middle = cpu_s(pid)
        text, _, seconds, last = streamed(http, prompt, length, **plain)
        computed["whole"] += middle - start
        computed["streamed"] += cpu_s(pid) - middle
        texts |= {text, whole["choices"][0]["text"]}
        model_s = (last["timings"]["prompt_ms"] + last["timings"]["predicted_ms"]) / 1000
        waited.append(1e6 * (seconds - model_s) / length)
        share.append((seconds - model_s) / model_s)
    extra_us = 1e6 * (computed["streamed"] - computed["whole"]) / (num_turns * length)
    print(
        f"HTTP beside the model, one token an event: a client waits {median(waited):.0f} us a "
        f"token, {100 * median(share):.2f} % of the model's time; the server computes "
        f"{extra_us:.0f} us a token more than for an answer as a whole"
    )
    return len(texts) == 1


def first_tokens(http, prompts, num_turns):
    """Median seconds until the first token of dialogues that take turns."""
    found, texts = [], {}
    for turn in range(num_turns):
        for number, prompt in enumerate(prompts):
            text, first, _, _ = streamed(http, prompt, 4)
            if texts.setdefault(number, text) != text:
                raise SystemExit("an answer is not the one before")
            if turn:
                found.append(first)
    return median(found)


def main():
    parser = parser_of(__doc__)
    parser.add_argument("bundle")
    add_counts(
        parser,
        turns=(8, ""),
        tokens=(800, "of each of the two prompts"),
        length=(100, "tokens of an answer"),
        threads=(1, ""),
    )
    options = parser.parse_args()
    text = "\n".join(path.read_text() for path in PROMPTS) * 8
    seconds = {}
    for memory in ("512M", "0"):
        more = ("--prefix-memory", memory)
        with (
            server(options.bundle, 8, options.threads, *more) as (pid, url),
            httpx.Client(base_url=url, timeout=600) as http,
        ):
            ids = http.post("/tokenize", json={"content": text}).json()["tokens"]
            prompts = [ids[number : number + options.tokens] for number in (0, 97)]
            seconds[memory] = first_tokens(http, prompts, options.turns)
            if memory != "0":
                prompt = PROMPTS[0].read_text()
                is_same = overhead(http, pid, prompt, options.turns, options.length)
    print(
        f"two chats in turn, {options.tokens} tokens each: first token after "
        f"{1000 * seconds['512M']:.1f} ms with the pool, {1000 * seconds['0']:.1f} ms without: "
        f"{seconds['0'] / seconds['512M']:.1f} times"
    )
    return 0 if is_same else 1


if __name__ == "__main__":
    run_script(main)
