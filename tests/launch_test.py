"""`penstock launch` through a real SSH server on loopback.

Skipped without an SSH server and client (tests/support/ssh_server.py).
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import os
import pathlib
import re
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

from tests.support import control_group, ssh_server  # noqa: E402
from tests.support.launched_job import (PATIENCE_S, STEPS, free_port, job_text,  # noqa: E402
                                        losses, losses_here)
from tests.support.ssh_server import await_true, processes_with, texts_of_processes  # noqa: E402

class LaunchTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        if reason := ssh_server.why_not():
            self.skipTest(reason)
        folder = tempfile.TemporaryDirectory(prefix="penstock_launch.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.job = self.folder / "job.toml"
        self.job.write_text(job_text("dp=2"))
        self.server = ssh_server.SshServer(self.folder)
        self.addCleanup(self.server.close)
        self.logs = self.folder / "logs"
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

    def launch(self, *run, hosts="127.0.0.1:2", options=()):
        return [str(PENSTOCK), "launch", "-H", hosts, "--through", self.server.client(),
                "--remote-program", str(self.program), "--log-dir", str(self.logs), *options, "--",
                str(self.job), *run]

    def logs_of_nodes(self):
        """By rank, what each node has kept."""
        return [self.logs.joinpath(f"{socket.gethostname()}.{rank}.log").read_text()
                for rank in range(2)]

    def have_nodes_say(self, script):
        """Has a shell run `script` before it becomes a node."""
        self.program.unlink()
        self.program.write_text(
            f"#!/bin/bash\n{script}\nexec -a {self.program} {PENSTOCK} \"$@\"\n")
        self.program.chmod(0o700)

    def node_programs(self):
        """The nodes themselves, without the shells, clients and the agent that mention them."""
        return self.programs(is_agent=False)

    def programs(self, is_agent):
        found = []
        for pid in processes_with(f"{self.mark} node"):
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if (os.path.samefile(f"/proc/{pid}/exe", PENSTOCK) and
                        (b"--slots" in words) == is_agent):
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
        self.assertRegex(there.stderr, rf"joined: rank [^\0]*\nlogs: each process keeps what it prints in "
                         rf"{self.logs}/HOST\.RANK\.log on its host\n")
        self.assertEqual(there.stderr.count("joined: rank "), 2)
        await_true(lambda: not self.node_programs(), "the end of the nodes")

    def test_one_connection_starts_the_slots_of_a_host(self):
        run = self.start_long()
        clients = [pid for pid in processes_with(self.mark)
                   if os.path.samefile(f"/proc/{pid}/exe", shutil.which("ssh"))]
        self.assertEqual(len(clients), 1)
        # With the agent end its nodes.
        os.kill(self.programs(is_agent=True)[0], signal.SIGKILL)
        _, errors = run.communicate(timeout=PATIENCE_S)
        self.assertEqual(run.returncode, 128 + signal.SIGKILL, errors)
        self.assertRegex(errors, r"penstock: node \d .*was killed by signal 9 \(Killed\)")
        await_true(lambda: not self.node_programs(), "the end of the nodes")

    def start_long(self, *run, options=()):
        run = subprocess.Popen(self.launch("--set", "train.steps=1000000", *run, options=options),
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(run.stderr.close)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        self.seen = ""
        for line in run.stderr:
            self.seen += line
            if line.startswith("joined: rank ") and len(self.node_programs()) == 2:
                break
        return run

    def test_the_key_is_in_no_command_line_no_environment_and_no_log(self):
        run = self.start_long()
        texts = texts_of_processes(self.mark)
        self.assertGreater(len(texts), 6)
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=PATIENCE_S)
        texts += [text.encode() for text in (self.seen, errors, *self.logs_of_nodes())]
        for text in texts:
            self.assertIsNone(re.search(rb"[0-9a-fA-F]{64}", text), text)

    def test_a_node_without_memory_is_named_with_the_reason(self):
        try:
            group = control_group.memory_group(128 << 20)
        except OSError as error:
            self.skipTest(f"no limit of memory here: {error}")
        self.addCleanup(group.close)
        self.have_nodes_say(f"echo $$ > {group.processes}")
        # More than the limit: 25 million parameters, their gradients and the states of Adam.
        run = subprocess.run(self.launch("--set", "model.width=512", "--set", "model.layers=8"),
                             capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        await_true(lambda: not self.node_programs(), "the end of the nodes")
        self.assertEqual(run.returncode, 128 + signal.SIGKILL, run.stderr)
        self.assertRegex(run.stderr, r"penstock: node \d \(pid \d+ on 127\.0\.0\.1\) was killed by signal 9 "
                         r"\(Killed\), probably for lack of memory: the kernel's out-of-memory killer has "
                         "acted since it started")

    def test_a_host_may_have_the_key_in_a_file(self):
        key = self.folder / "key"
        key.write_text("7a" * 32 + "\n")
        key.chmod(0o600)
        run = self.start_long(options=("--key-file", str(key)))
        told = re.search(rf"from other hosts: `penstock top (\S+) --key-file {key}`", self.seen)
        self.assertIsNotNone(told, self.seen)
        top = subprocess.run([PENSTOCK, "top", told.group(1), "--key-file", key, "--once"], text=True,
                             capture_output=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(top.returncode, 0, top.stderr)
        # A node answers for the job, as it would on a host of its own.
        stack = subprocess.run([PENSTOCK, "stack", str(self.node_programs()[0])], text=True,
                               capture_output=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(stack.returncode, 0, stack.stderr)
        self.assertIn("device 0 ", stack.stdout)
        clients = [pid for pid in processes_with(self.mark)
                   if os.path.samefile(f"/proc/{pid}/exe", shutil.which("ssh"))]
        for pid in clients:
            self.assertIn(f"--key-file {key}",
                          pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode())
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(PATIENCE_S), 130)
        key.chmod(0o644)
        refused = subprocess.run(self.launch(options=("--key-file", str(key))), capture_output=True,
                                 text=True, timeout=PATIENCE_S, check=False)
        self.assertIn("others may read the job's key", refused.stderr)

    def test_options_that_do_not_go_together_are_refused(self):
        for options, message in [
                (("-H", "a", "--launcher", "local"), "--launcher local starts processes on this host"),
                (("-H", "a", "--members", "2"), "--members, --device, --coordinator and --rendezvous are for a member"),
                (("-H", "a", "--device", "cuda"), "--members, --device, --coordinator and --rendezvous are for a member"),
                (("--launcher", "slurm"), "this is no allocation of Slurm")]:
            run = subprocess.run([PENSTOCK, "launch", *options, "--", self.job], text=True,
                                 capture_output=True, timeout=PATIENCE_S, check=False)
            self.assertEqual(run.returncode, 2, run.stderr)
            self.assertIn(message, run.stderr)

    def test_options_of_run_before_the_dashes_are_named(self):
        for run, message in [
                ((self.job, "--strategy", "dp=2"), "`penstock launch` has no option --strategy, but "
                 "`penstock run` does: write the job and its options after --, as in penstock launch "
                 "... -- JOB.toml --strategy"),
                (("--timeout", "5s", "--", self.job, "--timeout", "6s"),
                 "--timeout is given before and after --; leave out one"),
                (("b", self.job), "launch: 'b' is not expected before \"--\"; hosts are separated by commas, "
                 "without blanks; expected penstock launch ... -- JOB.toml"),
                (("--", self.job, "--procs", "3"), "--procs 3: this job has 2 processes, one for each "
                 "slot or member; leave out --procs")]:
            done = subprocess.run([PENSTOCK, "launch", "-H", "127.0.0.1:2", *run], text=True,
                                  capture_output=True, timeout=PATIENCE_S, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(message, done.stderr)

    def test_a_job_is_planned_for_the_hosts_that_it_is_launched_on(self):
        for hosts, probe, num_hosts, is_noted in (
                ("n1:2,n2:1", "no", 2, False), ("n1:2,n2:1", "yes", 2, True),
                ("n1:1,n2:1,n3:1", "yes", 3, False)):
            done = subprocess.run([PENSTOCK, "launch", "-H", hosts, "--probe", probe, "--listen",
                                   "127.0.0.1:0", "--", self.job, "--strategy", "dp=3", "--set",
                                   "train.batch=6", "--dry-run"], text=True, capture_output=True,
                                  timeout=PATIENCE_S, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"fits into {num_hosts} hosts", done.stdout)
            self.assertEqual("--probe yes measures no networks" in done.stderr, is_noted, done.stderr)

    def test_a_host_outside_of_the_allocation_is_refused_before_the_job_is_planned(self):
        for host, is_refused in (("n3", True), ("n2", False)):
            done = subprocess.run([PENSTOCK, "launch", "--launcher", "slurm", "-H", host, "--through", "false",
                                   "--listen", "127.0.0.1:0", "--", self.job, "--strategy", "dp=1",
                                   "--dry-run"], text=True, capture_output=True, timeout=PATIENCE_S,
                                  check=False, env={**os.environ, "SLURM_JOB_NODELIST": "n[1-2]"})
            self.assertEqual(done.returncode, 2 if is_refused else 0, done.stderr)
            self.assertEqual("host n3 is not in Slurm's allocation (n[1-2])" in done.stderr, is_refused,
                             done.stderr)

    def test_an_mpirun_that_starts_nothing_has_no_log(self):
        done = subprocess.run([PENSTOCK, "launch", "--launcher", "mpi", "-H", "n1", "--through", "false",
                               "--listen", "127.0.0.1:0", "--log-dir", str(self.logs), "--", self.job],
                              text=True, capture_output=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"node 0 .*exited with status 1 before it joined")
        self.assertNotIn("the log of node", done.stderr)

    def test_a_single_slot_runs_on_its_host(self):
        command = self.launch("--set", 'parallel.strategy="dp=1"', hosts="127.0.0.1:1")
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("joined: rank 0 on ", run.stderr)
        self.program.unlink()
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(run.returncode, 127, run.stderr)

    def test_the_slots_of_a_host_have_cores_of_their_own(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("there is one core")
        self.start_long()
        first, second = (os.sched_getaffinity(pid) for pid in self.node_programs())
        self.assertTrue(first.isdisjoint(second), (first, second))

    def test_a_killed_node_is_named_with_its_signal(self):
        run = self.start_long()
        os.kill(self.node_programs()[0], signal.SIGKILL)
        _, errors = run.communicate(timeout=PATIENCE_S)
        self.assertEqual(run.returncode, 128 + signal.SIGKILL, errors)
        self.assertRegex(errors, r"penstock: node \d .*was killed by signal 9 \(Killed\)")
        await_true(lambda: not self.node_programs(), "the end of the nodes")

    def test_the_report_of_a_failure_has_the_last_lines_of_its_node(self):
        self.have_nodes_say("export UCX_LOG_LEVEL=info\necho opening the valves >&2")
        run = self.start_long()
        for line in run.stderr:
            self.seen += line
            if line.startswith("step "):
                break
        victim = self.node_programs()[0]
        words = pathlib.Path(f"/proc/{victim}/cmdline").read_bytes().decode().split("\0")
        rank = words[words.index("--rank") + 1]
        os.kill(victim, signal.SIGABRT)
        _, errors = run.communicate(timeout=PATIENCE_S)
        errors = self.seen + errors
        self.assertEqual(run.returncode, 128 + signal.SIGABRT, errors)
        log = self.logs / f"{socket.gethostname()}.{rank}.log"
        self.assertRegex(errors, rf"The last lines of node {rank} on 127\.0\.0\.1 \(all "
                         rf"are in 127\.0\.0\.1:{log}\):\n(  .*\n)*"
                         rf"penstock: node {rank} \(.*was killed by signal 6 \(Aborted\)")
        self.assertIn("\n  opening the valves\n", errors)
        # Of their agent and both nodes, once.
        self.assertRegex(errors, r"\[[01] 127\.0\.0\.1\] opening the valves\n")
        self.assertRegex(errors, r"\[0-1\] opening the valves \(2 more times\)\n")
        # The file is the node's own, and has what UCX says.
        self.assertIn("UCX", log.read_text())
        self.assertEqual(log.stat().st_mode & 0o777, 0o600)

    def test_the_error_of_an_unknown_host_key_has_the_remedy(self):
        command = self.launch()
        through = command.index("--through") + 1
        command[through] = command[through].replace("StrictHostKeyChecking=no", "StrictHostKeyChecking=yes")
        (self.folder / "known").unlink(missing_ok=True)
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(run.returncode, 255, run.stderr)
        self.assertRegex(run.stderr, r"penstock: node 0 .*Host key verification failed\. ssh on .* does not "
                         r"trust the key of 127\.0\.0\.1: connect to it once by hand \(ssh 127\.0\.0\.1\), or "
                         r"add its key there with ssh-keyscan 127\.0\.0\.1 >> ~/\.ssh/known_hosts\)")

    def test_a_time_limit_ends_the_job_in_order(self):
        begin = time.monotonic()
        run = subprocess.run(self.launch("--set", "train.steps=1000000", options=("--timeout", "3s")),
                             capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(run.returncode, 124, run.stderr)
        self.assertGreaterEqual(time.monotonic() - begin, 3)
        self.assertIn("penstock: the time limit of 3s is over; ending after the steps under way", run.stderr)
        self.assertRegex(run.stderr, r"penstock: ended at its time limit of 3s after step \d+\n")
        await_true(lambda: not self.node_programs(), "the end of the nodes")

    def test_processes_that_do_not_join_are_named(self):
        command = self.launch(options=("--join-timeout", "1"))
        command[command.index("--through") + 1] = f"/bin/sh -c 'exec sleep 1000' {self.mark}"
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S,
                             check=False)
        self.assertEqual(run.returncode, 69, run.stderr)
        self.assertRegex(run.stderr, r"penstock: not all nodes joined \S+ in 1s: missing ranks 0 on "
                                     r"127\.0\.0\.1, 1 on 127\.0\.0\.1\n")

    def test_no_node_outlives_its_launcher(self):
        run = self.start_long()
        run.kill()
        await_true(lambda: not self.node_programs(), "the end of the nodes")

    def test_nodes_without_a_coordinator_say_how_the_job_goes_on(self):
        checkpoints = self.folder / "checkpoints"
        run = self.start_long("--set", f'checkpoint.path="{checkpoints}"', "--set",
                              "checkpoint.every=5")
        await_true(lambda: list(checkpoints.glob("step*/*")), "a checkpoint")
        run.kill()
        await_true(lambda: not self.node_programs(), "the end of the nodes")
        await_true(lambda: all("continue" in log for log in self.logs_of_nodes()), "their last lines")
        for log in self.logs_of_nodes():
            command = re.search(
                rf"(?m)^penstock: the coordinator \(pid {run.pid} on {socket.gethostname()}\) is gone; "
                rf"continue from the last checkpoint in {checkpoints}, on {socket.gethostname()}, "
                rf"if one was written, with: (cd \S+ && {PENSTOCK} launch .* --resume)$", log)
            self.assertIsNotNone(command, log)
        # It does.
        again = command[1].replace("train.steps=1000000", "train.steps=1")
        resumed = subprocess.run(again, shell=True, capture_output=True, text=True,
                                 timeout=PATIENCE_S, check=False)
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertRegex(resumed.stderr, rf"continuing from {checkpoints}/\S+, after \d+ steps")

    def test_one_interrupt_ends_all_in_order(self):
        run = self.start_long()
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=PATIENCE_S)
        self.assertEqual(run.returncode, 130, errors)
        await_true(lambda: not self.node_programs(), "the end of the nodes")

    def test_a_host_may_have_an_alias_of_ssh_alone(self):
        """Then nobody else knows its address: the nodes are told where this host is all the same."""
        configuration = self.folder / "aliases"
        configuration.write_text("Host my-host\n  HostName 127.0.0.1\n")
        command = self.launch("--json", hosts="my-host:2")
        through = command.index("--through") + 1
        command[through] = command[through].replace("-F /dev/null", f"-F {configuration}")
        there = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(there.returncode, 0, there.stderr)
        self.assertEqual(losses(there.stdout), losses_here(PENSTOCK, self.job))
        self.assertNotIn("its nodes connect to", there.stderr)
        self.assertIn("interface lo", there.stderr)

    def test_a_host_without_a_server_is_named(self):
        port = free_port()
        command = self.launch()
        command[command.index("--through") + 1] = self.server.client().replace(
            f"-p {self.server.port}", f"-p {port}")
        failed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        self.assertNotEqual(failed.returncode, 0)
        self.assertRegex(failed.stderr, rf"127\.0\.0\.1\] ssh: connect to .* port {port}: "
                                        "Connection refused")
        self.assertRegex(failed.stderr, r"penstock: node \d .*127\.0\.0\.1.* exited with status 255 "
                                        r"\(ssh on \S+: ssh: connect to .*: Connection refused\) before "
                                        "it joined")
        # No node has begun, so there is no log.
        self.assertRegex(failed.stderr, r"The last lines of node \d:\n")

    def test_a_missing_program_is_named(self):
        self.program.unlink()
        failed = subprocess.run(self.launch(), capture_output=True, text=True, timeout=120,
                                check=False)
        self.assertEqual(failed.returncode, 127, failed.stderr)
        self.assertIn(f"{self.program}: not found", failed.stderr)


if __name__ == "__main__":
    unittest.main()
