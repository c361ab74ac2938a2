"""Hosts train the demo over tcp: network namespaces on this machine, joined by a bridge, each behind
a link of limited rate. They give the losses of one process, bit for bit.

Needs root, `ip` and `tc` (package iproute2) and a system that allows namespaces; else it is skipped.
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.network import Network  # noqa: E402

PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
RATE = "2gbit"
STEPS = 10
JOB = [str(ROOT / "examples/gpt/demo.toml"), "--json"]
for setting in (f"train.steps={STEPS}", "train.validation_sequences=0", "sample.bytes=0",
                "model.dropout=0.05"):
    JOB += ["--set", setting]


def losses(text):
    return [json.loads(line)["loss"] for line in text.splitlines() if "\"loss\"" in line]


class NetworkHostsTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
            self.skipTest("needs root, ip and tc")

    def join(self, hosts):
        try:
            network = Network(hosts, RATE).__enter__()
        except subprocess.CalledProcessError as error:
            self.skipTest(f"network namespaces are not allowed here: {error.stderr.strip()}")
        self.addCleanup(network.close)
        return network

    def run_over(self, network, nodes_a_host, job):
        """Trains over the hosts, and returns what the coordinator prints."""
        environment = {**os.environ, "UCX_TLS": "tcp,self"}
        # In the order of the hosts, as the plan takes them to be.
        places = [host for host in range(len(network.names)) for _ in range(nodes_a_host)]
        coordinator = subprocess.Popen(
            network.inside(0, [PENSTOCK, "run", *job, "--procs", str(len(places)), "--listen",
                               "10.77.0.1:0"]),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.addCleanup(coordinator.kill)
        key_file = address = None
        for line in coordinator.stderr:
            match = re.search(r"penstock node --join (\S+) --key-file (\S+)", line)
            if match:
                address, key_file = match.groups()
                break
        self.assertIsNotNone(address, "the coordinator did not say where to join")
        self.assertRegex(address, r"^10\.77\.0\.1:\d+$")
        nodes = []
        for rank, host in enumerate(places):
            nodes.append(subprocess.Popen(
                network.inside(host, [PENSTOCK, "node", "--join", address, "--key-file",
                                      key_file, "--rank", str(rank)]),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env=environment))
            self.addCleanup(nodes[-1].kill)
        output, errors = coordinator.communicate(timeout=180)
        self.assertEqual(coordinator.returncode, 0, errors)
        for node in nodes:
            text, _ = node.communicate(timeout=30)
            self.assertEqual(node.returncode, 0, text)
            # Without --interface: that of the route to the coordinator.
            self.assertIn("interface eth0", text)
        self.assertEqual(errors.count("interface eth0"), len(places))
        self.assertEqual(len(losses(output)), STEPS)
        return output

    def check(self, network, nodes_a_host, settings=()):
        """Trains in one process and over the hosts, and compares."""
        job = JOB + [word for setting in settings for word in ("--set", setting)]
        here = subprocess.run([PENSTOCK, "run", *job, "--procs", "1"], capture_output=True,
                              text=True, timeout=120, check=True)
        output = self.run_over(network, nodes_a_host, job)
        self.assertEqual(losses(output), losses(here.stdout))

    def test_nodes_that_no_network_joins_say_so(self):
        network = self.join(2)
        environment = {**os.environ, "UCX_TLS": "tcp,self"}
        coordinator = subprocess.Popen(
            network.inside(0, [PENSTOCK, "run", *JOB, "--procs", "2", "--set", "cluster.hosts=2",
                               "--listen", "10.77.0.1:0"]),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.addCleanup(coordinator.kill)
        key_file = address = None
        for line in coordinator.stderr:
            match = re.search(r"penstock node --join (\S+) --key-file (\S+)", line)
            if match:
                address, key_file = match.groups()
                break
        self.assertIsNotNone(address, "the coordinator did not say where to join")
        nodes = []
        for host in range(2):
            nodes.append(subprocess.Popen(
                network.inside(host, [PENSTOCK, "node", "--join", address, "--key-file",
                                      key_file, "--rank", str(host), "--interface", "lo"]),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env=environment))
            self.addCleanup(nodes[-1].kill)
        output, errors = coordinator.communicate(timeout=60)
        self.assertEqual(coordinator.returncode, 1, errors)
        cause = r"node \d \(pid \d+ on \S+\): device \d cannot be reached over interface " \
                r"lo: give both nodes the interface \(--interface\) of a network that joins them"
        self.assertRegex(errors, "(?m)^penstock: " + cause)
        for node in nodes:
            text, _ = node.communicate(timeout=30)
            self.assertEqual(node.returncode, 1, text)
            lines = text.splitlines()
            self.assertEqual(len(lines), 2, text)  # nothing of UCX's
            self.assertRegex(lines[0], "^joined as ")
            self.assertRegex(lines[1], "^penstock: the job has failed: " + cause)
        self.assertNotRegex(output + errors, "UCX +(WARN|ERROR)")

    def test_four_hosts_give_the_losses_of_one(self):
        self.check(self.join(4), nodes_a_host=1)

    def test_sub_batches_hide_communication(self):
        """Loosely, as other programs may use the cores: the best of a few runs of each."""
        network = self.join(2)

        def measure(strategy):
            with tempfile.TemporaryDirectory() as folder:
                output = self.run_over(network, 1, [
                    *JOB, "--set", f'parallel.strategy="{strategy}"', "--devices", "2", "--set",
                    "cluster.threads=1", "--trace", f"{folder}/trace"])
            path = json.loads(output.splitlines()[-1])["summary"]["mean_critical_path"]
            return path["exposed_communication_s"], losses(output)

        runs = [(measure("tp=2"), measure("tp=2,subbatches=2")) for _ in range(2)]
        for (_, whole), (_, halves) in runs:
            for one, other in zip(whole, halves):
                self.assertAlmostEqual(one, other, delta=1e-4 * one)
        whole, halves = (min(run[i][0] for run in runs) for i in range(2))
        self.assertLess(halves, 0.9 * whole)

    def test_two_hosts_of_two_processes_sum_hierarchically(self):
        settings = ['parallel.strategy="dp=4"', "cluster.hosts=2"]
        job = [word for word in JOB if word != "--json"]
        with tempfile.TemporaryDirectory() as folder:
            plan = f"{folder}/hosts.plan"
            subprocess.run(
                [PENSTOCK, "plan", *job, "-o", plan, "--set", settings[0], "--set", settings[1]],
                capture_output=True, text=True, timeout=120, check=True)
            shown = subprocess.run([PENSTOCK, "show", plan], capture_output=True, text=True,
                                   timeout=120, check=True)
        self.assertRegex(shown.stdout, r"all_reduce +hierarchical +over +4 devices")
        self.check(self.join(2), nodes_a_host=2, settings=settings)


if __name__ == "__main__":
    unittest.main()
