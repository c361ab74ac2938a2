// assign(state, value): the state holds the value from the next step on; readers in this step see
// the old one. It has no result.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class AssignOp : public Op {
 public:
  std::string_view name() const override { return "assign"; }
  OpRole role() const override { return OpRole::kAssign; }
  int min_operands() const override { return 2; }
  int num_results(const OpContext&) const override { return 0; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckSameType(context, 1, 0));
    return std::vector<TensorType>();
  }
  ShardingRule Rule(const OpContext& context) const override {
    return ShardingRule::Elementwise(context.operands, context.results);
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
};

}  // namespace

std::unique_ptr<const Op> MakeAssign() { return std::make_unique<AssignOp>(); }

}  // namespace penstock::graph::ops
