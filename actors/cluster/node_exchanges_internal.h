// The exchanges of states that a node takes part in, by number.
//
// Thread rule: the loop's thread. What the work thread uses of an exchange, it shares.
// Invariant: an exchange of a number opens once, none after Stop.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_EXCHANGES_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_EXCHANGES_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"

#include "actors/cluster/control.capnp.h"
#include "actors/cluster/node_exchange_internal.h"

namespace penstock::actors {

class NodeExchanges {
 public:
  // Under way: one for each session that takes states.
  static constexpr size_t kMaxExchanges = 8;

  // Whether what the call asks for can be opened.
  absl::Status CheckNew(control::Node::OpenExchangeParams::Reader params) const;
  // REQUIRES: CheckNew is OK for this number.
  void Add(uint32_t number, std::shared_ptr<NodeExchange> exchange);
  // Null: there is none of this number.
  std::shared_ptr<NodeExchange> Find(uint32_t number) const;
  void Remove(uint32_t number) { exchanges_.erase(number); }
  // Stops all exchanges, and those that are added later.
  void Stop();
  void Clear() { exchanges_.clear(); }

 private:
  std::map<uint32_t, std::shared_ptr<NodeExchange>> exchanges_;
  uint32_t last_ = 0;
  bool has_stopped_ = false;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_EXCHANGES_INTERNAL_H_
