#include "planner/sharding/cross_mesh.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/plan/coordinates.h"

namespace penstock::planner {
namespace {

using graph::Mesh;
using graph::Sharding;
using graph::TileDesc;

// A tile, and the devices that hold it.
struct HeldTile {
  TileDesc tile;
  std::vector<uint32_t> holders;
};

absl::StatusOr<std::vector<HeldTile>> TilesOf(const TensorType& type, const Mesh& mesh,
                                              const Sharding& sharding) {
  std::map<std::pair<Shape, Shape>, size_t> index;  // by offset and shape
  std::vector<HeldTile> tiles;
  for (int64_t d = 0; d < mesh.num_devices(); ++d) {
    ASSIGN_OR_RETURN(TileDesc tile, TileOf(mesh, sharding, type, d));
    const auto [it, is_new] = index.try_emplace({tile.offset, tile.shape}, tiles.size());
    if (is_new) tiles.push_back({std::move(tile), {}});
    tiles[it->second].holders.push_back(static_cast<uint32_t>(d));
  }
  return tiles;
}

// The elements that both tiles have; of no elements if there are none.
TileDesc Common(const TileDesc& a, const TileDesc& b) {
  TileDesc common = b;
  for (size_t d = 0; d < a.shape.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    common.offset[d] = begin;
    common.shape[d] = std::max<int64_t>(end - begin, 0);
  }
  return common;
}

}  // namespace

absl::StatusOr<std::vector<CrossMeshMessage>> PlanCrossMesh(const TensorType& type,
                                                            const Mesh& from_mesh,
                                                            const Sharding& from,
                                                            const Mesh& to_mesh,
                                                            const Sharding& to) {
  ASSIGN_OR_RETURN(const std::vector<HeldTile> held, TilesOf(type, from_mesh, from));
  std::vector<uint64_t> sent_bytes(static_cast<size_t>(from_mesh.num_devices()), 0);
  std::vector<CrossMeshMessage> messages;
  for (int64_t d = 0; d < to_mesh.num_devices(); ++d) {
    ASSIGN_OR_RETURN(const TileDesc needed, TileOf(to_mesh, to, type, d));
    int64_t missing = needed.num_elements();
    for (const HeldTile& tile : held) {
      const TileDesc part = Common(tile.tile, needed);
      if (part.num_elements() == 0) continue;
      const uint32_t source =
          *std::min_element(tile.holders.begin(), tile.holders.end(),
                            [&](uint32_t a, uint32_t b) { return sent_bytes[a] < sent_bytes[b]; });
      sent_bytes[source] += part.num_bytes();
      missing -= part.num_elements();
      messages.push_back({source, static_cast<uint32_t>(d), part});
    }
    if (missing != 0) {
      return absl::InternalError(absl::StrCat("device ", d, " needs ", missing, " elements of ",
                                              penstock::ToString(type), " that no device holds as ",
                                              graph::ToString(from_mesh, from)));
    }
  }
  return messages;
}

}  // namespace penstock::planner
