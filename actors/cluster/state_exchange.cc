#include <algorithm>
#include <memory>
#include <set>

#include "actors/cluster/chunked_transfer_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/node_calls_internal.h"
#include "actors/cluster/state_exchange_internal.h"
#include "actors/engine/error_origin.h"
#include "actors/session/state_tiles.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using control::AsData;

// A node has two chunks for each stream, at most two streams for each peer.
constexpr size_t kMaxChunkBytes = size_t{1} << 20;
constexpr size_t kMinChunkBytes = size_t{1} << 16;
constexpr size_t kMaxBufferBytes = size_t{64} << 20;
// Added for the answers of nodes, which keep the timeout themselves.
constexpr absl::Duration kAnswerTime = absl::Seconds(2);

std::vector<Box> TilesOf(const planner::StatePlan& state, const DeviceRange& devices) {
  std::vector<Box> tiles;
  for (const StateTile& tile : StateTiles(state, devices.first, devices.count)) {
    tiles.push_back(BoxOf(state.placements[tile[0]].tile));
  }
  return tiles;
}

void SetList(const Shape& values, capnp::List<int64_t>::Builder list) {
  for (unsigned i = 0; i < values.size(); ++i) list.set(i, values[i]);
}

void SetBox(const Box& box, control::StatePart::Builder part) {
  const auto num_dims = static_cast<unsigned>(box.shape.size());
  SetList(box.offset, part.initOffset(num_dims));
  SetList(box.shape, part.initShape(num_dims));
}

}  // namespace

StateExchange::StateExchange(control::ControlLoop& loop, NodeSupervisor& supervisor,
                             const ClusterSession& session, const ClusterKeptStates& kept,
                             const std::vector<std::string>& hosts, absl::Duration timeout)
    : loop_(loop),
      supervisor_(supervisor),
      session_(session),
      kept_(kept),
      hosts_(hosts),
      timeout_(timeout),
      calls_(loop, supervisor, supervisor.num_processes()),
      peers_(hosts.size()),
      takes_part_(hosts.size(), false),
      addresses_(hosts.size()),
      bytes_received_(hosts.size(), 0) {}

absl::StatusOr<std::vector<uint32_t>> StateExchange::Move(
    const std::vector<std::vector<uint32_t>>& missing) {
  ASSIGN_OR_RETURN(std::vector<uint32_t> not_kept, Plan(missing));
  if (parts_.empty()) return not_kept;
  absl::Status status = Open();
  if (status.ok()) status = Run();
  Finish();
  RETURN_IF_ERROR(status);
  return not_kept;
}

absl::StatusOr<std::vector<uint32_t>> StateExchange::Plan(
    const std::vector<std::vector<uint32_t>>& missing) {
  std::map<uint32_t, std::vector<uint32_t>> ranks_of;  // that lack a state
  for (uint32_t rank = 0; rank < missing.size(); ++rank) {
    for (const uint32_t state : missing[rank]) ranks_of[state].push_back(rank);
  }
  std::vector<uint32_t> not_kept;
  std::set<std::pair<uint32_t, uint32_t>> pairs;
  StateMovePlanner planner(hosts_);
  for (const auto& [index, ranks] : ranks_of) {
    const planner::StatePlan& state = session_.plan().states[index];
    const auto from =
        std::find_if(kept_.states().begin(), kept_.states().end(), [&](const auto& candidate) {
          return candidate.name == state.name && candidate.type == state.type;
        });
    if (from == kept_.states().end()) {
      not_kept.push_back(index);
      continue;
    }
    std::vector<ProcessTiles> held;
    for (uint32_t rank = 0; rank < kept_.devices().size(); ++rank) {
      held.push_back({rank, TilesOf(*from, kept_.devices()[rank])});
    }
    std::vector<ProcessTiles> needed;
    for (const uint32_t rank : ranks) {
      needed.push_back({rank, TilesOf(state, session_.DevicesOf(rank))});
    }
    const size_t element_bytes = ByteSize(state.type.dtype);
    absl::StatusOr<std::vector<StateMove>> moves = planner.Plan(held, needed, element_bytes);
    if (!moves.ok()) return WithPrefix(StrCat("the state '", state.name, "': "), moves.status());
    for (StateMove& move : *moves) {
      const uint64_t num_bytes = static_cast<uint64_t>(NumElements(move.box.shape)) * element_bytes;
      num_bytes_ += num_bytes;
      takes_part_[move.from] = takes_part_[move.to] = true;
      if (move.from != move.to) {
        bytes_received_[move.to] += num_bytes;
        pairs.insert({move.from, move.to});
        pairs.insert({move.to, move.from});
      }
      parts_[{move.from, move.to}].push_back({static_cast<uint32_t>(from - kept_.states().begin()),
                                              index, move.tile, std::move(move.box)});
    }
  }
  for (const auto& [rank, peer] : pairs) peers_[rank].push_back(peer);
  return not_kept;
}

absl::Status StateExchange::CallAll(const NodeCalls::CallNode& call, std::string_view what,
                                    absl::Duration timeout) const {
  return calls_.CallAll(
      [&](uint32_t rank, control::Node::Client& node) -> control::StatusPromise {
        if (!takes_part_[rank]) return absl::OkStatus();
        return call(rank, node);
      },
      what, timeout);
}

absl::Status StateExchange::Open() {
  return CallAll(
      [this](uint32_t rank, control::Node::Client& node) {
        // Numbers reach every node in order.
        if (number_ == 0) number_ = supervisor_.NextExchangeNumber();
        return OpenExchange(supervisor_, node, number_, rank, supervisor_.num_processes(),
                            peers_[rank], control::BoundOf(timeout_, num_bytes_),
                            &addresses_[rank]);
      },
      "the opening of connections between nodes", timeout_);
}

absl::Status StateExchange::Run() {
  size_t max_peers = 1;
  for (const auto& peers : peers_) max_peers = std::max(max_peers, peers.size());
  const size_t chunk_bytes =
      std::clamp(kMaxBufferBytes / (4 * max_peers), kMinChunkBytes, kMaxChunkBytes);
  const absl::Duration bound = control::BoundOf(timeout_, num_bytes_);
  const absl::Status status = CallAll(
      [&](uint32_t rank, control::Node::Client& node) {
        auto call = node.runExchangeRequest();
        call.setExchange(number_);
        call.setKept(kept_.number());
        call.setGeneration(session_.generation());
        call.setChunkBytes(static_cast<uint32_t>(chunk_bytes));
        call.setTimeoutMs(static_cast<uint64_t>(absl::ToInt64Milliseconds(bound)));
        std::vector<uint32_t> peers = peers_[rank];
        if (parts_.contains({rank, rank})) peers.push_back(rank);
        auto out = call.initPeers(static_cast<unsigned>(peers.size()));
        for (unsigned i = 0; i < peers.size(); ++i) {
          const uint32_t peer = peers[i];
          out[i].setRank(peer);
          out[i].setAddress(AsData(addresses_[peer].data(), addresses_[peer].size()));
          const auto sent = parts_.find({rank, peer});
          if (sent != parts_.end()) {
            auto sends = out[i].initSends(static_cast<unsigned>(sent->second.size()));
            for (unsigned j = 0; j < sends.size(); ++j) {
              const Part& part = sent->second[j];
              sends[j].setState(part.kept_state);
              sends[j].setTile(part.tile);
              SetBox(part.box, sends[j]);
            }
          }
          const auto received = parts_.find({peer, rank});
          if (received != parts_.end()) {
            auto receives = out[i].initReceives(static_cast<unsigned>(received->second.size()));
            for (unsigned j = 0; j < receives.size(); ++j) {
              const Part& part = received->second[j];
              receives[j].setState(part.state);
              SetBox(part.box, receives[j]);
            }
          }
        }
        // The others would wait for a node that has failed.
        return control::StatusOf(call.send()).then([this](absl::Status&& status) {
          if (!status.ok()) TellToFinish();
          return std::move(status);
        });
      },
      "the exchange of states between nodes", bound + kAnswerTime);
  RETURN_IF_ERROR(status);
  return loop_.Await(
      [this]() -> kj::Promise<void> {
        for (uint32_t rank = 0; rank < bytes_received_.size(); ++rank) {
          supervisor_.TrafficOf(rank)->state_bytes_from_nodes += bytes_received_[rank];
        }
        return kj::READY_NOW;
      },
      timeout_, "the count of exchanged bytes");
}

void StateExchange::TellToFinish() {
  if (is_finished_) return;
  is_finished_ = true;
  for (uint32_t rank = 0; rank < takes_part_.size(); ++rank) {
    if (!takes_part_[rank]) continue;
    KJ_IF_MAYBE (node, supervisor_.NodeOf(rank)) {
      auto call = node->finishExchangeRequest();
      call.setExchange(number_);
      supervisor_.tasks().add(call.send().ignoreResult().catch_([](const kj::Exception&) {}));
    }
  }
}

void StateExchange::Finish() {
  (void)loop_.Await(
      [this]() -> kj::Promise<void> {
        TellToFinish();
        return kj::READY_NOW;
      },
      timeout_, "the end of the exchange of states");
}

}  // namespace penstock::actors
