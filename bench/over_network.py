"""Runs of a job over hosts that share this machine: a node a host, in network namespaces."""

import contextlib
import os
import re
import subprocess
import threading

LINE_SHARE = 0.95  # of the line rate that payload can have
LATENCY_US = 100
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TIMEOUT_S = 600


class Failure(Exception):
    """A run failed; the message says which and why."""


def bits_per_second(rate):
    number, unit = re.fullmatch(r"([0-9.]+)([a-z]+)", rate).groups()
    return float(number) * UNITS[unit]


def core_of(rank):
    """The core of a rank: the first of those that this process may use, the second, and so on.

    Ranks share the cores if there are more of them.
    """
    cores = sorted(os.sched_getaffinity(0))
    return cores[rank % len(cores)]


def payload_bits_per_second(rate):
    """What a link of a rate carries beside headers."""
    return LINE_SHARE * bits_per_second(rate)


def link_settings(hosts, rate):
    """Options that tell a job which hosts it has, and how they are joined."""
    gbit_per_s = payload_bits_per_second(rate) / 1e9
    return ["--set", f"cluster.hosts={hosts}", "--set", f"cluster.link_gbit_per_s={gbit_per_s}",
            "--set", f"cluster.link_latency_us={LATENCY_US}"]


@contextlib.contextmanager
def children():
    """A list of processes that end with the block, or when they take too long."""
    processes = []

    def kill():
        for process in processes:
            process.kill()
    alarm = threading.Timer(TIMEOUT_S, kill)
    alarm.start()
    try:
        yield processes
    finally:
        alarm.cancel()
        kill()
        for process in processes:
            process.wait()


@contextlib.contextmanager
def run_over(penstock, network, rate, path, options):
    """`penstock run` of a job, with a node on every host of the network, pinned to one core.

    Nodes share the cores if there are more of them. Yields the coordinator, whose output is there
    to be read line by line, and the nodes. A Failure inside the block gets the coordinator's errors
    for its message.
    """
    hosts = len(network.names)
    with children() as processes:
        coordinator = subprocess.Popen(
            network.inside(0, [penstock, "run", path, "--json", *link_settings(hosts, rate),
                               *options, "--procs", str(hosts), "--listen", "10.77.0.1:0"]),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(coordinator)
        errors = []
        for line in coordinator.stderr:
            errors.append(line)
            match = re.search(r"penstock node --join (\S+) --key-file (\S+)", line)
            if match:
                break
        else:
            raise Failure(f"the coordinator did not print where to join: {''.join(errors)}")
        reader = threading.Thread(target=lambda: errors.extend(coordinator.stderr), daemon=True)
        reader.start()
        environment = {**os.environ, "UCX_TLS": "tcp,self"}
        nodes = [subprocess.Popen(
            network.inside(rank, ["taskset", "-c", str(core_of(rank)), penstock, "node", "--quiet",
                                  "--join", match[1], "--key-file", match[2], "--rank",
                                  str(rank)]),
            env=environment) for rank in range(hosts)]
        processes += nodes
        try:
            yield coordinator, nodes
        except Failure as failure:
            reader.join(timeout=5)
            raise Failure(f"{path}: {failure}\n{''.join(errors)}") from failure
