"""A real SSH server for tests: sshd, or dropbear where sshd is not installed, as this user, with keys of
its own.

Dropbear reads the keys from the home of the user, so it has a mount namespace with a home of its own,
which only root can make.
"""

import contextlib
import os
import pathlib
import pwd
import shlex
import shutil
import subprocess
import sys
import time

from tests.support.launched_job import PATIENCE_S, free_port

PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def await_true(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {PATIENCE_S} s")
        time.sleep(0.02)


def processes_with(text):
    """Ids of processes whose command line has a text in it."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if text in (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode():
                found.append(int(entry.name))
        except (OSError, UnicodeDecodeError):
            pass
    return found


def texts_of_processes(text):
    """The command lines and environments of the processes whose command line has a text in it."""
    found = []
    for pid in processes_with(text):
        for file in ("cmdline", "environ"):
            with contextlib.suppress(OSError):  # it has ended
                found.append(pathlib.Path(f"/proc/{pid}/{file}").read_bytes())
    return found


def why_not():
    """Why there cannot be a server here; empty: there can."""
    if not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        return "there is no ssh (package openssh-client)"
    if not shutil.which("sshd", path=PATH):
        if not shutil.which("dropbear", path=PATH):
            return "there is no SSH server (package dropbear-bin or openssh-server)"
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True,
                          check=False).returncode != 0:
            return "a home for dropbear needs root"
    return ""


def which():
    """The server that tests run, and why."""
    if shutil.which("sshd", path=PATH):
        return "sshd of OpenSSH"
    return "dropbear, as there is no sshd (package openssh-server)"


class SshServer:
    """A server for this user alone, at a free port of loopback; or at `address` and `port`, where
    `inside` gives the command that runs another one on that host. It lets in who has the key
    `client` of the folder, which it makes unless it is there. `options`: of sshd, before those that it
    has anyway: its first value of an option counts."""

    has_said = False  # which server it is

    def __init__(self, folder, address="127.0.0.1", port=None, inside=lambda command: command,
                 options=""):
        self.folder = folder
        self.address = address
        self.port = port or free_port()
        self.inside = inside
        if not (folder / "client").exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "client"],
                           check=True)
        (folder / "authorized_keys").write_bytes((folder / "client.pub").read_bytes())
        (folder / "authorized_keys").chmod(0o600)
        folder.chmod(0o700)
        if not SshServer.has_said:
            print(f"the SSH server of these tests: {which()}", file=sys.stderr, flush=True)
            SshServer.has_said = True
        sshd = shutil.which("sshd", path=PATH)
        if sshd is None:
            subprocess.run([shutil.which("dropbearkey", path=PATH), "-t", "ed25519", "-f",
                            folder / "host"], check=True, capture_output=True)
            home = pathlib.Path(pwd.getpwuid(os.getuid()).pw_dir) / ".ssh"
            home.mkdir(mode=0o700, exist_ok=True)
            server = shlex.join([shutil.which("dropbear", path=PATH), "-F", "-E", "-s", "-p",
                                 f"{self.address}:{self.port}", "-r", f"{folder}/host", "-P",
                                 f"{folder}/pid"])
            command = ["unshare", "--mount", "sh", "-c",
                       shlex.join(["mount", "--bind", str(folder), str(home)]) +
                       f" && exec {server}"]
        else:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "host"],
                           check=True)
            (folder / "config").write_text(
                f"Port {self.port}\nListenAddress {self.address}\nHostKey {folder}/host\n"
                f"AuthorizedKeysFile {folder}/authorized_keys\nPidFile {folder}/pid\n"
                f"StrictModes no\nUsePAM no\n{options}MaxStartups 100\n")
            if os.getuid() == 0:
                pathlib.Path("/run/sshd").mkdir(exist_ok=True)
            command = [sshd, "-D", "-e", "-f", folder / "config"]
        self.log = open(folder / "log", "w+b")
        self.process = subprocess.Popen(inside(command), stdout=self.log, stderr=self.log)
        await_true(self.answers, "the SSH server listens")

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the SSH server has ended: {(self.folder / 'log').read_text()}")
        connect = f"import socket; socket.create_connection(('{self.address}', {self.port}), 1).close()"
        return subprocess.run(self.inside(["python3", "-c", connect]), capture_output=True,
                              check=False).returncode == 0

    def client(self):
        return (f"ssh -p {self.port} -i {self.folder}/client -F /dev/null "
                f"-o UserKnownHostsFile={self.folder}/known -o StrictHostKeyChecking=no "
                "-o LogLevel=ERROR -o IdentitiesOnly=yes")

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
