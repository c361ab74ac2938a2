#include "base/machine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/process_cores.h"

namespace penstock {

int UsableCores() { return CountCores({CoresOfThisProcess()}); }

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

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size_pages = 0;
  uint64_t resident_pages = 0;
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  if (!(file >> size_pages >> resident_pages) || page_bytes <= 0) return 0;
  return resident_pages * static_cast<uint64_t>(page_bytes);
}

}  // namespace penstock
