"""Every launcher starts the demo on four hosts, and it has the same losses under each. Who reads the
network meanwhile does not see the job's key where ssh or munge encrypts it, and does where docs/SECURITY.md
says so.

The hosts are network namespaces. The SSH server, Slurm's daemons, mpirun and etcd are real ones; what
the system lacks is skipped, and the reason printed: see why_not of tests/support. PENSTOCK_COMMAND
names the command (default: build/bin/penstock).
"""

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support import etcd, hosts, slurm, ssh_server  # noqa: E402
from tests.support.hosts import NUM_HOSTS  # noqa: E402
from tests.support.launched_job import PATIENCE_S, free_port, losses  # noqa: E402
from tests.support.sniffer import KEY, Sniffer, streams_of  # noqa: E402

PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
STEPS = 5
RUN = [str(ROOT / "examples/gpt/demo.toml"), "--json"]
for setting in (f"train.steps={STEPS}", "train.validation_sequences=0", "sample.bytes=0",
                "model.dropout=0.05"):
    RUN += ["--set", setting]


class FourHostsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.access(PENSTOCK, os.X_OK):
            raise unittest.SkipTest(f"{PENSTOCK} is not built")
        folder = tempfile.TemporaryDirectory(prefix="penstock_four.")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.hosts = hosts.join(cls.folder, PENSTOCK, cls.addClassCleanup)
        cls.network = cls.hosts.network
        cls.key = cls.folder / "key"
        cls.key.write_text(secrets.token_hex(32) + "\n")
        cls.key.chmod(0o600)
        here = subprocess.run([PENSTOCK, "run", *RUN, "--procs", "1"], capture_output=True, text=True,
                              timeout=PATIENCE_S, check=True)
        cls.expected = losses(here.stdout)
        assert len(cls.expected) == STEPS, here.stdout

    def command(self, *options):
        return [str(self.hosts.program), "launch", "--log-dir", str(self.folder / "logs"),
                *map(str, options), "--", *RUN]

    def check(self, output, errors):
        """Of the coordinator: the losses of one process, and a node on each host, in order."""
        self.assertEqual(losses(output), self.expected, errors)
        joined = re.findall(r"joined: rank (\d) on (\S+): .*interface (\w+)", errors)
        self.assertEqual(sorted(joined), [(str(rank), name, "eth0") for rank, name in
                                          enumerate(self.hosts.names())], errors)
        self.assertIsNone(re.search("[0-9a-f]{64}", errors))

    def run_on_first(self, command, **environment):
        """On the first host, from where the others are started."""
        done = subprocess.run(self.network.on_host(0, command), capture_output=True, text=True,
                              timeout=PATIENCE_S, check=False, env={**os.environ, **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check(done.stdout, done.stderr)
        return done.stderr

    def run_on_all(self, *options, environment_of=lambda rank: {}):
        """A process on each host; what the coordinating one prints as its errors."""
        members = []
        for index in range(NUM_HOSTS):
            members.append(subprocess.Popen(
                self.network.on_host(index, self.command("--key-file", self.key, *options)),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, **environment_of(index)}))
            self.addCleanup(members[-1].kill)
        outputs = [member.communicate(timeout=PATIENCE_S) for member in members]
        for member, (_, errors) in zip(members, outputs):
            self.assertEqual(member.returncode, 0, errors)
        return max(outputs, key=lambda texts: len(texts[0]))

    def need_ssh(self):
        if reason := ssh_server.why_not():
            self.skipTest(reason)

    def need_mpirun(self):
        self.need_ssh()  # with which mpirun reaches other hosts
        if shutil.which("mpirun") is None:
            self.skipTest("there is no mpirun (package openmpi-bin)")

    @contextlib.contextmanager
    def sniff(self, is_found):
        """Reads all that passes the first host meanwhile: whether the job's key is in it as text."""
        sniffer = Sniffer(self.network, 0, self.folder / "packets")
        self.addCleanup(sniffer.close)
        yield
        streams = streams_of(sniffer.packets())
        self.assertGreater(sum(map(len, streams.values())), 100_000)
        found = sorted(ports for ports, stream in streams.items() if KEY.search(stream))
        self.assertEqual(bool(found), is_found, found)

    def test_ssh(self):
        self.need_ssh()
        with self.sniff(is_found=False):
            errors = self.run_on_first(self.command(
                "-H", ",".join(self.hosts.names()), "--through", self.hosts.ssh(), "--remote-program",
                self.hosts.program))
        self.assertRegex(errors, r"launch: 4 processes on 4 hosts through \S*/ssh\n")

    def test_mpirun_starts_nodes(self):
        self.need_mpirun()
        mpirun = " ".join(f"'{word}'" for word in self.hosts.mpirun())
        with self.sniff(is_found=True):
            errors = self.run_on_first(self.command(
                "-H", ",".join(self.hosts.names()), "--launcher", "mpi", "--through", mpirun,
                "--remote-program", self.hosts.program))
        self.assertIn("note: mpirun passes the job's key on without encryption", errors)
        self.assertRegex(errors, r"launch: 4 processes on 4 hosts through \S*/mpirun\n")

    def test_mpirun_starts_members(self):
        self.need_mpirun()
        with self.sniff(is_found=True):
            errors = self.run_on_first([*self.hosts.mpirun(), "-np", "4", "--host",
                                        ",".join(self.hosts.names()), *self.command()])
        self.assertIn("note: PMIx passes the key on without encryption", errors)
        self.assertIn("launch: rank 0 of 4 processes that mpirun has started coordinates, and tells "
                      "its address and the key through PMIx\n", errors)

    def test_slurm(self):
        """One cluster for all that Slurm does: its daemons take seconds to start."""
        if reason := slurm.why_not():
            self.skipTest(reason)
        folder = self.folder / "slurm"
        folder.mkdir()
        cluster = slurm.SlurmCluster(folder, self.network)
        self.addCleanup(cluster.close)
        # Where the programs do not find munge's daemon, the key passes as it is.
        environments = [cluster.environment]
        if shutil.which("munge") and shutil.which("unmunge"):
            environments.append(cluster.with_munge()[0])
        for number, environment in enumerate(environments):
            has_munge = number == 1
            with self.subTest("launch in an allocation", munge=has_munge), self.sniff(not has_munge):
                errors = self.run_on_first(["salloc", "-N", "4", *self.command(
                    "--remote-program", self.hosts.program)], **environment)
                self.assertRegex(errors, r"launch: 4 processes on 4 hosts through \S*/srun\n")
                self.assertEqual("munge encrypts the job's key" in errors, has_munge, errors)
            with (self.subTest("members that find each other through PMIx", munge=has_munge),
                  self.sniff(not has_munge)):
                errors = self.run_on_first(["srun", "--mpi=pmix", "-N", "4", *self.command()],
                                           **environment)
                self.assertIn("launch: rank 0 of 4 processes that srun has started coordinates, and "
                              "tells its address and the key through PMIx\n", errors)
                self.assertEqual("munge encrypts the job's key" in errors, has_munge, errors)
        with self.subTest("members that find each other by their variables"):
            errors = self.run_on_first(["srun", "-N", "4", *self.command("--key-file", self.key)],
                                       **cluster.environment)
            self.assertIn("launch: rank 0 of 4 processes that srun has started coordinates\n", errors)

    def test_etcd(self):
        if reason := etcd.why_not():
            self.skipTest(reason)
        server = etcd.Etcd(self.folder, self.network)
        self.addCleanup(server.kill)
        server.start()
        # With ranks of their own, so that they are in the order of the hosts.
        output, errors = self.run_on_all(
            "--rendezvous", server.url("job"),
            environment_of=lambda rank: {"RANK": str(rank), "WORLD_SIZE": str(NUM_HOSTS)})
        self.check(output, errors)
        self.assertRegex(errors, r"tells its address through etcd at http://10\.77\.0\.1:")

    def test_variables_of_torchrun(self):
        port = free_port()
        output, errors = self.run_on_all(environment_of=lambda rank: {
            "RANK": str(rank), "WORLD_SIZE": str(NUM_HOSTS), "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": self.hosts.names()[0], "MASTER_PORT": str(port)})
        self.check(output, errors)

    def test_variables_of_a_kubernetes_job(self):
        output, errors = self.run_on_all(
            "--members", NUM_HOSTS, "--coordinator", f"{self.hosts.names()[0]}:{free_port()}",
            environment_of=lambda rank: {"JOB_COMPLETION_INDEX": str(rank)})
        self.check(output, errors)

    def test_local_processes(self):
        """Of one of the hosts: as many, which share it."""
        done = subprocess.run(
            self.network.on_host(0, [*self.command("--launcher", "local"), "--procs", "4"]),
            capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(losses(done.stdout), self.expected)
        self.assertEqual(done.stderr.count("joined: rank "), 4)


if __name__ == "__main__":
    unittest.main()
