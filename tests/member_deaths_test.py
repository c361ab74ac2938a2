"""What becomes of a job of members when something of it dies that nobody has started together: they find
each other through etcd, or by the variables of torchrun or of a Kubernetes job. A node, a member, a host
that the network no longer reaches, and the member that coordinates: whoever is left names the death
within 4 s and ends, so that nothing stays behind on any host.

Hosts are network namespaces. What the system lacks is skipped: see why_not of tests/support.
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support import etcd  # noqa: E402
from tests.support.launched_job import PATIENCE_S, free_port  # noqa: E402
from tests.support.two_hosts_deaths import MemberDeaths, TwoHostsDeathTest  # noqa: E402


class StartedMemberDeaths(MemberDeaths):
    """The test plays the part of what starts a member on each host: `environment_of` has its variables, of
    which RANK names the one with its rank, and `member_options` its options."""

    RANK = "RANK"

    def member_options(self):
        return ()

    def launch_members(self):
        key = self.folder / "key"
        key.write_text(secrets.token_hex(32) + "\n")
        key.chmod(0o600)
        self.port = free_port()
        command = self.launch_command(*self.member_options(), "--key-file", key)
        with open(self.folder / "other", "wb") as output:
            other = subprocess.Popen(
                self.network.on_host(1, command), stdout=output, stderr=output,
                env={**os.environ, **self.environment_of(1)})

        def close():
            other.kill()
            other.wait(PATIENCE_S)
        self.addCleanup(close)
        # Reaps it when it ends, as its user would.
        self.start_on(0, command, **self.environment_of(0))
        return other

    def test_a_member(self):
        self.launch_members()
        self.check_member(self.member(self.RANK, 1))
        self.assertEqual(self.run_.returncode, 128 + signal.SIGKILL)

    def test_a_member_that_is_killed_with_its_node(self):
        self.launch_members()
        self.check_killed_member(self.member(self.RANK, 1))
        self.assertEqual(self.run_.returncode, 1)

    def test_the_member_that_coordinates(self):
        self.launch_members()
        begin = time.monotonic()
        self.run_.kill()
        self.run_.wait()
        self.check_members_end(begin, self.run_.pid)


class EtcdDeathTest(StartedMemberDeaths, TwoHostsDeathTest):
    @classmethod
    def setUpClass(cls):
        if reason := etcd.why_not():
            raise unittest.SkipTest(reason)
        super().setUpClass()
        cls.server = etcd.Etcd(cls.hosts.folder, cls.network)
        cls.addClassCleanup(cls.server.kill)
        cls.server.start()

    def member_options(self):
        return ("--rendezvous", self.server.url(self.folder.name))

    def environment_of(self, rank):
        return {"RANK": str(rank), "WORLD_SIZE": "2"}


class TorchrunDeathTest(StartedMemberDeaths, TwoHostsDeathTest):
    def environment_of(self, rank):
        return {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "n1",
                "MASTER_PORT": str(self.port)}


class KubernetesDeathTest(StartedMemberDeaths, TwoHostsDeathTest):
    RANK = "JOB_COMPLETION_INDEX"

    def member_options(self):
        return ("--members", "2", "--coordinator", f"n1:{self.port}")

    def environment_of(self, rank):
        return {"JOB_COMPLETION_INDEX": str(rank)}


if __name__ == "__main__":
    unittest.main()
