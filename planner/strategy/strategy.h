// A parallel strategy: how many ways the batch (dp), the weights (tp) and the layers (pp) are
// split, and the mesh and shardings it means for a graph. With vpp > 1 the layers are cut into
// pp * vpp virtual stages, which the pp groups of devices run in turn (Narayanan et al., "Efficient
// Large-Scale Language Model Training on GPU Clusters", 2021): the bubble is shorter, and more
// crosses between the groups.
//
// Expert parallelism lies inside data parallelism: with ep > 1 the experts of mixture-of-experts
// layers are split over an ep-sized part of the dp devices, and every token goes to the device of
// its expert and back. It needs no devices of its own. The mesh then has the axes [dp / ep, ep]
// instead of dp, and the batch is split over both.
//
// Context parallelism, cp > 1, splits the sequences of the inputs, and by propagation all that runs
// over a sequence. Attention is then one of two:
//   ring           keys and values are passed round the cp devices while each attends to what it
//                  has (graph/ops/block_attention.cc)
//   ulysses=true   heads are split instead of sequences, by an all_to_all before attention and one
//                  after it (Jacobs et al., "DeepSpeed Ulysses", 2023); attention without a
//                  gradient is a ring nevertheless
//
// Two options say what else is split. They become shardings like all else:
//   zero=1|2|3  the optimiser's state, the gradients too, the parameters too, over dp and cp
//               (zero.h)
//   sp=true     what lies between the tensor parallel parts of a layer, over tp (SplitHint)
// A third one says what is not kept: recompute=selective|full (recompute.h). A fourth one says what
// is kept in the memory of the devices' hosts: offload=states|activations|all (offload.h). A fifth
// one says in how many parts a device computes with a micro-batch, so that it communicates for one
// while it computes with another: subbatches=2 (lower/sub_batches.h). A sixth one, optimizer=host,
// has a device 0 before the others that keeps the parameters and updates them (move_optimizer.h).
//
// What tp splits is what a model's SplitHints name. With splits=cost it is chosen by cost instead,
// for any graph (planner/search/split_by_cost.h); ApplyStrategy then leaves tp and zero to that.
//
// Example: "dp=2,tp=2" with 4 micro-batches gives the mesh [mb=4 temporal, dp=2, tp=2]; inputs are
// split @[mb.dp, _, ...], the parameters that a model's SplitHints name are split over tp, and all
// else follows by propagation. Stage s of pp stages has the dp * cp * tp devices from s * dp * cp *
// tp on, with optimizer=host from the next one.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_STRATEGY_STRATEGY_H_
#define PENSTOCK_PLANNER_STRATEGY_STRATEGY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "graph/graph.h"
#include "graph/models/model.h"
#include "planner/strategy/offload.h"
#include "planner/strategy/recompute.h"

namespace penstock::planner {

// The sizes of the axes and the options, as the top of this file explains them.
struct Strategy {
  int64_t dp = 1;        // data parallel
  int64_t tp = 1;        // tensor parallel
  int64_t pp = 1;        // pipeline stages
  int64_t vpp = 1;       // virtual stages of each pipeline stage
  int64_t ep = 1;        // expert parallel: divides dp
  int zero = 0;          // 1 to 3: what is split over dp besides the batch
  bool sp = false;       // sequence parallel beside tp
  int64_t cp = 1;        // context parallel
  bool ulysses = false;  // its attention splits heads, by all_to_all
  // What tp splits is chosen by cost instead of by a model's hints.
  bool splits_by_cost = false;
  Recompute recompute = Recompute::kNone;  // what is computed again
  Offload offload = Offload::kNone;        // what is kept on hosts
  int64_t sub_batches = 1;  // that a device computes a micro-batch in (lower/sub_batches.h)
  // One more device keeps the parameters and updates them.
  bool optimizer_on_host = false;

  // Virtual ones.
  int num_stages() const { return static_cast<int>(pp * vpp); }
  // That it needs.
  int64_t num_devices() const { return dp * cp * tp * pp + (optimizer_on_host ? 1 : 0); }
  // Copies of a parameter that neither tp nor ep splits.
  int64_t num_replicas() const { return dp * cp; }
  // Whether all sizes and options are the same.
  friend bool operator==(const Strategy&, const Strategy&) = default;
};

// "dp=2,tp=2,pp=1": always all three; what differs from its default follows:
// "dp=4,tp=2,pp=2,vpp=4,ep=2,cp=2,ulysses=true,zero=1,sp=true,recompute=full,offload=all" or
// "dp=2,tp=1,pp=1,optimizer=host".
std::string ToString(const Strategy& strategy);

// Devices that a strategy may ask for.
inline constexpr int64_t kMaxDevices = 1 << 16;

// "dp=2,tp=2" in any order (an axis that is left out is 1; vpp needs pp, ep divides dp, zero needs
// dp or cp, sp needs tp, ulysses needs cp, cp excludes ep, optimizer=host excludes vpp, zero,
// splits=cost and the offload of states), or "auto": no value. Errors name what is wrong and what
// was expected; the caller adds where the text is from.
absl::StatusOr<std::optional<Strategy>> ParseStrategy(std::string_view text);

// Whether the strategy fits the graph: dp * microbatches * subbatches divides the batch, tp, ep and
// cp divide what must be divided (heads, experts, sequences) and have something to split, there are
// at least pp * vpp operators. The batch is dimension 0 of the first input that has dimensions.
absl::Status CheckStrategy(const Strategy& strategy, int64_t microbatches,
                           absl::Span<const graph::SplitHint> hints, const graph::Graph& graph);

// Sequences of a step: dimension 0 of the first input that has dimensions; 0 without one.
int64_t BatchOf(const graph::Graph& graph);

// The largest cp that divides all sequences that the hints name; 1 without sequences.
int64_t LargestContext(absl::Span<const graph::SplitHint> hints, const graph::Graph& graph);

// Micro-batches where they are left open: 1 without a pipeline, else the largest number up to 4 a
// stage that divides the batch of one data-parallel part.
int64_t ChooseMicrobatches(const Strategy& strategy, const graph::Graph& graph);

// Gives the graph its mesh [mb temporal, dp, ep, cp, tp] (mb, ep and cp only if there are several;
// "dp" is dp / ep) writes the strategy's shardings on inputs, hinted parameters and scalar
// results, those that hints state in full, and marks what is computed again. With ep the batch has
// user priority 1: the split of the experts propagates first, to the tokens at the experts, and
// what the batch then splits further lies outside the experts. Does not assign stages (stages.h).
// Refuses what CheckStrategy refuses, and a graph that has a mesh already.
absl::Status ApplyStrategy(const Strategy& strategy, int64_t microbatches,
                           absl::Span<const graph::SplitHint> hints, graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_STRATEGY_STRATEGY_H_
