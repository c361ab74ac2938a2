"""What the tests of deaths share whose jobs have a node on each of two hosts, of which the first one
coordinates."""

import os
import pathlib
import signal
import time

from tests.support.deaths import HostsDeathTest
from tests.support.launched_job import parent_of
from tests.support.ssh_server import await_true

SILENCE = r"penstock: node 1 \(pid \d+ on n2\) has not answered for 3\.3s"


class TwoHostsDeathTest(HostsDeathTest):
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
        self.assertLess(self.output.time_of(SILENCE) - begin, self.bound_s, self.output.text())
        self.check_gone(begin, ignored=left)

    def check_members_end(self, begin, coordinator):
        """Rank 1 names the coordinator that it has lost, and ends."""
        self.check_log(begin, self.log(1, 1),
                       rf"penstock: the coordinator \(pid {coordinator} on n1\) is gone")
        self.check_gone(begin, self.bound_s + 1)


class MemberDeaths:
    """Of tests that have `launch_members`."""

    def test_the_host_of_a_member(self):
        self.launch_members()
        self.check_host(left=self.LEFT_BY_A_CUT_OF_MEMBERS)

    def test_the_host_of_the_member_that_coordinates(self):
        self.launch_members()
        self.check_host(0, left=self.LEFT_BY_A_CUT_OF_MEMBERS)
