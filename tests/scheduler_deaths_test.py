"""What becomes of a job when something of it dies, under Slurm and mpirun: a node, a host that the network
no longer reaches, the program that has started a node, the coordinator, and the terminal of the job.
Whoever is left names the death, within 4 s where nothing else runs on the machine, and ends, so that
nothing stays behind on any host.

Slurm and mpirun start nodes for `launch`, or they start `launch` itself as *members*; see
member_deaths_test.py for members that others have started. Hosts are network namespaces. What the
system lacks is skipped: see why_not of tests/support. PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

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
from tests.support.deaths import SHARED_BOUND_S, command_of  # noqa: E402
from tests.support.launched_job import PATIENCE_S  # noqa: E402
from tests.support.ssh_server import await_true  # noqa: E402
from tests.support.two_hosts_deaths import MemberDeaths, TwoHostsDeathTest  # noqa: E402


class LaunchDeaths(MemberDeaths):
    """Of tests that have `launch`, too, which starts each node through the program STARTER."""

    bound_s = SHARED_BOUND_S

    def test_a_node(self):
        self.launch()
        self.check_kill(self.node(1), 1, "n2")

    def test_a_host(self):
        self.launch()
        self.check_host(left=self.LEFT_BY_A_CUT)

    def test_the_host_of_the_coordinator(self):
        self.launch()
        self.check_host(0, left=self.LEFT_BY_A_CUT)

    def test_the_program_that_has_started_a_node(self):
        self.launch()
        starters = self.starters(self.STARTER, "--rank 1 ")
        self.assertTrue(starters)
        begin = time.monotonic()
        for pid in starters:
            os.kill(pid, signal.SIGKILL)
        self.check_named(begin, r"penstock: node 1 .*was killed by signal 9 \(Killed\), which ended the "
                         "program on this host that had started the node")

    def test_the_coordinator(self):
        self.launch()
        self.check_coordinator()

    def start_in_terminal(self):
        """The job in a terminal of its own, once its steps are under way."""
        command, environment = self.launch_words()
        terminal = self.open_terminal(command, **environment)
        terminal.await_text(r"[0-9]+/1000000 ")
        return terminal

    def test_the_terminal(self):
        terminal = self.start_in_terminal()
        coordinator = self.processes("launch")[0]
        begin = time.monotonic()
        terminal.close()
        self.check_end_with_terminal(begin, coordinator)

    def check_end_with_terminal(self, begin, coordinator):
        for rank in (0, 1):
            self.check_log(begin, self.log(rank, rank),
                           rf"penstock: the coordinator \(pid {coordinator} on n1\) is gone")
        self.check_gone(begin, self.bound_s + 2)

    def test_an_interrupt_from_the_terminal_ends_the_job_in_order(self):
        terminal = self.start_in_terminal()
        terminal.type("\x03")  # Ctrl-C: the signal goes to all that run in the foreground
        terminal.await_text(r"penstock: interrupted \(Interrupt\) after step [0-9]+")
        self.assertEqual(terminal.await_end(), 128 + signal.SIGINT, terminal.text)
        self.assertNotIn("killed by signal", terminal.text)
        await_true(lambda: not self.left(), "the end of all processes")

    def check_coordinator(self, ignored=()):
        begin = time.monotonic()
        coordinator = self.processes("launch")[0]
        os.kill(coordinator, signal.SIGKILL)
        for rank in (0, 1):
            self.check_log(begin, self.log(rank, rank),
                           rf"penstock: the coordinator \(pid {coordinator} on n1\) is gone")
        self.check_gone(begin, self.bound_s + 2, ignored)


class SlurmDeathTest(LaunchDeaths, TwoHostsDeathTest):
    STARTER = "srun"
    # The user's own srun, or salloc, waits for a host that is cut off until SlurmdTimeout.
    LEFT_BY_A_CUT_OF_MEMBERS = ("srun", "salloc")

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
        """A host that was cut off holds its last job until Slurm has asked it again, which may take a
        minute. A host that is down has no jobs."""
        super().setUp()
        for state in (["state=down", "reason=test"], ["state=resume"]):
            subprocess.run(self.cluster.inside(["scontrol", "update", "nodename=n1,n2", *state]),
                           env=self.cluster.environment, check=False, timeout=PATIENCE_S)
        self.cluster.await_idle_nodes()

    def launch_words(self, *shell):
        return ["salloc", "-w", "n1,n2", *shell, *self.launch_command(
            "--remote-program", self.program), "--devices", "2"], self.cluster.environment

    def launch(self, *shell):
        command, environment = self.launch_words(*shell)
        self.start_on(0, command, **environment)

    def test_the_coordinator_that_is_all_that_salloc_runs(self):
        """Its death ends the allocation, and Slurm the nodes: they say what they have lost all the same."""
        self.launch()
        self.check_coordinator()

    def test_the_coordinator(self):
        """In a shell of salloc."""
        self.launch("sh", "-c", '"$@"; exec sleep 60', "sh")
        self.check_coordinator(ignored=("salloc", "sleep"))
        for pid in self.left():
            if command_of(pid).startswith("sleep "):
                os.kill(pid, signal.SIGTERM)
        self.run_.wait(PATIENCE_S)

    def launch_members(self):
        self.start_on(0, ["srun", "--mpi=pmix", "-w", "n1,n2", *self.launch_command()],
                      **self.cluster.environment)

    def test_a_member(self):
        self.launch_members()
        self.check_member(self.member("SLURM_PROCID", 1))

    def test_a_member_that_is_killed_with_its_node(self):
        self.launch_members()
        self.check_killed_member(self.member("SLURM_PROCID", 1))

    def test_the_terminal_of_the_program_that_has_started_all_members(self):
        """Slurm itself keeps the tasks of an srun that is killed, until their job is cancelled."""
        self.launch_members()
        begin = time.monotonic()
        for pid in self.starters(self.STARTER):
            os.kill(pid, signal.SIGHUP)
        self.check_gone(begin)

    def test_the_member_that_coordinates(self):
        self.launch_members()
        begin = time.monotonic()
        coordinator = self.member("SLURM_PROCID", 0)
        os.kill(coordinator, signal.SIGKILL)
        self.check_members_end(begin, coordinator)


class MpirunDeathTest(LaunchDeaths, TwoHostsDeathTest):
    STARTER = "orterun"
    # mpirun's daemons have no bound of their own on a connection between them that is cut: they wait
    # for TCP to give up, which takes minutes, with whoever has started them. `launch` and its agents end
    # those that it has started.
    LEFT_BY_A_CUT_OF_MEMBERS = ("orted", "ssh", "mpirun", "orterun")

    @classmethod
    def setUpClass(cls):
        if shutil.which("mpirun") is None:
            raise unittest.SkipTest("there is no mpirun (package openmpi-bin)")
        if reason := ssh_server.why_not():
            raise unittest.SkipTest(reason)
        super().setUpClass()
        cls.hosts.serve_ssh()

    def launch_words(self):
        mpirun = " ".join(f"'{word}'" for word in self.hosts.mpirun())
        return self.launch_command("-H", "n1,n2", "--launcher", "mpi", "--through", mpirun,
                                   "--remote-program", self.program), {}

    def launch(self):
        self.start_on(0, self.launch_words()[0])

    def launch_members(self):
        self.start_on(0, [*self.hosts.mpirun(), "-np", "2", "--host", "n1,n2", *self.launch_command()])

    # mpirun ends the members that are left, and says so, perhaps before they do.

    def test_a_member(self):
        self.launch_members()
        self.check_member(self.member("OMPI_COMM_WORLD_RANK", 1))

    def test_a_member_that_is_killed_with_its_node(self):
        """mpirun ends the other member before that can name the death, and names it itself."""
        self.launch_members()
        member = self.member("OMPI_COMM_WORLD_RANK", 1)
        begin = time.monotonic()
        os.kill(member, signal.SIGKILL)
        self.check_named(begin, rf"mpirun noticed that process rank 1 with PID {member} on node n2 exited on "
                         r"signal 9 \(Killed\)")

    def test_the_program_that_has_started_all_members(self):
        self.launch_members()
        begin = time.monotonic()
        for pid in self.starters(self.STARTER):
            os.kill(pid, signal.SIGKILL)
        self.check_gone(begin)

    def test_the_member_that_coordinates(self):
        self.launch_members()
        begin = time.monotonic()
        coordinator = self.member("OMPI_COMM_WORLD_RANK", 0)
        os.kill(coordinator, signal.SIGKILL)
        self.check_members_end(begin, coordinator)


if __name__ == "__main__":
    unittest.main()
