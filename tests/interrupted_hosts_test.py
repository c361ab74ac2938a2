"""What Ctrl-C, a second one and a time limit do to a launch that real programs are still starting: srun of a
Slurm cluster, mpirun, and ssh from host to host (--fanout). Whoever is missing is named, and nothing stays
behind on any host. interrupted_start_test.py has more cases, with programs of its own.

Hosts are network namespaces. Of a host that hangs, the program does nothing but end once nobody takes its output
any more, as an agent does, or its network is cut. What the system lacks is skipped: see why_not of tests/support.
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support import slurm, ssh_server  # noqa: E402
from tests.support.deaths import PENSTOCK, HostsDeathTest  # noqa: E402
from tests.support.launched_job import PATIENCE_S  # noqa: E402
from tests.support.ssh_server import await_true, processes_with  # noqa: E402

# Programs are asked to end, and killed three seconds later; what they have started on other hosts follows.
BOUND_S = 8
WHERE = "while the processes of the job were started"
HANGS = "import select; output = select.poll(); output.register(1, 0); output.poll()"


class InterruptedHosts:
    """Of tests that have `launch_words`, the command that launches a job on the hosts, of which HANGING hang."""

    HOSTS = ("n1", "n2")
    HANGING = ("n2",)
    MISSING = r"n2 \(rank 1\)"

    def setUp(self):
        super().setUp()
        self.on_host = self.folder / "on_host"
        # An agent starts others under the name with which it was started itself.
        self.on_host.write_text(f"""#!/bin/bash
case $(hostname) in
{"|".join(self.HANGING)}) exec python3 -c "{HANGS}" {self.folder.name}-hangs ;;
*) exec -a {self.on_host} {PENSTOCK} "$@" ;;
esac
""")
        self.on_host.chmod(0o755)

    def begin(self, *options):
        """Starts a launch, which waits for the hosts that hang."""
        command, environment = self.launch_words(
            "--remote-program", self.on_host, "--log-dir", self.logs, *options)
        self.begin_program(self.network.on_host(0, [*command, "--", self.job]), **environment)
        await_true(lambda: self.has_hung() or self.run_.poll() is not None, "the hosts hang")
        self.assertIsNone(self.run_.poll(), self.output.text())
        self.begin_s = time.monotonic()

    def has_hung(self):
        """The others have joined by then."""
        if self.output.text().count("joined: rank ") < len(self.HOSTS) - self.num_missing():
            return False
        return self.is_cut or bool(processes_with(f"{self.folder.name}-hangs"))

    is_cut = False

    def num_missing(self):
        return len(self.HANGING)

    def interrupt(self):
        """The process that was interrupted."""
        launch, = self.processes("launch")
        os.kill(launch, signal.SIGINT)
        return launch

    def check_end(self, status, pattern, bound_s=BOUND_S):
        self.assertEqual(self.run_.wait(PATIENCE_S), status, self.output.text())
        self.output.thread.join(PATIENCE_S)
        self.assertRegex(self.output.text(), pattern)
        self.check_gone(self.begin_s, bound_s)

    def check_interrupt(self):
        self.interrupt()
        self.check_end(130, rf"penstock: interrupted \(Interrupt\) {WHERE}; missing: {self.MISSING}\n")

    def test_an_interrupt(self):
        self.begin()
        self.check_interrupt()

    def test_a_second_interrupt(self):
        self.begin()
        launch = self.interrupt()
        await_true(lambda: self.output.time_of("again: at once"), "the first one")
        with contextlib.suppress(ProcessLookupError):  # on a loaded machine, the first one has ended it
            os.kill(launch, signal.SIGINT)
        self.check_end(130, r"penstock: interrupted \(Interrupt\)")

    def test_a_time_limit(self):
        limit_s = 10  # from the start of the launch
        self.begin("--timeout", f"{limit_s}s")
        self.check_end(124, rf"penstock: ended at its time limit of {limit_s}s {WHERE}; missing: {self.MISSING}\n",
                       limit_s + BOUND_S)

    def test_an_interrupt_while_a_host_is_cut_off(self):
        self.is_cut = True
        for host in self.HANGING:
            self.cut(int(host[1:]) - 1)
        self.begin()
        self.check_interrupt()


class InterruptedTreeTest(InterruptedHosts, HostsDeathTest):
    """Each host starts the next one; n3 hangs before it has started n4."""

    strategy = "dp=4"
    HOSTS = ("n1", "n2", "n3", "n4")
    HANGING = ("n3",)
    MISSING = r"n3 \(rank 2\) and n4 \(rank 3\)"

    def num_missing(self):
        return 2

    @classmethod
    def setUpClass(cls):
        if reason := ssh_server.why_not():
            raise unittest.SkipTest(reason)
        super().setUpClass()
        cls.hosts.serve_ssh()

    def launch_words(self, *options):
        return [self.program, "launch", "-H", ",".join(self.HOSTS), "--fanout", "1", "--through",
                self.hosts.ssh(), *options], {}


class InterruptedSlurmTest(InterruptedHosts, HostsDeathTest):
    @classmethod
    def setUpClass(cls):
        if reason := slurm.why_not():
            raise unittest.SkipTest(reason)
        super().setUpClass()
        folder = cls.hosts.folder / "slurm"
        folder.mkdir()
        cls.cluster = slurm.SlurmCluster(folder, cls.network)
        cls.addClassCleanup(cls.cluster.close)

    def setUp(self):
        super().setUp()
        for state in (["state=down", "reason=test"], ["state=resume"]):
            subprocess.run(self.cluster.inside(["scontrol", "update", "nodename=n1,n2", *state]),
                           env=self.cluster.environment, check=False, timeout=PATIENCE_S)
        self.cluster.await_idle_nodes()

    def launch_words(self, *options):
        return (["salloc", "-w", ",".join(self.HOSTS), self.program, "launch", *options],
                self.cluster.environment)


class InterruptedMpirunTest(InterruptedHosts, HostsDeathTest):
    @classmethod
    def setUpClass(cls):
        if shutil.which("mpirun") is None:
            raise unittest.SkipTest("there is no mpirun (package openmpi-bin)")
        if reason := ssh_server.why_not():
            raise unittest.SkipTest(reason)
        super().setUpClass()
        cls.hosts.serve_ssh()

    def launch_words(self, *options):
        mpirun = " ".join(f"'{word}'" for word in self.hosts.mpirun())
        return [self.program, "launch", "-H", ",".join(self.HOSTS), "--launcher", "mpi", "--through", mpirun,
                *options], {}


if __name__ == "__main__":
    unittest.main()
