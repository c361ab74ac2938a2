// A transport that behaves worse than the one inside it, yet within the contract: completions are
// held back and come in another order, views can be denied, and requests fail where a test says so.
// It also holds its users to the contract: a send whose bytes were changed before it was done
// fails. Reproducible from a seed when the endpoints are driven by one thread, and nothing is held
// back by time.
//
// Thread rule: the inner transport's; `fail` and `while_pending` are called on the thread of the
// endpoint's owner.

#ifndef PENSTOCK_TESTS_SUPPORT_FAULTY_TRANSPORT_H_
#define PENSTOCK_TESTS_SUPPORT_FAULTY_TRANSPORT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"

#include "transport/transport.h"

namespace penstock::testing {

// Whose memory can be seen: everybody's; nobody's, as between hosts; or that of devices whose
// numbers are even or odd as the own one is.
enum class Views { kAll, kNone, kOfLikeParity };

struct FaultOptions {
  uint64_t seed = 1;
  // A completion is held back for 0 to this many calls of Progress.
  int max_delay = 8;
  // Of `slow_one_in` requests one, at random, is held back for a random time of up to
  // `max_slow_time` as well, during which its owner may sleep.
  int slow_one_in = 1;
  std::chrono::nanoseconds max_slow_time{0};
  // Whether sent bytes are held against a hash of what they were when they were posted.
  bool checks_sent_bytes = true;
  Views views = Views::kAll;

  struct Post {
    uint32_t device = 0;
    uint32_t peer = 0;
    transport::Tag tag;
    bool is_send = false;
  };
  // Asked about every request that is posted; a status that is not OK becomes the request's, and
  // the inner transport never sees it.
  std::function<absl::Status(const Post&)> fail = {};
  // Called in each Progress of an endpoint with a request that is not over.
  std::function<void()> while_pending = {};
};

std::unique_ptr<transport::Transport> CreateFaultyTransport(
    std::unique_ptr<transport::Transport> inner, FaultOptions options);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_FAULTY_TRANSPORT_H_
