// Serves one text over HTTP, such as metrics: GET and HEAD of one path.
//
// Web pages that a browser shows reach whatever the browser's host reaches: by its address, with an
// Origin header that names the page's server, or through a name of theirs that resolves to it (DNS
// rebinding), which the Host header tells. So requests get 403 that have an Origin of another
// server or a wrong Host: on a loopback address, that is any but a loopback host
// ("localhost:9090"); on others, any but an IP address, a loopback host, the name of this host, and
// the one that the options name.
//
// A connection lasts kTextSeconds at most, and kMaxTextConnections are open at a time: when another
// arrives, the oldest is closed.
//
// Thread rule: the server has a thread of its own; the source is called by a second one.

#ifndef PENSTOCK_ACTORS_CLUSTER_TEXT_SERVER_H_
#define PENSTOCK_ACTORS_CLUSTER_TEXT_SERVER_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "actors/cluster/answers.h"

namespace penstock::actors {

inline constexpr int kTextSeconds = 30;
inline constexpr size_t kMaxTextConnections = 16;

struct TextServerOptions {
  std::string host = "127.0.0.1";
  unsigned port = 0;  // 0: any
  std::string path = "/metrics";
  std::string content_type = "text/plain; version=0.0.4; charset=utf-8";
};

class TextServer {
 public:
  static absl::StatusOr<std::unique_ptr<TextServer>> Start(const TextServerOptions& options,
                                                           Answers<std::string>::Source source);
  ~TextServer();
  TextServer(const TextServer&) = delete;
  TextServer& operator=(const TextServer&) = delete;

  // "http://127.0.0.1:41234/metrics".
  const std::string& url() const;

 private:
  class Impl;
  explicit TextServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_TEXT_SERVER_H_
