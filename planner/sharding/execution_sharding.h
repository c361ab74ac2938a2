// How one node runs on a mesh: which axes split which factor of its operator, and from that the
// sharding that every operand must have and every result gets.
//
// Worked example. On [dp=2, tp=2], y = matmul(x, w) with x @[dp, tp], w @[tp, _], y @[dp, _]: the
// factors are m, n (pass-through, in y) and k (reduction). y splits m over dp and n not at all; the
// operands agree on tp for k. So x is needed as @[dp, tp], w as @[tp, _], and the kernel leaves y
// as @[dp, _] partial(sum, tp).
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SHARDING_EXECUTION_SHARDING_H_
#define PENSTOCK_PLANNER_SHARDING_EXECUTION_SHARDING_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"

#include "graph/op.h"
#include "graph/sharding.h"

namespace penstock::planner {

struct ExecutionSharding {
  std::vector<graph::Sharding> operands;  // closed, no partials; with windows (graph/window.h)
  std::vector<graph::Sharding> results;   // closed, partial over split reduction factors
};

// The axes that split each factor, major first.
using FactorAxes = std::vector<std::vector<graph::AxisRef>>;

// The sharding of a value where none is written, and without what only propagation needs: open
// flags, priorities and explicit replication.
graph::Sharding ClosedSharding(const graph::Mesh& mesh, const graph::Value& value);

// The largest tile that a device has of a tensor.
TensorType LargestTile(TensorType type, const graph::Sharding& sharding);

// Chooses the axes of every factor by fixed rules: pass-through factors follow the first result
// that has them (the first operand where no result does), reduction factors the largest operand
// that splits them, as far as no axis serves twice. Factors that need replication stay whole; those
// that roll, unless each of their parts gets devices of its own. Operands of which a part of a
// factor reads a window are held in windows. `operands` and `results` are the
// closed shardings of the node's values; unbound optional results are absent from `results`, and
// the answer covers as many.
ExecutionSharding ChooseExecution(const graph::Mesh& mesh, const graph::ShardingRule& rule,
                                  absl::Span<const TensorType> operand_types,
                                  absl::Span<const graph::Sharding> operands,
                                  absl::Span<const graph::Sharding> results);

// The parts of ChooseExecution, for other choices.
FactorAxes ChooseFactorAxes(const graph::Mesh& mesh, const graph::ShardingRule& rule,
                            absl::Span<const TensorType> operand_types,
                            absl::Span<const graph::Sharding> operands,
                            absl::Span<const graph::Sharding> results);
// Gives a factor the wanted axes up to the first that another one uses.
void AssignAxes(const graph::Mesh& mesh, absl::Span<const graph::AxisRef> wanted, int factor,
                FactorAxes* chosen);
// Drops axes until every dimension of operands and results can express the split of its factors.
void TrimAxes(const graph::Mesh& mesh, const graph::ShardingRule& rule,
              absl::Span<const TensorType> operand_types, size_t num_results, FactorAxes* chosen);
ExecutionSharding ExecutionOf(const graph::Mesh& mesh, const graph::ShardingRule& rule,
                              size_t num_operands, size_t num_results, const FactorAxes& chosen);

// Splits the axes of one dimension over its factors, major first, as far as the layout allows: a
// factor takes axes only once the factors major to it are used up, and one that has a factor minor
// to it must be divided evenly. Returns one list a factor of `dim`.
std::vector<std::vector<graph::AxisRef>> SplitOverFactors(absl::Span<const graph::AxisRef> axes,
                                                          const graph::DimFactors& dim,
                                                          const graph::ShardingRule& rule);

// The axes that the sharding of a tensor with these dimensions puts on a factor; nullopt when the
// tensor does not have the factor.
std::optional<std::vector<graph::AxisRef>> AxesOn(int factor, const graph::Sharding& sharding,
                                                  const graph::TensorFactors& dims,
                                                  const graph::ShardingRule& rule);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_EXECUTION_SHARDING_H_
