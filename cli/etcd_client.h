// etcd's API, version 3, through the JSON gateway of its servers: calls go to whichever of several
// endpoints answers.
//
// Thread rule: thread-safe; calls block.

#ifndef PENSTOCK_CLI_ETCD_CLIENT_H_
#define PENSTOCK_CLI_ETCD_CLIENT_H_

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cli/launch_member.h"
#include "nlohmann/json_fwd.hpp"

namespace httplib {
class Client;
}  // namespace httplib

namespace penstock::cli {

// How a client knows the servers, and shows them who it is. Files are in PEM.
struct EtcdAccess {
  std::string ca_file;    // of the authority that has signed the servers' certificates; empty: the
                          // system's authorities
  std::string cert_file;  // of the client; empty: it shows none
  std::string key_file;
  std::string user;  // empty: none
  std::string password;
};

// As etcdctl has it: ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY, ETCDCTL_USER (NAME:PASSWORD, or
// NAME) and ETCDCTL_PASSWORD. An error names the variable.
absl::StatusOr<EtcdAccess> EtcdAccessOf(const Variables& variables);

class EtcdClient {
 public:
  // Endpoints are "http://HOST:PORT" or "https://HOST:PORT". Does not connect.
  // REQUIRES: there is one.
  EtcdClient(std::vector<std::string> endpoints, EtcdAccess access)
      : endpoints_(std::move(endpoints)), access_(std::move(access)) {}

  // For messages: "etcd at http://a:2379, http://b:2379".
  std::string name() const;

  // The answer to a call, such as "/v3/kv/range": from the endpoint that answered last, or the next
  // one that does within `timeout`. kUnavailable if none does; it makes sense to ask again then.
  absl::StatusOr<nlohmann::json> Call(const std::string& path, const nlohmann::json& body,
                                      absl::Duration timeout);

  // Breaks off the calls under way, which are kUnavailable then, as are later ones until Resume.
  void Interrupt();
  void Resume();

 private:
  absl::StatusOr<nlohmann::json> CallAt(const std::string& endpoint, const std::string& path,
                                        const nlohmann::json& body, absl::Duration timeout);
  // What a call to this endpoint carries, which is asked for where there is none. Empty without a
  // user.
  absl::StatusOr<std::string> Token(const std::string& endpoint, absl::Duration timeout);
  absl::StatusOr<nlohmann::json> Post(const std::string& endpoint, const std::string& path,
                                      const nlohmann::json& body, const std::string& token,
                                      absl::Duration timeout);

  const std::vector<std::string> endpoints_;
  const EtcdAccess access_;
  absl::Mutex mutex_;
  size_t current_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string token_ ABSL_GUARDED_BY(mutex_);
  bool is_interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<httplib::Client*> calls_ ABSL_GUARDED_BY(mutex_);  // under way
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_ETCD_CLIENT_H_
