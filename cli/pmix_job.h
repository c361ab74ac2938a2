// What the processes of a job tell each other through the PMIx server that has started them:
// mpirun of Open MPI, or srun --mpi=pmix.
//
// Thread rule: one thread. Invariant: at most one object at a time, because PMIx has one client a
// process.

#ifndef PENSTOCK_CLI_PMIX_JOB_H_
#define PENSTOCK_CLI_PMIX_JOB_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/launch_member.h"

namespace penstock::cli {

class PmixJob {
 public:
  // Whether the environment is that of a process with a PMIx server.
  static bool HasServer(const Variables& variables);

  static absl::StatusOr<std::unique_ptr<PmixJob>> Connect();
  // Tells the server that this process ends in order.
  ~PmixJob();
  PmixJob(const PmixJob&) = delete;
  PmixJob& operator=(const PmixJob&) = delete;

  // Tells all processes of the job. Once.
  absl::Status Publish(const std::map<std::string, std::string>& values);

  // What rank 0 publishes under the name. kDeadlineExceeded if that takes longer.
  absl::StatusOr<std::string> Await(const std::string& name, absl::Duration timeout);

 private:
  explicit PmixJob(std::string job) : job_(std::move(job)) {}

  const std::string job_;  // PMIx calls it a namespace
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_PMIX_JOB_H_
