"""Tokens a second of a Llama-shaped model: torch's layers and tilemma's, eager and compiled, in one process.

    python bench/torch_llama.py --json torch_llama.json

Random weights in bf16, of the shapes of Llama 3 8B with fewer layers.  Prefill: one sequence, all logits.  Decode:
a token of each sequence of a batch, with a static cache.  Medians of rounds in which the contestants take turns,
called one by one and as CUDA graphs; models compiled by `torch.compile` are timed after the others, in both ways.
Needs transformers and a GPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from timing import facts

from tilemma.torch import convert

ROUNDS, STEPS = 5, 8


def build(layers: int) -> Any:
    config = transformers.LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=32000, max_position_embeddings=4096, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    return model


def cache_of(model: Any, batch: int, length: int) -> Any:
    sizes = {"max_batch_size": batch, "device": "cuda", "dtype": torch.bfloat16}
    try:
        return transformers.StaticCache(config=model.config, max_cache_len=length)
    except TypeError:
        return transformers.StaticCache(config=model.config, max_cache_len=length, **sizes)


def prefill(model: Any, forward: Callable[..., Any], tokens: int) -> Callable[[], int]:
    ids = torch.randint(0, 32000, (1, tokens), device="cuda")

    def run() -> int:
        forward(ids, use_cache=False)
        return tokens

    return run


def decode(model: Any, forward: Callable[..., Any], batch: int, length: int) -> Callable[[], int]:
    ids = torch.randint(0, 32000, (batch, 1), device="cuda")
    cache = cache_of(model, batch, length)
    places = [torch.tensor([length // 2 + i], device="cuda") for i in range(STEPS)]

    def run() -> int:
        for place in places:
            forward(ids, past_key_values=cache, cache_position=place, use_cache=True)
        return batch * STEPS

    return run


WORK: dict[str, Callable[[Any, Callable[..., Any]], Callable[[], int]]] = {
    "decode 1": lambda m, f: decode(m, f, 1, 1024),
    "decode 16": lambda m, f: decode(m, f, 16, 1024),
    "prefill 2048": lambda m, f: prefill(m, f, 2048),
}


def seconds(run: Callable[[], int]) -> float:
    """Seconds for a token."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    tokens = run()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / tokens


def captured(run: Callable[[], int]) -> Callable[[], int]:
    """``run`` as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = run()

    def replay() -> int:
        graph.replay()
        return tokens

    return replay


@torch.no_grad()
def measured(runs: dict[str, Callable[[], int]], graphs: bool) -> dict[str, float]:
    """Tokens a second of each contestant that runs."""
    usable = {}
    for name, run in runs.items():
        try:
            run(), run()
            usable[name] = captured(run) if graphs else run
            usable[name]()
        except Exception as e:
            print(f"{name}: {type(e).__name__}: {str(e)[:200]}", flush=True)
    times: dict[str, list[float]] = {name: [] for name in usable}
    for _ in range(ROUNDS):
        for name, run in usable.items():
            times[name].append(seconds(run))
    return {name: 1 / statistics.median(x) for name, x in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--kinds", nargs="*", default=["bf16", "fp8", "e4m3", "s4"])
    parser.add_argument("--ways", nargs="*", default=["eager", "graphs", "compiled"])
    parser.add_argument("--work", nargs="*", default=list(WORK))
    parser.add_argument("--seconds", type=float, default=600, help="start nothing after so many")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    begin = time.time()
    plain = build(options.layers)
    models = {"torch": plain}
    torch._dynamo.config.cache_size_limit = 64
    models |= {f"tilemma {kind}": convert(copy.deepcopy(plain), kind) for kind in options.kinds}
    found: dict[str, dict[str, float]] = {}

    def record(title: str, forwards: dict[str, Callable[..., Any]], graphs: bool = False) -> None:
        for name in options.work:
            if time.time() - begin > options.seconds:
                return
            make = WORK[name]
            rates = measured({n: make(models[n], f) for n, f in forwards.items()}, graphs)
            found[f"{name}, {title}"] = rates
            print(f"{name}, {title}: " + ", ".join(f"{n} {x:.0f}" for n, x in rates.items()), flush=True)
            if options.json:
                options.json.write_text(json.dumps({**facts(), "tokens a second": found}, indent=1) + "\n")

    if "eager" in options.ways:
        record("eager", models)
    if "graphs" in options.ways:
        record("CUDA graphs", models, graphs=True)
    if "compiled" in options.ways:
        compiled: dict[str, Callable[..., Any]] = {n: torch.compile(m, dynamic=False) for n, m in models.items()}
        record("compiled", compiled)
        record("compiled, CUDA graphs", compiled, graphs=True)


if __name__ == "__main__":
    main()
