"""A real etcd server for tests."""

import shutil
import subprocess

from tests.support.launched_job import free_ports


def why_not():
    """Why there cannot be a server here; empty: there can."""
    return "" if shutil.which("etcd") else "there is no etcd (package etcd-server)"


class Etcd:
    """A server that keeps what it knows over a restart, on loopback or on the first host of a network
    (network.py)."""

    def __init__(self, folder, network=None):
        self.folder = folder
        self.network = network
        self.host = "127.0.0.1" if network is None else network.address(0)
        self.client, self.peer = free_ports(2)
        self.process = None

    def start(self):
        client, peer = (f"http://{self.host}:{port}" for port in (self.client, self.peer))
        command = ["etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", client,
                   "--advertise-client-urls", client, "--listen-peer-urls", peer,
                   "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        with open(self.folder / "etcd.log", "ab") as log:
            self.process = subprocess.Popen(
                command if self.network is None else self.network.on_host(0, command),
                stdout=log, stderr=log)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def url(self, name):
        return f"http://{self.host}:{self.client}/{name}"
