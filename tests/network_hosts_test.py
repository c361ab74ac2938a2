"""Four hosts train the demo over tcp: network namespaces on this machine, joined by a bridge, each
behind a link of limited rate. They give the losses of one process, bit for bit.

Needs root, `ip` and `tc` (package iproute2) and a system that allows namespaces; else it is skipped.
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
HOSTS = 4
RATE = "2gbit"
STEPS = 10
JOB = [str(ROOT / "examples/gpt/demo.toml"), "--json"]
for setting in (f"train.steps={STEPS}", "train.validation_sequences=0", "sample.bytes=0"):
    JOB += ["--set", setting]


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)


class Network:
    """A switch and HOSTS hosts, each a network namespace; host I has 10.77.0.(I+1) on eth0."""

    def __init__(self):
        self.prefix = f"penstock{os.getpid()}"

    def host(self, index):
        return f"{self.prefix}h{index}"

    def inside(self, index, command):
        return ["ip", "netns", "exec", self.host(index), *command]

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            switch = f"{self.prefix}s"
            ip("netns", "add", switch)
            ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
            ip("-n", switch, "link", "set", "bridge0", "up")
            for index in range(HOSTS):
                host = self.host(index)
                ip("netns", "add", host)
                ip("-n", host, "link", "add", "eth0", "type", "veth", "peer", "name",
                   f"port{index}", "netns", switch)
                ip("-n", switch, "link", "set", f"port{index}", "master", "bridge0", "up")
                ip("-n", host, "address", "add", f"10.77.0.{index + 1}/24", "dev", "eth0")
                ip("-n", host, "link", "set", "eth0", "up")
                ip("-n", host, "link", "set", "lo", "up")
                subprocess.run(["tc", "-n", host, "qdisc", "add", "dev", "eth0", "root", "tbf",
                                "rate", RATE, "burst", "256kb", "latency", "50ms"],
                               check=True, capture_output=True, text=True, timeout=30)
            stack.pop_all()
        return self

    def close(self):
        for name in [self.host(index) for index in range(HOSTS)] + [f"{self.prefix}s"]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=30,
                           check=False)

    def __exit__(self, *_):
        self.close()


def losses(text):
    return [json.loads(line)["loss"] for line in text.splitlines() if "\"loss\"" in line]


class NetworkHostsTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
            self.skipTest("needs root, ip and tc")
        try:
            self.network = Network().__enter__()
        except subprocess.CalledProcessError as error:
            self.skipTest(f"network namespaces are not allowed here: {error.stderr.strip()}")
        self.addCleanup(self.network.close)

    def test_four_hosts_give_the_losses_of_one(self):
        here = subprocess.run([PENSTOCK, "run", *JOB, "--procs", "1"], capture_output=True,
                              text=True, timeout=120, check=True)
        environment = {**os.environ, "UCX_TLS": "tcp,self"}
        coordinator = subprocess.Popen(
            self.network.inside(0, [PENSTOCK, "run", *JOB, "--procs", str(HOSTS), "--listen",
                                    "10.77.0.1:0"]),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.addCleanup(coordinator.kill)
        key = address = None
        for line in coordinator.stderr:
            match = re.search(r"PENSTOCK_KEY=(\w+) penstock node --join (\S+)", line)
            if match:
                key, address = match.groups()
                break
        self.assertIsNotNone(address, "the coordinator did not say where to join")
        self.assertRegex(address, r"^10\.77\.0\.1:\d+$")
        nodes = []
        for index in range(HOSTS):
            nodes.append(subprocess.Popen(
                self.network.inside(index, [PENSTOCK, "node", "--join", address, "--interface",
                                            "eth0"]),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**environment, "PENSTOCK_KEY": key}))
            self.addCleanup(nodes[-1].kill)
        output, errors = coordinator.communicate(timeout=180)
        self.assertEqual(coordinator.returncode, 0, errors)
        for node in nodes:
            text, _ = node.communicate(timeout=30)
            self.assertEqual(node.returncode, 0, text)
        self.assertEqual(len(losses(output)), STEPS)
        self.assertEqual(losses(output), losses(here.stdout))


if __name__ == "__main__":
    unittest.main()
