"""`penstock launch` as one of several processes that something else has started.

mpirun is the real one of Open MPI, which tells the address and the key through PMIx, and etcd is the
real server; skipped where they are not installed. The variables of torchrun, srun and Kubernetes are set by the test. The manifest of
examples/kubernetes is checked against the published schemas (package kubernetes-validate, in the
virtual environment build/python that scripts/test makes).
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import base64
import json
import os
import pathlib
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support import etcd  # noqa: E402
from tests.support.launched_job import (PATIENCE_S, STEPS, free_port, job_text,  # noqa: E402
                                        losses, losses_here)

sys.path.extend(str(path) for path in (ROOT / "build/python/lib").glob("python3*/site-packages"))

try:
    import kubernetes_validate
    import yaml
except ImportError as error:
    kubernetes_validate = None
    MISSING = str(error)

NO_RENDEZVOUS = 69


class LaunchMemberTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        folder = tempfile.TemporaryDirectory(prefix="penstock_member.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.job = self.folder / "job.toml"
        self.job.write_text(job_text("dp=2"))
        self.key = self.folder / "key"
        self.key.write_text(secrets.token_hex(32) + "\n")
        self.key.chmod(0o600)
        self.port = free_port()

    def start(self, variables, *options, run=("--json",), group=None):
        environment = {name: value for name, value in os.environ.items()
                       if not re.match("(RANK|WORLD_SIZE|MASTER_|SLURM_|OMPI_|PMI|PENSTOCK_KEY)", name)}
        member = subprocess.Popen(
            [PENSTOCK, "launch", "--log-dir", self.folder / "logs", *options, "--", self.job, *run],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=group,
            env={**environment, **{name: str(value) for name, value in variables.items()}})
        self.addCleanup(member.communicate)
        self.addCleanup(member.kill)
        return member

    def mpirun_command(self, *groups, run=()):
        """Of processes in groups, each with its number and options of `launch`."""
        if shutil.which("mpirun") is None:
            self.skipTest("there is no mpirun (package openmpi-bin)")
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
        for index, (count, *options) in enumerate(groups):
            command += [":"] if index > 0 else []
            command += ["-np", str(count), PENSTOCK, "launch", "--log-dir", self.folder / "logs",
                        *options, "--", self.job, "--json", *run]
        return command

    def mpirun(self, *groups):
        return subprocess.run(self.mpirun_command(*groups), capture_output=True, text=True,
                              timeout=PATIENCE_S, check=False)

    def torchrun(self, rank):
        return {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": self.port}

    def check_two(self, members, starter):
        """Both end well, rank 0 with the losses of one process that runs all."""
        expected = losses_here(PENSTOCK, self.job)
        outputs = [member.communicate(timeout=PATIENCE_S) for member in members]
        for member, (_, errors) in zip(members, outputs):
            self.assertEqual(member.returncode, 0, errors)
        self.assertEqual(losses(outputs[0][0]), expected)
        self.assertEqual(outputs[1][0], "")
        self.assertIn(f"launch: rank 0 of 2 processes that {starter} has started coordinates\n",
                      outputs[0][1])
        self.assertIn("joined as rank 1 ", outputs[1][1])

    def test_variables_of_torchrun(self):
        # The other waits for the one that coordinates.
        members = [self.start(self.torchrun(rank), "--key-file", self.key) for rank in (1, 0)]
        self.check_two(members[::-1], "torchrun")

    def test_an_agent_of_torchrun_may_listen_at_the_port(self):
        with socket.socket() as store:
            store.bind(("127.0.0.1", 0))
            store.listen()
            self.port = store.getsockname()[1]
            members = [self.start({**self.torchrun(rank), "TORCHELASTIC_USE_AGENT_STORE": "True"},
                                  "--key-file", self.key) for rank in (0, 1)]
            self.check_two(members, "torchrun")

    def test_variables_of_a_step_of_slurm(self):
        members = [self.start({"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": 2, "SLURM_STEP_ID": 0,
                               "SLURM_JOB_ID": self.port, "SLURM_STEP_NODELIST": "127.0.0.1",
                               "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_JOB_NODELIST": "127.0.0.1",
                               "PENSTOCK_KEY": self.key.read_text().strip()}) for rank in (0, 1)]
        self.check_two(members, "srun")

    def test_variables_of_a_kubernetes_job(self):
        members = [self.start({"JOB_COMPLETION_INDEX": rank}, "--launcher", "k8s", "--members", "2",
                              "--coordinator", f"localhost:{self.port}", "--key-file", self.key)
                   for rank in (0, 1)]
        self.check_two(members, "Kubernetes")

    def test_the_launcher_of_kubernetes_needs_an_index(self):
        options = ("--launcher", "k8s", "--members", "2", "--coordinator", f"localhost:{self.port}",
                   "--key-file", self.key)
        # Variables of others do not count.
        members = [self.start({"JOB_COMPLETION_INDEX": rank, "RANK": 1 - rank, "WORLD_SIZE": 2}, *options)
                   for rank in (0, 1)]
        self.check_two(members, "Kubernetes")
        refused = self.start({"RANK": 0, "WORLD_SIZE": 2}, *options)
        _, errors = refused.communicate(timeout=PATIENCE_S)
        self.assertEqual(refused.returncode, 2, errors)
        self.assertIn("--launcher k8s: JOB_COMPLETION_INDEX is not set", errors)

    def test_the_kubernetes_manifest(self):
        if kubernetes_validate is None:
            self.skipTest(MISSING)
        manifest = ROOT / "examples/kubernetes/job.yaml"
        service, job = yaml.safe_load_all(manifest.read_text())
        for document in (service, job):
            kubernetes_validate.validate(document, "1.30", strict=True)
        spec = job["spec"]
        pod = spec["template"]["spec"]
        container = pod["containers"][0]
        arguments = container["args"]
        # The names that pods of an indexed job have.
        host = f"{job['metadata']['name']}-0.{pod['subdomain']}"
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        self.assertEqual(service["spec"]["selector"]["job-name"], job["metadata"]["name"])
        self.assertEqual(container["command"], ["penstock", "launch"])
        self.assertEqual(spec["completions"], spec["parallelism"])
        size = int(arguments[arguments.index("--members") + 1])
        self.assertEqual(size, spec["completions"])
        coordinator = arguments[arguments.index("--coordinator") + 1]
        self.assertEqual(coordinator.rsplit(":", 1)[0], host)
        secret = next(volume for volume in pod["volumes"] if volume["name"] == "key")["secret"]
        self.assertEqual(secret["defaultMode"], 0o400)
        # The same command in the variables of each pod, with names of this host.
        there = {coordinator: f"localhost:{self.port}", "/key/key": str(self.key),
                 "/jobs/job.toml": str(self.job)}
        arguments = [there.get(argument, argument) for argument in arguments]
        end = arguments.index("--")
        self.job.write_text(job_text(f"dp={size}"))
        members = [self.start({"JOB_COMPLETION_INDEX": rank}, *arguments[:end])
                   for rank in range(size)]
        outputs = [member.communicate(timeout=PATIENCE_S) for member in members]
        for member, (_, errors) in zip(members, outputs):
            self.assertEqual(member.returncode, 0, errors)
        self.assertEqual(len(losses(outputs[0][0])), STEPS)

    def test_mpirun_tells_the_address_and_the_key(self):
        there = self.mpirun((2,))
        self.assertEqual(there.returncode, 0, there.stderr)
        self.assertEqual(losses(there.stdout), losses_here(PENSTOCK, self.job))
        self.assertIn("launch: rank 0 of 2 processes that mpirun has started coordinates, and tells "
                      "its address and the key through PMIx\n", there.stderr)
        self.assertIsNone(re.search("[0-9a-f]{64}", there.stderr))

    def test_mpirun_does_not_tell_a_key_that_is_in_a_file(self):
        there = self.mpirun((2, "--key-file", self.key))
        self.assertEqual(there.returncode, 0, there.stderr)
        self.assertEqual(losses(there.stdout), losses_here(PENSTOCK, self.job))
        self.assertIn("and tells its address through PMIx\n", there.stderr)
        # Who has no file does not learn it.
        there = self.mpirun((1, "--key-file", self.key, "--join-timeout", "5"),
                            (1, "--join-timeout", "5"))
        self.assertNotEqual(there.returncode, 0, there.stderr)
        self.assertIn("penstock: the job's key is missing", there.stderr)

    def etcd(self):
        if reason := etcd.why_not():
            self.skipTest(reason)
        server = etcd.Etcd(self.folder)
        self.addCleanup(server.kill)
        return server

    def join_by_name(self, server, run=("--json",)):
        return [self.start({}, "--rendezvous", server.url("job"), "--members", "2", "--key-file",
                           self.key, run=run) for _ in range(2)]

    def test_etcd_gives_ranks_and_tells_the_address(self):
        server = self.etcd()
        # The members wait for the server.
        members = self.join_by_name(server)
        server.start()
        expected = losses_here(PENSTOCK, self.job)
        outputs = [member.communicate(timeout=PATIENCE_S) for member in members]
        self.assertEqual([member.returncode for member in members], [0, 0], outputs)
        printed = [losses(output) for output, _ in outputs]
        self.assertEqual(sorted(printed, key=len), [[], expected])
        self.assertRegex(outputs[0][1] + outputs[1][1],
                         "launch: rank 0 of 2 processes coordinates, and tells its address through etcd "
                         r"at http://127\.0\.0\.1:")

    def test_a_name_in_etcd_may_be_used_again(self):
        server = self.etcd()
        server.start()
        for _ in range(2):
            for member in self.join_by_name(server):
                _, errors = member.communicate(timeout=PATIENCE_S)
                self.assertEqual(member.returncode, 0, errors)

    def test_what_a_killed_rank_0_has_posted_is_overcome(self):
        server = self.etcd()
        server.start()
        self.await_etcd(server)
        self.put(server, "penstock/job/address", f"127.0.0.1:{free_port()}")
        # Rank 1 reads the old address first.
        second, first = (
            self.start({"RANK": rank, "WORLD_SIZE": 2}, "--rendezvous", server.url("job"),
                       "--key-file", self.key) for rank in (1, 0))
        for member in (first, second):
            _, errors = member.communicate(timeout=PATIENCE_S)
            self.assertEqual(member.returncode, 0, errors)

    def put(self, server, key, value):
        body = {name: base64.b64encode(text.encode()).decode()
                for name, text in (("key", key), ("value", value))}
        request = urllib.request.Request(server.url("v3/kv/put"), json.dumps(body).encode())
        urllib.request.urlopen(request, timeout=PATIENCE_S).close()

    def await_etcd(self, server):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.put(server, "ready", "yes")
            except OSError:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)

    def test_a_job_that_runs_does_not_need_etcd(self):
        server = self.etcd()
        server.start()
        members = self.join_by_name(server, run=("--json", "--set", "train.steps=200"))
        first = None
        while first is None:
            for member in members:
                if select.select([member.stdout], [], [], 0.05)[0] and member.stdout.readline():
                    first = member
        server.kill()
        for member in members:
            _, errors = member.communicate(timeout=PATIENCE_S)
            self.assertEqual(member.returncode, 0, errors)

    def test_without_etcd_nobody_waits_for_ever(self):
        member = self.start({}, "--rendezvous", f"http://127.0.0.1:{self.port}/job", "--members", "2",
                            "--key-file", self.key, "--join-timeout", "1")
        _, errors = member.communicate(timeout=PATIENCE_S)
        self.assertEqual(member.returncode, NO_RENDEZVOUS, errors)
        self.assertIn(f"penstock: etcd at http://127.0.0.1:{self.port}: nothing answers there; is etcd "
                      "running", errors)

    def test_without_the_server_of_pmix_nobody_waits_for_ever(self):
        member = self.start({"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 2, "PMIX_RANK": 1,
                             "PMIX_NAMESPACE": "nobody", "PMIX_SERVER_URI4": "nobody.0;tcp4://"
                             f"127.0.0.1:{self.port}"}, "--join-timeout", "1")
        _, errors = member.communicate(timeout=PATIENCE_S)
        self.assertEqual(member.returncode, NO_RENDEZVOUS, errors)
        self.assertIn("penstock: PMIx: ", errors)

    def test_who_is_missing_is_named(self):
        first = self.start(self.torchrun(0), "--key-file", self.key, "--join-timeout", "1")
        _, errors = first.communicate(timeout=PATIENCE_S)
        self.assertEqual(first.returncode, NO_RENDEZVOUS, errors)
        self.assertRegex(errors, r"penstock: not all nodes joined \S+ in 1s: missing ranks 1\n")
        first = self.start({**self.step(0), "PENSTOCK_KEY": self.key.read_text().strip()},
                           "--join-timeout", "1")
        _, errors = first.communicate(timeout=PATIENCE_S)
        self.assertEqual(first.returncode, NO_RENDEZVOUS, errors)
        self.assertIn("missing ranks 1 on node8\n", errors)
        second = self.start(self.torchrun(1), "--key-file", self.key, "--join-timeout", "1")
        _, errors = second.communicate(timeout=PATIENCE_S)
        self.assertEqual(second.returncode, NO_RENDEZVOUS, errors)
        self.assertIn(f"joining the coordinator at 127.0.0.1:{self.port}: no coordinator answers",
                      errors)

    def step(self, rank):
        """Variables of a task of srun on two nodes."""
        return {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": 2, "SLURM_STEP_ID": 0,
                "SLURM_JOB_ID": self.port, "SLURM_STEP_NODELIST": "node[7-8]",
                "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": self.port}

    def test_one_interrupt_of_all_ends_the_job_in_order(self):
        run = ("--set", "train.steps=1000000")
        first = self.start(self.torchrun(0), "--key-file", self.key, run=run, group=0)
        second = self.start(self.torchrun(1), "--key-file", self.key, run=run, group=first.pid)
        for line in first.stderr:
            if line.startswith("step "):
                break
        os.killpg(first.pid, signal.SIGINT)
        _, errors = first.communicate(timeout=PATIENCE_S)
        self.assertEqual(first.returncode, 130, errors)
        self.assertIn("penstock: interrupted; ending after this step", errors)
        self.assertRegex(errors, r"penstock: interrupted \(Interrupt\) after step \d+")
        _, errors = second.communicate(timeout=PATIENCE_S)
        self.assertEqual(second.returncode, 1, errors)
        self.assertIn("interrupted (Interrupt) after step", errors)

    def test_an_interrupt_of_rank_0_under_mpirun_ends_the_job_in_order(self):
        run = subprocess.Popen(self.mpirun_command((2,), run=("--set", "train.steps=1000000")),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(run.stdout.close)
        self.addCleanup(run.stderr.close)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        for line in run.stderr:
            if job := re.match(r"job (\d+): ", line):
                break
        run.stdout.readline()
        os.kill(int(job[1]), signal.SIGINT)
        _, errors = run.communicate(timeout=PATIENCE_S)
        # mpirun ends whoever is left once the first has ended with a status.
        self.assertIn("penstock: interrupted; ending after this step", errors)
        self.assertRegex(errors, r"interrupted \(Interrupt\) after step \d+")

    def test_a_member_that_dies_is_named(self):
        members = [self.start(self.torchrun(rank), "--key-file", self.key,
                              run=("--set", "train.steps=1000000")) for rank in (0, 1)]
        for line in members[1].stderr:
            if line.startswith("joined as rank 1"):
                break
        os.kill(members[1].pid, signal.SIGKILL)
        _, errors = members[0].communicate(timeout=PATIENCE_S)
        self.assertEqual(members[0].returncode, 1, errors)
        self.assertRegex(errors, rf"penstock: node 1 \(pid {members[1].pid} on \S+\)")

    def test_members_without_a_coordinator_say_how_the_job_goes_on(self):
        checkpoints = self.folder / "checkpoints"
        run = ("--set", f'checkpoint.path="{checkpoints}"', "--set", "checkpoint.every=5")
        members = [self.start(self.torchrun(rank), "--key-file", self.key,
                              run=(*run, "--set", "train.steps=1000000")) for rank in (0, 1)]
        deadline = time.monotonic() + PATIENCE_S
        while not list(checkpoints.glob("step*/*")):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        members[0].kill()
        killed = time.monotonic()
        _, errors = members[1].communicate(timeout=PATIENCE_S)
        self.assertLess(time.monotonic() - killed, 4)
        self.assertEqual(members[1].returncode, 1, errors)
        self.assertRegex(errors, rf"penstock: the coordinator \(pid {members[0].pid} on \S+\) is gone; "
                         rf"continue from the last checkpoint in {checkpoints}, on \S+, with: "
                         rf"cd \S+ && {PENSTOCK} launch .*--key-file {self.key} -- .* --resume\n")

    def test_members_end_with_what_has_started_them(self):
        # The shell starts both, and waits.
        script = "; ".join(
            " ".join([f"RANK={rank}", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1",
                      f"MASTER_PORT={self.port}", PENSTOCK, "launch", "--log-dir",
                      str(self.folder / "logs"), "--key-file", str(self.key), "--", str(self.job),
                      "--set", "train.steps=1000000", "2>&1 &"]) for rank in (0, 1))
        script = script.replace("&;", "&")
        starter = subprocess.Popen(["/bin/sh", "-c", f"{script} wait"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(starter.stdout.close)
        self.addCleanup(starter.wait)
        self.addCleanup(starter.kill)
        for line in starter.stdout:
            if line.startswith("step "):
                break
        starter.kill()
        # The end of the output is that of the last process that has it.
        rest = starter.stdout.read()
        self.assertIn(f"penstock: torchrun (pid {starter.pid}), which had started this process, is gone; "
                      "ending\n", rest)

    def test_without_a_key_it_says_how_to_make_one(self):
        member = self.start(self.torchrun(0))
        _, errors = member.communicate(timeout=PATIENCE_S)
        self.assertEqual(member.returncode, 2, errors)
        self.assertIn("openssl rand -hex 32 > key; chmod 600 key", errors)


if __name__ == "__main__":
    unittest.main()
