"""What becomes of a job when something of it dies, under Slurm, mpirun and etcd: a node, a host that the
network no longer reaches, the program that has started a node, and the coordinator. Whoever is left
names the death within 4 s and ends, so that nothing stays behind on any host.

Slurm and mpirun start nodes for `launch`, or they start `launch` itself as *members*, as others do whom
etcd lets find each other. Hosts are network namespaces. What the system lacks is skipped: see why_not
of tests/support. PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support import etcd, slurm, ssh_server  # noqa: E402
from tests.support.deaths import BOUND_S, HostsDeathTest, command_of  # noqa: E402
from tests.support.launched_job import PATIENCE_S, parent_of  # noqa: E402
from tests.support.ssh_server import await_true  # noqa: E402

SILENCE = r"penstock: node 1 \(pid \d+ on n2\) has not answered for 3\.3s"


class SchedulerDeathTest(HostsDeathTest):
    """Host 0 coordinates and has the node of rank 0, host 1 that of rank 1."""

    def variable_is(self, pid, name, value):
        try:
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return f"{name}={value}".encode() in environment

    def member(self, name, rank):
        """The process of the program in whose environment a variable has this rank."""
        found = [pid for pid in self.processes("launch") if self.variable_is(pid, name, rank)]
        return next(pid for pid in found if parent_of(pid) not in found)

    def check_member(self, member):
        """The node of a member dies, and the member tells how."""
        begin = time.monotonic()
        victim, = (pid for pid in self.processes("launch") if parent_of(pid) == member)
        os.kill(victim, signal.SIGKILL)
        self.check_named(begin, rf"penstock: node 1 \(pid {victim} on n2\) was killed by signal 9 "
                         r"\(Killed\) in step \d+")

    def check_killed_member(self, member):
        """Nobody is left who knows how the node has died."""
        begin = time.monotonic()
        victim, = (pid for pid in self.processes("launch") if parent_of(pid) == member)
        os.kill(member, signal.SIGKILL)
        self.check_named(begin, rf"penstock: node 1 \(pid {victim} on n2\) has closed its connection")

    # Of programs that `launch` has started, and of those that have started `launch`.
    LEFT_BY_A_CUT = ()
    LEFT_BY_A_CUT_OF_MEMBERS = ()

    def check_host(self, victim=1, left=()):
        """Without its network, a host is named, and so is the coordinator there."""
        begin = time.monotonic()
        self.cut(victim)
        self.check_silences(begin, left)

    def check_silences(self, begin, left):
        """Rank 0, which coordinates or runs beside the coordinator, and rank 1 are cut off from each
        other: each side names the other one and ends."""
        self.check_log(begin, self.log(1, 1),
                       r"penstock: the coordinator \(pid \d+ on n1\) has gone silent")
        await_true(lambda: self.output.time_of(SILENCE), "the name of the death")
        self.assertLess(self.output.time_of(SILENCE) - begin, BOUND_S, self.output.text())
        self.check_gone(begin, ignored=left)

    def check_members_end(self, begin, coordinator):
        """Rank 1 names the coordinator that it has lost, and ends."""
        self.check_log(begin, self.log(1, 1),
                       rf"penstock: the coordinator \(pid {coordinator} on n1\) is gone")
        self.check_gone(begin, BOUND_S + 1)


class MemberDeaths:
    """Of tests that have `launch_members`."""

    def test_the_host_of_a_member(self):
        self.launch_members()
        self.check_host(left=self.LEFT_BY_A_CUT_OF_MEMBERS)

    def test_the_host_of_the_member_that_coordinates(self):
        self.launch_members()
        self.check_host(0, left=self.LEFT_BY_A_CUT_OF_MEMBERS)


class LaunchDeaths(MemberDeaths):
    """Of tests that have `launch`, too, which starts each node through the program STARTER."""

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

    def check_coordinator(self, ignored=()):
        begin = time.monotonic()
        coordinator = self.processes("launch")[0]
        os.kill(coordinator, signal.SIGKILL)
        for rank in (0, 1):
            self.check_log(begin, self.log(rank, rank),
                           rf"penstock: the coordinator \(pid {coordinator} on n1\) is gone")
        self.check_gone(begin, BOUND_S + 2, ignored)


class SlurmDeathTest(LaunchDeaths, SchedulerDeathTest):
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

    def launch(self, *shell):
        self.start_on(0, ["salloc", "-w", "n1,n2", *shell, *self.launch_command(
            "--remote-program", self.program), "--devices", "2"], **self.cluster.environment)

    def test_the_coordinator(self):
        """In a shell of salloc. Where `launch` is all that salloc runs, Slurm kills the nodes as soon as
        it is dead, whatever they have to say."""
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


class MpirunDeathTest(LaunchDeaths, SchedulerDeathTest):
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

    def launch(self):
        mpirun = " ".join(f"'{word}'" for word in self.hosts.mpirun())
        self.start_on(0, self.launch_command("-H", "n1,n2", "--launcher", "mpi", "--through", mpirun,
                                             "--remote-program", self.program))

    def launch_members(self):
        self.start_on(0, [*self.hosts.mpirun(), "-np", "2", "--host", "n1,n2", *self.launch_command()])

    # mpirun ends the members that are left, and says so, perhaps before they do.

    def test_a_member(self):
        self.launch_members()
        self.check_member(self.member("OMPI_COMM_WORLD_RANK", 1))

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


class EtcdDeathTest(MemberDeaths, SchedulerDeathTest):
    """Nobody has started the members together: the test plays the part of two users."""

    @classmethod
    def setUpClass(cls):
        if reason := etcd.why_not():
            raise unittest.SkipTest(reason)
        super().setUpClass()
        cls.server = etcd.Etcd(cls.hosts.folder, cls.network)
        cls.addClassCleanup(cls.server.kill)
        cls.server.start()

    def launch_members(self):
        key = self.folder / "key"
        key.write_text(secrets.token_hex(32) + "\n")
        key.chmod(0o600)
        command = self.launch_command("--rendezvous", self.server.url(self.folder.name), "--key-file",
                                      key)
        with open(self.folder / "other", "wb") as output:
            other = subprocess.Popen(
                self.network.on_host(1, command), stdout=output, stderr=output,
                env={**os.environ, "RANK": "1", "WORLD_SIZE": "2"})

        def close():
            other.kill()
            other.wait(PATIENCE_S)
        self.addCleanup(close)
        # Reaps it when it ends, as its user would.
        self.start_on(0, command, RANK="0", WORLD_SIZE="2")
        return other

    def test_a_member(self):
        self.launch_members()
        self.check_member(self.member("RANK", 1))
        self.assertEqual(self.run_.returncode, 128 + signal.SIGKILL)

    def test_a_member_that_is_killed_with_its_node(self):
        self.launch_members()
        self.check_killed_member(self.member("RANK", 1))
        self.assertEqual(self.run_.returncode, 1)

    def test_the_member_that_coordinates(self):
        self.launch_members()
        begin = time.monotonic()
        self.run_.kill()
        self.run_.wait()
        self.check_members_end(begin, self.run_.pid)


if __name__ == "__main__":
    unittest.main()
