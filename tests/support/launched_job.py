"""What the tests of launching share: a small job, its losses, and free ports."""

import json
import pathlib
import random
import socket
import subprocess

# Steps of a job.
STEPS = 6
# A long wait that ends as soon as what it waits for is there.
PATIENCE_S = 60


def job_text(strategy):
    """A GPT that trains for STEPS steps."""
    return f"""
[model]
name = "gpt"
layers = 2
width = 32
heads = 2
context = 16
[train]
steps = {STEPS}
batch = 8
validation_sequences = 0
[parallel]
strategy = "{strategy}"
[sample]
bytes = 0
"""


def losses(output):
    """Of the lines that `penstock run --json` prints."""
    return [json.loads(line)["loss"] for line in output.splitlines() if '"loss"' in line]


def losses_here(penstock, job, *options):
    """Of the job on this host, in one process unless the options say otherwise."""
    output = subprocess.run([penstock, "run", job, "--json", *options], capture_output=True, text=True,
                            timeout=120, check=True).stdout
    found = losses(output)
    assert len(found) == STEPS, output
    return found


def parent_of(pid):
    """The process that has started another one, or has taken it over; 0: it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def children_of(pid):
    """The processes that any thread of another one has started."""
    return [int(child) for file in pathlib.Path(f"/proc/{pid}/task").glob("*/children")
            for child in file.read_text().split()]


def free_ports(count):
    """Below those that the system gives to whoever asks for any port: a test beside this one, or a connection,
    would soon have one of them."""
    ports = []
    for port in random.sample(range(10000, 20000), 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise AssertionError("no port is free")


def free_port():
    return free_ports(1)[0]
