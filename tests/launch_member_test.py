"""`penstock launch` as one of several processes that something else has started.

mpirun is the real one of Open MPI, which tells the address and the key through PMIx, and etcd is the
real server; skipped where they are not installed. The variables of torchrun, srun and Kubernetes are set by the test. The manifest of
examples/kubernetes is checked against the published schemas (package kubernetes-validate, in the
virtual environment build/python that scripts/test makes).
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import base64
import contextlib
import http.server
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
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support import control_group, etcd  # noqa: E402
from tests.support.launched_job import (PATIENCE_S, STEPS, children_of, free_port,  # noqa: E402
                                        job_text, losses, losses_here)

sys.path.extend(str(path) for path in (ROOT / "build/python/lib").glob("python3*/site-packages"))

try:
    import kubernetes_validate
    import yaml
except ImportError as error:
    kubernetes_validate = None
    MISSING = str(error)

NO_RENDEZVOUS = 69
# What a process has entered in etcd stays for so long after its last word.
LEASE_S = 15


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

    def start(self, variables, *options, run=("--json",), process_group=None,
              inside=lambda command: command, **user):
        """`user` says as which user and groups it runs, as subprocess has it."""
        environment = {name: value for name, value in os.environ.items()
                       if not re.match("(RANK|WORLD_SIZE|MASTER_|SLURM_|OMPI_|PMI|PENSTOCK_KEY|"
                                       "ETCDCTL_)", name)}
        member = subprocess.Popen(
            inside([PENSTOCK, "launch", "--log-dir", self.folder / "logs", *options, "--", self.job, *run]),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=process_group, **user,
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

    def test_root_may_hand_the_key_to_a_group_of_the_processes(self):
        """As Kubernetes does where a pod has a user other than root, and an fsGroup."""
        if os.geteuid() != 0:
            self.skipTest("needs root, to be another user")
        group = 54321
        self.folder.chmod(0o755)
        logs = self.folder / "logs"
        logs.mkdir()
        os.chown(logs, 65534, 65534)
        pod = {"user": 65534, "group": 65534, "extra_groups": [group]}
        options = ("--launcher", "k8s", "--members", "2", "--coordinator", f"localhost:{self.port}",
                   "--key-file", self.key)
        os.chown(self.key, 0, group)
        self.key.chmod(0o440)
        members = [self.start({"JOB_COMPLETION_INDEX": rank}, *options, **pod) for rank in (0, 1)]
        self.check_two(members, "Kubernetes")
        for owner, mode, user, message in [
                (65534, 0o440, pod, "others may read the job's key"),  # given by nobody but itself
                (0, 0o460, pod, "others may read the job's key"),
                (0, 0o444, pod, "others may read the job's key"),
                (0, 0o440, {**pod, "extra_groups": []}, "cannot be opened"),
                (0, 0o440, {}, "others may read the job's key")]:  # root itself is not of the group
            os.chown(self.key, owner, group)
            self.key.chmod(mode)
            refused = self.start({"JOB_COMPLETION_INDEX": 1}, *options, **user)
            _, errors = refused.communicate(timeout=PATIENCE_S)
            self.assertNotEqual(refused.returncode, 0, errors)
            self.assertIn(message, errors)

    def test_users_of_hosts_are_for_ssh_alone(self):
        for launcher, program in (("mpi", "mpirun"), ("slurm", "srun")):
            refused = self.start({}, "--launcher", launcher, "-H", "n1,me@n2:4", "--through", "true")
            _, errors = refused.communicate(timeout=PATIENCE_S)
            self.assertEqual(refused.returncode, 2, errors)
            self.assertIn(f"penstock: 'me@n2': {program} starts processes as the user who calls it; "
                          "expected 'n2' without a user, or --launcher ssh\n", errors)

    def test_mpirun_tells_the_address_and_the_key(self):
        there = self.mpirun((2,))
        self.assertEqual(there.returncode, 0, there.stderr)
        self.assertEqual(losses(there.stdout), losses_here(PENSTOCK, self.job))
        self.assertIn("launch: rank 0 of 2 processes that mpirun has started coordinates, and tells "
                      "its address and the key through PMIx\n", there.stderr)
        self.assertEqual(there.stderr.count("note: PMIx passes the key on without encryption"), 1)
        self.assertIsNone(re.search("[0-9a-f]{64}", there.stderr))

    def test_another_server_of_pmix_needs_the_number_of_processes(self):
        """mpirun without its own variables, as with prun."""
        command = self.mpirun_command((2,))
        program = command.index(PENSTOCK)
        bare = ["env", "-u", "OMPI_COMM_WORLD_RANK", "-u", "OMPI_COMM_WORLD_SIZE"]
        for options, status in (([], 2), (["--members", "2"], 0)):
            there = subprocess.run([*command[:program], *bare, *command[program:program + 2], *options,
                                    *command[program + 2:]], capture_output=True, text=True,
                                   timeout=PATIENCE_S, check=False)
            self.assertEqual(there.returncode, status, there.stderr)
            if status == 0:
                self.assertEqual(losses(there.stdout), losses_here(PENSTOCK, self.job))
                self.assertIn("launch: rank 0 of 2 processes that a PMIx server has started coordinates",
                              there.stderr)
            else:
                self.assertIn("penstock: launch: a PMIx server does not say how many processes there are: add "
                              "--members\n", there.stderr)

    def test_mpirun_does_not_tell_a_key_that_is_in_a_file(self):
        there = self.mpirun((2, "--key-file", self.key))
        self.assertEqual(there.returncode, 0, there.stderr)
        self.assertEqual(losses(there.stdout), losses_here(PENSTOCK, self.job))
        self.assertIn("and tells its address through PMIx\n", there.stderr)
        self.assertNotIn("without encryption", there.stderr)
        # Who has no file does not learn it.
        there = self.mpirun((1, "--key-file", self.key, "--join-timeout", "5"),
                            (1, "--join-timeout", "5"))
        self.assertNotEqual(there.returncode, 0, there.stderr)
        self.assertIn("penstock: the job's key is missing", there.stderr)

    def test_a_member_starts_no_processes_on_hosts(self):
        both = {"RANK": 0, "WORLD_SIZE": 2}
        there = f"{self.folder}/hosts"
        for variables, options, message in [
                (both, ("-H", "a,b"), "-H is for a process that starts the others, but the variables of "
                 "torchrun say that it has started this process as rank 0 of 2; leave out this option to "
                 "join the others, or add --launcher ssh, slurm or mpi to start a job on hosts all the "
                 "same"),
                (both, ("--hostfile", there, "--fanout", "2"), "--hostfile, --fanout are for a process"),
                (both, ("--through", "ssh", "--launcher", "member"), "--through is for a process"),
                ({"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 2}, ("-H", "a"),
                 "the variables of mpirun say that it has started this process as rank 1 of 2"),
                (self.step(1), ("-H", "a"), "the variables of srun say"),
                ({}, ("-H", "a", "--rendezvous", "http://a:1/job"), "--rendezvous is for processes that "
                 "something else has started"),
                ({}, ("-H", "a", "--coordinator", "b:1"), "--members, --device, --coordinator and "
                 "--rendezvous are for a member"),
                ({}, ("--through", "ssh"), "--through is for processes on several hosts: add -H"),
                ({}, ("--listen", "127.0.0.1"), "--listen is for processes on several hosts: add -H"),
                ({}, ("--hostfile", there), f"{there}: "),
                ({"RANK": 0, "WORLD_SIZE": 1}, ("--hostfile", there), f"{there}: "),
                (both, ("--hostfile", there, "--launcher", "ssh"), f"{there}: ")]:
            key = ("--key-file", self.key) if variables else ()
            refused = self.start(variables, *key, *options)
            _, errors = refused.communicate(timeout=PATIENCE_S)
            self.assertIn(refused.returncode, (1, 2), errors)
            self.assertIn(message, errors)

    def test_hosts_win_over_variables_of_a_process_alone(self):
        alone = {"RANK": 0, "WORLD_SIZE": 1}
        run = self.start(alone, "-H", "n1:2", "--through", "sh -c 'exit 7'", "--listen", "127.0.0.1:0")
        _, errors = run.communicate(timeout=PATIENCE_S)
        self.assertEqual(run.returncode, 7, errors)
        self.assertIn("note: the hosts of -H count, not the variables of torchrun, which has started "
                      "this process alone\n", errors)
        self.assertRegex(errors, r"launch: 2 processes on 1 host through \S*/sh\n")

    def test_a_process_alone_needs_no_key(self):
        alone = self.start({"SLURM_PROCID": 0, "SLURM_STEP_NUM_TASKS": 1, "SLURM_STEP_ID": 0,
                            "SLURM_JOB_ID": 1, "SLURM_STEP_NODELIST": "n1"},
                           run=("--json", "--set", "parallel.strategy='dp=1'"))
        output, errors = alone.communicate(timeout=PATIENCE_S)
        self.assertEqual(alone.returncode, 0, errors)
        self.assertEqual(len(losses(output)), STEPS)

    def listeners(self, pid):
        """Addresses at which a process listens for internet connections."""
        sockets = set()
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(fd))
        found = set()
        for table in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                    address, port = words[1].split(":")
                    found.add((address, int(port, 16)))
        return found

    def test_rank_0_listens_where_the_others_look_for_it(self):
        for host, options, address in [
                ("127.0.0.1", (), "0100007F"), ("localhost", (), "0100007F"),
                ("127.0.0.1", ("--listen", "127.0.0.2"), "0200007F"),
                # No address of this host: somebody may hand its connections on.
                ("192.0.2.1", (), "00000000")]:
            first = self.start({**self.torchrun(0), "MASTER_ADDR": host}, "--key-file", self.key,
                               *options)
            self.await_true(lambda first=first: any(port == self.port for _, port in
                                                    self.listeners(first.pid)), "a listener")
            self.assertIn((address, self.port), self.listeners(first.pid), host)
            first.kill()
            first.wait()
        refused = self.start(self.torchrun(0), "--key-file", self.key, "--listen", "127.0.0.1:1")
        _, errors = refused.communicate(timeout=PATIENCE_S)
        self.assertEqual(refused.returncode, 2, errors)
        self.assertIn(f"the others connect to port {self.port}; give the host alone", errors)

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
        self.put(server, "penstock/job/address", f"127.0.0.1:{free_port()}")
        # Rank 1 reads the old address first.
        second, first = (
            self.start({"RANK": rank, "WORLD_SIZE": 2}, "--rendezvous", server.url("job"),
                       "--key-file", self.key) for rank in (1, 0))
        for member in (first, second):
            _, errors = member.communicate(timeout=PATIENCE_S)
            self.assertEqual(member.returncode, 0, errors)

    def put(self, server, key, value, lease="0"):
        coded = {name: base64.b64encode(text.encode()).decode()
                 for name, text in (("key", key), ("value", value))}
        server.call("v3/kv/put", {**coded, "lease": lease})

    def entries(self, server):
        """Of all jobs in etcd: how many."""
        begin, end = (base64.b64encode(key).decode() for key in (b"penstock/", b"penstock0"))
        answer = server.call("v3/kv/range", {"key": begin, "range_end": end, "count_only": True})
        return int(answer.get("count", 0))

    def await_true(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.05)

    def begin_by_name(self, server):
        """Members of a job that runs until rank 0 is interrupted; that one first."""
        members = self.join_by_name(server, run=("--json", "--set", "train.steps=1000000"))
        while True:
            for member in members:
                if select.select([member.stdout], [], [], 0.05)[0] and member.stdout.readline():
                    return sorted(members, key=lambda other: other is not member)

    def end_by_name(self, members):
        members[0].send_signal(signal.SIGINT)
        for member, status in zip(members, (130, 1)):
            _, errors = member.communicate(timeout=PATIENCE_S)
            self.assertEqual(member.returncode, status, errors)
            self.assertNotIn("another job has taken the name", errors)

    def test_a_latecomer_does_not_take_the_name_of_a_job_that_runs(self):
        server = self.etcd()
        server.start()
        members = self.begin_by_name(server)
        # Longer than a lease.
        time.sleep(LEASE_S + 2)
        self.assertEqual(self.entries(server), 3)
        for options in (("--members", "2"), ("--members", "3")):
            late = self.start({}, "--rendezvous", server.url("job"), *options, "--key-file", self.key,
                              "--join-timeout", "2")
            _, errors = late.communicate(timeout=PATIENCE_S)
            self.assertEqual(late.returncode, NO_RENDEZVOUS, errors)
            self.assertRegex(errors, r"penstock: the name 'job' is taken in etcd at http://\S+: "
                             r"(another job of that name|a job of 2 processes, not 3,) runs, whose rank 0 "
                             r"is at \S+:\d+ or was killed less than 15s ago\. Wait for its end, or take "
                             "another name in --rendezvous\n")
            self.assertNotIn("coordinates", errors)
        late = self.start({"RANK": 0, "WORLD_SIZE": 2}, "--rendezvous", server.url("job"), "--key-file",
                          self.key, "--join-timeout", "60")
        _, errors = late.communicate(timeout=PATIENCE_S)
        self.assertEqual(late.returncode, NO_RENDEZVOUS, errors)
        self.assertRegex(errors, r"penstock: the name 'job' is taken in etcd at http://\S+: another job of "
                         r"that name runs, whose rank 0 is at \S+:\d+\. Wait for its end")
        self.end_by_name(members)
        self.assertEqual(self.entries(server), 0)

    def test_a_job_enters_its_name_again_where_etcd_has_lost_it(self):
        server = self.etcd()
        server.start()
        members = self.begin_by_name(server)
        server.kill()
        shutil.rmtree(self.folder / "etcd")
        server.start()
        self.await_true(lambda: self.entries(server) == 3, "the entries of the job")
        self.end_by_name(members)
        self.assertEqual(self.entries(server), 0)

    def test_the_name_of_a_killed_job_is_free_after_its_lease(self):
        server = self.etcd()
        server.start()
        for member in self.begin_by_name(server):
            member.kill()
        begin = time.monotonic()
        members = self.join_by_name(server)
        for member in members:
            _, errors = member.communicate(timeout=PATIENCE_S)
            self.assertEqual(member.returncode, 0, errors)
        self.assertLess(time.monotonic() - begin, LEASE_S + 10)

    def test_etcd_may_ask_for_a_certificate_and_a_password(self):
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl")
        if reason := etcd.why_not():
            self.skipTest(reason)
        etcd.make_certificates(self.folder)
        server = etcd.Etcd(self.folder, is_secure=True)
        self.addCleanup(server.kill)
        server.start()
        server.demand_users("trainer", "pass:word")
        access = {"ETCDCTL_CACERT": self.folder / "ca.pem", "ETCDCTL_CERT": self.folder / "client.pem",
                  "ETCDCTL_KEY": self.folder / "client.key", "ETCDCTL_USER": "trainer:pass:word"}
        # Nobody listens at the first endpoint.
        url = server.url("job").replace("https://", f"https://127.0.0.1:{free_port()},")

        def member(variables, *options):
            return self.start(variables, "--rendezvous", url, "--members", "2", "--key-file", self.key,
                              *options)

        members = [member(access) for _ in range(2)]
        for process in members:
            _, errors = process.communicate(timeout=PATIENCE_S)
            self.assertEqual(process.returncode, 0, errors)
        token = server.call("v3/auth/authenticate", {"name": "root", "password": "of-root"})["token"]
        revisions = server.call("v3/kv/range", {"key": base64.b64encode(b"x").decode()}, token)
        self.assertGreater(int(revisions["header"]["revision"]), 3)
        for changed, message in [
                ({"ETCDCTL_USER": "trainer:wrong"}, "authentication failed, invalid user ID or password"),
                ({"ETCDCTL_USER": "", }, "user name is empty"),
                ({"ETCDCTL_CACERT": ""}, "its certificate is not for this host, or not of an authority "
                 "that is trusted"),
                ({"ETCDCTL_CACERT": "/nowhere"}, "ETCDCTL_CACERT = '/nowhere': the file cannot be read"),
                ({"ETCDCTL_KEY": ""}, "ETCDCTL_CERT and ETCDCTL_KEY go together"),
                ({"ETCDCTL_CERT": "", "ETCDCTL_KEY": ""}, "as etcd does where it asks for https or for a "
                 "certificate (ETCDCTL_CERT)")]:
            refused = member({**access, **changed}, "--join-timeout", "1")
            _, errors = refused.communicate(timeout=PATIENCE_S)
            self.assertNotEqual(refused.returncode, 0, errors)
            self.assertIn(message, errors)
            self.assertNotIn("pass:word", errors)

    def test_a_wrong_rendezvous_is_refused(self):
        for url in ("etcd://127.0.0.1:2379/job", "http://127.0.0.1:2379/", "http:///job",
                    "http://a:1,https://b:1/job", "http://user:password@a:1/job", "http://a:1/b/c"):
            member = self.start({}, "--rendezvous", url, "--members", "2", "--key-file", self.key)
            _, errors = member.communicate(timeout=PATIENCE_S)
            self.assertEqual(member.returncode, 2, errors)
            self.assertIn(f"--rendezvous '{url}': ", errors)

    def test_a_job_that_runs_does_not_need_etcd(self):
        server = self.etcd()
        server.start()
        run = ("--json", "--set", "train.steps=200")
        expected = losses(subprocess.run([PENSTOCK, "run", self.job, *run], capture_output=True, text=True,
                                         timeout=120, check=True).stdout)
        self.assertEqual(len(expected), 200)
        members = self.join_by_name(server, run=run)
        begin = ""
        while not begin:
            for member in members:
                if not begin and select.select([member.stdout], [], [], 0.05)[0]:
                    begin, first = member.stdout.readline(), member
        server.kill()
        self.assertEqual(losses(begin + first.stdout.read()), expected)
        for member in members:
            errors = member.stderr.read()
            self.assertEqual(member.wait(PATIENCE_S), 0, errors)

    def test_what_etcd_does_not_take_is_given_up_in_time(self):
        """A server that gives rank 0 its place, and then takes nothing any more."""
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.server.num_entered += self.path == "/v3/kv/txn"
                answer = {"/v3/lease/grant": {"ID": "1", "TTL": "15"},
                          "/v3/lease/keepalive": {"result": {"ID": "1", "TTL": "15"}},
                          "/v3/kv/txn": {"succeeded": True}}.get(self.path, {})
                body = json.dumps(answer).encode()
                self.send_response(200 if self.server.num_entered < 2 else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.num_entered = 0
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            self.addCleanup(thread.join)
            self.addCleanup(server.shutdown)
            begin = time.monotonic()
            first = self.start({"RANK": 0, "WORLD_SIZE": 2}, "--rendezvous",
                               f"http://127.0.0.1:{server.server_address[1]}/job", "--key-file", self.key,
                               "--join-timeout", "1")
            _, errors = first.communicate(timeout=2 * PATIENCE_S)
            # A second for etcd, and one for the others, who cannot come.
            self.assertLess(time.monotonic() - begin, PATIENCE_S / 2, errors)
            self.assertEqual(first.returncode, NO_RENDEZVOUS, errors)
            self.assertRegex(errors, r"note: etcd at \S+ status 503 for ")
            self.assertIn("missing ranks 1\n", errors)
            self.assertEqual(server.num_entered, 2)
            server.shutdown()

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
        first = self.start(self.torchrun(0), "--key-file", self.key, run=run, process_group=0)
        second = self.start(self.torchrun(1), "--key-file", self.key, run=run, process_group=first.pid)
        for line in first.stderr:
            if line.startswith("step "):
                break
        os.killpg(first.pid, signal.SIGINT)
        _, errors = first.communicate(timeout=PATIENCE_S)
        self.assertEqual(first.returncode, 130, errors)
        self.assertIn("penstock: interrupted; ending after the steps under way", errors)
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
        self.assertIn("penstock: interrupted; ending after the steps under way", errors)
        self.assertRegex(errors, r"interrupted \(Interrupt\) after step \d+")

    def test_a_member_that_dies_is_named(self):
        members = [self.start(self.torchrun(rank), "--key-file", self.key,
                              run=("--set", "train.steps=1000000")) for rank in (0, 1)]
        for line in members[1].stderr:
            if line.startswith("joined as rank 1"):
                break
        node, = children_of(members[1].pid)
        os.kill(node, signal.SIGKILL)
        death = rf"penstock: node 1 \(pid {node} on \S+\) was killed by signal 9 \(Killed\)"
        for member, when in zip(members, (r" (in step \d+|while the job was loading)\n", r"\n")):
            _, errors = member.communicate(timeout=PATIENCE_S)
            self.assertEqual(member.returncode, 128 + signal.SIGKILL, errors)
            self.assertRegex(errors, death + when)

    def test_a_member_that_is_killed_with_its_node_is_named(self):
        members = [self.start(self.torchrun(rank), "--key-file", self.key,
                              run=("--set", "train.steps=1000000")) for rank in (0, 1)]
        for line in members[1].stderr:
            if line.startswith("joined as rank 1"):
                break
        node, = children_of(members[1].pid)
        members[1].kill()
        _, errors = members[0].communicate(timeout=PATIENCE_S)
        self.assertEqual(members[0].returncode, 1, errors)
        self.assertRegex(errors, rf"penstock: node 1 \(pid {node} on \S+\) has closed its connection")
        # The node has the output of the member.
        members[1].communicate(timeout=PATIENCE_S)

    def test_a_member_without_memory_is_named_with_the_reason(self):
        try:
            group = control_group.memory_group(128 << 20)
        except OSError as error:
            self.skipTest(f"no limit of memory here: {error}")
        self.addCleanup(group.close)
        # More than the limit: 25 million parameters, their gradients and the states of Adam.
        run = ("--set", "model.width=512", "--set", "model.layers=8")
        members = [self.start(self.torchrun(0), "--key-file", self.key, run=run),
                   self.start(self.torchrun(1), "--key-file", self.key, run=run, inside=group.inside)]
        reason = (r"was killed by signal 9 \(Killed\), probably for lack of memory: the kernel's "
                  "out-of-memory killer has acted since it started")
        for member in members:
            _, errors = member.communicate(timeout=PATIENCE_S)
            self.assertEqual(member.returncode, 128 + signal.SIGKILL, errors)
            self.assertRegex(errors, rf"penstock: node 1 \(pid \d+ on \S+\) {reason}")

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
                         rf"continue from the last checkpoint in {checkpoints}, on \S+, if one was written, with "
                         rf"\(in each of its processes, with the variables that it had\): cd \S+ && "
                         rf"{PENSTOCK} launch .*--key-file {self.key} -- .* --resume\n")

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
