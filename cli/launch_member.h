// A process that is one of those that something else has started on all hosts: srun, mpirun,
// torchrun, or a Kubernetes job with an index.
//
//   srun penstock launch --key-file key -- job.toml      # in each task of a step
//
// The process of rank 0 coordinates and runs the first node; the others are nodes.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_LAUNCH_MEMBER_H_
#define PENSTOCK_CLI_LAUNCH_MEMBER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock::cli {

struct LaunchMember {
  std::string starter;  // what has started it, for messages: "srun"; empty: nothing has
  std::string command;  // with which the user has; empty: there is none, or it is not known
  std::string job;      // its name, the same on all hosts; empty: its variables do not say
  int64_t rank = 0;     // negative: etcd gives one
  int64_t size = 0;     // processes of the job; 0: its variables do not say
  // Processes on each host, whose ranks are neighbours; empty: its variables do not say.
  std::vector<int64_t> host_sizes = {};
  // Names of the hosts, in the order of the ranks on them; empty: its variables do not say.
  std::vector<std::string> hosts = {};
  // Where rank 0 listens; an empty host or port 0: its variables do not say.
  std::string host;
  int64_t port = 0;
};

// The value of an environment variable; empty where it is not set.
using Variables = std::function<std::string(const char* name)>;
// Of this process.
std::string EnvironmentVariable(const char* name);

// Nullopt where the variables are those of no such process. Looks for those of torchrun (RANK,
// WORLD_SIZE), of mpirun (OMPI_COMM_WORLD_RANK of Open MPI, PMI_RANK of MPICH), of a task of srun
// (SLURM_PROCID in a step), of Kubernetes (JOB_COMPLETION_INDEX), and of a PMIx server outside of
// Slurm, such as prun has (PMIX_RANK), in this order, because each may run below the next. A step
// of one task with a terminal (`srun --pty`), at which this process is, is a shell inside an
// allocation, not such a process. MASTER_ADDR and MASTER_PORT tell of rank 0 in all cases; without
// them it is the first host of a Slurm step, with a port that the step determines. Where an agent
// of torchrun listens at MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE), it is the next port. An
// error names the variable.
absl::StatusOr<std::optional<LaunchMember>> DetectMember(const Variables& variables,
                                                         bool is_on_terminal);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_LAUNCH_MEMBER_H_
