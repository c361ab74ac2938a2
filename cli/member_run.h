// The part of a process that is one of those that something else has started (launch_member.h):
// rank 0 runs the job and a node, the others are nodes.
//
// Thread rule: one thread.

#ifndef PENSTOCK_CLI_MEMBER_RUN_H_
#define PENSTOCK_CLI_MEMBER_RUN_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "cli/environment.h"
#include "cli/launch_member.h"

namespace penstock::cli {

// What the variables do not say, or say otherwise.
struct MemberOptions {
  int64_t size = 0;            // 0: as the variables say
  std::string coordinator;     // HOST:PORT; empty: as the variables say
  std::string key_file;        // empty: PENSTOCK_KEY, or PMIx
  bool insecure = false;       // without TLS, where rank 0 listens on loopback
  std::string listen;          // of rank 0, HOST or HOST:PORT; empty: where the others look for it
  std::string rendezvous;      // of etcd (etcd_board.h); empty: none
  std::string device = "cpu";  // kinds of a node's devices (device_list.h); rank 0 has the job's
  double join_timeout_s = 60;
  std::string log_folder;  // where each keeps what it prints; empty: nowhere
};

// `run_job` is called at rank 0, with the environment and the number of processes. The command's
// exit status is 69 where the processes do not find each other in time.
absl::Status RunMember(const Environment& environment, LaunchMember member,
                       const MemberOptions& options,
                       const std::function<absl::Status(const Environment&, int64_t)>& run_job);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_MEMBER_RUN_H_
