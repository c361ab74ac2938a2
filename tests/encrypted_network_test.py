"""What somebody who reads the network between two hosts sees of a job: nothing of what the control
connection carries, and nothing at all of a job in a WireGuard tunnel, set up as docs/SECURITY.md says.

Needs root, `ip` and `tc` (package iproute2) and a system that allows namespaces; the tunnel also
wireguard-go and `wg` (wireguard-tools). What is missing skips the test. PENSTOCK_COMMAND names the
command (default: build/bin/penstock).
"""

import os
import pathlib
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support.launched_job import PATIENCE_S, STEPS, job_text, losses  # noqa: E402
from tests.support.network import Network  # noqa: E402
from tests.support.sniffer import Sniffer  # noqa: E402

PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
TUNNEL_PORT = 51820
MARK = b"The quick brown fox jumps over a lazy dog. "


class EncryptedNetworkTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
            self.skipTest("needs root, ip and tc")
        folder = tempfile.TemporaryDirectory(prefix="penstock_network.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        try:
            self.network = Network(2, "2gbit").__enter__()
        except subprocess.CalledProcessError as error:
            self.skipTest(f"network namespaces are not allowed here: {error.stderr.strip()}")
        self.addCleanup(self.network.close)
        self.job = self.folder / "job.toml"
        text = self.folder / "text"
        text.write_bytes(MARK * 400)
        self.job.write_text(job_text("dp=2") + f'[data]\ntext = ["{text}"]\n')

    def start(self, host, command, output, **environment):
        with open(output, "wb") as file:
            process = subprocess.Popen(self.network.inside(host, command), stdout=file, stderr=file,
                                       env={**os.environ, **environment})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def sniff(self):
        """Reads what passes host 1."""
        sniffer = Sniffer(self.network, 1, self.folder / "packets")
        self.addCleanup(sniffer.close)
        return sniffer

    def listeners(self, pid):
        """Addresses at which TCP sockets listen in the network of a process, once it has entered it."""
        found = set()
        try:
            if os.path.samefile(f"/proc/{pid}/ns/net", "/proc/self/ns/net"):
                return found
        except OSError:  # it has ended
            return found
        for file in ("tcp", "tcp6"):
            try:
                lines = pathlib.Path(f"/proc/{pid}/net/{file}").read_text().splitlines()[1:]
            except OSError:  # it has ended
                continue
            for words in map(str.split, lines):
                if words[3] == "0A":
                    address, port = words[1].split(":")
                    address = (".".join(str(byte) for byte in reversed(bytes.fromhex(address)))
                               if len(address) == 8 else address)
                    found.add((address, int(port, 16)))
        return found

    def train(self, listen, interfaces=("eth0", "eth0")):
        """Trains over both hosts; returns losses, the control port and the job's key. All that listens
        in the hosts' networks meanwhile is the control port, and UCX on the interface's address."""
        run = subprocess.Popen(
            self.network.inside(0, [PENSTOCK, "run", str(self.job), "--json", "--procs", "2",
                                    "--listen", f"{listen}:0", "--dump", str(self.folder / "dump")]),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "UCX_TLS": "tcp,self"})
        self.addCleanup(run.kill)
        printed = ""
        match = None
        while match is None:
            line = run.stderr.readline()
            self.assertTrue(line, printed)
            printed += line
            match = re.search(r"penstock node --join (\S+:(\d+)) --key-file (\S+)", line)
        key = pathlib.Path(match.group(3)).read_text().strip()
        nodes = [self.start(rank, [PENSTOCK, "node", "--join", match.group(1), "--key-file",
                                   match.group(3), "--rank", str(rank), "--interface", interface],
                            self.folder / f"node{rank}", UCX_TLS="tcp,self")
                 for rank, interface in enumerate(interfaces)]
        found = [set(), set()]
        while run.poll() is None and select.select([run.stdout], [], [], 0.005)[0] == []:
            for node, addresses in zip(nodes, found):
                addresses |= self.listeners(node.pid)
        control = (listen, int(match.group(2)))
        self.assertIn(control, found[0])
        network = listen.rpartition(".")[0]
        for host, addresses in enumerate(found):
            self.assertEqual({address for address, _ in addresses - {control}},
                             {f"{network}.{host + 1}"})
        output, errors = run.communicate(timeout=PATIENCE_S)
        self.assertEqual(run.returncode, 0, errors)
        self.assertEqual(len(losses(output)), STEPS)
        return losses(output), int(match.group(2)), key

    def losses_here(self):
        return losses(subprocess.run([PENSTOCK, "run", str(self.job), "--json", "--procs", "1"],
                                     capture_output=True, text=True, timeout=PATIENCE_S,
                                     check=True).stdout)

    def test_control_connections_carry_nothing_readable(self):
        sniffer = self.sniff()
        found, port, key = self.train("10.77.0.1")
        self.assertEqual(found, self.losses_here())
        packets = sniffer.packets()
        control = b"".join(packet.payload for packet in packets
                           if packet.protocol == 6 and port in packet.ports)
        data = b"".join(packet.payload for packet in packets
                        if packet.protocol == 6 and port not in packet.ports)
        # The sniffer works: the beginning of TLS, and gradients between the hosts.
        self.assertIn(b"\x16\x03", control)
        self.assertGreater(len(control), 10_000)
        self.assertGreater(len(data), 100_000)
        secrets = {"the key": key.encode(), "the bytes of the key": bytes.fromhex(key),
                   "text": MARK[:16], "tokens": struct.pack("<8i", *MARK[:8]),
                   "the plan": b"attn.qkv", "a path": b"/tmp/"}
        for states in sorted((self.folder / "dump").glob("*wte*.npy")):
            secrets[states.name] = states.read_bytes()[-32:]
        self.assertGreater(len(secrets), 6, "no parameters were written")
        for name, secret in secrets.items():
            self.assertNotIn(secret, control, name)

    def dig_tunnel(self):
        """A WireGuard tunnel between the hosts, with the addresses 10.99.0.1 and 10.99.0.2; the names of
        its interfaces."""
        for tool in ("wireguard-go", "wg"):
            if not shutil.which(tool):
                self.skipTest(f"there is no {tool}")
        if not os.path.exists("/dev/net/tun"):
            self.skipTest("there is no /dev/net/tun")
        names = [f"wg{os.getpid() % 100000}{host}" for host in range(2)]
        public = []
        for host, name in enumerate(names):
            private = self.folder / f"key{host}"
            private.write_text(subprocess.run(["wg", "genkey"], capture_output=True, text=True,
                                              check=True).stdout)
            private.chmod(0o600)
            public.append(subprocess.run(["wg", "pubkey"], input=private.read_text(),
                                         capture_output=True, text=True, check=True).stdout.strip())
            self.start(host, ["wireguard-go", "-f", name], self.folder / name)
            deadline = time.monotonic() + PATIENCE_S
            while not os.path.exists(f"/var/run/wireguard/{name}.sock"):
                self.assertLess(time.monotonic(), deadline, (self.folder / name).read_text())
                time.sleep(0.02)
        for host, name in enumerate(names):
            peer = 1 - host
            for command in (["wg", "set", name, "listen-port", str(TUNNEL_PORT), "private-key",
                             str(self.folder / f"key{host}"), "peer", public[peer], "allowed-ips",
                             f"10.99.0.{peer + 1}/32", "endpoint", f"10.77.0.{peer + 1}:{TUNNEL_PORT}"],
                            ["ip", "address", "add", f"10.99.0.{host + 1}/24", "dev", name],
                            ["ip", "link", "set", name, "up"]):
                subprocess.run(self.network.inside(host, command), check=True, timeout=PATIENCE_S)
        return names

    def test_a_tunnel_hides_all(self):
        names = self.dig_tunnel()
        sniffer = self.sniff()
        found, _, _ = self.train("10.99.0.1", names)
        self.assertEqual(found, self.losses_here())
        self.check_is_hidden(sniffer)

    def test_a_tunnel_hides_what_launch_starts(self):
        """Hosts are reached outside of it, and join at the address of this one inside."""
        names = self.dig_tunnel()
        script = self.folder / "ssh"
        # Stands for ssh, whose connections are encrypted themselves: the last arguments are the host and
        # the command.
        script.write_text(f"""#!/bin/sh
while [ $# -gt 2 ]; do shift; done
number=$((${{1##*.}} - 1))
exec ip netns exec {self.network.prefix}h$number unshare --uts sh -c \
    'hostname host$0 && exec sh -c "$1"' $number "$2"
""")
        script.chmod(0o755)
        sniffer = self.sniff()
        done = subprocess.run(
            self.network.inside(0, [PENSTOCK, "launch", "-H", "10.77.0.1,10.77.0.2", "--through",
                                    str(script), "--listen", "10.99.0.1", "--log-dir",
                                    str(self.folder / "logs"), "--", str(self.job), "--json"]),
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            env={**os.environ, "UCX_TLS": "tcp,self"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(losses(done.stdout), self.losses_here())
        interfaces = re.findall(r"joined: rank (\d) on \S+: .*interface (\w+)\n", done.stderr)
        # Rank 0 is on the host of the address.
        self.assertEqual(sorted(interfaces), [("0", names[0]), ("1", names[1])], done.stderr)
        self.check_is_hidden(sniffer)

    def check_is_hidden(self, sniffer):
        """Between the hosts, all that has passed is the tunnel."""
        packets = [packet for packet in sniffer.packets() if packet.protocol in (6, 17)]
        self.assertGreater(sum(len(packet.payload) for packet in packets), 100_000)
        for packet in packets:
            self.assertEqual((packet.protocol, packet.ports), (17, (TUNNEL_PORT, TUNNEL_PORT)))


if __name__ == "__main__":
    unittest.main()
