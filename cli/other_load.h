// How busy other programs keep the cores of this host while a job runs.
//
// A device that waits for a core looks like one that computes, communicates or idles for longer:
// clocks do not tell the difference. For cores that devices of the job share, the trace does
// (critical_path.h); for other programs, this says how much of the cores they had.
//
// Thread rule: one thread.

#ifndef PENSTOCK_CLI_OTHER_LOAD_H_
#define PENSTOCK_CLI_OTHER_LOAD_H_

#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

namespace penstock::cli {

class OtherLoad {
 public:
  // Begins to measure. `own` are the processes of the job on this host, beside this one.
  explicit OtherLoad(std::vector<int64_t> own);

  // The mean number of cores, of those that this process may use, that others have kept busy since
  // then. Time that a hypervisor took counts as theirs. NaN: not known, or less than a second.
  double Cores() const;
  // How many it may use. A quota, which others do not take from, does not count.
  int64_t num_cores() const { return static_cast<int64_t>(cores_.size()); }

 private:
  struct Ticks {
    int64_t busy = 0;  // of the cores
    int64_t own = 0;   // of the job's processes
    bool is_known = false;
  };
  Ticks Read() const;

  const std::set<int> cores_;
  const std::vector<int64_t> own_;
  const int64_t begin_ns_;
  const Ticks begin_;
};

// Ticks that cores were not idle, from the text of /proc/stat; -1: not known.
int64_t BusyTicks(std::string_view stat, const std::set<int>& cores);
// Ticks of all threads of a process, from the text of /proc/PID/stat; -1: not known.
int64_t ProcessTicks(std::string_view stat);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_OTHER_LOAD_H_
