"""A Slurm cluster of this test: munged, slurmctld, and a slurmd for each of two nodes on this host."""

import os
import pathlib
import shutil
import subprocess
import time

from tests.support.launched_job import PATIENCE_S, free_ports

PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc")


def why_not():
    """Why there cannot be a cluster here; empty: there can."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if missing:
        return (f"there is no {', '.join(missing)} (packages munge, slurmctld, slurmd and "
                "slurm-client)")
    return "" if os.getuid() == 0 else "slurmd needs root"


class SlurmCluster:
    """Two nodes, n1 and n2, of two processors each. `environment` makes srun and salloc find it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.chmod(0o755)
        self.daemons = []
        controller, first, second = free_ports(3)
        config = self.folder / "slurm.conf"
        config.write_text(f"""
ClusterName=penstock
SlurmctldHost=localhost(127.0.0.1)
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
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={first} CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={second} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
""")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for name in ("state", "spool-n1", "spool-n2", "tmp-n1", "tmp-n2"):
            (self.folder / name).mkdir()
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(config)}
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.start("munged", "--foreground", "--force", f"--key-file={key}",
                   f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munged.pid",
                   f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed")
        self.await_output((self.folder / "munge.socket").exists, "munged")
        self.start("slurmctld", "-D", "-f", str(config))
        for node in ("n1", "n2"):
            self.start("slurmd", "-D", "-N", node, "-f", str(config))
        self.await_output(self.has_idle_nodes, "the nodes")

    def start(self, *command):
        log = open(self.folder / f"{command[0]}-{len(self.daemons)}.out", "wb")
        with log:
            self.daemons.append(subprocess.Popen(
                [shutil.which(command[0], path=PATH), *command[1:]], stdout=log, stderr=log,
                env=self.environment))

    def is_of_a_job(self, pid):
        """Whether the process belongs to a job of this cluster, not to one of another test."""
        try:
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return f"SLURM_CONF={self.environment['SLURM_CONF']}".encode() in environment

    def has_idle_nodes(self):
        states = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True,
                                env=self.environment, check=False, timeout=PATIENCE_S).stdout
        return states.split() == ["idle", "idle"]

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
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
