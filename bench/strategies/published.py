#!/usr/bin/env python3
"""Compares published choices of strategies with those of the search, in its own predictions.

    published.py [--penstock PATH] [--gpus N] [-o TABLE.md]

The configurations are those of Narayanan et al., "Efficient Large-Scale Language Model Training on
GPU Clusters Using Megatron-LM" (SC21), table 1: GPT models on Selene, here in f32, with full recomputation and
one sequence in a micro-batch where the table gives no other. `penstock plan` predicts a step of the
published strategy, its micro-batches chosen by the planner, and of `auto`. The published time
follows from the published rate in f16 and the paper's formula for the operations of a step. Prints a table
in Markdown, and fails if `auto` is predicted slower than a published choice.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time

# Billions of parameters, heads, width, layers, tp, pp, GPUs, batch, teraFLOP/s a GPU.
PUBLISHED = [
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163),
]
CONTEXT = 2048
VOCABULARY = 51200


def published_seconds(heads, width, layers, gpus, batch, teraflops):
    operations = (96 * batch * CONTEXT * layers * width**2
                  * (1 + CONTEXT / (6 * width) + VOCABULARY / (16 * layers * width)))
    return operations / (teraflops * 1e12 * gpus)


def plan(penstock, configuration, strategy):
    _, heads, width, layers, _, _, gpus, batch, _ = configuration
    job = f"""
[model]
name = "gpt"
layers = {layers}
width = {width}
heads = {heads}
context = {CONTEXT}
vocabulary = {VOCABULARY}
dropout = 0.1
[train]
batch = {batch}
dtype = "f32"
[cluster]
file = "selene:{gpus // 8}"
devices = {gpus}
[parallel]
strategy = "{strategy}"
"""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(job)
        file.flush()
        begin = time.monotonic()
        result = subprocess.run([penstock, "plan", file.name, "--json"], capture_output=True,
                                text=True, timeout=600)
        seconds = time.monotonic() - begin
    if result.returncode != 0:
        return None, result.stderr.strip(), seconds
    summary = json.loads(result.stdout.splitlines()[-1])
    summary = summary.get("summary", summary)
    return summary, "", seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", default="build/bin/penstock")
    parser.add_argument("--gpus", type=int, default=0, help="only configurations with at most N")
    parser.add_argument("-o", "--output", default="")
    arguments = parser.parse_args()
    lines = []

    def say(line):
        lines.append(line)
        print(line, flush=True)

    say("| model | GPUs | published choice | published s | predicted s | auto | predicted s | "
        "planning s |")
    say("|---|---|---|---|---|---|---|---|")
    slower = False
    for configuration in PUBLISHED:
        billions, heads, width, layers, tp, pp, gpus, batch, teraflops = configuration
        if arguments.gpus and gpus > arguments.gpus:
            continue
        strategy = f"dp={gpus // tp // pp},tp={tp},pp={pp},recompute=full"
        given, given_error, _ = plan(arguments.penstock, configuration, strategy)
        best, best_error, seconds = plan(arguments.penstock, configuration, "auto")
        published = published_seconds(heads, width, layers, gpus, batch, teraflops)
        if best is None:
            sys.exit(f"{billions} billion parameters: {best_error}")
        predicted = given["predicted_step_time_s"] if given else None
        slower = slower or (given is not None
                            and best["predicted_step_time_s"] > predicted * (1 + 1e-9))
        say(f"| {billions} B | {gpus} | {strategy} | {published:.2f} | "
            f"{f'{predicted:.2f}' if given else given_error} | {best['strategy']}, "
            f"{best.get('microbatches', '')} micro-batches, {best.get('schedule', '')} | "
            f"{best['predicted_step_time_s']:.2f} | "
            f"{seconds:.1f} |")
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    if slower:
        sys.exit("auto is predicted slower than a published choice")


if __name__ == "__main__":
    main()
