// Orders of pipelines as CSV, in the format of PyTorch's pipelining schedules: a row for each group
// (rank), a cell for each time step.
//
//   0F0,0F1,,1B0        stage 0 runs F of micro-batches 0 and 1, idles, then stage 1 runs B of 0
//
// An action is a stage, a kind and a micro-batch: F; B, the whole backward; or I and W, its
// gradients of inputs and of weights. Where any backward is split, a B stands for an I and the W
// that follows it at once. "(0F7;7B3)OVERLAP_F_B" is a pair that runs together; here one
// follows the other, and a W of the B follows both. Actions that communicate or gather weights
// (SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD) are read and left out: a plan
// derives them from the order.
//
// A bidirectional pipeline runs each stage on two groups. Of their micro-batches, the first half
// belongs to the groups that enter at the first.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_POLICY_ORDER_CSV_H_
#define PENSTOCK_PLANNER_POLICY_ORDER_CSV_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "planner/policy/pipeline.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

struct CsvOrders {
  StagePlacement placement;
  int num_microbatches = 1;  // that pass through each stage of the pipeline (Pipeline)
  bool has_backward = false;
  bool splits_backward = false;  // into I and W
  bool has_pairs = false;        // see PolicyNeeds::pairs_phases
  PipelineOrders orders;
};

// Errors name `file`, line and column: an action that is none, a stage on several groups, or
// missing or doubled phases. Stages must lie as one of Placement says.
absl::StatusOr<CsvOrders> ParseOrdersCsv(std::string_view text, std::string_view file);

// Phases stand in the column of the time step in which they run if each takes one. With `pairs`, an
// F, the B of another chunk behind it and, where backwards are split, the W behind that are one
// cell, in the column of the F. REQUIRES: RunPipeline accepts the orders.
std::string OrdersToCsv(const Pipeline& pipeline, const PipelineOrders& orders, bool pairs = false);

// A policy that has these orders, for the pipeline that they were made for; others are refused.
std::unique_ptr<const Policy> MakeOrdersPolicy(std::string name, CsvOrders orders);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_POLICY_ORDER_CSV_H_
