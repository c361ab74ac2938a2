"""What becomes of a job when something of it dies, under each launcher: a node, a host that the network
no longer reaches, the program that has started a node, and the coordinator. Whoever is left names the
death within 4 s and ends, so that nothing stays behind on any host.

Hosts are network namespaces with an SSH server each, joined by a bridge. What the system lacks is
skipped: see why_not of tests/support. PENSTOCK_COMMAND names the command (default:
build/bin/penstock).
"""

import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support import slurm, ssh_server  # noqa: E402
from tests.support.launched_job import PATIENCE_S, job_text, losses  # noqa: E402
from tests.support.network import Network  # noqa: E402
from tests.support.ssh_server import await_true, processes_with  # noqa: E402

PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
BOUND_S = 4


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
    """Processes of the test are those that run its program, a link with a name of its own."""

    strategy = "dp=2"

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
        self.addCleanup(self.end_all)

    def end_all(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def processes(self, *words):
        """Those of the program, whose command line has these words."""
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
            if words[words.index("--rank") + 1] == str(rank):
                return pid
        raise AssertionError(f"there is no node of rank {rank}")

    def start(self, command, num_joined=2, **environment):
        """The job, once its nodes have joined."""
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
        await_true(lambda: self.output.text().count("joined: rank ") >= num_joined or
                   self.run_.poll() is not None, "the nodes join")
        self.assertIsNone(self.run_.poll(), self.output.text())
        await_true(lambda: self.output.time_of(r"^step +[0-9]+/"), "the first step")

    def check_named(self, begin, pattern, status=None):
        """The job names the death in time, and ends, with everything that belongs to it."""
        await_true(lambda: self.output.time_of(pattern) or self.run_.poll() is not None,
                   "the name of the death")
        self.run_.wait(PATIENCE_S)
        self.output.thread.join(PATIENCE_S)
        named = self.output.time_of(pattern)
        self.assertIsNotNone(named, self.output.text())
        self.assertLess(named - begin, BOUND_S, self.output.text())
        if status is not None:
            self.assertEqual(self.run_.returncode, status, self.output.text())
        self.check_gone(begin)

    def check_gone(self, begin, bound_s=2 * BOUND_S):
        await_true(lambda: not self.processes(), "the end of all processes")
        self.assertLess(time.monotonic() - begin, bound_s)

    def long_job(self):
        return ["--", str(self.job), "--set", "train.steps=1000000"]


class LocalDeathTest(DeathTest):
    def launch(self):
        self.start([str(self.program), "launch", "--log-dir", str(self.logs), *self.long_job(), "--procs",
                    "2"])

    def test_a_node(self):
        self.launch()
        begin = time.monotonic()
        os.kill(self.node(1), signal.SIGSEGV)
        self.check_named(begin, r"penstock: node 1 \(pid \d+ on \S+\) was killed by signal 11",
                         128 + signal.SIGSEGV)

    def test_a_node_that_is_stopped(self):
        self.launch()
        begin = time.monotonic()
        os.kill(self.node(1), signal.SIGSTOP)
        self.check_named(begin, r"penstock: node 1 \(pid \d+ on \S+\) has not answered for 3\.3s", 1)

    def test_a_second_interrupt_ends_the_job_at_once(self):
        self.launch()
        os.kill(self.node(1), signal.SIGSTOP)  # so that no step ends
        self.run_.send_signal(signal.SIGINT)
        await_true(lambda: self.output.time_of("interrupted; ending after this step"), "the first one")
        begin = time.monotonic()
        self.run_.send_signal(signal.SIGINT)
        self.assertEqual(self.run_.wait(PATIENCE_S), 130)
        self.assertLess(time.monotonic() - begin, 2)  # before the silence of the node ends the job
        self.check_gone(begin)

    def test_the_coordinator(self):
        self.launch()
        begin = time.monotonic()
        self.run_.kill()
        self.check_gone(begin, BOUND_S + 1)
        for log in self.logs.glob("*.log"):
            await_true(lambda log=log: "penstock: the coordinator (pid "
                       f"{self.run_.pid} on " in log.read_text(), "the log of a node")


class SshDeathTest(DeathTest):
    """Host 0 coordinates, hosts 1 and 2 have a node each."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
            self.skipTest("needs root, ip and tc")
        if reason := ssh_server.why_not():
            self.skipTest(reason)
        try:
            self.network = Network(3, "1gbit").__enter__()
        except subprocess.CalledProcessError as error:
            self.skipTest(f"network namespaces are not allowed here: {error.stderr.strip()}")
        self.addCleanup(self.network.close)
        # Hosts do not share memory.
        self.program.unlink()
        self.program.write_text("#!/bin/bash\nexport UCX_TLS=tcp,self\n"
                                f"exec -a {self.program} {PENSTOCK} \"$@\"\n")
        self.program.chmod(0o755)
        self.servers = {host: self.serve(host) for host in (1, 2)}

    def serve(self, host):
        folder = self.folder / f"host{host}"
        folder.mkdir()
        server = ssh_server.SshServer(folder, f"10.77.0.{host + 1}", 2222, lambda command: (
            self.network.inside(host, ["unshare", "--uts", "sh", "-c",
                                       f"hostname host{host} && exec {shlex.join(map(str, command))}"])))
        self.addCleanup(server.close)
        return server

    def client(self):
        """That knows the keys of both."""
        return " ".join([self.servers[1].client(), f"-i {self.folder}/host2/client"])

    def command(self, *run):
        return self.network.inside(0, [
            PENSTOCK, "launch", "-H", "10.77.0.2,10.77.0.3", "--through", self.client(),
            "--remote-program", str(self.program), "--log-dir", str(self.logs), *run])

    def launch(self):
        self.start(self.command(*self.long_job()), UCX_TLS="tcp,self")

    def switch(self, host, state):
        subprocess.run(["ip", "-n", f"{self.network.prefix}s", "link", "set", f"port{host}", state],
                       check=True)

    def test_a_node(self):
        self.launch()
        begin = time.monotonic()
        os.kill(self.node(1), signal.SIGKILL)
        self.check_named(begin, r"penstock: node 1 \(pid \d+ on host2\) was killed by signal 9 \(Killed\)",
                         128 + signal.SIGKILL)

    def test_a_host(self):
        self.launch()
        begin = time.monotonic()
        self.switch(2, "down")
        self.check_named(begin, r"penstock: node 1 \(pid \d+ on host2\) has not answered for 3\.3s", 1)
        # Its node has heard nothing either.
        self.assertIn("has gone silent", (self.logs / "host2.1.log").read_text())

    def test_the_program_that_has_started_a_node(self):
        self.launch()
        clients = [pid for pid in processes_with(str(self.folder)) if
                   pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/usr/bin/ssh\0") and
                   b"10.77.0.3" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
        self.assertEqual(len(clients), 1)
        begin = time.monotonic()
        os.kill(clients[0], signal.SIGKILL)
        self.check_named(begin, r"penstock: node 1 \(pid \d+ on host2\) was killed by signal 9 "
                         r"\(Killed\), which ended the program on this host that had started the node")

    def test_the_coordinator(self):
        self.launch()
        begin = time.monotonic()
        self.run_.kill()
        self.check_gone(begin, BOUND_S + 1)
        for log in ("host1.0.log", "host2.1.log"):
            await_true(lambda log=log: re.search(r"penstock: the coordinator \(pid \d+ on \S+\) is gone",
                                                 (self.logs / log).read_text()), "the log of a node")

    def test_the_host_of_the_coordinator(self):
        self.launch()
        begin = time.monotonic()
        self.switch(0, "down")
        await_true(lambda: not self.processes("node"), "the end of the nodes")
        self.assertLess(time.monotonic() - begin, BOUND_S + 2)
        for log in ("host1.0.log", "host2.1.log"):
            self.assertRegex((self.logs / log).read_text(),
                             r"penstock: the coordinator \(pid \d+ on \S+\) has gone silent")
        self.check_named(begin, r"penstock: node \d \(pid \d+ on host\d\) has not answered for 3\.3s", 1)

    # The lengths of the sleeps are what is tested.
    def test_a_job_survives_pauses_of_two_seconds_and_losses(self):
        steps = 300
        run = ["--", str(self.job), "--set", f"train.steps={steps}", "--set", "train.log_every=1"]
        expected = losses(subprocess.run(
            [PENSTOCK, "run", *run[1:], "--json"], capture_output=True, text=True, timeout=120,
            check=True).stdout)
        with open(self.folder / "errors", "w", encoding="utf-8") as errors:
            process = subprocess.Popen(self.command(*run, "--json"), stdout=subprocess.PIPE,
                                       stderr=errors, text=True,
                                       env={**os.environ, "UCX_TLS": "tcp,self"})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        lines = []
        # After 2 s without a link, TCP sends again 3.0 s after it went down, which leaves 0.3 s to
        # answer: too little where other tests take the cores.
        longest_s = 1.3 if "CI" in os.environ else 2
        for pause_s in (0.5, 1, longest_s):
            lines += [process.stdout.readline() for _ in range(20)]
            self.switch(2, "down")
            time.sleep(pause_s)
            self.switch(2, "up")
        for host in (1, 2) * 5:
            self.switch(host, "down")
            time.sleep(0.1)
            self.switch(host, "up")
            time.sleep(0.1)
        lines += process.stdout.readlines()
        self.assertEqual(process.wait(PATIENCE_S), 0, (self.folder / "errors").read_text())
        self.assertEqual(losses("".join(lines)), expected)


class SlurmDeathTest(DeathTest):
    def setUp(self):
        super().setUp()
        if reason := slurm.why_not():
            self.skipTest(reason)
        folder = self.folder / "slurm"
        folder.mkdir()
        self.cluster = slurm.SlurmCluster(folder)
        self.addCleanup(self.cluster.close)

    def launch(self):
        self.start(["salloc", "-N", "2", str(self.program), "launch", "--log-dir", str(self.logs),
                    *self.long_job(), "--devices", "2"], **self.cluster.environment)

    def test_a_node(self):
        self.launch()
        begin = time.monotonic()
        os.kill(self.node(1), signal.SIGKILL)
        self.check_named(begin, r"penstock: node 1 .*was killed by signal 9 \(Killed\)",
                         128 + signal.SIGKILL)

    def test_the_program_that_has_started_a_node(self):
        self.launch()
        starters = [pid for pid in processes_with("--rank 1 ") if
                    os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "srun"]
        self.assertTrue(starters)
        begin = time.monotonic()
        for pid in starters:
            os.kill(pid, signal.SIGKILL)
        self.check_named(begin, r"penstock: node 1 .*was killed by signal 9 \(Killed\), which ended the "
                         "program on this host that had started the node")

    def test_the_coordinator(self):
        self.launch()
        begin = time.monotonic()
        os.kill(self.processes("launch")[0], signal.SIGKILL)
        self.check_gone(begin, BOUND_S + 2)


class MpirunDeathTest(DeathTest):
    """mpirun has started all members; it ends those that are left, and says so."""

    def setUp(self):
        super().setUp()
        if shutil.which("mpirun") is None:
            self.skipTest("there is no mpirun (package openmpi-bin)")

    def launch(self):
        self.start(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", str(self.program),
                    "launch", "--log-dir", str(self.logs), *self.long_job()])

    def member(self, rank):
        for pid in self.processes("launch"):
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment:
                return pid
        raise AssertionError(f"there is no member of rank {rank}")

    def test_a_node(self):
        self.launch()
        begin = time.monotonic()
        victim = self.member(1)
        os.kill(victim, signal.SIGKILL)
        self.check_named(begin, rf"penstock: node 1 \(pid {victim} on \S+\)|rank 1 with PID \d+ .*signal 9")

    def test_the_program_that_has_started_all(self):
        self.launch()
        begin = time.monotonic()
        self.run_.kill()
        self.check_gone(begin)

    def test_the_coordinator(self):
        self.launch()
        begin = time.monotonic()
        coordinator = self.member(0)
        os.kill(coordinator, signal.SIGKILL)
        self.check_named(begin, rf"the coordinator \(pid {coordinator} on \S+\) is gone|"
                         r"rank 0 with PID \d+ .*signal 9")


del DeathTest  # not a test by itself

if __name__ == "__main__":
    unittest.main()
