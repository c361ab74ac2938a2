// A node's part in an exchange of kept states: it sends boxes of tiles that it has kept to other
// nodes, and writes those that it receives into the states of a session. Data go from node to node
// over a transport that is made for the exchange, with a device for each node; its generation is
// the number of the exchange.
//
//   coordinator                          nodes that take part
//   openExchange                  ---->  transport made; its address
//   runExchange(addresses, boxes) ---->  all boxes sent and received
//   finishExchange                ---->  transport closed
//
// Thread rule: Stop from any thread, the rest on the node's work thread.
// Invariants: Run and Linger end with their timeout or with Stop. The exchange takes
// ByteExchange's memory.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_EXCHANGE_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_EXCHANGE_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/cluster/byte_exchange.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/link_probe.h"
#include "actors/cluster/node_session_internal.h"
#include "actors/cluster/state_moves.h"
#include "actors/session/kept_tiles.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_transport.h"

namespace penstock::actors {

class NodeExchange {
 public:
  struct Part {
    uint32_t state = 0;  // sent: among the kept ones; received: of the session's plan
    uint32_t tile = 0;   // sent: of the kept state
    Box box;
  };
  // The parts that go to a node and come from it, both in the order of the other side.
  struct Peer {
    uint32_t rank = 0;
    std::string address;  // none where `rank` is this node, which copies
    std::vector<Part> sends;
    std::vector<Part> receives;
  };

  // `wrap`: see NodeOptions::wrap_transport.
  using Wrap =
      std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)>;
  explicit NodeExchange(Wrap wrap) : wrap_(std::move(wrap)) {}

  // Makes the transport. Returns its address; empty without peers.
  absl::StatusOr<std::string> Open(transport::UcxOptions options,
                                   const NodeSession::TransportFactory& create_transport);

  // Returns when everything is sent and received. `kept` may be null if nothing is sent, `session`
  // if nothing is received.
  absl::Status Run(const std::vector<Peer>& peers, const KeptTiles* kept, NodeSession* session,
                   const ByteExchange::Options& options);

  // Instead of Run: measures the links to all other nodes, whose addresses come by rank.
  absl::StatusOr<std::vector<LinkFigures>> Probe(const std::vector<std::string>& addresses,
                                                 const LinkProbeOptions& options);

  // After Run or Probe, goes on for the peers until Stop.
  void Linger(absl::Duration timeout);
  // Closes the transport.
  void Close();

  void Stop() { stopper_.Stop(); }

 private:
  absl::Status Connect(uint32_t rank, const std::string& address);
  // Makes the endpoint, once all peers are connected.
  absl::StatusOr<transport::Endpoint*> Begin();
  absl::Status CopyHere(const ByteSource& source, const ByteTarget& target) const;

  const Wrap wrap_;
  ByteExchange::Stopper stopper_;
  uint32_t rank_ = 0;
  bool has_run_ = false;
  std::unique_ptr<transport::UcxTransport> opened_;  // until Run
  std::unique_ptr<transport::Transport> transport_;  // from then on
  std::optional<ByteExchange> exchange_;
};

// The peers that a call names. kInvalidArgument: there are too many of something. Parts are
// compared with what is here before their use.
absl::StatusOr<std::vector<NodeExchange::Peer>> ReadExchangePeers(
    capnp::List<control::ExchangePeer>::Reader list);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_EXCHANGE_INTERNAL_H_
