// The data of a call to a node: embedded in the call, or read from the coordinator in chunks.
//
// Thread rule: Received is made on the loop's thread and used on the work thread; for ByteReceiver
// stated at each function.
// Invariant: a read ends with its timeout or with Cancel.

#ifndef PENSTOCK_ACTORS_CLUSTER_RECEIVED_BYTES_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_RECEIVED_BYTES_INTERNAL_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include <kj/async.h>

#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/scattered_bytes.h"

namespace penstock::actors {

// Lets go of a capability on the loop's thread, whose it is.
template <typename Client>
struct Holder {
  Holder(control::ControlLoop& control_loop, Client capability)
      : loop(control_loop), client(std::make_shared<Client>(kj::mv(capability))) {}
  ~Holder() {
    loop.Post([last = std::move(client)] {});
  }

  control::ControlLoop& loop;
  std::shared_ptr<Client> client;
};

// Data, or the source to read them from.
struct Received {
  Received(control::ControlLoop& loop, control::ChunkedBytes::Reader transfer);

  std::string embedded;
  std::shared_ptr<Holder<control::Source::Client>> source;  // null: they are embedded
};

class ByteReceiver {
 public:
  // `loop` outlives the receiver.
  explicit ByteReceiver(control::ControlLoop& loop) : loop_(loop) {}

  // Work thread. Writes the data to `target`. Errors name `what`.
  absl::Status Take(const Received& received, ByteTarget target, absl::Duration timeout,
                    std::string_view what);

  // Loop's thread. What is being read; empty: nothing.
  const std::string& reading() const { return reading_; }
  // Loop's thread. Ends the read that is under way, and every later one.
  void Cancel();

 private:
  control::ControlLoop& loop_;
  // The loop's thread's:
  kj::Canceler transfers_;
  std::string reading_;
  bool is_cancelled_ = false;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_RECEIVED_BYTES_INTERNAL_H_
