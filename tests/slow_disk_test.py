"""Training goes on while a checkpoint is being written to a disk that takes long.

Each call that waits until the disk has a file (fsync) waits here for as long as another file exists:
a library that is loaded before the others sees to that, in all processes of a job. Skipped without a
C compiler.
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
COMPILER = shutil.which(os.environ.get("CC", "cc"))
BOUND_S = 120  # for what takes a second on a machine that does nothing else
EVERY = 20
STEPS = 50
JOB = f"""
[model]
name = "gpt"
layers = 2
width = 32
heads = 2
context = 16
[train]
batch = 8
steps = {STEPS}
validation_sequences = 0
log_every = 1
[sample]
bytes = 0
[checkpoint]
path = "checkpoints"
every = {EVERY}
[cluster]
threads = 1
"""
SLOW_DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int fsync(int fd) {
  int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  const char* busy = getenv("PENSTOCK_TEST_DISK_IS_BUSY");
  struct stat info;
  /* Not of folders, as the one that a run makes before it begins. */
  int is_file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  while (is_file && busy != NULL && access(busy, F_OK) == 0) usleep(1000);
  return next(fd);
}
"""


class SlowDiskTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        if COMPILER is None:
            self.skipTest("there is no C compiler")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="penstock_slow_disk."))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "job.toml").write_text(JOB)
        (self.folder / "slow_disk.c").write_text(SLOW_DISK)
        library = self.folder / "slow_disk.so"
        subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, self.folder / "slow_disk.c",
                        "-ldl"], check=True, timeout=BOUND_S)
        self.busy = self.folder / "busy"
        self.environment = {**os.environ, "LD_PRELOAD": str(library),
                            "PENSTOCK_TEST_DISK_IS_BUSY": str(self.busy)}

    def lines(self):
        """What the run has printed, in order: ("step", N) and ("checkpoint", N)."""
        found = []
        for line in (self.folder / "out").read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                break
            row = json.loads(line)
            if "checkpoint" in row:
                found.append(("checkpoint", row["checkpoint"]["step"]))
            elif "step" in row:
                found.append(("step", row["step"]))
        return found

    def check(self, *options):
        self.busy.touch()
        with open(self.folder / "out", "w") as out, open(self.folder / "err", "w") as err:
            job = subprocess.Popen([PENSTOCK, "run", self.folder / "job.toml", "--json", *options],
                                   stdout=out, stderr=err, env=self.environment)
        try:
            # Up to the next checkpoint, for which the memory of the copy is needed.
            deadline = time.monotonic() + BOUND_S
            while ("step", 2 * EVERY - 1) not in self.lines():
                self.assertIsNone(job.poll(), (self.folder / "err").read_text())
                self.assertLess(time.monotonic(), deadline, self.lines())
                time.sleep(0.02)
            self.assertFalse([line for line in self.lines() if line[0] == "checkpoint"])
            # Nobody may find what is not there yet.
            self.assertEqual(list((self.folder / "checkpoints").glob("step-*")), [])
            self.busy.unlink()
            self.assertEqual(job.wait(timeout=BOUND_S), 0, (self.folder / "err").read_text())
        finally:
            job.kill()
            job.wait()
        lines = self.lines()
        self.assertEqual([step for kind, step in lines if kind == "step"],
                         list(range(1, STEPS + 1)))
        self.assertEqual([step for kind, step in lines if kind == "checkpoint"],
                         [EVERY, 2 * EVERY, STEPS])
        self.assertGreater(lines.index(("checkpoint", EVERY)), lines.index(("step", 2 * EVERY - 1)))
        verified = subprocess.run([PENSTOCK, "checkpoint", "verify", self.folder / "checkpoints"],
                                  capture_output=True, text=True, check=False, timeout=BOUND_S)
        self.assertEqual(verified.returncode, 0, verified.stderr)

    def test_steps_run_while_a_checkpoint_is_written(self):
        self.check("--strategy", "dp=1")

    def test_steps_run_while_two_processes_write_their_parts(self):
        self.check("--strategy", "tp=2", "--devices", "2", "--procs", "2")


if __name__ == "__main__":
    unittest.main()
