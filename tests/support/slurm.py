"""A Slurm cluster of this test: munged, slurmctld, and a slurmd for each node, all on this host or in
network namespaces."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

from tests.support.launched_job import PATIENCE_S, free_ports

PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch")


def why_not():
    """Why there cannot be a cluster here; empty: there can."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if missing:
        return (f"there is no {', '.join(missing)} (packages munge, slurmctld, slurmd and "
                "slurm-client)")
    return "" if os.getuid() == 0 else "slurmd needs root"


class SlurmCluster:
    """Nodes n1, n2 and so on, of two processors each: two on this host, or one on each host of a
    network (network.py), of which the first runs the controller. `environment` makes srun and salloc
    find it."""

    def __init__(self, folder, network=None):
        self.folder = pathlib.Path(folder)
        self.folder.chmod(0o755)
        self.network = network
        self.daemons = []
        num_nodes = 2 if network is None else len(network.names)
        self.nodes = [f"n{index + 1}" for index in range(num_nodes)]
        controller, *ports = free_ports(1 + num_nodes)
        lines = []
        for index, node in enumerate(self.nodes):
            host = "localhost" if network is None else network.host_name(index)
            address = "127.0.0.1" if network is None else network.address(index)
            if index == 0:
                lines.append(f"SlurmctldHost={host}({address})")
            lines.append(f"NodeName={node} NodeHostname={host} NodeAddr={address} Port={ports[index]} "
                         "CPUs=2 State=UNKNOWN")
        lines.append(f"PartitionName=all Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE "
                     "State=UP")
        config = self.folder / "slurm.conf"
        config.write_text(f"""
ClusterName=penstock
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool-%n
TmpFS={self.folder}/tmp-%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
""" + "\n".join(lines) + "\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.folder / "state").mkdir()
        for node in self.nodes:
            (self.folder / f"spool-{node}").mkdir()
            (self.folder / f"tmp-{node}").mkdir()
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(config)}
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.start("munged", "--foreground", "--force", f"--key-file={key}",
                   f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munged.pid",
                   f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed")
        self.await_output((self.folder / "munge.socket").exists, "munged")
        self.start("slurmctld", "-D", "-f", str(config))
        for index, node in enumerate(self.nodes):
            self.start("slurmd", "-D", "-N", node, "-f", str(config), host=index)
        self.await_idle_nodes()

    def inside(self, command, host=0):
        """The command on a host of the cluster."""
        return list(command) if self.network is None else self.network.on_host(host, command)

    def start(self, program, *arguments, host=0):
        log = open(self.folder / f"{program}-{len(self.daemons)}.out", "wb")
        with log:
            self.daemons.append(subprocess.Popen(
                self.inside([shutil.which(program, path=PATH), *arguments], host), stdout=log,
                stderr=log, env=self.environment))

    def with_munge(self):
        """An environment in which `munge` and `unmunge` find the cluster's daemon, and a file in which each
        `unmunge` from now on leaves a line."""
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        opened = self.folder / "opened"
        opened.write_text("")
        for name, extra in (("munge", ""), ("unmunge", f"echo opened >> {opened}\n")):
            script = programs / name
            script.write_text(f"#!/bin/sh\n{extra}exec {shutil.which(name)} --socket="
                              f"{self.folder}/munge.socket \"$@\"\n")
            script.chmod(0o755)
        return {**self.environment, "PATH": f"{programs}:{self.environment['PATH']}"}, opened

    def is_of_a_job(self, pid):
        """Whether the process belongs to this cluster, not to that of another test."""
        try:
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return f"SLURM_CONF={self.environment['SLURM_CONF']}".encode() in environment

    def has_idle_nodes(self):
        states = subprocess.run(self.inside(["sinfo", "-h", "-N", "-o", "%T"]), capture_output=True,
                                text=True, env=self.environment, check=False,
                                timeout=PATIENCE_S).stdout
        return states.split() == ["idle"] * len(self.nodes)

    def await_idle_nodes(self):
        self.await_output(self.has_idle_nodes, "the nodes")

    def await_output(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"{file.name}: {file.read_text(errors='replace')[-2000:]}"
                                 for file in sorted(self.folder.glob("*.out")))
                self.close()
                raise AssertionError(f"{what}: not within {PATIENCE_S} s\n{logs}")
            time.sleep(0.05)

    def close(self):
        """At once: in good order, slurmctld waits seconds for what it has told slurmd last."""
        for daemon in reversed(self.daemons):
            daemon.kill()
            daemon.wait()
        # What slurmd has started for steps waits for slurmctld.
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            if self.is_of_a_job(entry.name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
