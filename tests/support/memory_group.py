"""A control group whose processes together may have little memory."""

import os
import pathlib

CGROUPS = pathlib.Path("/sys/fs/cgroup")


class MemoryGroup:
    """OSError where none can be made."""

    def __init__(self, num_bytes):
        self.folder = None
        name = f"penstock-test-{os.getpid()}"
        if (CGROUPS / "memory").is_dir():
            self.folder, limit = CGROUPS / "memory" / name, "memory.limit_in_bytes"
        elif "memory" in (CGROUPS / "cgroup.subtree_control").read_text().split():
            self.folder, limit = CGROUPS / name, "memory.max"
        else:
            raise OSError("no control groups of memory")
        self.folder.mkdir()
        (self.folder / limit).write_text(str(num_bytes))

    def inside(self, command):
        """The command that runs another one as a process of the group."""
        return ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh", *command]

    def close(self):
        self.folder.rmdir()
