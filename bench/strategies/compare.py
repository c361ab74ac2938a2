#!/usr/bin/env python3
"""Compares predicted with measured step times, strategy by strategy, on this machine.

    compare.py [--penstock PATH] [--steps N] [--rounds N] [--cluster CLUSTER] [--case NAME]
               [-o TABLE.md]

For each case (a model and a number of devices) and each of its strategies, `penstock plan` predicts
a step and `penstock run` takes some, in several rounds over all strategies; the least step time
counts, because whatever else runs on the machine only adds to it. Prints a table in Markdown: predicted and measured times, their ratio, the
rank correlation (Kendall's tau) of a case, and how the choice of `auto` compares with the fastest.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile

GPT = {"model.name": '"gpt"', "model.layers": 4, "model.width": 128, "model.heads": 4,
       "model.context": 128, "model.dropout": 0.0, "train.batch": 16}
WIDE_GPT = {**GPT, "model.width": 256, "model.heads": 8}
MLP = {"model.name": '"mlp"', "model.layers": 4, "model.width": 256, "train.batch": 256}

TWO = [("dp=2", 1), ("dp=2", 2), ("tp=2", 1), ("tp=2", 2), ("pp=2", 1), ("pp=2", 2), ("pp=2", 4),
       ("pp=2", 8), ("pp=2,vpp=2", 4), ("pp=2,vpp=2", 8)]
FOUR = [("dp=4", 1), ("dp=4", 2), ("dp=2,tp=2", 1), ("tp=4", 1), ("pp=4", 4), ("pp=4", 8),
        ("dp=2,pp=2", 2), ("dp=2,pp=2", 4), ("tp=2,pp=2", 2), ("tp=2,pp=2", 4), ("pp=4", 1),
        ("pp=2,tp=2,vpp=2", 4)]
CASES = {f"{name}, {devices} devices": (model, devices, strategies)
         for (name, model), (devices, strategies) in itertools.product(
             (("gpt, width 128", GPT), ("gpt, width 256", WIDE_GPT), ("mlp, width 256", MLP)),
             ((2, TWO), (4, FOUR)))}


def settings(model, devices, strategy, microbatches):
    keys = {**model, "cluster.devices": devices, "cluster.threads": 1,
            "parallel.strategy": f'"{strategy}"', "train.validation_sequences": 0,
            "sample.bytes": 0}
    if microbatches:
        keys["parallel.microbatches"] = microbatches
    return [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]


def call(command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr}")
    return [json.loads(line) for line in result.stdout.splitlines()]


def kendall_tau(pairs):
    """Pairs in the same order less pairs in opposite order, as a part of all."""
    score = 0
    count = 0
    for (p, m), (q, n) in itertools.combinations(pairs, 2):
        score += ((p > q) - (p < q)) * ((m > n) - (m < n))
        count += 1
    return score / max(count, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", default="build/bin/penstock")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cluster", default="", help="for predictions, such as a profile")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("-o", "--output", default="")
    arguments = parser.parse_args()
    lines = []

    def say(line=""):
        lines.append(line)
        print(line, flush=True)

    with tempfile.NamedTemporaryFile("w", suffix=".toml") as job:
        def predict(model, devices, strategy, microbatches):
            command = [arguments.penstock, "plan", job.name, "--json",
                       *settings(model, devices, strategy, microbatches)]
            if arguments.cluster:
                command += ["--cluster", arguments.cluster]
            return call(command)[0]

        def measure(model, devices, strategy, microbatches):
            steps = call([arguments.penstock, "run", job.name, "--json",
                          "--set", f"train.steps={arguments.steps}",
                          *settings(model, devices, strategy, microbatches)])
            return min(step["step_time_s"] for step in steps if "step_time_s" in step)

        for name, (model, devices, strategies) in CASES.items():
            if arguments.case not in name:
                continue
            plan = predict(model, devices, "auto", 0)
            chosen = (plan["strategy"], plan["microbatches"])
            say(f"### {name}\n")
            say("| strategy | micro-batches | predicted ms | measured ms | ratio |")
            say("|---|---|---|---|---|")
            rows = [*strategies, chosen]
            least = [float("inf")] * len(rows)
            for _ in range(arguments.rounds):
                for i, (strategy, microbatches) in enumerate(rows):
                    seconds = measure(model, devices, strategy, microbatches)
                    least[i] = min(least[i], seconds)
            pairs = []
            for i, (strategy, microbatches) in enumerate(rows):
                predicted = predict(model, devices, strategy, microbatches)
                p = 1e3 * predicted["predicted_step_time_s"]
                m = 1e3 * least[i]
                say(f"| {'auto: ' if i + 1 == len(rows) else ''}{strategy} | {microbatches} | "
                    f"{p:.1f} | {m:.1f} | {p / m:.2f} |")
                pairs.append((p, m))
            *others, mine = pairs
            best = min(m for _, m in others)
            say(f"\nRank correlation {kendall_tau(others):.2f}; auto takes {mine[1] / best:.2f} "
                "times as long as the fastest listed strategy.\n")
    if arguments.output:
        with open(arguments.output, "w") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
