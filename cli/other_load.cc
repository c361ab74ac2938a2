#include "cli/other_load.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/device.h"
#include "base/process_cores.h"
#include "base/strings.h"
#include "base/system_file.h"

namespace penstock::cli {
namespace {

constexpr double kLeastSeconds = 1;

std::set<int> AllowedCores() {
  const std::vector<uint32_t> processors = CoresOfThisProcess().processors;
  return {processors.begin(), processors.end()};
}

}  // namespace

int64_t BusyTicks(std::string_view stat, const std::set<int>& cores) {
  int64_t busy = 0;
  size_t num_cores = 0;
  std::istringstream lines{std::string(stat)};
  for (std::string line; std::getline(lines, line);) {
    // "cpu0 user nice system idle iowait irq softirq steal guest guest_nice"; guests are in user.
    std::istringstream words(line);
    std::string name;
    if (!(words >> name) || name.size() < 4 || name.compare(0, 3, "cpu") != 0) continue;
    if (!cores.contains(std::atoi(name.c_str() + 3))) continue;
    int64_t ticks[8] = {};
    for (int64_t& count : ticks) words >> count;
    busy += ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7];
    ++num_cores;
  }
  return num_cores > 0 && num_cores == cores.size() ? busy : -1;
}

int64_t ProcessTicks(std::string_view stat) {
  // "pid (name) state ppid ...": the name may hold anything.
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return -1;
  std::istringstream words{std::string(stat.substr(name_end + 1))};
  std::string skipped;
  for (int field = 3; field < 14; ++field) words >> skipped;
  int64_t user = 0;
  int64_t system = 0;
  return words >> user >> system ? user + system : -1;
}

OtherLoad::OtherLoad(std::vector<int64_t> own)
    : cores_(AllowedCores()),
      own_(std::move(own)),
      begin_ns_(SteadyClock().NowNs()),
      begin_(Read()) {}

OtherLoad::Ticks OtherLoad::Read() const {
  Ticks ticks;
  ticks.busy = BusyTicks(ReadSystemFile("/proc/stat"), cores_);
  ticks.own = ProcessTicks(ReadSystemFile("/proc/self/stat"));
  ticks.is_known = ticks.busy >= 0 && ticks.own >= 0;
  for (const int64_t process : own_) {
    const int64_t own = ProcessTicks(ReadSystemFile(StrCat("/proc/", process, "/stat")));
    ticks.is_known = ticks.is_known && own >= 0;
    ticks.own += own;
  }
  return ticks;
}

double OtherLoad::Cores() const {
  const Ticks now = Read();
  const double seconds = 1e-9 * static_cast<double>(SteadyClock().NowNs() - begin_ns_);
  const auto ticks_per_s = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (!begin_.is_known || !now.is_known || seconds < kLeastSeconds || ticks_per_s <= 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const int64_t other = (now.busy - begin_.busy) - (now.own - begin_.own);
  return static_cast<double>(std::max<int64_t>(other, 0)) / ticks_per_s / seconds;
}

}  // namespace penstock::cli
