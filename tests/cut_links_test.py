"""Two hosts of a launched job that cannot reach each other, while both reach the coordinator: the job
ends, names these two and no other, and leaves nothing behind. What only pauses or is slow ends nothing.

Hosts are network namespaces with an SSH server each, joined by a bridge. What the system lacks is
skipped: see why_not of tests/support. PENSTOCK_COMMAND names the command (default:
build/bin/penstock).
"""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support import ssh_server  # noqa: E402
from tests.support.deaths import BOUND_S, PENSTOCK, SHARED_BOUND_S, HostsDeathTest  # noqa: E402
from tests.support.launched_job import PATIENCE_S, losses  # noqa: E402

LINK_TIMEOUT_S = 3.3
# Other tests take the cores of a machine that tests all at once.
NAMED_WITHIN_S = SHARED_BOUND_S if "CI" in os.environ else BOUND_S
TCP_RTO_MAX_MS = 44


def bounds_retries():
    """Whether the system lets one bound the time between two retries of TCP (Linux 6.15). Elsewhere, a link has
    to be silent for two seconds more before it counts as cut."""
    with socket.socket() as tried, contextlib.suppress(OSError):
        tried.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, 1000)
        return True
    return False


class CutLinksTest(HostsDeathTest):
    """Host 0 coordinates."""

    bound_s = NAMED_WITHIN_S + (0 if bounds_retries() else 2)
    gone_s = bound_s + 4

    @classmethod
    def setUpClass(cls):
        if reason := ssh_server.why_not():
            raise unittest.SkipTest(reason)
        super().setUpClass()
        cls.hosts.serve_ssh()

    def command(self, hosts, *run):
        return [str(self.program), "launch", "-H", hosts, "--through", self.hosts.ssh(),
                "--remote-program", str(self.program), "--log-dir", str(self.logs), *run]

    def cut_off(self, *pairs):
        """Loses what the first host of each pair sends to the second one."""
        for sender, receiver in pairs:
            self.addCleanup(self.network.unblock, sender, receiver)
            self.network.block(sender, receiver)

    def check_pair_is_named(self, begin, ranks, hosts):
        """In either order: both hear nothing, and one of them says so first."""
        sides = [rf"node {rank} \(pid \d+ on {host}\)" for rank, host in zip(ranks, hosts)]
        pattern = "|".join(rf"penstock: {one} hears nothing from {other}[ :]"
                           for one, other in (sides, sides[::-1]))
        self.check_named(begin, pattern, 1, gone_s=self.gone_s)
        named = self.output.time_of(pattern)
        self.assertGreater(named - begin, LINK_TIMEOUT_S - 1)
        print(f"{self.id()}: named after {named - begin:.2f} s", file=sys.stderr, flush=True)

    def test_a_cut_in_both_directions(self):
        self.start_on(0, self.command("n2,n3", *self.long_job()))
        begin = time.monotonic()
        self.cut_off((1, 2), (2, 1))
        self.check_pair_is_named(begin, (0, 1), ("n2", "n3"))

    def check_one_direction(self, sender, receiver):
        self.start_on(0, self.command("n2,n3", *self.long_job()))
        begin = time.monotonic()
        self.cut_off((sender, receiver))
        self.check_pair_is_named(begin, (0, 1), ("n2", "n3"))

    def test_a_cut_in_one_direction(self):
        self.check_one_direction(1, 2)

    def test_a_cut_in_the_other_direction(self):
        self.check_one_direction(2, 1)

    def test_the_other_nodes_of_the_job_are_not_named(self):
        run = self.long_job()
        run[run.index("--") + 1:] += ["--strategy", "dp=4"]
        self.start_on(0, self.command("n1,n2,n3,n4", *run), num_joined=4)
        begin = time.monotonic()
        self.cut_off((2, 3))
        self.check_pair_is_named(begin, (2, 3), ("n3", "n4"))
        self.assertNotRegex(self.output.text(), r"node [01] \(pid \d+ on n[12]\) (hears|has)")

    # The lengths of the sleeps are what is tested.
    def test_a_cut_of_two_seconds_ends_nothing(self):
        run = ["--", str(self.job), "--set", "train.steps=300", "--set", "train.log_every=1"]
        # A plan for two hosts may add up in another order.
        here = [PENSTOCK, "run", *run[1:], "--set", "cluster.hosts=2", "--procs", "2", "--json"]
        expected = losses(subprocess.run(here, capture_output=True, text=True, timeout=PATIENCE_S,
                                         check=True).stdout)
        with open(self.folder / "errors", "w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                self.network.on_host(0, self.command("n2,n3", *run, "--json")),
                stdout=subprocess.PIPE, stderr=errors, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        lines = []
        for pairs in (((1, 2), (2, 1)), ((1, 2),), ((2, 1),)):
            lines += [process.stdout.readline() for _ in range(20)]
            self.cut_off(*pairs)
            time.sleep(2)
            for pair in pairs:
                self.network.unblock(*pair)
        lines += process.stdout.readlines()
        self.assertEqual(process.wait(PATIENCE_S), 0, (self.folder / "errors").read_text())
        self.assertEqual(losses("".join(lines)), expected)

    def test_a_slow_link_ends_nothing(self):
        """Each step exchanges some megabytes, for which the links take longer than a cut may last."""
        for host in (1, 2):
            self.addCleanup(self.network.limit, host, self.network.rate)
            self.network.limit(host, "5mbit")
        run = ["--", str(self.job), "--set", "train.steps=2", "--set", "model.width=256", "--json"]
        begin = time.monotonic()
        result = subprocess.run(self.network.on_host(0, self.command("n2,n3", *run)),
                                capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(losses(result.stdout)), 2)
        self.assertGreater(time.monotonic() - begin, 2 * LINK_TIMEOUT_S)


if __name__ == "__main__":
    unittest.main()
