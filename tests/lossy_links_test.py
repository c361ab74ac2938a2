"""A launched job on a host whose link loses and delays packets, pauses, and is cut.

The hosts are network namespaces that sshd serves; the loss is random, in the kernel (network.py). Runs
with nothing beside it, so that the bounds that users have are tested: links may pause for 2 s, and a
host that is cut off is named within 4 s. What the system lacks is skipped: see why_not of
tests/support. PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import pathlib
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support import ssh_server  # noqa: E402
from tests.support.deaths import PENSTOCK, HostsDeathTest  # noqa: E402
from tests.support.launched_job import PATIENCE_S, losses  # noqa: E402

VICTIM = 2
LOSS = 0.02
STEPS = 120
PAUSE_S = 2


class LossyLinksTest(HostsDeathTest):
    """Host 0 coordinates, hosts 1 and 2 have a node each."""

    @classmethod
    def setUpClass(cls):
        if reason := ssh_server.why_not():
            raise unittest.SkipTest(reason)
        super().setUpClass()
        cls.why_no_loss = ""
        try:
            cls.network.spoil(VICTIM, LOSS, rate="100mbit", queue=20_000)
        except subprocess.CalledProcessError as error:
            cls.why_no_loss = f"this kernel has no filters of tc (cls_bpf): {error.stderr.strip()}"
        cls.hosts.serve_ssh()

    def command(self, *run):
        return [str(self.program), "launch", "-H", "n2,n3", "--through", self.hosts.ssh(),
                "--remote-program", str(self.program), "--log-dir", str(self.logs), *run]

    # The length of the sleep is what is tested.
    def test_the_job_goes_on_through_losses_and_a_pause_of_two_seconds(self):
        if self.why_no_loss:
            self.skipTest(self.why_no_loss)
        run = ["--", str(self.job), "--set", f"train.steps={STEPS}", "--json"]
        # A plan for two hosts may add up in another order.
        here = [PENSTOCK, "run", *run[1:], "--set", "cluster.hosts=2", "--procs", "2"]
        expected = losses(subprocess.run(here, capture_output=True, text=True, timeout=PATIENCE_S,
                                         check=True).stdout)
        self.assertEqual(len(expected), STEPS)
        before = self.network.dropped(VICTIM)
        with open(self.folder / "errors", "w", encoding="utf-8") as errors:
            process = subprocess.Popen(self.network.on_host(0, self.command(*run)),
                                       stdout=subprocess.PIPE, stderr=errors, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        lines = [process.stdout.readline() for _ in range(STEPS // 2)]
        self.cut(VICTIM)
        time.sleep(PAUSE_S)
        self.network.switch(VICTIM, "up")
        lines += process.stdout.readlines()
        self.assertEqual(process.wait(PATIENCE_S), 0, (self.folder / "errors").read_text())
        self.assertEqual(losses("".join(lines)), expected)
        for count_before, count in zip(before, self.network.dropped(VICTIM)):
            self.assertGreater(count, count_before)

    def test_a_cut_beyond_the_bound_ends_the_job_with_the_name_of_the_host(self):
        self.start_on(0, self.command(*self.long_job()))
        begin = time.monotonic()
        self.cut(VICTIM)
        self.check_log(begin, self.log(VICTIM, 1), "has gone silent")
        self.check_named(begin, r"penstock: node 1 \(pid \d+ on n3\) has not answered for 3\.3s", 1)


if __name__ == "__main__":
    unittest.main()
