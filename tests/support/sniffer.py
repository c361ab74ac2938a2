"""What somebody who reads the network of a host sees: the packets that pass its interface.

Needs root.
"""

import re
import struct
import subprocess
import sys
import time

from tests.support.launched_job import PATIENCE_S

READY = b"ready\n"
# Writes each packet of eth0 with its length before it. 33 is SO_RCVBUFFORCE.
PROGRAM = """
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
# Of a job's key as text; of one digit it is something else.
KEY = re.compile(rb"(?=([0-9a-f]))(?!\1{64})[0-9a-f]{64}")


class Packet:
    """Of Ethernet: the protocol of IPv4 (None: it is another kind), addresses, ports and payload."""

    def __init__(self, data):
        self.protocol = self.ports = self.addresses = None
        self.payload = b""
        if data[12:14] != b"\x08\x00":
            return
        transport = 14 + 4 * (data[14] & 15)
        self.protocol = data[23]
        self.addresses = (data[26:30], data[30:34])
        end = 14 + struct.unpack("!H", data[16:18])[0]  # short packets are filled up
        self.ports = struct.unpack("!HH", data[transport:transport + 4])
        length = 4 * (data[transport + 12] >> 4) if self.protocol == 6 else 8
        self.payload = data[transport + length:end]


class Sniffer:
    """Reads what passes a host of a network (network.py) from now on, until `packets` is called."""

    def __init__(self, network, host, file):
        self.file = file
        with open(file, "wb") as output:
            self.process = subprocess.Popen(network.inside(host, [sys.executable, "-c", PROGRAM]),
                                            stdout=output, stderr=output)
        deadline = time.monotonic() + PATIENCE_S
        while not file.read_bytes().startswith(READY):
            assert time.monotonic() < deadline and self.process.poll() is None, file.read_bytes()
            time.sleep(0.02)

    def close(self):
        self.process.kill()
        self.process.wait()

    def packets(self):
        """All that have passed."""
        self.close()
        found = []
        data = self.file.read_bytes()
        at = len(READY)
        while at + 4 <= len(data):
            length = struct.unpack_from("<I", data, at)[0]
            found.append(Packet(data[at + 4:at + 4 + length]))
            at += 4 + length
        return found


def streams_of(packets):
    """What has been sent over each connection of TCP, in each direction, by the ports from and to."""
    streams = {}
    for packet in packets:
        if packet.protocol == 6:
            streams.setdefault((packet.addresses, packet.ports), bytearray()).extend(packet.payload)
    return {(*ports, *addresses): bytes(stream) for (addresses, ports), stream in streams.items()}
