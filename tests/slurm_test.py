"""`penstock launch` on a real Slurm cluster of two nodes, whose daemons the test starts.

Skipped without Slurm's daemons, munge or root. PENSTOCK_COMMAND names the command (default:
build/bin/penstock).
"""

import contextlib
import os
import pathlib
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support import slurm  # noqa: E402
from tests.support.launched_job import (PATIENCE_S, STEPS, free_port, job_text,  # noqa: E402
                                        losses, losses_here, parent_of)

PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))

class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.access(PENSTOCK, os.X_OK):
            raise unittest.SkipTest(f"{PENSTOCK} is not built")
        if why_not := slurm.why_not():
            raise unittest.SkipTest(why_not)
        folder = tempfile.TemporaryDirectory(prefix="penstock_slurm.")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.job = cls.folder / "job.toml"
        cls.job.write_text(job_text("dp=4"))
        cls.cluster = slurm.SlurmCluster(folder.name)
        cls.addClassCleanup(cls.cluster.close)
        # A plan for two hosts may add up in another order.
        cls.expected = losses_here(PENSTOCK, cls.job, "--procs", "4", "--set", "cluster.hosts=2")

    def run_in_slurm(self, *command, environment=None):
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              timeout=PATIENCE_S, env=environment or self.cluster.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(losses(done.stdout), self.expected)
        self.assertIsNone(secret_in(done.stderr))
        return done.stderr

    def test_launch_in_an_allocation_starts_nodes_through_srun(self):
        errors = self.run_in_slurm("salloc", "-N", "2", "--ntasks-per-node=2", PENSTOCK, "launch",
                                   "--", self.job, "--json")
        self.assertRegex(errors, r"launch: 4 processes on 2 hosts through \S*/srun\n")
        self.assertEqual(errors.count("joined: rank "), 4)
        self.assertNotIn("cpu binding", errors)

    def test_launch_in_a_script_of_sbatch(self):
        script = self.folder / "job.sh"
        script.write_text(f"""#!/bin/sh
#SBATCH -N 2 --ntasks-per-node=2 --output={self.folder}/%x.out --error={self.folder}/%x.err --job-name=demo
exec {PENSTOCK} launch -- {self.job} --json
""")
        done = subprocess.run(["sbatch", "--wait", script], capture_output=True, text=True, check=False,
                              timeout=PATIENCE_S, env=self.cluster.environment)
        errors = (self.folder / "demo.err").read_text()
        self.assertEqual(done.returncode, 0, done.stderr + errors)
        self.assertEqual(losses((self.folder / "demo.out").read_text()), self.expected)
        self.assertRegex(errors, r"launch: 4 processes on 2 hosts through \S*/srun\n")
        self.assertIsNone(secret_in(errors))

    def test_what_srun_says_of_cores_is_shown_where_it_is_asked(self):
        errors = self.run_in_slurm("salloc", "-N", "2", "--ntasks-per-node=2", PENSTOCK, "launch",
                                   "--through", "srun --cpu-bind=verbose,none", "--", self.job, "--json")
        self.assertIn("cpu binding", errors)

    def need_munge(self):
        if shutil.which("munge") is None or shutil.which("unmunge") is None:
            self.skipTest("there is no munge (package munge)")

    def test_munge_encrypts_the_key(self):
        self.need_munge()
        environment, opened = self.cluster.with_munge()
        errors = self.run_in_slurm("salloc", "-N", "2", "--ntasks-per-node=2", PENSTOCK, "launch", "--",
                                   self.job, "--json", environment=environment)
        self.assertEqual(errors.count("launch: munge encrypts the job's key on its way to the hosts\n"), 1)
        # Once on each host, and one of its own by `launch` to see that it can.
        self.assertEqual(opened.read_text(), "opened\n" * 3)

    def test_munge_encrypts_the_key_of_members(self):
        """All nodes of the cluster have one daemon, which opens the same credential for each of them."""
        self.need_munge()
        environment, opened = self.cluster.with_munge()
        errors = self.run_in_slurm("srun", "--mpi=pmix", "-N", "2", "--ntasks-per-node=2", PENSTOCK,
                                   "launch", "--", self.job, "--json", environment=environment)
        self.assertIn("launch: rank 0 of 4 processes that srun has started coordinates, and tells "
                      "its address and the key through PMIx\n", errors)
        self.assertEqual(errors.count("launch: munge encrypts the job's key on its way to the other "
                                      "processes\n"), 1)
        self.assertNotIn("without encryption", errors)
        # By three nodes, and one of its own by rank 0 to see that it can.
        self.assertEqual(opened.read_text(), "opened\n" * 4)

    def test_a_host_without_munge_says_how_the_job_goes_without(self):
        """munge works for rank 0, not for the others."""
        self.need_munge()
        environment, opened = self.cluster.with_munge()
        unmunge = opened.parent / "programs" / "unmunge"
        unmunge.write_text('#!/bin/sh\nif [ "$SLURM_PROCID" != 0 ]; then echo no socket >&2; exit 6; fi\n' +
                           unmunge.read_text())
        done = subprocess.run(["srun", "--mpi=pmix", "--kill-on-bad-exit", "-N", "2", PENSTOCK, "launch",
                               "--", self.job, "--strategy", "dp=2"], capture_output=True, text=True,
                              check=False, timeout=PATIENCE_S, env=environment)
        self.assertNotEqual(done.returncode, 0, done.stderr)
        self.assertIn("penstock: the job's key cannot be decrypted on this host: unmunge exited with "
                      "status 6: no socket; with --key-file, `penstock launch` does not send it\n",
                      done.stderr)

    def test_where_no_credential_can_be_opened_the_key_is_not_encrypted(self):
        self.need_munge()
        environment, opened = self.cluster.with_munge()
        (opened.parent / "programs" / "unmunge").write_text("#!/bin/sh\necho no socket >&2; exit 6\n")
        errors = self.run_in_slurm("srun", "--mpi=pmix", "-N", "2", "--ntasks-per-node=2", PENSTOCK,
                                   "launch", "--", self.job, "--json", environment=environment)
        self.assertIn("without encryption", errors)

    def test_a_credential_of_another_user_is_refused(self):
        self.need_munge()
        environment, _ = self.cluster.with_munge()

        def join(**user):
            sealed = subprocess.run(["munge", "--restrict-uid=0"], input=secrets.token_hex(32), text=True,
                                    capture_output=True, check=True, timeout=PATIENCE_S,
                                    env=environment, **user).stdout
            return subprocess.run([PENSTOCK, "node", "--join", "127.0.0.1:1",
                                   "--key-file", "-"], input=sealed, text=True, capture_output=True,
                                  check=False, timeout=PATIENCE_S, env=environment).stderr
        self.assertIn("no coordinator answers", join())
        self.assertIn("penstock: the job's key cannot be decrypted on this host: it is not from a process "
                      "of this user", join(user=65534, group=65534, extra_groups=[]))

    def test_without_munge_a_note_says_that_the_key_is_not_encrypted(self):
        # The daemon is not where the programs look for it.
        errors = self.run_in_slurm("salloc", "-N", "2", "--ntasks-per-node=2", PENSTOCK, "launch",
                                   "--", self.job, "--json")
        self.assertEqual(errors.count("note: srun passes the job's key on without encryption"), 1)

    def test_a_shell_of_srun_is_an_allocation_to_launch_over(self):
        allocation = ["salloc", "-N", "2", "srun", "-N", "1", "-n", "1", "--pty"]
        leader, follower = os.openpty()
        self.addCleanup(os.close, leader)
        command = (f"{PENSTOCK} launch -- {self.job} --strategy dp=2 --devices 2 --json "
                   f"> {self.folder}/shell.out 2> {self.folder}/shell.err; "
                   f"echo $? > {self.folder}/shell.status")
        # salloc and srun want a controlling terminal.
        shell = subprocess.Popen(["setsid", "--ctty", *allocation, "sh", "-c", command],
                                 stdin=follower, stdout=follower, stderr=follower, env=self.cluster.environment)
        self.addCleanup(shell.kill)
        os.close(follower)
        deadline = time.monotonic() + PATIENCE_S
        while shell.poll() is None:
            self.assertLess(time.monotonic(), deadline)
            if select.select([leader], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    os.read(leader, 65536)
        errors = (self.folder / "shell.err").read_text()
        self.assertEqual((self.folder / "shell.status").read_text(), "0\n", f"{allocation}: {errors}")
        self.assertRegex(errors, r"launch: 2 processes on 2 hosts through \S*/srun\n")
        self.assertEqual(len(losses((self.folder / "shell.out").read_text())), STEPS)

    def test_tasks_of_a_step_find_each_other_through_pmix(self):
        errors = self.run_in_slurm("srun", "--mpi=pmix", "-N", "2", "--ntasks-per-node=2", PENSTOCK,
                                   "launch", "--", self.job, "--json")
        self.assertIn("launch: rank 0 of 4 processes that srun has started coordinates, and tells "
                      "its address and the key through PMIx\n", errors)

    def test_tasks_of_a_step_find_each_other_by_their_variables(self):
        key = self.folder / "key"
        key.write_text(secrets.token_hex(32) + "\n")
        key.chmod(0o600)
        # The nodes of the test have names that nothing resolves.
        port = free_port()
        self.run_in_slurm("srun", "-N", "2", "--ntasks-per-node=2",
                          f"--export=ALL,MASTER_ADDR=127.0.0.1,MASTER_PORT={port}", PENSTOCK,
                          "launch", "--key-file", key, "--", self.job, "--json")

    def test_hosts_with_different_numbers_of_tasks_are_planned_for(self):
        job = [self.job, "--strategy", "dp=3", "--set", "train.batch=6"]

        def plan_of(*command):
            done = subprocess.run([*command, *job], capture_output=True, text=True, check=False,
                                  timeout=PATIENCE_S, env=self.cluster.environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            return re.search(r"plan: (.*\n)+?.*predicted", done.stderr).group()
        members = plan_of("srun", "--mpi=pmix", "-N", "2", "-n", "3", PENSTOCK, "launch", "--")
        self.assertEqual(members, plan_of(PENSTOCK, "launch", "-H", "n1:2,n2:1", "--listen", "127.0.0.1:0",
                                          "--launcher", "ssh", "--", "--dry-run"))
        self.assertNotEqual(members, plan_of(PENSTOCK, "run", "--procs", "3", "--dry-run"))

    def start_long(self, *command):
        """A job that trains until it is ended; once it has begun."""
        run = subprocess.Popen(
            [*command, PENSTOCK, "launch", "--log-dir", self.folder / "logs", "--", self.job, "--strategy",
             "dp=2", "--devices", "2", "--set", "train.steps=1000000", "--set", "train.log_every=1",
             "--set", f'checkpoint.path="{self.folder}/{self.id()}"'],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=self.cluster.environment)
        self.addCleanup(run.communicate)
        self.addCleanup(run.kill)
        self.seen = ""
        self.read_to(run, "step ")
        return run

    def read_to(self, run, text):
        """The first line from here on that begins with the text."""
        for line in run.stderr:
            self.seen += line
            if line.startswith(text):
                return line
        self.fail(f"there is no line '{text}':\n{self.seen}")

    def end_interrupted(self, run):
        """What it has printed."""
        _, errors = run.communicate(timeout=PATIENCE_S)
        errors = self.seen + errors
        self.assertIn("penstock: interrupted; ending after the steps under way", errors)
        self.assertNotIn("killed by signal", errors)
        return errors

    def test_one_interrupt_of_srun_ends_the_job_in_order(self):
        # Else srun wants a second one within a second, and then kills the step.
        run = self.start_long("srun", "--disable-status", "--mpi=pmix", "-N", "2")
        run.send_signal(signal.SIGINT)
        errors = self.end_interrupted(run)
        self.assertEqual(run.returncode, 128 + signal.SIGINT, errors)
        self.assertRegex(errors, r"penstock: interrupted \(Interrupt\) after step \d+")
        self.assertRegex(errors, r"note: continue from the last checkpoint in \S+, on \S+, with: "
                         rf"cd \S+ && srun \.\.\. {PENSTOCK} launch .* --resume\n")

    def interrupt_steps_of(self, pid, what):
        """As a scheduler does, every process of the job, or of the step, of a process."""
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        variables = dict(text.split("=", 1) for text in environment if "=" in text)
        subprocess.run(["scancel", "--signal=INT", what.format(**variables)], check=True,
                       capture_output=True, timeout=PATIENCE_S, env=self.cluster.environment)

    def test_a_second_interrupt_of_a_step_ends_the_job_at_once(self):
        run = self.start_long("srun", "--kill-on-bad-exit", "--mpi=pmix", "-N", "2")
        processes = [int(pid.name) for pid in pathlib.Path("/proc").glob("[0-9]*")
                     if self.cluster.is_of_a_job(pid.name) and is_member(pid, "1")]
        node = next(pid for pid in processes if parent_of(pid) in processes)
        os.kill(node, signal.SIGSTOP)  # so that no step ends
        step = "{SLURM_JOB_ID}.{SLURM_STEP_ID}"
        self.interrupt_steps_of(node, step)
        self.read_to(run, "penstock: interrupted; ending after the steps under way")
        self.interrupt_steps_of(node, step)
        errors = self.end_interrupted(run)
        self.assertIn("task 0: Exited with exit code 130\n", errors)
        self.assertNotIn("has not answered", errors)  # the silence of a member would end it later

    def test_an_interrupt_of_all_steps_is_for_launch_alone(self):
        run = self.start_long("salloc", "-N", "2")
        node = next(int(pid.name) for pid in pathlib.Path("/proc").glob("[0-9]*")
                    if is_node(pid, "1") and self.cluster.is_of_a_job(pid.name))
        self.interrupt_steps_of(node, "{SLURM_JOB_ID}")
        for _ in range(50):
            self.read_to(run, "step ")
        launch = next(int(pid.name) for pid in pathlib.Path("/proc").glob("[0-9]*")
                      if self.cluster.is_of_a_job(pid.name) and is_launch(pid))
        os.kill(launch, signal.SIGINT)
        errors = self.end_interrupted(run)
        self.assertEqual(run.returncode, 128 + signal.SIGINT, errors)

    def test_a_killed_node_ends_the_job_and_is_named(self):
        launch = subprocess.Popen(
            ["salloc", "-N", "2", PENSTOCK, "launch", "--", self.job, "--strategy", "dp=2",
             "--devices", "2", "--set", "train.steps=1000000"], stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, env=self.cluster.environment)
        self.addCleanup(launch.communicate)
        self.addCleanup(launch.kill)
        victim = None
        for line in launch.stderr:
            if line.startswith("joined: rank 1 "):
                victim = next(pid for pid in pathlib.Path("/proc").glob("[0-9]*")
                              if is_node(pid, "1") and self.cluster.is_of_a_job(pid.name))
                break
        os.kill(int(victim.name), signal.SIGKILL)
        _, errors = launch.communicate(timeout=PATIENCE_S)
        self.assertEqual(launch.returncode, 128 + signal.SIGKILL, errors)
        self.assertRegex(errors, r"penstock: node 1 .*was killed by signal 9 \(Killed\)")


def secret_in(text):
    return next((word for word in text.split() if len(word) == 64 and
                 all(c in "0123456789abcdef" for c in word)), None)


def is_launch(process):
    try:
        words = (process / "cmdline").read_bytes().decode().split("\0")
        return os.path.samefile(process / "exe", PENSTOCK) and words[1:2] == ["launch"]
    except OSError:
        return False


def is_member(process, rank):
    """Whether it is of the member of that rank, or of its node."""
    try:
        return is_launch(process) and f"SLURM_PROCID={rank}".encode() in (
            process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def is_node(process, rank):
    """Whether it is the node of that rank, not what has started it."""
    try:
        words = (process / "cmdline").read_bytes().decode().split("\0")
        return (os.path.samefile(process / "exe", PENSTOCK) and "node" in words and
                "--slots" not in words and words[words.index("--rank") + 1] == rank)
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    unittest.main()
