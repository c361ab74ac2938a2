"""Prometheus's promtool accepts what `penstock run --metrics` serves: before the first checkpoint,
after it, and while a process of the job does not answer.

PENSTOCK_COMMAND names the command (default: build/bin/penstock), PENSTOCK_PROMTOOL promtool
(default: the one in PATH, or the one that scripts/fetch-test-files has put into build/test_files).
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parent / "support"))
from watched_job import BOUND_S, ROOT, WatchedJobTest  # noqa: E402

PROMTOOL = os.environ.get("PENSTOCK_PROMTOOL", shutil.which("promtool") or
                          str(ROOT / "build/test_files/promtool"))


class MetricsPromtoolTest(WatchedJobTest):
    def setUp(self):
        if not os.access(PROMTOOL, os.X_OK):
            self.skipTest("promtool was not found: see scripts/fetch-test-files")
        super().setUp()

    def check(self, url):
        with urllib.request.urlopen(url, timeout=BOUND_S) as answer:
            page = answer.read().decode()
        checked = subprocess.run([PROMTOOL, "check", "metrics"], input=page, text=True,
                                 capture_output=True, timeout=BOUND_S, check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        self.assertEqual(checked.stdout + checked.stderr, "")
        return page

    def test_promtool_accepts_all_pages(self):
        job = self.start_job("--strategy", "pp=2", "--devices", "2", "--procs", "2", "--metrics",
                             "0", "--set", f'checkpoint.path="{self.folder}/checkpoints"', "--set",
                             "checkpoint.every=3")
        url = self.read_line(job.err, "metrics: ")
        self.assertNotIn("penstock_checkpoint_step 0\n", self.check(url))
        status = self.await_look(lambda s: s["step"] >= 7)
        self.assertRegex(self.check(url), r"penstock_checkpoint_step \d+\n")
        stopped = status["processes"][1]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            self.assertRegex(self.check(url), r'penstock_node_up\{rank="1",host="[^"]*"\} 0\n')
        finally:
            os.kill(stopped, signal.SIGCONT)
        self.end(job)


if __name__ == "__main__":
    unittest.main()
