"""A real etcd server for tests."""

import base64
import json
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request

from tests.support.launched_job import PATIENCE_S, free_ports


def why_not():
    """Why there cannot be a server here; empty: there can."""
    return "" if shutil.which("etcd") else "there is no etcd (package etcd-server)"


def make_certificates(folder):
    """An authority (ca.pem), and what it has signed for a server on loopback and for a client. They have
    no common name: the gateway of etcd refuses to let users in where the server's certificate has one."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True,
                       timeout=PATIENCE_S)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    for name in ("server", "client"):
        # The gateway of etcd shows the server's certificate as that of a client.
        (folder / f"{name}.ext").write_text(
            "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/O={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext")


class Etcd:
    """A server that keeps what it knows over a restart, on loopback or on the first host of a network
    (network.py). `is_secure`: it serves https with the certificates of make_certificates(folder), and
    asks for those of clients."""

    def __init__(self, folder, network=None, is_secure=False):
        self.folder = folder
        self.network = network
        self.host = "127.0.0.1" if network is None else network.address(0)
        self.client, self.peer = free_ports(2)
        self.scheme = "https" if is_secure else "http"
        self.process = None

    def start(self):
        client = f"{self.scheme}://{self.host}:{self.client}"
        peer = f"http://{self.host}:{self.peer}"
        command = ["etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", client,
                   "--advertise-client-urls", client, "--listen-peer-urls", peer,
                   "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        if self.scheme == "https":
            command += ["--cert-file", self.folder / "server.pem", "--key-file",
                        self.folder / "server.key", "--client-cert-auth", "--trusted-ca-file",
                        self.folder / "ca.pem"]
        with open(self.folder / "etcd.log", "ab") as log:
            self.process = subprocess.Popen(
                command if self.network is None else self.network.on_host(0, command),
                stdout=log, stderr=log)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def url(self, name):
        return f"{self.scheme}://{self.host}:{self.client}/{name}"

    def call(self, path, body, token=""):
        """The answer of the server, once it answers."""
        headers = {"Authorization": token} if token else {}
        context = None
        if self.scheme == "https":
            context = ssl.create_default_context(cafile=self.folder / "ca.pem")
            context.load_cert_chain(self.folder / "client.pem", self.folder / "client.key")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                request = urllib.request.Request(self.url(path), json.dumps(body).encode(), headers)
                with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError:
                raise
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def demand_users(self, name, password):
        """Lets nobody in from now on but root and a user who may do everything below penstock/."""
        self.call("v3/auth/user/add", {"name": "root", "password": "of-root"})
        self.call("v3/auth/user/add", {"name": name, "password": password})
        self.call("v3/auth/role/add", {"name": "jobs"})
        begin, end = (base64.b64encode(key).decode() for key in (b"penstock/", b"penstock0"))
        self.call("v3/auth/role/grant", {"name": "jobs", "perm": {
            "permType": "READWRITE", "key": begin, "range_end": end}})
        self.call("v3/auth/role/add", {"name": "root"})
        self.call("v3/auth/user/grant", {"user": "root", "role": "root"})
        self.call("v3/auth/user/grant", {"user": name, "role": "jobs"})
        self.call("v3/auth/enable", {})
