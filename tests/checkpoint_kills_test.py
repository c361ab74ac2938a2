"""A run that is killed at random moments and resumed gives the losses of one that was not.

Of a run with several processes, each of which writes its part of a checkpoint, one is killed: the
run itself or a node. After each kill the newest checkpoint has to be sound.
PENSTOCK_KILLS: how many (default 200, about a minute on two cores).
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
KILLS = int(os.environ.get("PENSTOCK_KILLS", "200"))
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


def nodes(pid):
    """The process ids of the nodes that a run has started."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            # After the name, which may hold spaces: the state, then the parent.
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):  # it has ended
            continue
        if parent == pid and b"node" in command:
            found.append(int(entry.name))
    return sorted(found)


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

    def check(self, kills, *options, kills_nodes=False):
        begin = time.monotonic()
        whole = subprocess.run(self.command(*options), capture_output=True, text=True, timeout=120,
                               check=True)
        seconds = time.monotonic() - begin
        expected = losses(whole.stdout)
        self.assertEqual(sorted(expected), list(range(1, STEPS + 1)))
        shutil.rmtree(self.checkpoints)
        chance = random.Random(11)
        num_killed = 0
        num_nodes_killed = 0
        num_resumed = 0
        newest = 0
        while num_killed < kills:
            with open(self.folder / "out", "w") as out, open(self.folder / "err", "w") as err:
                run = subprocess.Popen(self.command("--resume", *options), stdout=out, stderr=err)
                victim = run.pid
                try:
                    run.wait(timeout=chance.uniform(0.2, 1.1) * seconds)
                except subprocess.TimeoutExpired:
                    if kills_nodes:
                        victim = chance.choice([run.pid, *nodes(run.pid)])
                    try:
                        os.kill(victim, signal.SIGKILL)
                        num_killed += 1
                        num_nodes_killed += victim != run.pid
                    except ProcessLookupError:  # a node that has ended meanwhile
                        pass
                status = run.wait(timeout=120)
            error = (self.folder / "err").read_text()
            # The loss of a node ends the run with its status, if the run was not over already.
            self.assertIn(status, (0, -9) if victim == run.pid else (0, 128 + 9), error)
            if status == 128 + 9:
                self.assertRegex(error, rf"node \d \(pid {victim} on .*\) was killed by signal 9")
                # Steps are numbered as those of the whole run.
                step = re.search(r"signal 9 \(Killed\) (?:in|after) step (\d+)", error)
                if step:
                    self.assertGreater(int(step.group(1)), newest, error)
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
        print(f"{num_killed} kills, {num_nodes_killed} of nodes, {num_resumed} runs resumed, "
              f"{seconds:.2f} s a whole run", file=sys.stderr)
        self.assertGreater(num_resumed, kills // 4)
        if kills_nodes:
            self.assertGreater(num_nodes_killed, kills // 4)

    def test_one_process(self):
        self.check(KILLS)

    def test_two_processes(self):
        self.check(max(KILLS // 3, 1), "--procs", "2", "--strategy", "dp=1,tp=2", kills_nodes=True)


if __name__ == "__main__":
    unittest.main()
