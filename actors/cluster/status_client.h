// Asks a job what it does.
//
// Thread rule: one thread at a time.

#ifndef PENSTOCK_ACTORS_CLUSTER_STATUS_CLIENT_H_
#define PENSTOCK_ACTORS_CLUSTER_STATUS_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/cluster/job_status.h"

namespace penstock::actors {

struct StatusAddress {
  // "unix:PATH" of a status socket (status_port.h), or the address of a coordinator, as nodes join
  // it.
  std::string address;
  // Of a coordinator: the job's key, 64 hexadecimal digits. Empty: a status socket, which wants
  // none.
  std::string key;
};

class StatusClient {
 public:
  static absl::StatusOr<std::unique_ptr<StatusClient>> Create();
  ~StatusClient();
  StatusClient(const StatusClient&) = delete;
  StatusClient& operator=(const StatusClient&) = delete;

  // kUnavailable: nobody listens there; kDeadlineExceeded: the process there does not answer;
  // kAborted: it is a node, which answers, but the job's coordinator does not.
  absl::StatusOr<JobStatus> Ask(const StatusAddress& address, absl::Duration timeout);

 private:
  class Impl;
  explicit StatusClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_STATUS_CLIENT_H_
