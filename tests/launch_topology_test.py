"""What `penstock launch` finds out of its hosts before it plans: which are near each other, and which
is slow. Hosts are network namespaces, between which no memory is shared; a script stands for ssh.

Needs root, `ip`, `tc` (package iproute2) and `unshare`, and for the slow host a control group of
processor time; else it is skipped. PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support import control_group  # noqa: E402
from tests.support.deaths import Output  # noqa: E402
from tests.support.launched_job import job_text, losses, losses_here  # noqa: E402
from tests.support.network import Network  # noqa: E402
from tests.support.ssh_server import await_true, processes_with  # noqa: E402

PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))


class TopologyTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        if os.geteuid() != 0 or not all(shutil.which(name) for name in ("ip", "tc", "unshare")):
            self.skipTest("needs root, ip, tc and unshare")
        folder = tempfile.TemporaryDirectory(prefix="penstock_topology.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def join(self, *arguments, **named):
        try:
            network = Network(*arguments, **named).__enter__()
        except subprocess.CalledProcessError as error:
            self.skipTest(f"network namespaces are not allowed here: {error.stderr.strip()}")
        self.addCleanup(network.close)
        return network

    def command(self, network, job, *options, run=(), on_host="", slots=1):
        """`run` are options of the job, `on_host` is done by the shell of a host, whose address is in
        $host."""
        script = self.folder / "ssh"
        # The last arguments are the host and the command.
        script.write_text(f"""#!/bin/sh
while [ $# -gt 2 ]; do shift; done
host=$1
{on_host}
number=$((${{host##*.}} - 1))
exec ip netns exec {network.prefix}h$number unshare --uts sh -c \
    'hostname host$0 && exec sh -c "$1"' $number "$2"
""")
        script.chmod(0o755)
        hosts = ",".join(f"10.77.0.{index + 1}:{slots}" for index in range(len(network.names)))
        return network.inside(0, [PENSTOCK, "launch", "-H", hosts, "--through", str(script),
                                  "--log-dir", str(self.folder / "logs"), *options, "--", str(job),
                                  "--json", *run])

    def launch(self, *arguments, **named):
        result = subprocess.run(self.command(*arguments, **named), capture_output=True, text=True,
                                timeout=120, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def write_job(self, strategy, num_devices=2):
        job = self.folder / "job.toml"
        text = job_text(strategy)
        if strategy == "auto":
            text += f"[cluster]\ndevices = {num_devices}\n"
        job.write_text(text)
        return job

    def test_hosts_of_a_rack_become_neighbours(self):
        network = self.join(4, "2gbit", racks=[0, 1, 0, 1], trunk="40mbit")
        job = self.write_job("dp=2,pp=2")
        result = self.launch(network, job, "--probe", "yes")
        found = re.search(r"launch: networks: rack (\S+) Gbit/s, .* \(10.77.0.1 10.77.0.3 \| "
                          r"10.77.0.2 10.77.0.4\); network (\S+) Gbit/s", result.stderr)
        self.assertIsNotNone(found, result.stderr)
        rack, trunk = map(float, found.groups())
        self.assertGreater(rack, 5 * trunk)
        # Two pairs share the trunk, in either direction.
        self.assertLess(trunk, 0.05)
        self.assertGreater(trunk, 0.005)
        # The devices of a stage are in one rack, and the pipeline passes the trunk.
        ranks = dict(re.findall(r"joined: rank (\d) on 10\.77\.0\.(\d):", result.stderr))
        self.assertEqual(ranks, {"0": "1", "1": "3", "2": "2", "3": "4"}, result.stderr)
        # Collectives are chosen for the networks: the order of sums differs.
        for there, here in zip(losses(result.stdout), losses_here(PENSTOCK, job), strict=True):
            self.assertAlmostEqual(there, here, places=4)

    def test_a_search_has_the_pipeline_pass_the_slow_link(self):
        network = self.join(4, "2gbit", racks=[0, 1, 0, 1], trunk="40mbit")
        job = self.write_job("auto", num_devices=4)
        job.write_text(job.read_text().replace("layers = 2", "layers = 4").replace(
            "width = 32", "width = 256").replace("steps = 6", "steps = 1"))
        report = self.folder / "report.md"
        result = self.launch(network, job, run=("--report", str(report)))
        self.assertIn("launch: networks: rack ", result.stderr)
        strategy = re.search(r"plan: (\S+),", result.stderr).group(1).split(",")
        # Four stages where other tests take the cores and the racks' networks seem slow.
        self.assertTrue({"pp=2", "pp=4"}.intersection(strategy), result.stderr)
        self.check_stages(result, report)

    def test_slots_of_a_host_split_tensors_and_the_pipeline_passes_the_slow_link(self):
        network = self.join(4, "2gbit", racks=[0, 1, 0, 1], trunk="40mbit")
        job = self.write_job("dp=2,tp=2,pp=2")
        report = self.folder / "report.md"
        result = self.launch(network, job, "--probe", "yes", slots=2, run=("--report", str(report)))
        hosts = self.check_stages(result, report)
        # tp is the innermost axis: its groups are neighbours, here those of a host.
        self.assertEqual(hosts[0::2], hosts[1::2])
        self.assertEqual(len(set(hosts)), 4)

    def check_stages(self, result, report):
        """That the devices of a stage are in one rack (of even or of odd hosts), and data pass from one
        rack to the other at one boundary of stages alone. The hosts of all devices, in order."""
        ranks = {int(rank): host for rank, host in
                 re.findall(r"joined: rank (\d) on 10\.77\.0\.(\d): device", result.stderr)}
        hosts = [ranks[rank] for rank in sorted(ranks)]  # a device each
        stages = {int(device): int(stage) for device, stage in
                  re.findall(r"(?m)^\| (\d) \| (\d) \| [0-9.]+ (?:[KM]i)?B \|", report.read_text())}
        self.assertEqual(sorted(stages), list(range(len(hosts))), report.read_text())
        racks = [int(host[-1]) % 2 for host in hosts]
        boundaries = [i for i in range(1, len(racks)) if racks[i] != racks[i - 1]]
        self.assertEqual(len(boundaries), 1, result.stderr)
        self.assertNotEqual(stages[boundaries[0] - 1], stages[boundaries[0]], stages)
        return hosts

    def cpu_groups(self, part, **period):
        """Of two hosts: the second one gets a part of a processor, and the first one all that it can."""
        groups = []
        try:
            for part_of_host in (None, part):
                groups.append(control_group.cpu_group(part_of_host, **period))
                self.addCleanup(groups[-1].close)
        except OSError as error:
            self.skipTest(f"no limit of processor time here: {error}")
        return groups

    def limit_cpu(self, part):
        """What the shell of a host does to be in its group."""
        return self.enter_groups(self.cpu_groups(part))

    @staticmethod
    def enter_groups(groups):
        # `ip netns exec` hides the control groups.
        return (f'case "$host" in 10.77.0.1) group={groups[0].processes};; *) group={groups[1].processes};; '
                f'esac; nsenter --mount=/proc/{os.getpid()}/ns/mnt sh -c "echo $$ > $group"')

    def test_a_slow_host_is_named_and_gets_fewer_layers(self):
        network = self.join(2, "2gbit")
        into_group = self.limit_cpu(0.3)
        job = self.write_job("pp=2")
        job.write_text(job.read_text().replace("layers = 2", "layers = 8").replace(
            "width = 32", "width = 64"))
        report = self.folder / "report.md"
        result = self.launch(
            network, job, "--probe", "yes", run=("--report", str(report)), on_host=into_group)
        found = re.search(r"note: (\S+) computes (\d+) % slower than the other hosts", result.stderr)
        self.assertIsNotNone(found, result.stderr)
        self.assertEqual(found.group(1), "10.77.0.2")
        self.assertGreater(int(found.group(2)), 30)
        self.assertRegex(result.stderr, r"launch: networks: network \S+ Gbit/s, .* \(10.77.0.1 10.77.0.2\)")
        # Parameters, gradients and states of the optimiser on each device.
        states = re.findall(r"(?m)^\| ([01]) \| \1 \| [^|]+\| ([0-9.]+) ([KM])iB \|", report.read_text())
        fast, slow = (float(size) * (1024 if unit == "M" else 1) for _, size, unit in states)
        self.assertLess(slow, 0.6 * fast, report.read_text())

    def check_slow(self, errors, host):
        found = re.findall(r"note: (\S+) computes (\d+) % slower than the other hosts", errors)
        self.assertEqual([name for name, _ in found], [host], errors)
        self.assertGreater(int(found[0][1]), 30)

    def test_a_slow_host_is_named_whatever_the_strategy(self):
        network = self.join(2, "2gbit")
        into_group = self.limit_cpu(0.3)
        job = self.write_job("pp=2")
        result = self.launch(network, job, on_host=into_group)
        self.check_slow(result.stderr, "10.77.0.2")
        self.assertNotIn("launch: networks: ", result.stderr)
        result = self.launch(network, job, "--probe", "no", on_host=into_group)
        self.assertNotIn("slower than", result.stderr)

    def test_a_host_that_is_a_fifth_slower_is_named(self):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2 or not shutil.which("taskset"):
            self.skipTest("needs two cores, and taskset (package util-linux)")
        # Shorter than what is measured (0.1 s), so that each measurement has its part of the pauses.
        groups = self.cpu_groups(None, period_us=10_000)
        # A core for each host, on which nothing else counts: they are alike but for the quota.
        on_host = (f'case "$host" in 10.77.0.1) taskset -pc {cores[0]} $$;; *) taskset -pc {cores[1]} $$;; '
                   f'esac > {self.folder}/taskset; {self.enter_groups(groups)}')
        network = self.join(2, "2gbit")
        job = self.write_job("pp=2")
        named = r"note: (\S+) computes (\d+) % slower than the other hosts"

        def slow_hosts():
            return re.findall(named, self.launch(network, job, on_host=on_host).stderr)

        # The cores of a virtual machine may differ as much for a while. So both hosts are measured without
        # a limit before and after, and the result counts if neither is named then.
        for _ in range(4):
            if slow_hosts():
                continue
            control_group.limit_cpu(groups[1], 0.8, period_us=10_000)
            found = slow_hosts()
            control_group.limit_cpu(groups[1], None, period_us=10_000)
            if slow_hosts():
                continue
            self.assertEqual([host for host, _ in found], ["10.77.0.2"])
            self.assertGreaterEqual(int(found[0][1]), 10)
            self.assertLess(int(found[0][1]), 45)
            return
        self.skipTest("the cores of this machine are not alike")

    def test_a_host_that_becomes_slow_is_named(self):
        groups = self.cpu_groups(None)  # removed after the network, which ends what runs there
        network = self.join(2, "2gbit")
        job = self.write_job("pp=2")
        job.write_text(job.read_text().replace("layers = 2", "layers = 4").replace(
            "width = 32", "width = 256"))
        process = subprocess.Popen(
            self.command(network, job, on_host=self.enter_groups(groups),
                         run=("--set", "train.steps=1000000", "--set", "train.log_every=1")),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.wait, 60)
        self.addCleanup(process.kill)
        errors = Output(process.stderr)
        lines = Output(process.stdout)
        await_true(lambda: len(lines.lines) > 1, "the first step")
        begin = lines.lines[0][0]
        await_true(lambda: lines.lines[-1][0] - begin > 10, "windows of the host as it was")
        control_group.limit_cpu(groups[1], 0.3)
        named = r"note: 10\.77\.0\.2 has become [3-9][0-9] % slower than the other hosts"
        await_true(lambda: errors.time_of(named) or process.poll() is not None, "the name of the host")
        self.assertRegex(errors.text(), named)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130, errors.text())

    def start_members(self, network, job, *options, slots=1, groups=None):
        """As torchrun does. Each in a group of its own, if there are any."""
        key = self.folder / "key"
        key.write_text(secrets.token_hex(32) + "\n")
        key.chmod(0o600)
        members = []
        for rank in range(slots * len(network.names)):
            command = network.on_host(rank // slots, [
                PENSTOCK, "launch", "--log-dir", self.folder / "logs", "--key-file", key, *options,
                "--", job, "--json"])
            if groups:
                command = ["sh", "-c", f'echo $$ > {groups[rank].processes} && exec "$@"', "sh", *command]
            members.append(subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(slots * len(network.names)),
                     "LOCAL_WORLD_SIZE": str(slots), "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "7077"}))
            self.addCleanup(members[-1].communicate)
            self.addCleanup(members[-1].kill)
        return members

    def run_members(self, *arguments, **named):
        """What each has printed: results, and messages."""
        members = self.start_members(*arguments, **named)
        outputs = [member.communicate(timeout=120) for member in members]
        self.assertEqual([member.returncode for member in members], [0] * len(members), outputs)
        return outputs

    def test_a_slow_host_of_a_member_is_named(self):
        network = self.join(2, "2gbit")
        groups = self.cpu_groups(0.3)
        outputs = self.run_members(network, self.write_job("pp=2"), groups=groups)
        self.check_slow(outputs[0][1], network.host_name(1))
        self.assertNotIn("launch: networks: ", outputs[0][1])

    def test_the_links_of_members_are_measured(self):
        network = self.join(4, "2gbit", racks=[0, 0, 1, 1], trunk="40mbit")
        job = self.write_job("dp=2,pp=2")
        outputs = self.run_members(network, job, "--probe", "yes")
        self.assertRegex(outputs[0][1], r"launch: networks: rack \S+ Gbit/s, .* \(n1 n2 \| n3 n4\); "
                         r"network \S+ Gbit/s")
        self.assertNotIn("start the processes", outputs[0][1])
        for _, errors in outputs[1:]:
            # They measure, and join again with the same rank.
            self.assertRegex(errors, r"(?s)joined as rank (\d) .*the hosts are measured; joining again\n"
                             r"joined as rank \1 .*the job is done\n")
        for there, here in zip(losses(outputs[0][0]), losses_here(PENSTOCK, job), strict=True):
            self.assertAlmostEqual(there, here, places=4)

    def test_members_whose_ranks_do_not_fit_the_networks_are_told_so(self):
        network = self.join(4, "2gbit", racks=[0, 1, 0, 1], trunk="40mbit")
        job = self.write_job("dp=4")
        outputs = self.run_members(network, job, "--probe", "yes")
        self.assertIn("so the plan is made as if all links were the same; start the processes on the hosts "
                      "in this order: n1, n3, n2, n4\n", outputs[0][1])
        self.assertEqual(losses(outputs[0][0]), losses_here(PENSTOCK, job))

    def test_several_members_of_a_host_measure_once(self):
        network = self.join(2, "2gbit")
        outputs = self.run_members(network, self.write_job("auto", num_devices=4), slots=2)
        self.assertRegex(outputs[0][1], r"launch: networks: network \S+ Gbit/s, .* \(n1 n2\)\n")
        self.assertEqual(sum(errors.count("; joining again\n") for _, errors in outputs), 3)

    def test_the_links_of_members_are_not_measured_where_nobody_wants_it(self):
        network = self.join(2, "2gbit")
        outputs = self.run_members(network, self.write_job("auto"), "--probe", "no")
        for _, errors in outputs:
            self.assertNotIn("launch: networks: ", errors)
            self.assertNotIn("joining again", errors)

    def test_an_interrupt_while_members_are_measured(self):
        """One never comes."""
        network = self.join(2, "2gbit")
        members = self.start_members(network, self.write_job("auto"))
        members[1].kill()
        members[1].wait(60)
        errors = Output(members[0].stderr)
        await_true(lambda: processes_with("--join 10.77.0.1:7077") or members[0].poll() is not None,
                   "the node of rank 0")
        members[0].send_signal(signal.SIGINT)
        self.assertEqual(members[0].wait(60), 130, errors.text())
        errors.thread.join(60)
        self.assertIn("penstock: interrupted (Interrupt) while the hosts were probed; missing: ",
                      errors.text())


if __name__ == "__main__":
    unittest.main()
