// Tells a coordinator how a node has died, which its closed connection does not say: for the
// process that has started the node, on its host. See NodeOptions::is_watched.
//
// Thread rule: blocks its caller.

#ifndef PENSTOCK_ACTORS_CLUSTER_END_REPORT_H_
#define PENSTOCK_ACTORS_CLUSTER_END_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace penstock::actors {

struct EndReport {
  std::string coordinator;  // as NodeOptions has it
  std::string key;          // the job's, 64 hexadecimal digits
  bool insecure = false;    // as NodeOptions has it
  uint32_t rank = 0;
  int pid = 0;
  int wait_status = 0;  // as waitpid tells it
  bool is_out_of_memory = false;
};

// kUnavailable where the coordinator is gone as well.
absl::Status ReportEnd(const EndReport& report, absl::Duration timeout);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_END_REPORT_H_
