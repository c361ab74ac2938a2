// What the tests of policies that plan whole pipelines share.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_POLICY_ORDERS_H_
#define PENSTOCK_TESTS_SUPPORT_POLICY_ORDERS_H_

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "planner/policy/pipeline.h"

namespace penstock::planner {

// "F0 F0' B0'": a prime marks chunk 1.
inline std::string ToText(const std::vector<PhaseChoice>& order) {
  std::string text;
  for (const PhaseChoice& phase : order) {
    StrAppend(&text, text.empty() ? "" : " ", Name(phase.kind), phase.microbatch,
              phase.chunk == 0 ? "" : "'");
  }
  return text;
}

inline std::vector<std::string> ToTexts(const PipelineOrders& orders) {
  std::vector<std::string> texts;
  for (const std::vector<PhaseChoice>& order : orders) texts.push_back(ToText(order));
  return texts;
}

// The timeline of the policy's orders. Fails the test, and returns an empty one, if there is none.
inline Timeline RunPolicy(const Policy& policy, const Pipeline& pipeline) {
  const absl::StatusOr<PipelineOrders> orders = PlanPipeline(policy, pipeline);
  if (!orders.ok()) {
    ADD_FAILURE() << orders.status().ToString();
    return {};
  }
  absl::StatusOr<Timeline> timeline = RunPipeline(pipeline, *orders);
  if (!timeline.ok()) {
    ADD_FAILURE() << timeline.status().ToString();
    return {};
  }
  return *std::move(timeline);
}

inline double LargestPeak(const Timeline& timeline) {
  if (timeline.peak_activations.empty()) return 0;
  return *std::max_element(timeline.peak_activations.begin(), timeline.peak_activations.end());
}

// Times and activations between 0.5 and 1.5 times what they were, the same in every run.
inline void MakeUnequal(Pipeline* pipeline) {
  unsigned state = 1;
  const auto vary = [&](double* value) {
    state = state * 1664525 + 1013904223;  // a linear congruential generator
    *value *= 0.5 + (state >> 16) / 65536.0;
  };
  for (VirtualStage& stage : pipeline->stages) {
    for (double& seconds : stage.seconds) vary(&seconds);
    vary(&stage.activation);
  }
}

// Runs the policy on pipelines of up to 8 groups and 20 micro-batches in a chunk: with B and W,
// with B alone, with F alone, and with groups that differ in this; with equal and unequal stages.
inline void ExpectRunsOnAllPipelines(const Policy& policy, Placement placement) {
  const bool is_bidirectional = placement == Placement::kBidirectional;
  for (int groups = is_bidirectional ? 2 : 1; groups <= 8; groups += is_bidirectional ? 2 : 1) {
    for (int microbatches = 1; microbatches <= 20; ++microbatches) {
      for (const std::string_view kinds : {"FBW", "FB", "F", "mixed"}) {
        for (const bool is_unequal : {false, true}) {
          SCOPED_TRACE(StrCat(groups, " groups, ", microbatches, " micro-batches, ", kinds,
                              is_unequal ? ", unequal" : ""));
          absl::StatusOr<Pipeline> pipeline =
              MakePipeline({.num_groups = groups,
                            .num_microbatches = is_bidirectional ? 2 * microbatches : microbatches,
                            .num_chunks = 2,
                            .placement = placement,
                            .latency_s = 0.1,
                            .splits_backward = kinds != "FB"});
          ASSERT_TRUE(pipeline.ok()) << pipeline.status().ToString();
          for (size_t v = 0; v < pipeline->stages.size(); ++v) {
            PhaseKinds& has = pipeline->stages[v].kinds;
            if (kinds == "F") has = {true, false, false};
            if (kinds == "mixed") has = {true, v % 3 != 0, v % 3 == 2};
          }
          if (is_unequal) MakeUnequal(&*pipeline);
          ASSERT_GT(RunPolicy(policy, *pipeline).makespan_s, 0);
        }
      }
    }
  }
}

}  // namespace penstock::planner

#endif  // PENSTOCK_TESTS_SUPPORT_POLICY_ORDERS_H_
