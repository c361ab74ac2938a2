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

PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
TUNNEL_PORT = 51820
MARK = b"The quick brown fox jumps over a lazy dog. "

# Writes each packet of eth0 with its length before it. 33 is SO_RCVBUFFORCE.
SNIFFER = """
import socket, struct, sys
sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
sniffer.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
sniffer.bind(("eth0", 3))
print("ready", flush=True)
while True:
    packet = sniffer.recv(1 << 17)
    sys.stdout.buffer.write(struct.pack("<I", len(packet)) + packet)
    sys.stdout.buffer.flush()
"""


class Packet:
    """Of Ethernet: the protocol of IPv4 (None: it is another kind), ports and payload."""

    def __init__(self, data):
        self.protocol = self.ports = None
        self.payload = b""
        if data[12:14] != b"\x08\x00":
            return
        transport = 14 + 4 * (data[14] & 15)
        self.protocol = data[23]
        self.ports = struct.unpack("!HH", data[transport:transport + 4])
        length = 4 * (data[transport + 12] >> 4) if self.protocol == 6 else 8
        self.payload = data[transport + length:]


def packets_of(file):
    found = []
    data = file.read_bytes()
    at = len("ready\n")
    while at + 4 <= len(data):
        length = struct.unpack_from("<I", data, at)[0]
        found.append(Packet(data[at + 4:at + 4 + length]))
        at += 4 + length
    return found


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

    def await_text(self, file, text):
        deadline = time.monotonic() + PATIENCE_S
        while not (file.exists() and text in file.read_bytes()):
            self.assertLess(time.monotonic(), deadline, f"no {text} in {file}")
            time.sleep(0.02)

    def start(self, host, command, output, **environment):
        with open(output, "wb") as file:
            process = subprocess.Popen(self.network.inside(host, command), stdout=file, stderr=file,
                                       env={**os.environ, **environment})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def sniff(self):
        """Starts to record what passes host 1; returns the file."""
        file = self.folder / "packets"
        self.sniffer = self.start(1, [sys.executable, "-c", SNIFFER], file)
        self.await_text(file, b"ready\n")
        return file

    def listeners(self, pid):
        """Addresses at which TCP sockets listen in the network of a process."""
        found = set()
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
        file = self.sniff()
        found, port, key = self.train("10.77.0.1")
        self.sniffer.terminate()
        self.assertEqual(found, self.losses_here())
        packets = packets_of(file)
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

    def test_a_tunnel_hides_all(self):
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
        file = self.sniff()
        found, _, _ = self.train("10.99.0.1", names)
        self.sniffer.terminate()
        self.assertEqual(found, self.losses_here())
        packets = [packet for packet in packets_of(file) if packet.protocol in (6, 17)]
        self.assertGreater(sum(len(packet.payload) for packet in packets), 100_000)
        for packet in packets:
            self.assertEqual((packet.protocol, packet.ports), (17, (TUNNEL_PORT, TUNNEL_PORT)))


if __name__ == "__main__":
    unittest.main()
