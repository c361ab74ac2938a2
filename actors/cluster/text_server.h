// Serves one text over HTTP, such as metrics: GET and HEAD of one path.
//
// Who listens on loopback is still reached by web pages that a browser on this host shows, through
// a name that resolves to 127.0.0.1 (DNS rebinding). So on a loopback address requests have to name
// a loopback host ("Host: localhost:9090"); others get 403.
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
