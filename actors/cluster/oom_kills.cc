#include "actors/cluster/oom_kills.h"

#include <signal.h>
#include <sys/wait.h>

#include <fstream>

#include "base/strings.h"

namespace penstock::actors {

int64_t OutOfMemoryKills() {
  std::ifstream file("/proc/vmstat");
  std::string name;
  int64_t value = 0;
  while (file >> name >> value) {
    if (name == "oom_kill") return value;
  }
  return 0;
}

bool IsProbablyOutOfMemory(int wait_status, int64_t kills_before) {
  return WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL &&
         OutOfMemoryKills() > kills_before;
}

std::string WatchedForMemory(const std::string& command) {
  return StrCat("k() { sed -n 's/^oom_kill //p' /proc/vmstat 2>/dev/null; }; b=$(k); ", command,
                "; s=$?; if [ $s -eq 137 ] && [ \"$b\" != \"$(k)\" ]; then echo \"",
                OutOfMemoryLine(), "\" >&2; fi; exit $s");
}

std::string OutOfMemoryLine() {
  return StrCat("this node was killed by signal 9", kProbablyOutOfMemory);
}

}  // namespace penstock::actors
