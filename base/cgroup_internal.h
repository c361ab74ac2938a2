// Where this process's control groups for processor time are.
//
// Linux may mount control groups v1, v2, or both. /proc/self/cgroup names the group of the process,
// such as "4:cpu,cpuacct:/a/b" (v1) or "0::/a/b" (v2); /proc/self/mountinfo says which folder shows
// which part of the tree. In a container that part may be the container's own:
//
//   cgroup     4:cpu,cpuacct:/docker/7f/a
//   mountinfo  31 23 0:28 /docker/7f /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
//   result     root "/sys/fs/cgroup/cpu", path "/a"
//
// Thread rule: functions that only read.

#ifndef PENSTOCK_BASE_CGROUP_INTERNAL_H_
#define PENSTOCK_BASE_CGROUP_INTERNAL_H_

#include <string>
#include <vector>

#include "base/process_cores.h"

namespace penstock {

struct CgroupPlace {
  std::string root;  // the folder at which it is mounted
  std::string path;  // of the group below it: "/a/b", or "/"
};

// The mounted groups that can limit processor time, by the contents of /proc/self/cgroup and
// /proc/self/mountinfo. A group outside the mounted part counts as the top of that part. Lines that
// cannot be parsed are skipped.
std::vector<CgroupPlace> FindCpuCgroups(const std::string& cgroup, const std::string& mountinfo);

// Quotas of the group at `place` and of its parents as far as they are mounted, innermost first.
// Groups without a limit are omitted. A group is known by its folder's device and inode number,
// which are the same in all namespaces of the host; its path is not.
std::vector<CoreQuota> QuotasOf(const CgroupPlace& place);

}  // namespace penstock

#endif  // PENSTOCK_BASE_CGROUP_INTERNAL_H_
