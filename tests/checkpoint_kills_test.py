"""A run that is killed at random moments and resumed gives the losses of one that was not.

After each kill the newest checkpoint has to be sound. PENSTOCK_KILLS: how many (default 30).
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
KILLS = int(os.environ.get("PENSTOCK_KILLS", "30"))
STEPS = 60
JOB = """
[model]
name = "gpt"
layers = 2
width = 32
heads = 2
context = 16
dropout = 0.2
[data]
text = "text.txt"
[train]
batch = 8
learning_rate = 1e-3
validation_sequences = 0
[sample]
bytes = 0
[checkpoint]
path = "checkpoints"
every = 2
[cluster]
threads = 1
"""


def losses(text):
    """Those of whole lines: the last one may be cut."""
    found = {}
    for line in text.splitlines(keepends=True):
        if line.endswith("\n") and line.startswith('{"step"'):
            row = json.loads(line)
            found[row["step"]] = row["loss"]
    return found


class CheckpointKillsTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="penstock_kills."))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "text.txt").write_text(
            "".join(f"the quick brown fox {i} jumps; " for i in range(400)))
        (self.folder / "job.toml").write_text(JOB)
        self.checkpoints = self.folder / "checkpoints"

    def command(self, *options):
        return [PENSTOCK, "run", str(self.folder / "job.toml"), "--json", "--set",
                f"train.steps={STEPS}", *options]

    def steps(self):
        if not self.checkpoints.exists():
            return []
        return sorted(int(entry.name[5:]) for entry in self.checkpoints.glob("step-*"))

    def check(self, kills, *options):
        begin = time.monotonic()
        whole = subprocess.run(self.command(*options), capture_output=True, text=True, timeout=120,
                               check=True)
        seconds = time.monotonic() - begin
        expected = losses(whole.stdout)
        self.assertEqual(sorted(expected), list(range(1, STEPS + 1)))
        shutil.rmtree(self.checkpoints)
        chance = random.Random(11)
        num_killed = 0
        num_resumed = 0
        newest = 0
        while num_killed < kills:
            with open(self.folder / "out", "w") as out, open(self.folder / "err", "w") as err:
                run = subprocess.Popen(self.command("--resume", *options), stdout=out, stderr=err)
                try:
                    run.wait(timeout=chance.uniform(0.2, 1.1) * seconds)
                except subprocess.TimeoutExpired:
                    run.kill()
                    num_killed += 1
                status = run.wait()
            error = (self.folder / "err").read_text()
            self.assertIn(status, (0, -9), error)
            for step, loss in losses((self.folder / "out").read_text()).items():
                self.assertEqual(loss, expected[step], f"step {step} after {num_killed} kills")
            steps = self.steps()
            self.assertGreaterEqual(steps[-1] if steps else 0, newest)  # none was lost
            newest = steps[-1] if steps else 0
            num_resumed += "continuing from" in error
            if steps:
                subprocess.run([PENSTOCK, "checkpoint", "verify", str(self.checkpoints)],
                               capture_output=True, timeout=60, check=True)
            if newest == STEPS:  # done: from the beginning
                shutil.rmtree(self.checkpoints)
                newest = 0
        print(f"{num_killed} kills, {num_resumed} runs resumed, {seconds:.2f} s a whole run",
              file=sys.stderr)
        self.assertGreater(num_resumed, kills // 4)

    def test_one_process(self):
        self.check(KILLS)

    def test_two_processes(self):
        self.check(max(KILLS // 4, 1), "--procs", "2", "--strategy", "dp=1,tp=2")


if __name__ == "__main__":
    unittest.main()
