"""`penstock launch --fanout`: hosts that start each other through ssh, on hosts of network namespaces
with an SSH server each. The losses are those of one process, the key is in no command line, and what
dies is named although others have started it; nothing stays behind on any host.

What the system lacks is skipped: see why_not of tests/support. PENSTOCK_COMMAND names the command
(default: build/bin/penstock).
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support import ssh_server  # noqa: E402
from tests.support.deaths import PENSTOCK, SHARED_BOUND_S, HostsDeathTest  # noqa: E402
from tests.support.launched_job import PATIENCE_S, losses, losses_here  # noqa: E402
from tests.support.ssh_server import await_true, texts_of_processes  # noqa: E402


class LaunchTreeTest(HostsDeathTest):
    """Host n1 coordinates and has a node, too. With a fanout of 1, each host starts the next one."""

    strategy = "dp=4"
    bound_s = SHARED_BOUND_S

    @classmethod
    def setUpClass(cls):
        if reason := ssh_server.why_not():
            raise unittest.SkipTest(reason)
        super().setUpClass()
        cls.hosts.serve_ssh()

    def command(self, fanout, *run):
        return [str(self.program), "launch", "-H", "n1,n2,n3,n4", "--fanout", str(fanout), "--through",
                self.hosts.ssh(), "--remote-program", str(self.program), "--log-dir", str(self.logs),
                *run]

    def launch(self, fanout=1):
        self.start_on(0, self.command(fanout, *self.long_job()), num_joined=4)

    def agents(self):
        """By the first rank of each."""
        found = {}
        for pid in self.processes("node", "--slots"):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            found[int(words[words.index("--rank") + 1])] = pid
        return found

    def test_the_losses_are_those_of_one_process(self):
        expected = losses_here(PENSTOCK, self.job)
        for fanout in (1, 2):
            done = subprocess.run(
                self.network.on_host(0, self.command(fanout, "--", str(self.job), "--json")),
                capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(losses(done.stdout), expected)
            joined = re.findall(r"joined: rank (\d) on (\S+):", done.stderr)
            self.assertEqual(sorted(joined), [(str(rank), name) for rank, name in
                                              enumerate(self.hosts.names())], done.stderr)
            await_true(lambda: not self.left(), "the end of all processes")

    def test_each_host_starts_the_next_and_nobody_sees_the_key(self):
        self.launch()
        # Of the last host, the node alone; a client of the coordinator's, and one of each other agent.
        self.assertEqual(sorted(self.agents()), [0, 1, 2])
        for host, pids in (("n1", self.starters("ssh", " n1 exec")), ("n4", self.starters("ssh", " n4 exec"))):
            self.assertEqual(len(pids), 1, host)
        # Each host looks for ssh by itself.
        words = pathlib.Path(f"/proc/{self.agents()[1]}/cmdline").read_bytes().split(b"\0")
        self.assertIn(b"--through=ssh", words)
        texts = texts_of_processes(str(self.program))
        self.assertGreater(len(texts), 16)
        for text in texts:
            self.assertIsNone(re.search(rb"[0-9a-fA-F]{64}", text), text)
        self.run_.send_signal(signal.SIGINT)  # of `ip netns exec`, which has become the coordinator
        self.assertEqual(self.run_.wait(PATIENCE_S), 130, self.output.text())
        self.assertNotIn("killed by signal", self.output.text())
        await_true(lambda: not self.left(), "the end of all processes")

    def test_a_node_at_the_end(self):
        self.launch()
        self.check_kill(self.node(3), 3, "n4")

    def test_an_agent_in_the_middle(self):
        self.launch()
        self.check_kill(self.agents()[1], 1, "n2")

    def test_a_client_in_the_middle(self):
        self.launch()
        begin = time.monotonic()
        os.kill(self.starters("ssh", " n3 exec")[0], signal.SIGKILL)
        self.check_named(begin, r"penstock: node 2 \(pid \d+ on n3\) was killed by signal 9 \(Killed\), "
                         "which ended the program on n2 that had started the node")

    def test_a_host_in_the_middle(self):
        self.launch()
        begin = time.monotonic()
        self.cut(2)
        # Its agent waits for the one below, which it does not reach.
        self.check_named(begin, r"penstock: node 2 \(pid \d+ on n3\) has not answered for 3\.3s", 1,
                         gone_s=2 * SHARED_BOUND_S + 6)

    def test_the_coordinator(self):
        self.launch()
        begin = time.monotonic()
        os.kill(self.processes("launch")[0], signal.SIGKILL)
        for rank in range(4):
            self.check_log(begin, self.log(rank, rank),
                           r"penstock: the coordinator \(pid \d+ on n1\) is gone")
        self.check_gone(begin, SHARED_BOUND_S + 1)

    def test_a_host_that_cannot_be_reached_is_named(self):
        self.network.switch(3, "down")
        self.addCleanup(self.network.switch, 3, "up")
        command = self.command(1, "--", str(self.job))
        command[command.index("--through") + 1] += " -o ConnectTimeout=1"
        done = subprocess.run(self.network.on_host(0, command), capture_output=True, text=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, 255, done.stderr)
        self.assertRegex(done.stderr, r"\[3 n4\] ssh: connect to host n4 ")
        # The ssh that failed is not this host's.
        self.assertRegex(done.stderr, r"penstock: node 3 \(.*n4\) exited with status 255 \(ssh on n3: "
                         r"ssh: connect to host n4 port \d+: .*\) before it joined")
        await_true(lambda: not self.left(), "the end of all processes")

    def test_other_launchers_have_no_tree(self):
        done = subprocess.run([PENSTOCK, "launch", "--launcher", "mpi", "-H", "n1,n2", "--through",
                               "/bin/true", "--fanout", "2", "--", str(self.job)],
                              capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--fanout goes with --launcher ssh alone, not with mpi", done.stderr)


if __name__ == "__main__":
    unittest.main()
