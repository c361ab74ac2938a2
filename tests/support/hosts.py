"""Four hosts on one machine for tests of launchers: network namespaces with names, n1 to n4, and with
what a launcher needs there.

Needs root and the package iproute2.
"""

import os
import pathlib
import shutil
import subprocess
import unittest

from tests.support import ssh_server
from tests.support.network import Network

NUM_HOSTS = 4
SSH_PORT = 2222


def why_not():
    """Why there cannot be such hosts here, as far as can be told without making them; empty: there
    can."""
    missing = [name for name in ("ip", "tc", "unshare") if not shutil.which(name)]
    if missing:
        return f"there is no {', '.join(missing)} (packages iproute2 and util-linux)"
    return "" if os.geteuid() == 0 else "hosts of network namespaces need root"


class Hosts:
    """`penstock`, the command, runs on them as `program`, a file whose path has the folder's name in
    it: so processes of one test are told from others."""

    def __init__(self, folder, penstock):
        self.folder = pathlib.Path(folder)
        self.folder.chmod(0o755)
        self.program = self.folder / f"penstock-of-{self.folder.name}"
        self.program.write_text(f"#!/bin/bash\nexec -a {self.program} {penstock} \"$@\"\n")
        self.program.chmod(0o755)
        self.network = Network(NUM_HOSTS, "1gbit").__enter__()
        self.servers = []
        try:
            self.network.tell_names()
        except OSError:
            self.network.close()
            raise

    def names(self, count=NUM_HOSTS):
        return [self.network.host_name(index) for index in range(count)]

    def serve_ssh(self):
        """Starts a server on each host, once; they let in the same client."""
        for index in range(len(self.servers), NUM_HOSTS):
            folder = self.folder / self.network.host_name(index)
            folder.mkdir(exist_ok=True)
            for name in ("client", "client.pub") if index > 0 else ():
                shutil.copy(self.servers[0].folder / name, folder)
            self.servers.append(ssh_server.SshServer(
                folder, self.network.address(index), SSH_PORT,
                lambda command, index=index: self.network.on_host(index, command)))

    def ssh(self):
        """The command of a client that they let in."""
        self.serve_ssh()
        return self.servers[0].client()

    def mpirun(self):
        """The command of an mpirun that reaches all hosts. What it leaves where it is killed, with the key
        of a job, goes with the folder."""
        return ["mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", self.ssh(), "--mca",
                "orte_tmpdir_base", str(self.folder)]

    def close(self):
        for server in self.servers:
            server.close()
        self.network.close()


def join(folder, penstock, add_cleanup):
    """Hosts that go with a test; it is skipped where there cannot be any."""
    if reason := why_not():
        raise unittest.SkipTest(reason)
    try:
        hosts = Hosts(folder, penstock)
    except subprocess.CalledProcessError as error:
        raise unittest.SkipTest(
            f"network namespaces are not allowed here: {error.stderr.strip()}") from error
    add_cleanup(hosts.close)
    return hosts
