"""Control groups of Linux, v1 or v2, which limit what processes of a test may have."""

import os
import pathlib

ROOT = pathlib.Path("/sys/fs/cgroup")
PERIOD_US = 100000  # of a quota of processor time
# A system that does not count swap does not have them.
OPTIONAL_FILES = ("memory.memsw.limit_in_bytes", "memory.swap.max")


class ControlGroup:
    """A group with limits of one controller: files and what is written to them, of v1 and of v2. OSError
    where none can be made, as without root."""

    count = 0

    def __init__(self, controller, v1, v2):
        self.folder = None
        name = f"penstock-test-{os.getpid()}-{controller}-{ControlGroup.count}"
        ControlGroup.count += 1
        self.is_v1 = (ROOT / controller).is_dir()
        if self.is_v1:
            self.folder = ROOT / controller / name
        elif controller in (ROOT / "cgroup.subtree_control").read_text().split():
            self.folder = ROOT / name
        else:
            raise OSError(f"no control groups for {controller}")
        self.folder.mkdir()
        try:
            self.limit(v1, v2)
        except OSError:
            self.close()
            raise

    def limit(self, v1, v2):
        for file, value in (v1 if self.is_v1 else v2).items():
            if file not in OPTIONAL_FILES or (self.folder / file).exists():
                (self.folder / file).write_text(str(value))

    @property
    def processes(self):
        """The file that takes the number of a process."""
        return self.folder / "cgroup.procs"

    def inside(self, command):
        """The command that runs another one as a process of the group."""
        return ["sh", "-c", f'echo $$ > {self.processes} && exec "$@"', "sh", *command]

    def close(self):
        self.folder.rmdir()


def memory_group(num_bytes):
    """Processes have so much memory together, and no swap: what needs more is killed."""
    return ControlGroup("memory",
                        # The second one is of memory and swap; it cannot be below the first.
                        {"memory.limit_in_bytes": num_bytes, "memory.memsw.limit_in_bytes": num_bytes},
                        {"memory.max": num_bytes, "memory.swap.max": 0})


def cpu_group(part=None, period_us=PERIOD_US):
    """Processes get a part of each period of a processor, or all that there is. What else runs on this
    machine has to wait for them: else a limit would not matter where all wait for each other."""
    group = ControlGroup("cpu", {"cpu.shares": 200000}, {"cpu.weight": 10000})
    limit_cpu(group, part, period_us)
    return group


def limit_cpu(group, part, period_us=PERIOD_US):
    """As cpu_group; also while processes run."""
    quota_us = int(part * period_us) if part is not None else None
    group.limit({"cpu.cfs_period_us": period_us, "cpu.cfs_quota_us": quota_us or -1},
                {"cpu.max": f"{quota_us or 'max'} {period_us}"})
