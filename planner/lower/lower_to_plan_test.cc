#include "planner/lower/lower_to_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"

#include "base/collective.h"
#include "base/strings.h"
#include "graph/training.h"
#include "planner/cost/communication_cost.h"
#include "planner/plan/stage_schedule.h"
#include "planner/strategy/stages.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class LowerToPlanTest : public testing::PlannerFixture {
 protected:
  graph::Graph Train(std::string_view text, const graph::TrainingOptions& options,
                     int num_stages = 1) const {
    absl::StatusOr<graph::Graph> graph = graph::BuildTrainingGraph(ops_, MustParse(text), options);
    EXPECT_TRUE(graph.ok()) << graph.status();
    if (!graph.ok()) return graph::Graph();
    const absl::Status status = AssignStages(num_stages, *graph);
    EXPECT_TRUE(status.ok()) << status;
    return *std::move(graph);
  }

  // Actors of a device whose kernel is `op`.
  static std::vector<const ActorPlan*> Kernels(const Plan& plan, int device, std::string_view op) {
    std::vector<const ActorPlan*> actors;
    for (const ActorPlan& actor : plan.devices[device].actors) {
      if (actor.kernel != kNone && plan.kernels[actor.kernel].op == op) actors.push_back(&actor);
    }
    return actors;
  }

  static std::vector<const ActorPlan*> OfKind(const Plan& plan, int device, ActorKind kind) {
    std::vector<const ActorPlan*> actors;
    for (const ActorPlan& actor : plan.devices[device].actors) {
      if (actor.kind == kind) actors.push_back(&actor);
    }
    return actors;
  }
};

// The part of a parameter that an update overwrites is copied if it is returned as well: the step
// returns the old one.
TEST_F(LowerToPlanTest, AReturnedPartOfAParameterIsNotUpdatedInPlace) {
  constexpr std::string_view kUpdate = R"(mesh m = [dp=2]
graph g {
  %w = parameter : f32[8, 4] @[_, _] replicated(dp)
  %grad = input : f32[8, 4] @[dp, _]
  %rate = constant {dtype=f32, shape=[], value=0.05} : f32[]
  %scale = constant {dtype=f32, shape=[], value=1.0} : f32[]
  %w.momentum = state {init="zeros"} : f32[8, 4] @[dp, _] phase update
  %w.new, %w.momentum.new = sgd(%w, %grad, %rate, %scale, %w.momentum) {momentum=0.9} : f32[8, 4] @[dp, _], f32[8, 4] @[dp, _] phase update
  assign(%w, %w.new) phase update
  assign(%w.momentum, %w.momentum.new) phase update
  return RETURNS
})";
  const auto num_slices = [&](std::string_view returns) {
    std::string text(kUpdate);
    text.replace(text.find("RETURNS"), 7, returns);
    return Kernels(Compile(MustParse(text)), 0, "local_slice").size();
  };
  EXPECT_EQ(num_slices("%scale"), 0u);
  EXPECT_EQ(num_slices("%w @[dp, _]"), 1u);
}

constexpr std::string_view kMlp = R"(mesh m = [mb=2 temporal, dp=2]
graph mlp {
  %x = input : f32[8, 4] @[mb.dp, _]
  %w0 = parameter : f32[4, 16]
  %h = matmul(%x, %w0) : f32[8, 16]
  %a = tanh(%h) : f32[8, 16]
  %w1 = parameter : f32[16, 4]
  %y = matmul(%a, %w1) : f32[8, 4]
  %loss = sum_squares(%y) : f32[]
  return %loss
})";

TEST_F(LowerToPlanTest, EveryDeviceHasTheSamePhases) {
  const Plan plan = Compile(Train(kMlp, {}));
  ASSERT_THAT(plan.devices, SizeIs(2));
  EXPECT_EQ(plan.num_microbatches, 2u);
  ASSERT_EQ(plan.devices[0].phases.size(), plan.devices[1].phases.size());
  for (size_t p = 0; p < plan.devices[0].phases.size(); ++p) {
    EXPECT_EQ(plan.devices[0].phases[p].name, plan.devices[1].phases[p].name);
    EXPECT_EQ(plan.devices[0].phases[p].lane, plan.devices[1].phases[p].lane);
  }
}

// Five devices on two hosts lie as on two processes: two on the first, three on the second.
TEST_F(LowerToPlanTest, CollectivesAreChosenForTheHostsOfTheirDevices) {
  CompileOptions options;
  options.policies = &policies_;
  options.kernels = kernels::TraitsOf(kernels_, 1);
  options.host_devices = {2, 3};
  const absl::StatusOr<Plan> plan = planner::Compile(ops_, MustParse(R"(mesh m = [dp=5]
graph sum {
  %x = input : f32[5, 65536] @[dp, _]
  %y = reduce_sum(%x) {axes=[0]} : f32[65536] @[_]
  return %y
})"),
                                                     options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->collectives, SizeIs(1));
  EXPECT_EQ(plan->collectives[0].algorithm, CollectiveAlgorithm::kHierarchical);
  EXPECT_EQ(plan->collectives[0].hosts, (std::vector<uint32_t>{0, 0, 1, 1, 1}));
}

TEST_F(LowerToPlanTest, GradientsAreKeptByTheKernelThatMakesThem) {
  const Plan plan = Compile(Train(kMlp, {}));
  EXPECT_THAT(Kernels(plan, 0, "accumulate"), IsEmpty());
  int accumulating = 0;
  for (const ActorPlan* actor : Kernels(plan, 0, "matmul")) {
    accumulating += plan.kernels[actor->kernel].accumulate ? 1 : 0;
  }
  EXPECT_EQ(accumulating, 2);  // dw0, dw1
}

TEST_F(LowerToPlanTest, SumsAreReducedInPlace) {
  const Plan plan = Compile(Train(kMlp, {}));
  const std::vector<const ActorPlan*> reductions = OfKind(plan, 0, ActorKind::kCollective);
  ASSERT_THAT(reductions, SizeIs(2));  // the loss; dw0 and dw1 in one bucket
  int in_place = 0;
  for (const ActorPlan* actor : reductions) {
    EXPECT_EQ(plan.collectives[actor->target].kind, CollectiveKind::kAllReduce);
    in_place += actor->inputs[0] == actor->outputs[0] ? 1 : 0;
  }
  EXPECT_EQ(in_place, 2);
}

TEST_F(LowerToPlanTest, AdamwWritesWhereTheStateIs) {
  const Plan plan = Compile(Train(kMlp, {}));
  const std::vector<const ActorPlan*> updates = Kernels(plan, 0, "adamw");
  ASSERT_THAT(updates, SizeIs(2));
  for (const ActorPlan* actor : updates) {
    EXPECT_EQ(actor->outputs[0], actor->inputs[0]);  // w
    EXPECT_EQ(actor->outputs[1], actor->inputs[2]);  // m
    EXPECT_EQ(actor->outputs[2], actor->inputs[3]);  // v
    EXPECT_EQ(plan.devices[0].registers[actor->outputs[0].reg].register_class,
              RegisterClass::kState);
  }
}

TEST_F(LowerToPlanTest, AStateThatIsReadLaterInTheStepIsCopied) {
  const Plan plan = Compile(MustParse(R"(mesh m = []
graph g {
  %s = state : f32[4]
  %t = state : f32[4]
  assign(%s, %t)
  assign(%t, %s)
  return %s
})"));
  // A swap: both old values are taken before either is written.
  EXPECT_THAT(Kernels(plan, 0, "copy"), SizeIs(4));
}

TEST_F(LowerToPlanTest, ClippingOverStagesSendsScalars) {
  graph::TrainingOptions options;
  options.clip_norm = 1.0;
  const Plan plan = Compile(Train(kMlp, options, 2));
  ASSERT_THAT(plan.stages, SizeIs(2));
  ASSERT_THAT(plan.devices, SizeIs(4));
  int per_step = 0;
  for (const TransferPlan& transfer : plan.transfers) {
    if (transfer.per_microbatch) continue;
    ++per_step;
    EXPECT_LE(transfer.num_bytes, 8u);  // a norm, the clip, the learning rate, the step
  }
  EXPECT_GE(per_step, 4);
  EXPECT_THAT(Kernels(plan, 0, "adamw"), SizeIs(1));
  EXPECT_THAT(Kernels(plan, 2, "adamw"), SizeIs(1));
}

TEST_F(LowerToPlanTest, TiedEmbeddingsHaveOneOwner) {
  graph::TrainingOptions options;
  const Plan plan = Compile(Train(R"(mesh m = [mb=2 temporal, dp=2]
graph tied {
  %ids = input : i64[8] @[mb.dp]
  %table = parameter : f32[16, 4]
  %x = embedding(%table, %ids) : f32[8, 4]
  %w = parameter : f32[4, 4]
  %h = matmul(%x, %w) : f32[8, 4]
  %a = tanh(%h) : f32[8, 4]
  %logits = matmul(%a, %table) {transpose_b=true} : f32[8, 16]
  %loss = sum_squares(%logits) : f32[]
  return %loss
})",
                                  options, 2));
  for (const StatePlan& state : plan.states) {
    if (state.name != "table") continue;
    std::set<uint32_t> stages;
    for (const StatePlacement& placement : state.placements) {
      stages.insert(plan.devices[placement.device].stage);
    }
    EXPECT_EQ(stages, std::set<uint32_t>{0});
  }
  // The other stage gets the table once a step and sends its part of the gradient once a step.
  int table_bytes = 0;
  for (const TransferPlan& transfer : plan.transfers) {
    if (!transfer.per_microbatch && transfer.num_bytes == 16 * 4 * 4) ++table_bytes;
  }
  EXPECT_EQ(table_bytes, 2 * 2);  // there and back, on each of two devices
}

TEST_F(LowerToPlanTest, AReshapeCostsNothing) {
  const Plan plan = Compile(MustParse(R"(mesh m = [dp=2]
graph g {
  %x = input : f32[8, 4] @[dp, _]
  %y = tanh(%x) : f32[8, 4]
  %z = reshape(%y) {shape=[4, 2, 4]} : f32[4, 2, 4]
  %t = exp(%z) : f32[4, 2, 4]
  return %t
})"));
  EXPECT_THAT(Kernels(plan, 0, "reshape"), IsEmpty());
}

TEST_F(LowerToPlanTest, ReplicasFetchOnce) {
  const Plan plan = Compile(MustParse(R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[8] @[a]
  %y = tanh(%x) : f32[8] @[a]
  return %y
})"));
  int bound = 0;
  for (int device = 0; device < 4; ++device) {
    for (const ActorPlan* actor : OfKind(plan, device, ActorKind::kFetch)) {
      bound += plan.kernels[actor->kernel].inputs[0].is_bound ? 1 : 0;
    }
  }
  EXPECT_EQ(bound, 2);
}

TEST_F(LowerToPlanTest, SlotsOfActivationsComeFromTheOrder) {
  const graph::Graph graph = Train(R"(mesh m = [mb=4 temporal]
graph g {
  %x = input : f32[8, 4] @[mb, _]
  %w0 = parameter : f32[4, 4]
  %h = matmul(%x, %w0) : f32[8, 4]
  %a = tanh(%h) : f32[8, 4]
  %w1 = parameter : f32[4, 4]
  %y = matmul(%a, %w1) : f32[8, 4]
  %loss = sum_squares(%y) : f32[]
  return %loss
})",
                                   {}, 2);
  const auto most_slots = [](const Plan& plan, int device) {
    uint32_t slots = 0;
    for (const RegisterPlan& reg : plan.devices[device].registers) {
      slots = std::max(slots, reg.slots);
    }
    return slots;
  };
  EXPECT_EQ(most_slots(Compile(graph, "gpipe"), 0), 4u);
  EXPECT_EQ(most_slots(Compile(graph, "1f1b"), 0), 2u);
  // The last stage holds one micro-batch while the next arrives.
  EXPECT_EQ(most_slots(Compile(graph, "gpipe"), 1), 4u);
  EXPECT_EQ(most_slots(Compile(graph, "1f1b"), 1), 2u);
}

TEST_F(LowerToPlanTest, ThePlanHoldsTheOrderOfItsStages) {
  const graph::Graph graph = Train(R"(mesh m = [mb=2 temporal]
graph g {
  %x = input : f32[8, 4] @[mb, _]
  %w = parameter : f32[4, 4]
  %h = matmul(%x, %w) : f32[8, 4]
  %loss = sum_squares(%h) : f32[]
  return %loss
})",
                                   {}, 1);
  using enum PhaseKind;
  EXPECT_THAT(Compile(graph, "gpipe").stages[0].order,
              ElementsAre(PhaseChoice{kForward, 0}, PhaseChoice{kForward, 1},
                          PhaseChoice{kBackward, 0}, PhaseChoice{kBackward, 1}));
  EXPECT_THAT(Compile(graph, "1f1b").stages[0].order,
              ElementsAre(PhaseChoice{kForward, 0}, PhaseChoice{kBackward, 0},
                          PhaseChoice{kForward, 1}, PhaseChoice{kBackward, 1}));
}

// Four virtual stages on two devices: each boundary is crossed by transfers, and the phases of both
// chunks share the compute lane.
TEST_F(LowerToPlanTest, VirtualStagesShareTheirDevices) {
  const graph::Graph graph = Train(R"(mesh m = [mb=4 temporal]
graph g {
  %x = input : f32[8, 4] @[mb, _]
  %w0 = parameter : f32[4, 4]
  %h0 = matmul(%x, %w0) : f32[8, 4]
  %w1 = parameter : f32[4, 4]
  %h1 = matmul(%h0, %w1) : f32[8, 4]
  %w2 = parameter : f32[4, 4]
  %h2 = matmul(%h1, %w2) : f32[8, 4]
  %w3 = parameter : f32[4, 4]
  %h3 = matmul(%h2, %w3) : f32[8, 4]
  %loss = sum_squares(%h3) : f32[]
  return %loss
})",
                                   {}, 4);
  CompileOptions options = OptionsFor("1f1b");
  options.chunks_per_group = 2;
  const absl::StatusOr<Plan> plan = planner::Compile(ops_, graph, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->devices, SizeIs(2));
  for (uint32_t d = 0; d < 2; ++d) {
    EXPECT_EQ(StageContextOf(*plan, d).num_chunks(), 2);
    EXPECT_THAT(plan->stages[d].order, SizeIs(2 * 2 * 4));
  }
  int num_per_microbatch = 0;
  for (const TransferPlan& transfer : plan->transfers) {
    EXPECT_NE(transfer.source, transfer.destination);
    num_per_microbatch += transfer.per_microbatch ? 1 : 0;
  }
  EXPECT_EQ(num_per_microbatch, 3 + 3);  // activations and their gradients
  options.chunks_per_group = 3;
  EXPECT_THAT(std::string(planner::Compile(ops_, graph, options).status().message()),
              HasSubstr("4 stages cannot be run as 3 chunks"));
}

// Four stages on four groups of two devices: stages 0 and 3 lie on groups 0 and 3, stages 1 and 2
// on the others. Micro-batches of direction 1 pass through the groups from the last to the first.
TEST_F(LowerToPlanTest, BidirectionalStagesLieOnTwoGroups) {
  const auto train = [&](std::string_view microbatches) {
    return Train(StrCat("mesh m = [mb=", microbatches, R"( temporal, dp=2]
graph g {
  %x = input : f32[48, 4] @[mb.dp, _]
  %w0 = parameter : f32[4, 4]
  %h0 = matmul(%x, %w0) : f32[48, 4]
  %w1 = parameter : f32[4, 4]
  %h1 = matmul(%h0, %w1) : f32[48, 4]
  %w2 = parameter : f32[4, 4]
  %h2 = matmul(%h1, %w2) : f32[48, 4]
  %w3 = parameter : f32[4, 4]
  %h3 = matmul(%h2, %w3) : f32[48, 4]
  %loss = sum_squares(%h3) : f32[]
  return %loss
})"),
                 {}, 4);
  };
  const graph::Graph graph = train("8");
  CompileOptions options = OptionsFor("dualpipe");
  const absl::StatusOr<Plan> plan = planner::Compile(ops_, graph, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_microbatches, 4u);  // of each direction
  ASSERT_THAT(plan->devices, SizeIs(8));
  const auto devices_of = [&](std::string_view name) {
    std::vector<uint32_t> devices;
    for (const StatePlan& state : plan->states) {
      if (state.name != name) continue;
      for (const StatePlacement& placement : state.placements) devices.push_back(placement.device);
    }
    return devices;
  };
  EXPECT_THAT(devices_of("w0"), ElementsAre(0, 1, 6, 7));
  EXPECT_THAT(devices_of("w1"), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(devices_of("w2"), ElementsAre(4, 5, 2, 3));
  EXPECT_THAT(devices_of("w3"), ElementsAre(6, 7, 0, 1));
  for (uint32_t group = 0; group < 4; ++group) {
    EXPECT_THAT(plan->stages[group].devices, ElementsAre(2 * group, 2 * group + 1));
    EXPECT_EQ(StageContextOf(*plan, group).num_chunks(), 2);
    EXPECT_THAT(plan->stages[group].order, SizeIs(2 * 3 * 4 - (group == 0 || group == 3 ? 4 : 0)));
  }
  std::set<std::pair<uint32_t, uint32_t>> links;
  for (const TransferPlan& transfer : plan->transfers) {
    if (transfer.per_microbatch) links.insert({transfer.source, transfer.destination});
  }
  std::set<std::pair<uint32_t, uint32_t>> expected;  // of activations and gradients
  for (uint32_t d = 0; d < 6; ++d) {
    expected.insert({d, d + 2});
    expected.insert({d + 2, d});
  }
  EXPECT_EQ(links, expected);
  // Gradients are summed over both groups.
  bool has_sum = false;
  for (const CollectiveSpec& spec : plan->collectives) {
    has_sum = has_sum || spec.devices == std::vector<uint32_t>{0, 1, 6, 7};
  }
  EXPECT_TRUE(has_sum);

  const auto error_of = [&](const graph::Graph& of, const CompileOptions& with) {
    return std::string(planner::Compile(ops_, of, with).status().message());
  };
  EXPECT_THAT(error_of(train("3"), options), HasSubstr("must be an even number, at least 4"));
  options.chunks_per_group = 2;
  EXPECT_THAT(error_of(graph, options), HasSubstr("each stage on two groups of devices"));
}

// Both groups run a micro-batch at other times, so what one needs of the other cannot wait for it.
TEST_F(LowerToPlanTest, PhasesDoNotJoinTheDirectionsOfABidirectionalPipeline) {
  const graph::Graph graph = MustParse(R"(mesh m = [mb=2 temporal, direction=2]
graph g {
  %x = input : f32[8, 4] @[mb.direction, _] stage 0
  %y = tanh(%x) : f32[8, 4] @[mb.direction, _] stage 0
  %z = all_gather(%y) : f32[8, 4] @[mb, _] stage 1
  return %z @[mb, _]
})");
  LowerOptions options;
  options.policy = policies_.Find("chimera");
  options.kernels = kernels::TraitsOf(kernels_, 1);
  options.placement = StagePlacement{2, 2, Placement::kBidirectional};
  const absl::Status status = LowerToPlan(ops_, graph, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("%z of stage 1 joins micro-batches of both directions"));
}

// A group runs all forwards of its first chunk before those of its second, which read what the
// first chunk of another group has made meanwhile.
TEST_F(LowerToPlanTest, ValuesThatSkipStagesHaveRoom) {
  std::string text =
      "mesh m = [mb=7 temporal]\ngraph g {\n  %x = input : f32[14, 4] @[mb, _] stage 0\n";
  StrAppend(&text, "  %h0 = tanh(%x) : f32[14, 4] stage 0\n");
  for (int i = 1; i < 6; ++i) {
    StrAppend(&text, "  %h", i, " = tanh(%h", i - 1, ") : f32[14, 4] stage ", i, "\n");
  }
  StrAppend(&text, "  %y = add(%h5, %h0) : f32[14, 4] stage 5\n  return %y\n}");
  for (const char* policy : {"1f1b", "gpipe"}) {
    CompileOptions options = OptionsFor(policy);
    options.chunks_per_group = 2;
    const absl::StatusOr<Plan> plan = planner::Compile(ops_, MustParse(text), options);
    EXPECT_TRUE(plan.ok()) << policy << ": " << plan.status();
  }
}

TEST_F(LowerToPlanTest, APolicyIsNeeded) {
  const absl::StatusOr<FoldedPlan> plan = LowerToPlan(ops_, graph::Graph(), {});
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("policy"));
}

// The same network as kMlp with its hidden features split.
std::string TensorParallel(int64_t width, int64_t parts) {
  return StrCat("mesh m = [tp=", parts, "]\ngraph g {\n  %x = input : f32[8, ", width,
                "]\n  %w0 = parameter : f32[", width, ", 16] @[_, tp]\n",
                "  %h = matmul(%x, %w0) : f32[8, 16]\n  %a = tanh(%h) : f32[8, 16]\n",
                "  %w1 = parameter : f32[16, ", width, "] @[tp, _]\n",
                "  %y = matmul(%a, %w1) : f32[8, ", width, "]\n",
                "  %loss = sum_squares(%y) : f32[]\n  return %loss\n}");
}

TEST_F(LowerToPlanTest, CollectivesArePartOfThePrediction) {
  const graph::Graph graph = Train(TensorParallel(512, 2), {});
  const Plan plan = Compile(graph);
  double kernels_s = 0;
  double collectives_s = 0;
  for (const CollectiveSpec& spec : plan.collectives) {
    collectives_s += CollectiveSeconds(spec, {});
  }
  for (const PhasePlan& phase : plan.devices[0].phases) kernels_s += phase.predicted_s;
  kernels_s -= collectives_s;
  EXPECT_GT(collectives_s, 0);
  EXPECT_GT(kernels_s, 0);
  EXPECT_GT(plan.predicted_step_s, kernels_s);
  EXPECT_NEAR(plan.predicted_step_s, kernels_s + collectives_s, 1e-9);
  // More bytes, and larger groups.
  EXPECT_GT(Compile(Train(TensorParallel(1024, 2), {})).predicted_step_s, plan.predicted_step_s);
  const auto reduced_s = [](const Plan& compiled) {
    double seconds = 0;
    for (const CollectiveSpec& spec : compiled.collectives) seconds += CollectiveSeconds(spec, {});
    return seconds;
  };
  EXPECT_GT(reduced_s(Compile(Train(TensorParallel(512, 4), {}))), reduced_s(plan));
}

TEST_F(LowerToPlanTest, TransfersArePartOfThePrediction) {
  const Plan plan = Compile(Train(kMlp, {}, 2));
  ASSERT_FALSE(plan.transfers.empty());
  for (const TransferPlan& transfer : plan.transfers) EXPECT_GT(transfer.num_bytes, 0u);
  int num_transfers = 0;
  for (const DevicePlan& device : plan.devices) {
    for (const PhasePlan& phase : device.phases) {
      const ActorPlan& actor = device.actors[phase.first_actor];
      if (actor.kind != ActorKind::kSend && actor.kind != ActorKind::kRecv) continue;
      ++num_transfers;
      EXPECT_EQ(phase.predicted_s, TransferSeconds(plan.transfers[actor.target].num_bytes, {}));
    }
  }
  EXPECT_EQ(num_transfers, 2 * static_cast<int>(plan.transfers.size()));
}

// Lower channels go first on a link. The widths tell the gradients of the layers apart.
TEST_F(LowerToPlanTest, ChannelsAreNumberedByWhatIsNeededFirst) {
  std::string text = R"(mesh m = [mb=2 temporal, dp=2, tp=2]
graph layers {
  %h0 = input : f32[8, 4] @[mb.dp, _]
)";
  constexpr int kWidths[] = {16, 32, 48, 64};
  for (int i = 0; i < 4; ++i) {
    const std::string width = StrCat(kWidths[i]);
    StrAppend(&text, "  %v", i, " = parameter : f32[4, ", width, "] @[_, tp]\n");
    StrAppend(&text, "  %a", i, " = matmul(%h", i, ", %v", i, ") : f32[8, ", width, "]\n");
    StrAppend(&text, "  %b", i, " = tanh(%a", i, ") : f32[8, ", width, "]\n");
    StrAppend(&text, "  %w", i, " = parameter : f32[", width, ", 4] @[tp, _]\n");
    StrAppend(&text, "  %h", i + 1, " = matmul(%b", i, ", %w", i, ") : f32[8, 4]\n");
  }
  text += "  %loss = sum_squares(%h4) : f32[]\n  return %loss\n}\n";
  CompileOptions options = OptionsFor("1f1b");
  options.bucket_bytes = 1;  // one gradient each
  const absl::StatusOr<Plan> plan = planner::Compile(ops_, Train(text, {}, 2), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->devices, SizeIs(8));

  std::set<uint32_t> of_transfers;
  for (const TransferPlan& transfer : plan->transfers) of_transfers.insert(transfer.channel);
  std::set<uint32_t> of_phases;
  std::set<uint32_t> of_buckets;
  // The highest channel of each layer's gradients, and the lowest.
  std::map<int, std::pair<uint32_t, uint32_t>> of_layers;
  for (const CollectiveSpec& spec : plan->collectives) {
    const int64_t count = InputCount(spec, 0);
    const auto* layer = std::find_if(std::begin(kWidths), std::end(kWidths),
                                     [&](int width) { return count == 4 * width / 2; });
    const bool is_over_dp = spec.devices[1] == spec.devices[0] + 2;
    if (!is_over_dp || layer == std::end(kWidths)) {
      of_phases.insert(spec.channel);
      continue;
    }
    of_buckets.insert(spec.channel);
    auto& [highest, lowest] =
        of_layers.try_emplace(*layer, spec.channel, spec.channel).first->second;
    highest = std::max(highest, spec.channel);
    lowest = std::min(lowest, spec.channel);
  }
  ASSERT_THAT(of_transfers, Not(IsEmpty()));
  ASSERT_THAT(of_phases, Not(IsEmpty()));
  EXPECT_THAT(of_buckets, SizeIs(4 * 2 * 2));  // two gradients a layer, and two groups each
  EXPECT_LT(*of_transfers.rbegin(), *of_phases.begin());
  EXPECT_LT(*of_phases.rbegin(), *of_buckets.begin());
  // In a stage, what the first layer needs comes first.
  ASSERT_THAT(of_layers, SizeIs(4));
  EXPECT_LT(of_layers[16].first, of_layers[32].second);
  EXPECT_LT(of_layers[48].first, of_layers[64].second);
}

TEST_F(LowerToPlanTest, ATypeWithoutAKernelIsNamedWithItsPlace) {
  planner::CompileOptions options;
  options.policies = &policies_;
  options.kernels = kernels::TraitsOf(kernels_, 1);
  options.kernels.check_kernel = [](const graph::KernelSpec& spec) -> absl::Status {
    if (spec.op != "add") return absl::OkStatus();
    return absl::UnimplementedError("the cpu has no kernel for add on bf16");
  };
  const absl::Status status = planner::Compile(ops_, MustParse(R"(graph g {
  %x = input : bf16[4]
  %y = reshape(%x) {shape=[2, 2]} : bf16[2, 2]
  %z = add(%y, %y) : bf16[2, 2]
  return %z
})"),
                                               options)
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), "test.pst:4:3: %z: the cpu has no kernel for add on bf16");
}

// Each group of a pipeline has the kernels of its own devices.
TEST_F(LowerToPlanTest, GroupsOfAPipelineHaveKernelsOfTheirOwn) {
  constexpr uint32_t kFirstOfLast = 2;  // of two groups of two devices
  constexpr size_t kWorkspace = size_t{1} << 20;
  std::vector<std::pair<uint32_t, uint32_t>> asked;
  planner::CompileOptions options = OptionsFor("1f1b");
  options.kernels = {};
  options.kernels_of = [&](uint32_t first, uint32_t count) {
    asked.push_back({first, count});
    graph::KernelTraits traits = kernels::TraitsOf(kernels_, 1);
    if (first == kFirstOfLast) {
      traits.workspace_bytes = [](const graph::KernelSpec&) { return kWorkspace; };
      traits.supports_accumulate = [](std::string_view) { return false; };
    }
    return traits;
  };
  const graph::Graph graph = Train(kMlp, {}, 2);
  const absl::StatusOr<Plan> plan = planner::Compile(ops_, graph, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->devices, SizeIs(4));
  EXPECT_THAT(asked, ElementsAre(std::pair(0u, 2u), std::pair(2u, 2u)));
  for (uint32_t d = 0; d < 4; ++d) {
    const bool is_last = d >= kFirstOfLast;
    EXPECT_EQ(Kernels(*plan, static_cast<int>(d), "accumulate").empty(), !is_last) << d;
    EXPECT_EQ(plan->devices[d].arena_bytes > kWorkspace, is_last) << d;
  }
  // What one group cannot run is an error where the other could.
  options.kernels_of = [&](uint32_t first, uint32_t) {
    graph::KernelTraits traits = kernels::TraitsOf(kernels_, 1);
    if (first != kFirstOfLast) return traits;
    traits.check_kernel = [](const graph::KernelSpec& spec) -> absl::Status {
      if (spec.op != "tanh_grad" && spec.op != "matmul") return absl::OkStatus();
      return absl::UnimplementedError("no kernel for " + spec.op);
    };
    return traits;
  };
  EXPECT_THAT(std::string(planner::Compile(ops_, graph, options).status().message()),
              HasSubstr("no kernel for matmul"));
}

TEST_F(LowerToPlanTest, APartOfAParameterIsUpdatedWhereItLies) {
  const Plan plan = Compile(MustParse(R"(mesh m = [dp=2]
graph g {
  %x = input : f32[8, 4] @[dp, _]
  %w = parameter : f32[4, 6] @[_, _] replicated(dp)
  %b = state {init="zeros"} : f32[4, 6] @[dp, _]
  %y = matmul(%x, %w) : f32[8, 6]
  %g = matmul(%x, %y) {transpose_a=true} : f32[4, 6] @[dp, _] phase weight_backward
  %one = constant {value=1.0, dtype=f32, shape=[]} : f32[] phase update
  %n, %m = sgd(%w, %g, %one, %one, %b) {momentum=0.5} : f32[4, 6], f32[4, 6] phase update
  assign(%w, %n) phase update
  assign(%b, %m) phase update
  return %y
})"));
  for (uint32_t d = 0; d < 2; ++d) {
    const DevicePlan& device = plan.devices[d];
    const ActorPlan* update = nullptr;
    const ActorPlan* gather = nullptr;
    for (const ActorPlan& actor : device.actors) {
      if (actor.kind == ActorKind::kCollective &&
          plan.collectives[actor.target].kind == CollectiveKind::kAllGather) {
        gather = &actor;
      }
      if (actor.kind != ActorKind::kKernel) continue;
      const std::string& op = plan.kernels[actor.kernel].op;
      EXPECT_NE(op, "local_slice");
      EXPECT_NE(op, "copy");
      if (op == "sgd") update = &actor;
    }
    ASSERT_NE(update, nullptr);
    ASSERT_NE(gather, nullptr);
    // Rows 2d and 2d + 1 of %w, in its register.
    EXPECT_EQ(update->inputs[0].offset, d * 2 * 6 * 4);
    EXPECT_EQ(update->outputs[0], update->inputs[0]);
    EXPECT_EQ(gather->inputs[0], update->inputs[0]);
    EXPECT_EQ(gather->outputs[0].reg, update->inputs[0].reg);
    EXPECT_EQ(gather->outputs[0].offset, 0u);
    EXPECT_EQ(device.registers[gather->outputs[0].reg].register_class, RegisterClass::kState);
  }
}

TEST_F(LowerToPlanTest, ASumOverMicrobatchesIsScatteredWhereItLies) {
  const Plan plan = Compile(MustParse(R"(mesh m = [mb=2 temporal, dp=2]
graph g {
  %x = input : f32[8, 4] @[mb.dp, _]
  %w = state {init="ones"} : f32[4, 6] @[dp, _]
  %y = input : f32[8, 6] @[mb.dp, _]
  %g = matmul(%x, %y) {transpose_a=true} : f32[4, 6] @[dp, _] phase weight_backward
  %n = add(%w, %g) : f32[4, 6] phase update
  assign(%w, %n) phase update
  return %y
})"));
  for (uint32_t d = 0; d < 2; ++d) {
    int num_scatters = 0;
    for (const PhasePlan& phase : plan.devices[d].phases) {
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        const ActorPlan& actor = plan.devices[d].actors[a];
        if (actor.kind != ActorKind::kCollective) continue;
        ++num_scatters;
        EXPECT_EQ(phase.lane, Lane::kFloating);
        EXPECT_EQ(actor.outputs[0].reg, actor.inputs[0].reg);
        EXPECT_EQ(actor.outputs[0].offset, d * 2 * 6 * 4);
      }
    }
    EXPECT_EQ(num_scatters, 1);
  }
}

}  // namespace
}  // namespace penstock::planner
