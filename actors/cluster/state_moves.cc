#include "actors/cluster/state_moves.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "actors/engine/tile_copy.h"
#include "base/status_macros.h"

namespace penstock::actors {
namespace {

// Empty if the boxes share no element.
std::optional<Box> Intersect(const Box& a, const Box& b) {
  Box common = a;
  for (size_t dim = 0; dim < a.shape.size(); ++dim) {
    const int64_t begin = std::max(a.offset[dim], b.offset[dim]);
    const int64_t end = std::min(a.offset[dim] + a.shape[dim], b.offset[dim] + b.shape[dim]);
    if (begin >= end) return std::nullopt;
    common.offset[dim] = begin;
    common.shape[dim] = end - begin;
  }
  return common;
}

// Appends what is left of `box` without `part`, which lies in it: along each dimension in turn, the
// elements before the part and those behind it.
void Subtract(Box box, const Box& part, std::vector<Box>* rest) {
  for (size_t dim = 0; dim < box.shape.size(); ++dim) {
    const int64_t before = part.offset[dim] - box.offset[dim];
    const int64_t behind = box.shape[dim] - before - part.shape[dim];
    if (before > 0) {
      Box& piece = rest->emplace_back(box);
      piece.shape[dim] = before;
    }
    if (behind > 0) {
      Box& piece = rest->emplace_back(box);
      piece.offset[dim] = part.offset[dim] + part.shape[dim];
      piece.shape[dim] = behind;
    }
    box.offset[dim] = part.offset[dim];
    box.shape[dim] = part.shape[dim];
  }
}

// Disjoint boxes that cover the tiles, each inside every tile that it meets.
std::vector<Box> Decompose(const std::vector<Box>& tiles) {
  std::vector<Box> boxes;
  for (const Box& tile : tiles) {
    if (NumElements(tile.shape) == 0) continue;
    std::vector<Box> cut;
    std::vector<Box> is_new = {tile};
    for (const Box& box : boxes) {
      const std::optional<Box> common = Intersect(box, tile);
      if (!common.has_value()) {
        cut.push_back(box);
        continue;
      }
      cut.push_back(*common);
      Subtract(box, *common, &cut);
      std::vector<Box> left;
      for (const Box& part : is_new) {
        const std::optional<Box> covered = Intersect(part, *common);
        if (covered.has_value()) {
          Subtract(part, *covered, &left);
        } else {
          left.push_back(part);
        }
      }
      is_new = std::move(left);
    }
    boxes = std::move(cut);
    boxes.insert(boxes.end(), is_new.begin(), is_new.end());
  }
  return boxes;
}

}  // namespace

Box BoxOf(const graph::TileDesc& tile) {
  Box box{tile.offset, tile.shape};
  if (box.offset.empty()) box.offset.assign(box.shape.size(), 0);
  return box;
}

absl::StatusOr<graph::TileDesc> BoxInTile(const Box& box, const graph::TileDesc& tile) {
  const Box whole = BoxOf(tile);
  const size_t rank = whole.shape.size();
  if (box.offset.size() != rank || box.shape.size() != rank) {
    return absl::InvalidArgumentError("a box has another rank than its tile");
  }
  graph::TileDesc part;
  part.dtype = tile.dtype;
  part.global = whole.shape;
  part.shape = box.shape;
  for (size_t dim = 0; dim < rank; ++dim) {
    if (box.offset[dim] < whole.offset[dim]) {
      return absl::InvalidArgumentError("a box begins before its tile");
    }
    part.offset.push_back(box.offset[dim] - whole.offset[dim]);
  }
  RETURN_IF_ERROR(CheckTile(part, 1));
  return part;
}

StateMovePlanner::StateMovePlanner(std::vector<std::string> hosts)
    : hosts_(std::move(hosts)), bytes_to_send_(hosts_.size(), 0) {}

absl::StatusOr<std::vector<StateMove>> StateMovePlanner::Plan(
    const std::vector<ProcessTiles>& held, const std::vector<ProcessTiles>& needed,
    size_t element_bytes) {
  std::vector<StateMove> moves;
  for (const ProcessTiles& to : needed) {
    // Nearest first.
    std::vector<const ProcessTiles*> holders;
    for (const ProcessTiles& from : held) holders.push_back(&from);
    const auto order = [&](const ProcessTiles* from) {
      return std::tuple(from->process != to.process, hosts_[from->process] != hosts_[to.process],
                        bytes_to_send_[from->process], from->process);
    };
    std::sort(holders.begin(), holders.end(),
              [&](const auto* a, const auto* b) { return order(a) < order(b); });
    std::vector<Box> missing = Decompose(to.tiles);
    for (const ProcessTiles* from : holders) {
      for (uint32_t tile = 0; tile < from->tiles.size() && !missing.empty(); ++tile) {
        std::vector<Box> rest;
        for (const Box& box : missing) {
          const std::optional<Box> common = Intersect(box, from->tiles[tile]);
          if (!common.has_value()) {
            rest.push_back(box);
            continue;
          }
          moves.push_back({from->process, tile, to.process, *common});
          if (from->process != to.process) {
            bytes_to_send_[from->process] +=
                static_cast<uint64_t>(NumElements(common->shape)) * element_bytes;
          }
          Subtract(box, *common, &rest);
        }
        missing = std::move(rest);
      }
    }
    if (!missing.empty()) return absl::NotFoundError("some elements of a state were not kept");
  }
  return moves;
}

}  // namespace penstock::actors
