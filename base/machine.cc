#include "base/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string_view>

namespace penstock {
namespace {

// The path of this process's group of control groups v2; empty where there is none.
std::string CgroupOfThisProcess() {
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    constexpr std::string_view kUnified = "0::";
    if (line.compare(0, kUnified.size(), kUnified) == 0) return line.substr(kUnified.size());
  }
  return "";
}

}  // namespace

double CgroupCoreLimit(const std::string& root, const std::string& group) {
  double least = 0;
  // "/a/b", "/a" and "".
  for (std::string path = group == "/" ? "" : group;; path.resize(path.rfind('/'))) {
    std::ifstream file(root + path + "/cpu.max");
    double quota = 0;
    double period = 0;
    // "max 100000" where there is no limit: the first word is no number.
    if (file >> quota >> period && quota > 0 && period > 0) {
      least = least == 0 ? quota / period : std::min(least, quota / period);
    }
    if (path.rfind('/') == std::string::npos) return least;
  }
}

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = MachineCores();
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
  if (const double limit = CgroupCoreLimit("/sys/fs/cgroup", CgroupOfThisProcess()); limit > 0) {
    cores = std::min(cores, static_cast<int>(std::ceil(limit)));
  }
  return std::max(cores, 1);
}

int MachineCores() { return static_cast<int>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L)); }

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "unknown";
  return name;
}

uint64_t MachineMemoryBytes() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? static_cast<uint64_t>(pages) * page_bytes : UINT64_MAX;
}

}  // namespace penstock
