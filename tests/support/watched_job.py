"""A small job that trains for long, for tests that look at it from outside with `penstock stack`,
`penstock top` and Prometheus.

PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
BOUND_S = 60  # for what takes a second on a machine that does nothing else
JOB = """
[model]
name = "gpt"
layers = 2
width = 32
heads = 2
context = 16
[data]
text = "text.txt"
[train]
batch = 8
steps = 1000000
validation_sequences = 0
log_every = 1000000
[sample]
bytes = 0
[parallel]
microbatches = 2
[cluster]
threads = 1
node_timeout = 600
"""


class WatchedJobTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        # Paths of sockets are short.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="penstock_status.", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "text.txt").write_text(
            "".join(f"the quick brown fox {i} jumps; " for i in range(400)))
        (self.folder / "job.toml").write_text(JOB)
        self.environment = self.host("host")
        self.started = []
        self.addCleanup(self.kill_all)

    def host(self, name):
        """The environment of processes on a host of their own, as far as files tell."""
        runtime = self.folder / name
        runtime.mkdir(mode=0o700)
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
        environment.pop("PENSTOCK_KEY", None)
        return environment

    def start(self, *arguments, environment=None):
        """A process whose output goes to files: nobody reads a pipe while it runs."""
        number = len(self.started)
        files = [self.folder / f"{number}.out", self.folder / f"{number}.err"]
        with open(files[0], "w") as out, open(files[1], "w") as err:
            process = subprocess.Popen([PENSTOCK, *arguments], stdout=out, stderr=err,
                                       env=environment or self.environment)
        process.out, process.err = files
        self.started.append(process)
        return process

    def start_job(self, *options, environment=None):
        return self.start("run", str(self.folder / "job.toml"), "--json", *options,
                          environment=environment)

    def kill_all(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()

    def call(self, *arguments, environment=None):
        return subprocess.run([PENSTOCK, *arguments], capture_output=True, text=True,
                              timeout=BOUND_S, env=environment or self.environment)

    def look(self, *arguments, environment=None):
        """What `penstock stack --json` says, or None."""
        outcome = self.call("stack", *arguments, "--json", environment=environment)
        return json.loads(outcome.stdout) if outcome.returncode == 0 else None

    def await_look(self, is_right, *arguments, environment=None):
        deadline = time.monotonic() + BOUND_S
        status = None
        while time.monotonic() < deadline:
            status = self.look(*arguments, environment=environment)
            if status is not None and is_right(status):
                return status
        self.fail(f"the job never got there; last seen: {status}")

    def end(self, job):
        job.send_signal(signal.SIGINT)
        status = job.wait(timeout=BOUND_S)
        self.assertEqual(status, 130, job.err.read_text())
        self.assertIn("summary", json.loads(job.out.read_text().splitlines()[-1]))

    def read_line(self, file, beginning):
        """The first whole line of a file that begins so, without that."""
        deadline = time.monotonic() + BOUND_S
        while time.monotonic() < deadline:
            for line in file.read_text().splitlines(keepends=True):
                if line.startswith(beginning) and line.endswith("\n"):
                    return line[len(beginning):].strip()
            time.sleep(0.05)
        self.fail(f"no line begins with {beginning!r} in {file.read_text()}")
