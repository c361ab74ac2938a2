#!/usr/bin/env python3
"""Compares the strategy that `auto` chooses with others, predicted and measured, on this machine.

    compare.py [--media memory,1gbit] [--case NAME] [--rounds N] [--seconds S] [--profile FILE]
               [-o TABLE.md]

A case is a model, a number of devices of one thread each, and what joins them: shared memory (a
process a device), or two network namespaces with half of the devices each, behind links of a rate
as tc writes it. First `penstock profile` measures this machine, unless --profile names what it has
written before. For each case and each of at least twelve strategies, `penstock plan` predicts a step
from that, and `penstock run` takes as many as are predicted to take some seconds, in several rounds
over all strategies; the least of the rounds' median step times counts, because whatever else runs on
the machine only adds to it. Prints a table in Markdown: predicted and measured times, their ratio,
the rank correlation (Kendall's tau) of a case, and how the choice of `auto` compares with the
fastest. The exit status is 1 if `auto` is measured slower than 1.05 times the fastest in some case.
All cases take three quarters of an hour.

Links need root and the packages iproute2 and util-linux (taskset). PENSTOCK names the command
(default: build/bin/penstock).
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from bench import over_network  # noqa: E402
from tests.support.network import Network  # noqa: E402

PENSTOCK = os.environ.get("PENSTOCK", str(ROOT / "build/bin/penstock"))
MAX_RATIO = 1.05  # of what auto takes, over the fastest
WARM_UP = 2       # steps that are not timed
MIN_STEPS = 6     # that are
HOSTS = 2         # of a network

GPT = {"model.name": '"gpt"', "model.layers": 4, "model.width": 128, "model.heads": 4,
       "model.context": 128, "model.dropout": 0.0, "train.batch": 16}
MODELS = {
    "gpt, width 128": GPT,
    "gpt, width 384": {**GPT, "model.width": 384, "model.heads": 8, "train.batch": 8},
    "mlp, wide": {"model.name": '"mlp"', "model.layers": 2, "model.width": 1024,
                  "train.batch": 64},
    "mlp, deep": {"model.name": '"mlp"', "model.layers": 16, "model.width": 128,
                  "train.batch": 512},
    "moe": {**GPT, "model.name": '"moe"', "model.layers": 2, "model.experts": 4},
}
# Strategies, micro-batches and schedules (1f1b) by the number of devices: for all models, those that
# split sequences, and with experts.
ANY = {
    2: [("dp=2", 1), ("dp=2", 2), ("dp=2,zero=1", 1), ("dp=2,zero=2", 1), ("dp=2,zero=3", 1),
        ("tp=2", 1), ("tp=2", 2), ("pp=2", 1), ("pp=2", 2), ("pp=2", 4), ("pp=2", 8),
        ("pp=2,vpp=2", 4), ("pp=2", 4, "zb-h1")],
    4: [("dp=4", 1), ("dp=4", 2), ("dp=4,zero=1", 1), ("dp=4,zero=3", 1), ("dp=2,tp=2", 1),
        ("dp=2,tp=2,zero=1", 1), ("tp=4", 1), ("dp=2,pp=2", 2), ("dp=2,pp=2", 4),
        ("tp=2,pp=2", 4), ("pp=4", 4), ("pp=4", 8), ("pp=2,tp=2,vpp=2", 4),
        ("pp=4", 8, "zb-h1")],
}
SEQUENCES = {2: [("tp=2,sp=true", 1), ("cp=2", 1)], 4: [("dp=2,tp=2,sp=true", 1), ("dp=2,cp=2", 1)]}
EXPERTS = {2: [("dp=2,ep=2", 1)], 4: [("dp=4,ep=4", 1), ("dp=4,ep=2", 1)]}


def strategies_of(model, devices):
    strategies = list(ANY[devices])
    if model["model.name"] != '"mlp"':
        strategies += SEQUENCES[devices]
    if model["model.name"] == '"moe"':
        strategies += EXPERTS[devices]
    return [(*row, "1f1b")[:3] for row in strategies]


def settings(model, devices, strategy, microbatches, schedule):
    keys = {**model, "cluster.devices": devices, "cluster.threads": 1,
            "parallel.strategy": f'"{strategy}"', "train.validation_sequences": 0,
            "sample.bytes": 0}
    if microbatches:
        keys["parallel.microbatches"] = microbatches
    if schedule:
        keys["parallel.schedule"] = f'"{schedule}"'
    return [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]


def short(strategy):
    """Without axes of one device."""
    parts = [part for part in strategy.split(",") if part not in ("dp=1", "tp=1", "pp=1")]
    return ",".join(parts) or "dp=1"


def call(command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr}")
    return result.stdout.splitlines()


def kendall_tau(pairs):
    """Pairs in the same order less pairs in opposite order, as a part of all."""
    score = 0
    count = 0
    for (p, m), (q, n) in itertools.combinations(pairs, 2):
        score += ((p > q) - (p < q)) * ((m > n) - (m < n))
        count += 1
    return score / max(count, 1)


def describe(profile, devices, medium):
    """The text of a profile of this machine, with the devices and hosts of a case."""
    if medium == "memory":
        return re.sub(r"(?m)^fan_out = .*$", f"fan_out = {devices}", profile)
    text = re.sub(r"(?m)^devices_at_once = .*$", "devices_at_once = 1", profile)  # a core (run_over)
    text = re.sub(r"(?m)^fan_out = .*$", f"fan_out = {devices // HOSTS}", text)
    bytes_per_s = over_network.payload_bits_per_second(medium) / 8
    return text + f"""
[[level]]
name = "network"
fan_out = {HOSTS}
bytes_per_s = {bytes_per_s}
latency_s = {over_network.LATENCY_US * 1e-6}
"""


class Case:
    """A model on devices that a medium joins; predictions read the file `cluster`."""

    def __init__(self, model, devices, medium, network, job, cluster, arguments):
        self.model = model
        self.devices = devices
        self.medium = medium
        self.network = network  # none: shared memory
        self.job = job
        self.cluster = cluster
        self.arguments = arguments

    def predict(self, strategy, microbatches, schedule):
        command = [PENSTOCK, "plan", self.job, "--json",
                   *settings(self.model, self.devices, strategy, microbatches, schedule)]
        return json.loads(call([*command, "--cluster", self.cluster])[0])

    def measure(self, strategy, microbatches, schedule, predicted_s):
        """The median step in seconds."""
        steps = WARM_UP + max(MIN_STEPS, math.ceil(self.arguments.seconds / predicted_s))
        options = ["--set", f"train.steps={steps}",
                   *settings(self.model, self.devices, strategy, microbatches, schedule)]
        if self.network is None:
            lines = call([PENSTOCK, "run", self.job, "--json", "--procs", str(self.devices),
                          *options])
        else:
            with over_network.run_over(PENSTOCK, self.network, self.medium, self.job,
                                       options) as (coordinator, _):
                lines = coordinator.stdout.readlines()
        rows = [json.loads(line) for line in lines]
        times = [row["step_time_s"] for row in rows if "step_time_s" in row]
        if len(times) != steps:
            raise over_network.Failure(f"{strategy}: {len(times)} of {steps} steps")
        return statistics.median(times[WARM_UP:])

    def compare(self, say):
        """Prints the table of the case; by how much auto misses the fastest."""
        plan = self.predict("auto", 0, "")
        chosen = (short(plan["strategy"]), plan["microbatches"], plan["schedule"])
        say("| strategy | micro-batches | schedule | predicted ms | measured ms | ratio |")
        say("|---|---|---|---|---|---|")
        rows = strategies_of(self.model, self.devices)
        if chosen not in rows:
            rows.append(chosen)
        predicted = [self.predict(*row)["predicted_step_time_s"] for row in rows]
        least = [float("inf")] * len(rows)
        for _ in range(self.arguments.rounds):
            for i, row in enumerate(rows):
                least[i] = min(least[i], self.measure(*row, predicted[i]))
        for row, p, m in zip(rows, predicted, least):
            schedule = row[2] if "pp=" in row[0] else ""
            say(f"| {'auto: ' if row == chosen else ''}{row[0]} | {row[1]} | {schedule} | "
                f"{1e3 * p:.1f} | {1e3 * m:.1f} | {p / m:.2f} |")
        ratio = least[rows.index(chosen)] / min(least)
        say(f"\nRank correlation {kendall_tau(list(zip(predicted, least))):.2f}; auto takes "
            f"{ratio:.2f} times as long as the fastest of these.\n")
        return ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--media", default="memory,1gbit", help="(default: memory,1gbit)")
    parser.add_argument("--devices", default="2,4", help="(default: 2,4)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a run (default: 1.5)")
    parser.add_argument("--rounds", type=int, default=2, help="(default: 2)")
    parser.add_argument("--profile", default="",
                        help="a file of `penstock profile` for predictions (default: measured first)")
    parser.add_argument("--case", default="", help="only models whose name contains this")
    parser.add_argument("-o", "--output", default="", help="a file for the table")
    arguments = parser.parse_args()
    lines = []

    def say(line=""):
        lines.append(line)
        print(line, flush=True)

    slow = []
    with tempfile.TemporaryDirectory(prefix="penstock_strategies.") as folder:
        job, cluster = pathlib.Path(folder) / "job.toml", pathlib.Path(folder) / "cluster.toml"
        job.write_text("", encoding="utf-8")
        measured = arguments.profile or f"{folder}/profile.toml"
        if not arguments.profile:
            call([PENSTOCK, "profile", "--devices", str(os.cpu_count()), "-o", measured])
        profile = pathlib.Path(measured).read_text(encoding="utf-8")
        for medium in arguments.media.split(","):
            with contextlib.ExitStack() as stack:
                network = None
                if medium != "memory":
                    network = stack.enter_context(Network(HOSTS, medium))
                for (name, model), devices in itertools.product(
                        MODELS.items(), map(int, arguments.devices.split(","))):
                    if arguments.case not in name:
                        continue
                    joined = "shared memory" if network is None else f"{HOSTS} hosts at {medium}"
                    title = f"{name}, {devices} devices, {joined}"
                    say(f"### {title}\n")
                    cluster.write_text(describe(profile, devices, medium), encoding="utf-8")
                    case = Case(model, devices, medium, network, str(job), str(cluster), arguments)
                    ratio = case.compare(say)
                    if ratio > MAX_RATIO:
                        slow.append(f"{title} ({ratio:.2f})")
    say(f"auto is slower than {MAX_RATIO} times the fastest in " + (", ".join(slow) or "no case")
        + ".")
    if arguments.output:
        pathlib.Path(arguments.output).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if slow else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except over_network.Failure as failure:
        sys.exit(f"compare.py: {failure}")
