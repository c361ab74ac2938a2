// Redistribution between random pairs of shardings, carried out on data: the chain of steps that
// the planner chooses, each step's collective by the reference, and the result right on every
// device in every micro-batch.

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/sharding.h"
#include "planner/lower/communication.h"
#include "planner/plan/coordinates.h"
#include "planner/sharding/plan_reshard.h"
#include "tests/support/collective_reference.h"
#include "tests/support/random_shardings.h"

namespace penstock::testing {
namespace {

using graph::AxisRef;
using graph::Mesh;
using graph::Reduction;
using graph::Sharding;
using graph::TileDesc;
using planner::ReshardStep;

using Numbers = std::vector<double>;

constexpr int kPairs = 600;

double Reduce(Reduction reduction, double a, double b) {
  switch (reduction) {
    case Reduction::kSum:
      return a + b;
    case Reduction::kProd:
      return a * b;
    case Reduction::kMax:
      return std::max(a, b);
    case Reduction::kMin:
      return std::min(a, b);
  }
  return a;
}

// The positions in the global tensor of a tile's elements, in order.
std::vector<int64_t> Positions(const TileDesc& tile, int64_t microbatch) {
  const Shape strides = RowMajorStrides(tile.global);
  std::vector<int64_t> positions(1, 0);
  for (size_t d = 0; d < tile.shape.size(); ++d) {
    const int64_t begin = tile.offset[d] + microbatch * tile.microbatch_stride[d];
    std::vector<int64_t> longer;
    for (int64_t position : positions) {
      for (int64_t i = 0; i < tile.shape[d]; ++i) {
        longer.push_back(position + (begin + i) * strides[d]);
      }
    }
    positions = std::move(longer);
  }
  return positions;
}

// All tiles of one tensor: of each device and micro-batch.
class DistributedTensor {
 public:
  // Whole elements, so that every order of a reduction gives the same bits.
  DistributedTensor(const Mesh& mesh, TensorType type, const Sharding& sharding, Random& random)
      : mesh_(mesh), type_(std::move(type)), sharding_(sharding) {
    for (int64_t i = 0; i < type_.num_elements(); ++i) {
      global_.push_back(static_cast<double>(random.Between(-9, 9)));
    }
    // The terms of element i: the first one makes up for the others.
    const std::vector<AxisRef> axes = PartialAxes(sharding);
    int64_t num_terms = 1;
    for (const AxisRef& axis : axes) num_terms *= axis.size;
    std::vector<Numbers> terms(num_terms, global_);
    for (int64_t t = 1; t < num_terms; ++t) {
      for (size_t i = 0; i < global_.size(); ++i) {
        const double draw = static_cast<double>(random.Between(0, 5));
        switch (sharding.partials[0].reduction) {
          case Reduction::kSum:
            terms[t][i] = draw;
            terms[0][i] -= draw;
            break;
          case Reduction::kProd:
            terms[t][i] = draw > 2 ? 1 : -1;
            terms[0][i] *= terms[t][i];
            break;
          case Reduction::kMax:
            terms[t][i] -= draw;
            break;
          case Reduction::kMin:
            terms[t][i] += draw;
            break;
        }
      }
    }
    ForEachPlace([&](int64_t device, int64_t microbatch) {
      int64_t term = 0;
      for (const AxisRef& axis : axes) {
        term = term * axis.size + graph::Coordinate(mesh_, axis, device, microbatch);
      }
      Numbers tile;
      for (int64_t position : Positions(Tile(sharding_, device), microbatch)) {
        tile.push_back(terms[term][position]);
      }
      tiles_[{device, microbatch}] = std::move(tile);
    });
  }

  void Apply(const ReshardStep& step) {
    const std::optional<CollectiveKind> kind = planner::CollectiveOf(step.op);
    std::map<Place, Numbers> next;
    if (kind) {
      next = Communicate(*kind, step.sharding);
    } else {
      ForEachPlace([&](int64_t device, int64_t microbatch) {
        next[{device, microbatch}] =
            step.op == "accumulate"            ? Accumulate(step.sharding, device, microbatch)
            : step.op == "gather_microbatches" ? Gather(step.sharding, device, microbatch)
                                               : Slice(step.sharding, device, microbatch);
      });
    }
    tiles_ = std::move(next);
    sharding_ = step.sharding;
  }

  // What is wrong with the first tile that is.
  std::optional<std::string> Error() const {
    std::optional<std::string> error;
    ForEachPlace([&](int64_t device, int64_t microbatch) {
      const Numbers reduced = ReducedOver(PartialAxes(sharding_), device, microbatch);
      const std::vector<int64_t> positions = Positions(Tile(sharding_, device), microbatch);
      if (error) return;
      if (reduced.size() != positions.size()) {
        error = StrCat("device ", device, ": ", reduced.size(), " elements instead of ",
                       positions.size());
        return;
      }
      for (size_t i = 0; i < positions.size(); ++i) {
        if (reduced[i] == global_[positions[i]]) continue;
        error = StrCat("device ", device, ", micro-batch ", microbatch, ", element ", i, ": ",
                       reduced[i], " instead of ", global_[positions[i]]);
        return;
      }
    });
    return error;
  }

 private:
  using Place = std::pair<int64_t, int64_t>;  // device, micro-batch

  static std::vector<AxisRef> PartialAxes(const Sharding& sharding) {
    std::vector<AxisRef> axes;
    for (const graph::PartialSpec& partial : sharding.partials) {
      axes.insert(axes.end(), partial.axes.begin(), partial.axes.end());
    }
    return axes;
  }

  template <typename F>
  void ForEachPlace(F f) const {
    for (int64_t device = 0; device < mesh_.num_devices(); ++device) {
      for (int64_t m = 0; m < mesh_.num_microbatches(); ++m) f(device, m);
    }
  }

  TileDesc Tile(const Sharding& sharding, int64_t device) const {
    absl::StatusOr<TileDesc> tile = planner::TileOf(mesh_, sharding, type_, device);
    EXPECT_TRUE(tile.ok()) << tile.status();
    return *tile;
  }

  // The reduction of the tiles at all places that differ from this one on `axes` alone.
  Numbers ReducedOver(const std::vector<AxisRef>& axes, int64_t device, int64_t microbatch) const {
    Numbers reduced;
    bool is_first = true;
    const auto rest_of = [&](int64_t d, int64_t m) {
      // The place with its coordinates on `axes` set to 0.
      std::vector<int64_t> rest;
      for (int axis = 0; axis < static_cast<int>(mesh_.axes.size()); ++axis) {
        int64_t coordinate = graph::Coordinate(mesh_, graph::WholeAxis(mesh_, axis), d, m);
        for (const AxisRef& piece : axes) {
          if (piece.axis != axis) continue;
          const int64_t minor = mesh_.axes[axis].size / (piece.pre * piece.size);
          coordinate -= graph::Coordinate(mesh_, piece, d, m) * minor;
        }
        rest.push_back(coordinate);
      }
      return rest;
    };
    const std::vector<int64_t> here = rest_of(device, microbatch);
    ForEachPlace([&](int64_t d, int64_t m) {
      if (rest_of(d, m) != here) return;
      const Numbers& tile = tiles_.at({d, m});
      if (is_first) reduced = tile;
      for (size_t i = 0; i < tile.size() && !is_first; ++i) {
        reduced[i] = Reduce(sharding_.partials[0].reduction, reduced[i], tile[i]);
      }
      is_first = false;
    });
    return reduced;
  }

  Numbers Accumulate(const Sharding& to, int64_t device, int64_t microbatch) const {
    std::vector<AxisRef> summed;
    for (const AxisRef& axis : PartialAxes(sharding_)) {
      const std::vector<AxisRef> kept = PartialAxes(to);
      if (std::find(kept.begin(), kept.end(), axis) == kept.end()) summed.push_back(axis);
    }
    return ReducedOver(summed, device, microbatch);
  }

  Numbers Gather(const Sharding& to, int64_t device, int64_t microbatch) const {
    std::map<int64_t, double> known;
    for (int64_t m = 0; m < mesh_.num_microbatches(); ++m) {
      const std::vector<int64_t> positions = Positions(Tile(sharding_, device), m);
      for (size_t i = 0; i < positions.size(); ++i) known[positions[i]] = tiles_.at({device, m})[i];
    }
    return Pick(to, device, microbatch, known);
  }

  // A part of the device's own tile. Where the result is a sum and the operand is not, the devices
  // that are not first along the new axes hold the neutral element.
  Numbers Slice(const Sharding& to, int64_t device, int64_t microbatch) const {
    std::map<int64_t, double> known;
    const std::vector<int64_t> positions = Positions(Tile(sharding_, device), microbatch);
    for (size_t i = 0; i < positions.size(); ++i) {
      known[positions[i]] = tiles_.at({device, microbatch})[i];
    }
    Numbers tile = Pick(to, device, microbatch, known);
    for (const graph::PartialSpec& partial : to.partials) {
      const std::vector<AxisRef> had = PartialAxes(sharding_);
      const bool is_first =
          std::all_of(partial.axes.begin(), partial.axes.end(), [&](const AxisRef& axis) {
            const bool is_new = std::find(had.begin(), had.end(), axis) == had.end();
            return !is_new || graph::Coordinate(mesh_, axis, device, microbatch) == 0;
          });
      if (is_first) continue;
      if (partial.reduction == Reduction::kSum) tile.assign(tile.size(), 0);
      if (partial.reduction == Reduction::kProd) tile.assign(tile.size(), 1);
    }
    return tile;
  }

  Numbers Pick(const Sharding& to, int64_t device, int64_t microbatch,
               const std::map<int64_t, double>& known) const {
    Numbers tile;
    for (int64_t position : Positions(Tile(to, device), microbatch)) {
      const auto it = known.find(position);
      EXPECT_NE(it, known.end()) << "device " << device << " does not hold element " << position;
      tile.push_back(it == known.end() ? 0 : it->second);
    }
    return tile;
  }

  std::map<Place, Numbers> Communicate(CollectiveKind kind, const Sharding& to) const {
    const absl::StatusOr<planner::Communication> plan =
        planner::PlanCommunication(mesh_, kind, type_, sharding_, to);
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::map<Place, Numbers> next;
    if (!plan.ok()) return next;
    for (int64_t m = 0; m < mesh_.num_microbatches(); ++m) {
      for (size_t group = 0; group < plan->groups.size(); ++group) {
        const CollectiveSpec& spec = plan->groups[group];
        std::vector<Bytes> inputs;
        for (size_t rank = 0; rank < spec.devices.size(); ++rank) {
          const uint32_t device = spec.devices[rank];
          Numbers data = tiles_.at({device, m});
          if (plan->pack_dim) {
            data = Pack(Tile(sharding_, device).shape, *plan->pack_dim, plan->pack_sizes[group],
                        data, /*is_unpack=*/false);
          }
          EXPECT_EQ(static_cast<int64_t>(data.size()), InputCount(spec, static_cast<int>(rank)));
          Bytes bytes(data.size() * sizeof(double));
          std::memcpy(bytes.data(), data.data(), bytes.size());
          inputs.push_back(std::move(bytes));
        }
        const std::vector<Bytes> outputs = ReferenceCollective(spec, inputs);
        for (size_t rank = 0; rank < spec.devices.size(); ++rank) {
          const uint32_t device = spec.devices[rank];
          Numbers data(outputs[rank].size() / sizeof(double));
          std::memcpy(data.data(), outputs[rank].data(), outputs[rank].size());
          if (plan->unpack_dim) {
            data = Pack(Tile(to, device).shape, *plan->unpack_dim, plan->unpack_sizes[group], data,
                        /*is_unpack=*/true);
          }
          next[{device, m}] = std::move(data);
        }
      }
    }
    return next;
  }

  // The tile's parts along a dimension, one after another; or back.
  static Numbers Pack(const Shape& shape, int dim, const std::vector<int64_t>& sizes,
                      const Numbers& data, bool is_unpack) {
    const int64_t outer = NumElements(absl::MakeConstSpan(shape).first(dim));
    const int64_t inner = NumElements(absl::MakeConstSpan(shape).subspan(dim + 1));
    Numbers result(data.size());
    int64_t packed = 0;
    int64_t begin = 0;
    for (int64_t size : sizes) {
      for (int64_t o = 0; o < outer; ++o) {
        for (int64_t i = 0; i < size * inner; ++i) {
          const int64_t place = (o * shape[dim] + begin) * inner + i;
          if (is_unpack) {
            result[place] = data[packed++];
          } else {
            result[packed++] = data[place];
          }
        }
      }
      begin += size;
    }
    EXPECT_EQ(packed, static_cast<int64_t>(data.size()));
    return result;
  }

  const Mesh& mesh_;
  const TensorType type_;
  Sharding sharding_;
  Numbers global_;
  std::map<Place, Numbers> tiles_;
};

std::string ToString(const Mesh& mesh) {
  std::string text;
  for (const graph::MeshAxis& axis : mesh.axes) {
    StrAppend(&text, text.empty() ? "[" : ", ", axis.name, "=", axis.size,
              axis.is_temporal ? " temporal" : "");
  }
  return text + "]";
}

TEST(ReshardPropertyTest, EveryPairOfShardingsIsReached) {
  std::map<std::string, int> kinds;
  for (int pair = 0; pair < kPairs; ++pair) {
    Random random(pair + 1);
    const int64_t num_microbatches = random.Chance(0.3) ? random.Between(2, 4) : 1;
    const Mesh mesh = RandomMesh(random, 12, num_microbatches);
    TensorType type = {DType::kF64, {}};
    for (int64_t rank = random.Between(1, 3); rank > 0; --rank) {
      static constexpr int64_t kDims[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16};
      type.shape.push_back(kDims[random.Below(10)]);
    }
    Sharding from = RandomSharding(random, mesh, type.shape);
    Sharding to = random.Chance(0.25) ? RearrangedSharding(random, mesh, type.shape, from)
                                      : RandomSharding(random, mesh, type.shape);
    const auto reduction = static_cast<Reduction>(random.Below(4));
    if (random.Chance(0.4)) {
      AddRandomPartial(random, mesh, reduction, /*allow_temporal=*/true, &from);
    }
    if (random.Chance(0.15)) {
      AddRandomPartial(random, mesh, reduction, /*allow_temporal=*/false, &to);
    }
    const std::vector<ReshardStep> steps = planner::PlanReshard(mesh, from, to);
    std::string chain =
        StrCat("pair ", pair, ", mesh ", ToString(mesh), ", ", penstock::ToString(type), ", ",
               graph::ToString(mesh, from), " to ", graph::ToString(mesh, to), ":");
    for (const ReshardStep& step : steps) {
      StrAppend(&chain, "\n  ", step.op, " to ", graph::ToString(mesh, step.sharding));
      ++kinds[step.op];
    }
    SCOPED_TRACE(chain);
    for (const ReshardStep& step : steps) {
      ASSERT_TRUE(graph::CheckSharding(mesh, step.sharding, type.shape).ok())
          << graph::CheckSharding(mesh, step.sharding, type.shape);
    }
    EXPECT_EQ(steps.empty() ? from : steps.back().sharding, to);
    DistributedTensor tensor(mesh, type, from, random);
    ASSERT_EQ(tensor.Error(), std::nullopt);
    for (const ReshardStep& step : steps) {
      tensor.Apply(step);
      ASSERT_EQ(tensor.Error(), std::nullopt) << "after " << step.op;
    }
  }
  for (const char* kind : {"local_slice", "all_gather", "all_to_all", "permute", "all_reduce",
                           "reduce_scatter", "accumulate", "gather_microbatches"}) {
    EXPECT_GE(kinds[kind], 20) << kind;
  }
}

// All ways to split a tensor of this rank over some of the axes, each used as a whole.
std::vector<Sharding> AllShardings(const Mesh& mesh, int rank) {
  std::vector<Sharding> all = {Sharding::Replicated(rank)};
  for (size_t i = 0; i < all.size(); ++i) {
    for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) {
      const AxisRef axis = graph::WholeAxis(mesh, a);
      const bool is_used =
          std::any_of(all[i].dims.begin(), all[i].dims.end(), [&](const graph::DimSharding& dim) {
            return std::find(dim.axes.begin(), dim.axes.end(), axis) != dim.axes.end();
          });
      if (is_used) continue;
      for (int d = 0; d < rank; ++d) {
        Sharding longer = all[i];
        longer.dims[static_cast<size_t>(d)].axes.push_back(axis);
        if (std::find(all.begin(), all.end(), longer) == all.end()) {
          all.push_back(std::move(longer));
        }
      }
    }
  }
  return all;
}

std::set<int> AxesOf(const Sharding& sharding) {
  std::set<int> axes;
  for (const graph::DimSharding& dim : sharding.dims) {
    for (const AxisRef& axis : dim.axes) axes.insert(axis.axis);
  }
  return axes;
}

// The cheapest chain is right, and no dearer than by way of any one other sharding over the same
// axes. (Other axes are left alone: their links may be slow, or busy.)
void CheckAllPairs(const std::vector<int64_t>& sizes, const Shape& shape, size_t num_shardings) {
  Mesh mesh;
  for (const int64_t size : sizes) {
    mesh.axes.push_back({std::string(1, static_cast<char>('a' + mesh.axes.size())), size, false});
  }
  const TensorType type = {DType::kF64, shape};
  const std::vector<Sharding> all = AllShardings(mesh, static_cast<int>(shape.size()));
  ASSERT_EQ(all.size(), num_shardings);
  std::vector<std::vector<double>> costs(all.size(), std::vector<double>(all.size()));
  Random random(1);
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size(); ++j) {
      const std::vector<ReshardStep> steps = planner::PlanReshard(mesh, all[i], all[j]);
      costs[i][j] = planner::ReshardCost(mesh, all[i], steps);
      SCOPED_TRACE(graph::ToString(mesh, all[i]) + " to " + graph::ToString(mesh, all[j]));
      ASSERT_EQ(steps.empty() ? all[i] : steps.back().sharding, all[j]);
      DistributedTensor tensor(mesh, type, all[i], random);
      for (const ReshardStep& step : steps) tensor.Apply(step);
      ASSERT_EQ(tensor.Error(), std::nullopt);
    }
  }
  int num_detours = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size(); ++j) {
      std::set<int> axes = AxesOf(all[i]);
      axes.merge(AxesOf(all[j]));
      for (size_t by = 0; by < all.size(); ++by) {
        const std::set<int> detour = AxesOf(all[by]);
        if (!std::includes(axes.begin(), axes.end(), detour.begin(), detour.end())) continue;
        if (costs[i][by] + costs[by][j] >= costs[i][j] - 1e-9) continue;
        ++num_detours;
        ADD_FAILURE() << graph::ToString(mesh, all[i]) << " to " << graph::ToString(mesh, all[j])
                      << " costs " << costs[i][j] << ", by way of "
                      << graph::ToString(mesh, all[by]) << " " << costs[i][by] + costs[by][j];
        if (num_detours > 10) return;
      }
    }
  }
}

TEST(ReshardPropertyTest, AllPairsOfRankThreeOverTwoByTwoByTwo) {
  CheckAllPairs({2, 2, 2}, {4, 8, 2}, 106);
}

TEST(ReshardPropertyTest, AllPairsOfRankThreeOverTwoByThree) {
  CheckAllPairs({2, 3}, {6, 5, 4}, 19);
}

}  // namespace
}  // namespace penstock::testing
