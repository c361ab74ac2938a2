// The socket where a job tells what it does: a file in a folder that only its user may enter
// (runtime_folder.h). Clients are StatusClient (status_client.h).
//
// Whoever connects has to run as this user, or as root; the kernel says so. A connection lasts
// kStatusSeconds at most, and kMaxStatusConnections are open at a time: when another arrives, the
// oldest is closed. So silent and slow clients cost little and block nobody.
//
// Thread rule: the port has a thread of its own, which never waits for a device.

#ifndef PENSTOCK_ACTORS_CLUSTER_STATUS_PORT_H_
#define PENSTOCK_ACTORS_CLUSTER_STATUS_PORT_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "actors/cluster/job_status.h"

namespace penstock::actors {

inline constexpr int kStatusSeconds = 10;
inline constexpr size_t kMaxStatusConnections = 16;

class StatusPort {
 public:
  // Listens at the file `path`, which must not be there.
  static absl::StatusOr<std::unique_ptr<StatusPort>> Open(const std::string& path,
                                                          std::shared_ptr<StatusAnswers> answers);
  ~StatusPort();  // removes the file
  StatusPort(const StatusPort&) = delete;
  StatusPort& operator=(const StatusPort&) = delete;

  const std::string& path() const;

 private:
  class Impl;
  explicit StatusPort(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_STATUS_PORT_H_
