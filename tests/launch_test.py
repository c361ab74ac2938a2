"""`penstock launch` through a real SSH server on loopback.

Runs sshd, or dropbear where sshd is not installed, as this user, with keys of its own. Skipped
without an SSH server and client. Dropbear reads the keys from the home of the user, so it has a
mount namespace with a home of its own, which only root can make.
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import os
import pathlib
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support.launched_job import (PATIENCE_S, STEPS, free_port, job_text,  # noqa: E402
                                        losses, losses_here)

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


class SshServer:
    """A server for this user alone."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "client"],
                       check=True)
        (folder / "authorized_keys").write_bytes((folder / "client.pub").read_bytes())
        (folder / "authorized_keys").chmod(0o600)
        folder.chmod(0o700)
        sshd = shutil.which("sshd", path=PATH)
        if sshd is None:
            subprocess.run([shutil.which("dropbearkey", path=PATH), "-t", "ed25519", "-f",
                            folder / "host"], check=True, capture_output=True)
            home = pathlib.Path(pwd.getpwuid(os.getuid()).pw_dir) / ".ssh"
            home.mkdir(mode=0o700, exist_ok=True)
            server = shlex.join([shutil.which("dropbear", path=PATH), "-F", "-E", "-s", "-p",
                                 f"127.0.0.1:{self.port}", "-r", f"{folder}/host", "-P",
                                 f"{folder}/pid"])
            command = ["unshare", "--mount", "sh", "-c",
                       shlex.join(["mount", "--bind", str(folder), str(home)]) +
                       f" && exec {server}"]
        else:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "host"],
                           check=True)
            (folder / "config").write_text(
                f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\n"
                f"AuthorizedKeysFile {folder}/authorized_keys\nPidFile {folder}/pid\n"
                "StrictModes no\nUsePAM no\nMaxStartups 100\n")
            if os.getuid() == 0:
                pathlib.Path("/run/sshd").mkdir(exist_ok=True)
            command = [sshd, "-D", "-e", "-f", folder / "config"]
        self.log = open(folder / "log", "w+b")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        await_true(self.answers, "the SSH server listens")

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the SSH server has ended: {(self.folder / 'log').read_text()}")
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def client(self):
        return (f"ssh -p {self.port} -i {self.folder}/client -F /dev/null "
                f"-o UserKnownHostsFile={self.folder}/known -o StrictHostKeyChecking=no "
                "-o LogLevel=ERROR -o IdentitiesOnly=yes")

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


class LaunchTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        if not shutil.which("ssh") or not shutil.which("ssh-keygen"):
            self.skipTest("there is no ssh (package openssh-client)")
        if not shutil.which("sshd", path=PATH):
            if not shutil.which("dropbear", path=PATH):
                self.skipTest("there is no SSH server (package dropbear-bin or openssh-server)")
            if subprocess.run(["unshare", "--mount", "true"], capture_output=True,
                              check=False).returncode != 0:
                self.skipTest("a home for dropbear needs root")
        folder = tempfile.TemporaryDirectory(prefix="penstock_launch.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.job = self.folder / "job.toml"
        self.job.write_text(job_text("dp=2"))
        self.server = SshServer(self.folder)
        self.addCleanup(self.server.close)
        # Tells the processes of this test from others.
        self.mark = f"penstock-of-{self.folder.name}"
        self.program = self.folder / self.mark
        self.program.symlink_to(PENSTOCK)
        self.addCleanup(self.end_all)

    def end_all(self):
        for pid in processes_with(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def launch(self, *run, hosts="127.0.0.1:2"):
        return [str(PENSTOCK), "launch", "-H", hosts, "--through", self.server.client(),
                "--remote-program", str(self.program), "--", str(self.job), *run]

    def node_programs(self):
        """The nodes themselves, without the shells and clients that mention them."""
        found = []
        for pid in processes_with(f"{self.mark} node"):
            try:
                if os.path.samefile(f"/proc/{pid}/exe", PENSTOCK):
                    found.append(pid)
            except OSError:
                pass
        return found

    def test_a_launched_job_has_the_losses_of_a_local_one(self):
        there = subprocess.run(self.launch("--json"), capture_output=True, text=True, timeout=120,
                               check=False)
        self.assertEqual(there.returncode, 0, there.stderr)
        self.assertEqual(len(losses(there.stdout)), STEPS)
        self.assertEqual(losses(there.stdout), losses_here(PENSTOCK, self.job))
        self.assertRegex(there.stderr, r"launch: 2 processes on 1 host through \S*/ssh\n")
        self.assertEqual(there.stderr.count("joined: rank "), 2)
        await_true(lambda: not self.node_programs(), "the end of the nodes")

    def start_long(self):
        run = subprocess.Popen(self.launch("--set", "train.steps=1000000"),
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(run.stderr.close)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        for line in run.stderr:
            if line.startswith("joined: rank ") and len(self.node_programs()) == 2:
                break
        return run

    def test_the_key_is_in_no_command_line(self):
        self.start_long()
        for pid in processes_with(self.mark):
            try:
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            self.assertIsNone(re.search(rb"[0-9a-fA-F]{64}", command), command)

    def test_a_killed_node_is_named_with_its_signal(self):
        run = self.start_long()
        os.kill(self.node_programs()[0], signal.SIGKILL)
        _, errors = run.communicate(timeout=PATIENCE_S)
        self.assertEqual(run.returncode, 128 + signal.SIGKILL, errors)
        self.assertRegex(errors, r"penstock: node \d .*was killed by signal 9 \(Killed\)")
        await_true(lambda: not self.node_programs(), "the end of the nodes")

    def test_no_node_outlives_its_launcher(self):
        run = self.start_long()
        run.kill()
        await_true(lambda: not self.node_programs(), "the end of the nodes")

    def test_one_interrupt_ends_all_in_order(self):
        run = self.start_long()
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=PATIENCE_S)
        self.assertEqual(run.returncode, 130, errors)
        await_true(lambda: not self.node_programs(), "the end of the nodes")

    def test_a_host_without_a_server_is_named(self):
        port = free_port()
        command = self.launch()
        command[command.index("--through") + 1] = self.server.client().replace(
            f"-p {self.server.port}", f"-p {port}")
        failed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        self.assertNotEqual(failed.returncode, 0)
        self.assertRegex(failed.stderr, rf"127\.0\.0\.1\] ssh: connect to .* port {port}: "
                                        "Connection refused")
        self.assertRegex(failed.stderr, r"penstock: node \d .*127\.0\.0\.1.* exited with status "
                                        "255 before it joined")

    def test_a_missing_program_is_named(self):
        self.program.unlink()
        failed = subprocess.run(self.launch(), capture_output=True, text=True, timeout=120,
                                check=False)
        self.assertEqual(failed.returncode, 127, failed.stderr)
        self.assertIn(f"{self.program}: not found", failed.stderr)


if __name__ == "__main__":
    unittest.main()
