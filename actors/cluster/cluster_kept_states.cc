#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "actors/cluster/chunked_transfer_internal.h"
#include "actors/cluster/cluster_kept_states_internal.h"
#include "actors/cluster/node_calls_internal.h"
#include "actors/cluster/read_tiles_internal.h"
#include "actors/cluster/write_shares.h"
#include "actors/session/state_tiles.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {

ClusterKeptStates::ClusterKeptStates(std::shared_ptr<ClusterAccess> access,
                                     std::vector<planner::StatePlan> states,
                                     const ClusterSession& session, absl::Duration timeout)
    : KeptStates(std::move(states)), access_(std::move(access)), timeout_(timeout) {
  for (uint32_t rank = 0; rank < session.num_processes(); ++rank) {
    devices_.push_back(session.DevicesOf(rank));
    uint64_t& num_bytes = num_bytes_.emplace_back(0);
    for (const planner::StatePlan& state : this->states()) {
      for (const StateTile& tile : StateTiles(state, devices_[rank].first, devices_[rank].count)) {
        num_bytes += state.placements[tile[0]].tile.num_bytes();
      }
    }
  }
  (void)access_->With([this](control::ControlLoop& loop, NodeSupervisor& supervisor) {
    return loop.Await(
        [this, &supervisor]() -> kj::Promise<void> {
          number_ = supervisor.NextKeptNumber();
          for (uint32_t rank = 0; rank < devices_.size(); ++rank) {
            supervisor.AddBytesInUse(rank, static_cast<int64_t>(num_bytes_[rank]));
          }
          return kj::READY_NOW;
        },
        timeout_, "the number of kept states");
  });
}

ClusterKeptStates::~ClusterKeptStates() {
  (void)access_->With([this](control::ControlLoop& loop, NodeSupervisor& supervisor) {
    loop.Post([&supervisor, number = number_, num_bytes = std::move(num_bytes_)] {
      for (uint32_t rank = 0; rank < num_bytes.size(); ++rank) {
        supervisor.AddBytesInUse(rank, -static_cast<int64_t>(num_bytes[rank]));
        KJ_IF_MAYBE (node, supervisor.NodeOf(rank)) {
          auto call = node->dropStatesRequest();
          call.setKept(number);
          supervisor.tasks().add(call.send().ignoreResult().catch_([](const kj::Exception&) {}));
        }
      }
    });
    return absl::OkStatus();
  });
}

absl::Status ClusterKeptStates::Write(const std::string& folder, const Metadata& metadata) const {
  const absl::StatusOr<std::vector<CheckpointFile>> files = WriteFiles(folder, metadata);
  if (absl::IsNotFound(files.status())) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      std::filesystem::remove(entry.path(), error);
    }
    return KeptStates::Write(folder, metadata);
  }
  RETURN_IF_ERROR(files.status());
  if (files->size() == 1) return absl::OkStatus();
  return WriteCheckpointIndex(folder, *files, metadata);
}

absl::StatusOr<std::vector<CheckpointFile>> ClusterKeptStates::WriteFiles(
    const std::string& folder, const Metadata& metadata) const {
  std::error_code error;
  const std::string path = std::filesystem::absolute(folder, error).string();
  const std::vector<std::vector<KeptTileId>> shares = WriteShares(states(), devices_);
  std::vector<uint32_t> ranks;  // that have something to write
  for (uint32_t rank = 0; rank < shares.size(); ++rank) {
    if (!shares[rank].empty()) ranks.push_back(rank);
  }
  std::vector<CheckpointFile> files(ranks.size());
  for (uint32_t i = 0; i < files.size(); ++i) {
    files[i].name = CheckpointFileName(i, static_cast<uint32_t>(files.size()));
  }
  uint64_t num_bytes = 0;
  for (const planner::StatePlan& state : states()) num_bytes += state.type.num_bytes();
  RETURN_IF_ERROR(access_->With([&](control::ControlLoop& loop, NodeSupervisor& supervisor) {
    const NodeCalls calls(loop, supervisor, static_cast<uint32_t>(devices_.size()));
    return calls.CallAll(
        [&](uint32_t rank, control::Node::Client& node) -> control::StatusPromise {
          const std::vector<KeptTileId>& share = shares[rank];
          if (share.empty()) return absl::OkStatus();
          CheckpointFile& file = files[static_cast<size_t>(
              std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin())];
          auto call = node.writeStatesRequest();
          call.setKept(number_);
          call.setPath(StrCat(path, "/", file.name).c_str());
          auto tiles = call.initTiles(static_cast<unsigned>(share.size()));
          for (unsigned i = 0; i < share.size(); ++i) {
            tiles[i].setState(share[i].state);
            tiles[i].setTile(share[i].tile);
          }
          auto entries = call.initMetadata(static_cast<unsigned>(2 * metadata.size()));
          unsigned next = 0;
          for (const auto& [key, value] : metadata) {
            entries.set(next++, key.c_str());
            entries.set(next++, value.c_str());
          }
          return control::StatusOf(call.send(), [&file](auto&& response) -> absl::Status {
            file.checksum = response.getChecksum();
            return absl::OkStatus();
          });
        },
        "writing a checkpoint", control::BoundOf(timeout_, num_bytes));
  }));
  return files;
}

// Each tile is read once, from the first process that has it.
absl::Status ClusterKeptStates::ReadInto(uint32_t state, Tensor* value) const {
  const planner::StatePlan& plan = states()[state];
  struct Kept {
    uint32_t number;  // among the tiles of the state in its process
    graph::TileDesc tile;
  };
  std::vector<std::vector<Kept>> tiles(devices_.size());
  std::set<std::pair<Shape, Shape>> seen;  // by offset and shape
  uint64_t num_bytes = 0;
  for (uint32_t rank = 0; rank < devices_.size(); ++rank) {
    uint32_t number = 0;
    for (const StateTile& placements :
         StateTiles(plan, devices_[rank].first, devices_[rank].count)) {
      const graph::TileDesc& tile = plan.placements[placements[0]].tile;
      if (seen.insert({tile.offset, tile.shape}).second) {
        tiles[rank].push_back({number, tile});
        num_bytes += tile.num_bytes();
      }
      ++number;
    }
  }
  return access_->With([&](control::ControlLoop& loop, NodeSupervisor& supervisor) {
    const NodeCalls calls(loop, supervisor, static_cast<uint32_t>(devices_.size()));
    return calls.CallAll(
        [&](uint32_t rank, control::Node::Client& node) {
          const auto client = std::make_shared<control::Node::Client>(node);
          auto reads = std::make_shared<std::vector<TileToRead>>();
          for (const Kept& kept : tiles[rank]) {
            reads->push_back({[client, kept_number = number_, state, tile = kept.number](
                                  uint64_t offset, uint32_t size) {
                                auto call = client->readKeptRequest();
                                call.setKept(kept_number);
                                call.setState(state);
                                call.setTile(tile);
                                call.setOffset(offset);
                                call.setSize(size);
                                return call.send();
                              },
                              kept.tile});
          }
          return ReadTiles(std::move(reads), *value,
                           CounterOf(supervisor.TrafficOf(rank), &NodeTraffic::state_bytes_read));
        },
        StrCat("reading the kept state '", plan.name, "'"), control::BoundOf(timeout_, num_bytes));
  });
}

}  // namespace penstock::actors
