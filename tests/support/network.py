"""Hosts on one machine: network namespaces that a bridge joins, each behind a link of limited rate.

Needs root and the package iproute2.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess


# Of which `ip netns exec` shows a namespace its files as those of /etc.
CONFIGURATIONS = pathlib.Path("/etc/netns")


def _run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


class Network:
    """Host I of `hosts` has the address 10.77.0.(I+1) on eth0; what it sends passes at `rate`.

    With `racks`, the number of each host's rack, hosts of a rack have a bridge of their own; what they
    send to the other racks passes at `trunk`, for all of them together."""

    def __init__(self, hosts, rate, racks=None, trunk=None):
        self.racks = racks or [0] * hosts
        self.trunk = trunk
        self.prefix = f"penstock{os.getpid()}"
        self.names = [f"{self.prefix}h{index}" for index in range(hosts)]
        self.rate = rate

    def inside(self, index, command):
        return ["ip", "netns", "exec", self.names[index], *command]

    def on_host(self, index, command):
        """Like inside, but the host also has a name of its own, see host_name."""
        return self.inside(index, ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"',
                                   self.host_name(index), *map(str, command)])

    @staticmethod
    def host_name(index):
        return f"n{index + 1}"

    @staticmethod
    def address(index):
        return f"10.77.0.{index + 1}"

    def tell_names(self):
        """Has all hosts know the names of all."""
        lines = ["127.0.0.1 localhost"]
        lines += [f"{self.address(index)} {self.host_name(index)}" for index in range(len(self.names))]
        for name in self.names:
            folder = CONFIGURATIONS / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text("\n".join(lines) + "\n")

    def spoil(self, index, loss, rate, queue):
        """Has a host lose this part of the packets that come to it, at random, and send at `rate`
        through a queue of so many bytes, which delays packets and drops those that do not fit.

        Where the kernel has no netem, a filter that is a program of four instructions does as much:
        load a random number, compare, drop (2) or pass (0)."""
        random_number = 0xfffff000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM
        program = f"4,32 0 0 {random_number},53 1 0 {int(loss * 2 ** 32)},6 0 0 2,6 0 0 0"
        host = self.names[index]
        _run("tc", "-n", host, "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst",
             "3kb", "limit", str(queue))
        _run("tc", "-n", host, "qdisc", "add", "dev", "eth0", "clsact")
        _run("tc", "-n", host, "filter", "add", "dev", "eth0", "ingress", "bpf", "direct-action",
             "bytecode", program)

    def dropped(self, index):
        """Packets that a spoilt host has lost: of those that came, and of those that it sent."""
        text = _run("tc", "-n", self.names[index], "-s", "qdisc", "show", "dev", "eth0")
        drops = dict(re.findall(r"(?m)^qdisc (\w+) .*\n.*\(dropped (\d+),", text))
        return int(drops["clsact"]), int(drops["tbf"])

    def switch(self, index, state):
        """Cuts the link of a host ("down"), or joins it again ("up")."""
        _run("ip", "-n", f"{self.prefix}s", "link", "set", f"port{index}", state)

    def join_again(self, index):
        """After a cut, at the end of a test: what asks for a hardware address since before the end of
        the cut would tell the next test that there is no route."""
        self.switch(index, "up")
        for name in self.names:
            _run("ip", "-n", name, "neigh", "flush", "dev", "eth0")

    def processes(self):
        """Ids of those on the hosts."""
        found = []
        for name in self.names:
            found += map(int, _run("ip", "netns", "pids", name).split())
        return found

    def block(self, sender, receiver):
        """Loses what one host sends to another one: it knows the other by a hardware address that
        nobody has."""
        _run("ip", "-n", self.names[sender], "neigh", "replace", self.address(receiver), "lladdr",
             "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")

    def unblock(self, sender, receiver):
        """It asks for the hardware address again."""
        subprocess.run(["ip", "-n", self.names[sender], "neigh", "del", self.address(receiver), "dev",
                        "eth0"], capture_output=True, timeout=30, check=False)

    def limit(self, index, rate):
        """Has a host send at another rate."""
        _run("tc", "-n", self.names[index], "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate",
             rate, "burst", "256kb", "latency", "50ms")

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            switch = f"{self.prefix}s"
            _run("ip", "netns", "add", switch)
            for rack in sorted(set(self.racks)):
                _run("ip", "-n", switch, "link", "add", f"bridge{rack}", "type", "bridge")
                _run("ip", "-n", switch, "link", "set", f"bridge{rack}", "up")
                if rack > 0:
                    self._join_rack(switch, rack)
            for index, host in enumerate(self.names):
                _run("ip", "netns", "add", host)
                _run("ip", "-n", host, "link", "add", "eth0", "type", "veth", "peer", "name",
                     f"port{index}", "netns", switch)
                _run("ip", "-n", switch, "link", "set", f"port{index}", "master",
                     f"bridge{self.racks[index]}", "up")
                _run("ip", "-n", host, "address", "add", f"{self.address(index)}/24", "dev", "eth0")
                _run("ip", "-n", host, "link", "set", "eth0", "up")
                _run("ip", "-n", host, "link", "set", "lo", "up")
                _run("tc", "-n", host, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
                     self.rate, "burst", "256kb", "latency", "50ms")
            stack.pop_all()
        return self

    def _join_rack(self, switch, rack):
        ends = (f"trunk{rack}", f"trunk{rack}end")
        _run("ip", "-n", switch, "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for end, bridge in zip(ends, ("bridge0", f"bridge{rack}")):
            _run("ip", "-n", switch, "link", "set", end, "master", bridge, "up")
            _run("tc", "-n", switch, "qdisc", "add", "dev", end, "root", "tbf", "rate", self.trunk,
                 "burst", "32kb", "latency", "50ms")

    def close(self):
        """Ends what is left on the hosts, too, such as clients and daemons that wait for others."""
        for name in [*self.names, f"{self.prefix}s"]:
            left = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True,
                                  timeout=30, check=False).stdout
            for pid in left.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=30,
                           check=False)
            shutil.rmtree(CONFIGURATIONS / name, ignore_errors=True)

    def __exit__(self, *_):
        self.close()
