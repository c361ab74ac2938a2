"""A small job on four devices in two processes, run with --report PAGE.html and --json."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))

JOB = """
[model]
name = "gpt"
layers = 2
width = 32
heads = 2
context = 16
[data]
text = ["text.txt"]
[train]
steps = 6
batch = 8
validation_sequences = 4
validation_every = 2
[sample]
bytes = 8
[parallel]
strategy = "dp=2,pp=2"
microbatches = 2
[cluster]
threads = 1
processes = 2
[checkpoint]
path = "checkpoints <b>"
every = 3
"""


def run_with_report(folder):
    """The page as text, and the lines of --json."""
    folder = pathlib.Path(folder)
    (folder / "text.txt").write_text("".join(f"a <quick> fox {i} & more; " for i in range(200)))
    (folder / "job.toml").write_text(JOB)
    page = folder / "report.html"
    result = subprocess.run(
        [PENSTOCK, "run", "job.toml", "--json", "--report", page, "--set",
         'checkpoint.path="checkpoints <b>"'],
        capture_output=True, text=True, timeout=120, cwd=folder, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"penstock run: status {result.returncode}\n{result.stderr}")
    return page, [json.loads(line) for line in result.stdout.splitlines()]
