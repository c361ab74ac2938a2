"""What the tests of deaths share: a job that runs until something of it dies."""

import contextlib
import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import tempfile
import termios
import threading
import time
import unittest

from tests.support import hosts
from tests.support.launched_job import PATIENCE_S, job_text
from tests.support.ssh_server import await_true, processes_with

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
# Within which users are promised the name of a death. Tests that hold to it run with nothing beside them
# (RUN_SERIAL): elsewhere whoever is to notice a silence, which alone lasts 3.5 s, may wait for a core
# meanwhile.
BOUND_S = 4
# Of tests that share a machine with others; PENSTOCK_ALONE in the environment says that nothing else runs.
SHARED_BOUND_S = BOUND_S if "PENSTOCK_ALONE" in os.environ else 6
# In the environment of whatever a test starts, and of what that starts in turn.
MARK = "PENSTOCK_DEATH_TEST"
# What serves a host, whoever runs a job there. They look after their own connections.
SERVICES = ("sshd", "dropbear", "munged", "slurmctld", "slurmd", "slurmstepd", "etcd")


def is_of_service(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith(SERVICES)
    except OSError:
        return True  # it has ended


def marked_processes(mark):
    """Those in whose environment a test has put its mark."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


class Terminal:
    """A terminal of its own in which a command runs, as in the window of a user."""

    def __init__(self, command, environment):
        self.end, its_end = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=its_end, stdout=its_end, stderr=its_end, start_new_session=True,
            env={**os.environ, **environment},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(its_end)
        self.text = ""

    def await_text(self, pattern):
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.text):
            if not select.select([self.end], [], [], deadline - time.monotonic())[0]:
                raise AssertionError(f"{pattern}: not within {PATIENCE_S} s\n{self.text[-4000:]}")
            self.text += os.read(self.end, 1 << 16).decode()

    def await_end(self):
        """The exit status of the command; what it prints until then is read."""
        with contextlib.suppress(OSError):  # nobody is at the other end any more
            self.await_text("(?!)")
        return self.process.wait(PATIENCE_S)

    def type(self, text):
        os.write(self.end, text.encode())

    def close(self):
        """As when its window is closed, or the connection to it lost."""
        if self.end >= 0:
            os.close(self.end)
        self.end = -1


class Output:
    """The lines that a process prints to its standard error, with the times at which they came."""

    def __init__(self, stream):
        self.stream = stream
        self.lines = []
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        for line in self.stream:
            self.lines.append((time.monotonic(), line))

    def time_of(self, pattern):
        """When a line that matches came; None: none has."""
        return next((when for when, line in list(self.lines) if re.search(pattern, line)), None)

    def text(self):
        return "".join(line for _, line in list(self.lines))


class DeathTest(unittest.TestCase):
    """The program of a test is a link with a name of its own, by which its processes are known."""

    strategy = "dp=2"
    bound_s = BOUND_S  # within which a death is named

    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        folder = tempfile.TemporaryDirectory(prefix="penstock_deaths.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.folder.chmod(0o755)
        self.logs = self.folder / "logs"
        self.job = self.folder / "job.toml"
        self.job.write_text(job_text(self.strategy))
        self.mark = f"penstock-of-{self.folder.name}"
        self.program = self.folder / self.mark
        self.program.symlink_to(PENSTOCK)
        os.environ[MARK] = self.folder.name
        self.addCleanup(os.environ.pop, MARK)
        self.addCleanup(self.end_all)

    def end_all(self):
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def left(self):
        """All that the job has started and that runs, whatever program it is."""
        return [pid for pid in marked_processes(self.folder.name) if not is_of_service(pid)]

    def processes(self, *words):
        """Those of `penstock`, whose command line has these words."""
        found = []
        for pid in processes_with(str(self.folder)):
            try:
                arguments = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if os.path.samefile(f"/proc/{pid}/exe", PENSTOCK) and set(words) <= set(arguments):
                    found.append(pid)
            except OSError:
                pass
        return found

    def node(self, rank):
        """The process of a rank."""
        for pid in self.processes("node"):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if "--slots" not in words and words[words.index("--rank") + 1] == str(rank):
                return pid  # not the agent that has started it
        raise AssertionError(f"there is no node of rank {rank}")

    def begin_program(self, command, **environment):
        """Runs it until the end of the test at most."""
        self.run_ = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                     text=True, env={**os.environ, **environment})
        self.output = Output(self.run_.stderr)

        def close():
            self.run_.kill()
            self.run_.wait()
            self.end_all()
            self.output.thread.join(PATIENCE_S)
            self.run_.stderr.close()
        self.addCleanup(close)

    def start(self, command, num_joined=2, **environment):
        """The job, once its nodes have joined."""
        self.begin_program(command, **environment)
        await_true(lambda: self.output.text().count("joined: rank ") >= num_joined or
                   self.run_.poll() is not None, "the nodes join")
        self.assertIsNone(self.run_.poll(), self.output.text())
        await_true(lambda: self.output.time_of(r"^step +[0-9]+/"), "the first step")

    def check_named(self, begin, pattern, status=None, gone_s=None):
        """The job names the death in time, and ends, with everything that belongs to it."""
        await_true(lambda: self.output.time_of(pattern) or self.run_.poll() is not None,
                   "the name of the death")
        self.run_.wait(PATIENCE_S)
        self.output.thread.join(PATIENCE_S)
        named = self.output.time_of(pattern)
        self.assertIsNotNone(named, self.output.text())
        self.assertLess(named - begin, self.bound_s, self.output.text())
        if status is not None:
            self.assertEqual(self.run_.returncode, status, self.output.text())
        self.check_gone(begin, gone_s)

    def check_kill(self, pid, rank, host):
        """The kernel kills a process, with which the node of this rank ends, and the job names that."""
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self.check_named(begin, rf"penstock: node {rank} \(pid \d+ on {host}\) was killed by signal 9 "
                         r"\(Killed\)", 128 + signal.SIGKILL)

    def check_gone(self, begin, bound_s=None, ignored=()):
        """Within twice the bound of names, nothing is left but the programs that are `ignored`."""
        def left():
            return [(pid, command) for pid in self.left() if (command := command_of(pid)) and
                    os.path.basename(command.split()[0].rstrip(":")) not in ignored]
        try:
            await_true(lambda: not left(), "the end of all processes")
        except AssertionError as error:
            raise AssertionError(f"{error}: {left()}") from error
        self.assertLess(time.monotonic() - begin, bound_s or 2 * self.bound_s)

    def check_log(self, begin, path, pattern):
        """A node has said in time what it has lost: a process of its own writes that."""
        await_true(lambda: path.exists() and re.search(pattern, path.read_text()),
                   f"{pattern} in {path}")
        self.assertLess(time.monotonic() - begin, self.bound_s)

    def long_job(self):
        return ["--", str(self.job), "--set", "train.steps=1000000"]


class HostsDeathTest(DeathTest):
    """On hosts that the tests of a class share (hosts.py)."""

    @classmethod
    def setUpClass(cls):
        if not os.access(PENSTOCK, os.X_OK):
            raise unittest.SkipTest(f"{PENSTOCK} is not built")
        folder = tempfile.TemporaryDirectory(prefix="penstock_deaths.")
        cls.addClassCleanup(folder.cleanup)
        cls.hosts = hosts.join(folder.name, PENSTOCK, cls.addClassCleanup)
        cls.network = cls.hosts.network

    def setUp(self):
        super().setUp()
        self.program = self.hosts.program
        self.before = set(self.network.processes())

    def left(self):
        """What runs on the hosts as well: neither sshd nor mpirun's daemons pass on a mark."""
        on_hosts = [pid for pid in self.network.processes()
                    if pid not in self.before and not is_of_service(pid)]
        return sorted({*super().left(), *on_hosts})

    def launch_command(self, *options):
        return [str(self.program), "launch", "--log-dir", str(self.logs), *map(str, options),
                *self.long_job()]

    def open_terminal(self, command, **environment):
        """Of the first host, in which the command runs."""
        terminal = Terminal(self.network.on_host(0, command), environment)

        def close():
            terminal.close()
            terminal.process.kill()
            terminal.process.wait(PATIENCE_S)
        self.addCleanup(close)
        return terminal

    def cut(self, host):
        """From the network, until the end of the test."""
        self.addCleanup(self.network.join_again, host)
        self.network.switch(host, "down")

    def log(self, host, rank):
        """Of the node of a rank."""
        return self.logs / f"{self.network.host_name(host)}.{rank}.log"

    def start_on(self, host, command, **named):
        self.start(self.network.on_host(host, command), **named)

    def starters(self, program, *texts):
        """Processes of another program that have started nodes of the test, whose command lines have
        these texts."""
        found = []
        for pid in processes_with(str(self.folder)):
            try:
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                if (os.path.basename(os.readlink(f"/proc/{pid}/exe")) == program and
                        all(text.encode() in command for text in texts)):
                    found.append(pid)
            except OSError:
                pass
        return found
