// How good the plans of strategies are, not only whether they are right: the collectives of a
// training step by kind, with the bytes that they reduce or gather, and the memory of a device.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"

#include "graph/models/model.h"
#include "graph/training.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"
#include "planner/strategy/zero.h"
#include "tests/support/planner_fixture.h"

namespace penstock::testing {
namespace {

using planner::ActorKind;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr int64_t kBatch = 16;
constexpr int64_t kContext = 64;
constexpr int64_t kVocabulary = 512;
constexpr int64_t kLayerBucket = 12 * 256 * 256 * 4;  // the weights of a layer

using planner::Plan;

struct Setting {
  std::string strategy;
  int64_t microbatches = 1;
  int64_t bucket_bytes = 1 << 20;
  int64_t layers = 4;
  int64_t width = 256;
  DType precision = DType::kF32;
  DType gradient_dtype = DType::kF32;
};

// What ZeRO splits of a model, and what it leaves whole.
struct Split {
  int64_t tensors = 0;
  int64_t bytes = 0;
  int64_t rest_bytes = 0;
};

// Collectives of one kind that a device takes part in, a step.
struct Traffic {
  int64_t count = 0;
  int64_t bytes = 0;  // of the tensors that are reduced or gathered
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

class StrategyQualityTest : public PlannerFixture {
 protected:
  StrategyQualityTest() : models_(graph::BuiltinModels()), gpt_(*models_.FindModel("gpt")) {}

  graph::Graph TrainingGraph(const Setting& setting) {
    graph::ModelConfig config;
    config.layers = setting.layers;
    config.width = setting.width;
    config.heads = 8;
    config.context = kContext;
    config.vocabulary = kVocabulary;
    config.dropout = 0.1;
    absl::StatusOr<graph::Graph> forward =
        graph::BuildModelGraph(ops_, gpt_, config, graph::ModelUse::kTrain, kBatch);
    EXPECT_TRUE(forward.ok()) << forward.status();
    num_parameters_ = graph::NumParameters(*forward);
    absl::StatusOr<graph::Graph> graph =
        graph::BuildTrainingGraph(ops_, *forward, {.gradient_dtype = setting.gradient_dtype});
    EXPECT_TRUE(graph.ok()) << graph.status();
    const auto strategy = planner::ParseStrategy(setting.strategy);
    EXPECT_TRUE(strategy.ok()) << strategy.status();
    absl::Status status =
        planner::ApplyStrategy(**strategy, setting.microbatches, gpt_.tensor_splits, *graph);
    EXPECT_TRUE(status.ok()) << status;
    status = planner::AssignStages((*strategy)->num_stages(), *graph);
    EXPECT_TRUE(status.ok()) << status;
    return *std::move(graph);
  }

  Plan PlanOf(const Setting& setting) {
    planner::CompileOptions options = OptionsFor("1f1b");
    options.bucket_bytes = setting.bucket_bytes;
    options.precision = setting.precision;
    absl::StatusOr<Plan> plan = planner::Compile(ops_, TrainingGraph(setting), options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *std::move(plan) : Plan();
  }

  // REQUIRES: a strategy without tp.
  Split SplitOf(const Setting& setting) {
    const graph::Graph graph = TrainingGraph(setting);
    const auto strategy = planner::ParseStrategy(setting.strategy);
    Split split;
    for (const graph::Node& node : graph.nodes()) {
      if (node.op->name() != "parameter") continue;
      const auto bytes = static_cast<int64_t>(graph.value(node.results[0]).type.num_bytes());
      if (bytes / (*strategy)->dp < planner::kMinPartBytes) {
        split.rest_bytes += bytes;
        continue;
      }
      ++split.tensors;
      split.bytes += bytes;
    }
    return split;
  }

  // By kind; of scalars apart, as "all_reduce scalar".
  static std::map<std::string, Traffic> TrafficOf(const Plan& plan, uint32_t device = 0) {
    std::map<std::string, Traffic> traffic;
    for (const planner::ActorPlan& actor : plan.devices[device].actors) {
      if (actor.kind != ActorKind::kCollective) continue;
      const CollectiveSpec& spec = plan.collectives[actor.target];
      int64_t elements = 0;
      for (const int64_t count : spec.counts) elements += count;
      std::string kind(Name(spec.kind));
      if (elements == 1) kind += " scalar";
      const int64_t runs = plan.collective_per_microbatch[actor.target] ? plan.num_microbatches : 1;
      traffic[kind].count += runs;
      traffic[kind].bytes += runs * elements * static_cast<int64_t>(ByteSize(spec.dtype));
    }
    return traffic;
  }

  // Tensors that they move, by kind: several at a time where they are in a bucket.
  static std::map<std::string, int64_t> TensorsOf(const Plan& plan, uint32_t device = 0) {
    std::map<std::string, int64_t> tensors;
    for (const planner::ActorPlan& actor : plan.devices[device].actors) {
      if (actor.kind != ActorKind::kCollective) continue;
      const CollectiveSpec& spec = plan.collectives[actor.target];
      const int64_t runs = plan.collective_per_microbatch[actor.target] ? plan.num_microbatches : 1;
      tensors[std::string(Name(spec.kind))] += runs * static_cast<int64_t>(NumTensors(spec));
    }
    return tensors;
  }

  // Redistributions of a pass by operator, but of values that only the update reads and of scalars.
  static std::map<std::string, int> CountsOf(const graph::Graph& lowered, graph::Phase phase) {
    std::map<std::string, int> counts;
    const std::vector<std::vector<graph::NodeId>> users = lowered.Users();
    for (const graph::Node& node : lowered.nodes()) {
      const std::string op(node.op->name());
      if (node.phase != phase ||
          !(op.starts_with("all_") || op == "reduce_scatter" || op == "permute")) {
        continue;
      }
      const graph::ValueId result = node.results[0];
      if (lowered.value(result).type.num_elements() == 1) continue;
      const std::vector<graph::NodeId>& readers = users[static_cast<size_t>(result)];
      const bool is_of_update = std::all_of(readers.begin(), readers.end(), [&](graph::NodeId id) {
        return lowered.node(id).phase == graph::Phase::kUpdate;
      });
      if (!is_of_update) ++counts[op];
    }
    return counts;
  }

  // Bytes that a device sends to other stages in a step.
  static int64_t SentBytes(const Plan& plan, uint32_t device) {
    int64_t bytes = 0;
    for (const planner::TransferPlan& transfer : plan.transfers) {
      if (transfer.source != device) continue;
      bytes += static_cast<int64_t>(transfer.num_bytes) *
               (transfer.per_microbatch ? plan.num_microbatches : 1);
    }
    return bytes;
  }

  static int64_t CountKernels(const Plan& plan, std::string_view op) {
    const std::vector<planner::ActorPlan>& actors = plan.devices[0].actors;
    return std::count_if(actors.begin(), actors.end(), [&](const planner::ActorPlan& actor) {
      return actor.kernel != planner::kNone && plan.kernels[actor.kernel].op == op;
    });
  }

  // Of registers that a device's forward phase makes and its backward phase reads; a slot each.
  static int64_t StashBytes(const Plan& plan, uint32_t device = 0) {
    const planner::DevicePlan& program = plan.devices[device];
    const auto kind_of = [&](uint32_t actor) {
      for (const planner::PhasePlan& phase : program.phases) {
        if (actor >= phase.first_actor && actor < phase.first_actor + phase.num_actors) {
          return phase.lane == planner::Lane::kCompute ? phase.kind
                                                       : planner::PhaseKind::kAfterStep;
        }
      }
      return planner::PhaseKind::kAfterStep;
    };
    std::map<uint32_t, int64_t> registers;
    for (const planner::ChannelPlan& channel : program.channels) {
      if (channel.reg == planner::kNone) continue;
      if (kind_of(channel.producer) != planner::PhaseKind::kForward) continue;
      if (kind_of(channel.consumer) != planner::PhaseKind::kBackward) continue;
      registers[channel.reg] = static_cast<int64_t>(program.registers[channel.reg].slot_bytes);
    }
    int64_t bytes = 0;
    for (const auto& [index, size] : registers) bytes += size;
    return bytes;
  }

  const graph::ModelRegistry models_;
  const graph::Model& gpt_;
  int64_t num_parameters_ = 0;
};

// In each layer 2 all_reduces forward and 2 backward; outside the layers 1 for the embedding, 1 for
// the head's input gradient, 3 of the split loss (maximum, sum of exponentials, label) and 1 scalar
// for the norm of the gradients.
TEST_F(StrategyQualityTest, TensorParallel) {
  const Setting setting = {"tp=2"};
  const std::map<std::string, Traffic> traffic = TrafficOf(PlanOf(setting));
  const int64_t activation = kBatch * kContext * setting.width * 4;
  const int64_t per_token = kBatch * kContext * 4;
  EXPECT_THAT(traffic, UnorderedElementsAre(
                           Pair("all_reduce",
                                Traffic{4 * setting.layers + 5,
                                        (4 * setting.layers + 2) * activation + 3 * per_token}),
                           Pair("all_reduce scalar", Traffic{1, 4})));
}

// What the tests here count in a whole step, told apart by the pass that it belongs to; without the
// sums of parameters' gradients. With L layers: of tp, 2 L sums in either pass, and one for the
// embedding, three for the loss and one for the head's input gradient; of sp, as many pairs, and
// what the gradients of weights gather again; of the ring with c devices, (c - 1) L exchanges
// forward, and twice as many backward; of Ulysses, 2 L each way.
TEST_F(StrategyQualityTest, EachPassCommunicatesAsExpected) {
  constexpr int kLayers = 4;
  using Counts = std::map<std::string, int>;
  struct Case {
    std::string strategy;
    Counts forward;
    Counts backward;         // of activations
    Counts weight_backward;  // of parameters
  };
  const Case cases[] = {
      {"tp=2", {{"all_reduce", 2 * kLayers + 1 + 3}}, {{"all_reduce", 2 * kLayers + 1}}, {}},
      {"tp=2,sp=true",
       {{"reduce_scatter", 2 * kLayers + 1}, {"all_gather", 2 * kLayers + 1}, {"all_reduce", 3}},
       {{"reduce_scatter", 2 * kLayers + 1}, {"all_gather", 2 * kLayers}},
       {{"all_gather", 2 * kLayers + 1}, {"reduce_scatter", 1}}},  // of the embedding's table
      {"cp=2", {{"permute", kLayers}}, {{"permute", 2 * kLayers}}, {}},
      {"cp=4", {{"permute", 3 * kLayers}}, {{"permute", 6 * kLayers}}, {}},
      {"cp=2,ulysses=true", {{"all_to_all", 2 * kLayers}}, {{"all_to_all", 2 * kLayers}}, {}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.strategy);
    const graph::Graph lowered = Lower(TrainingGraph({c.strategy}));
    EXPECT_EQ(CountsOf(lowered, graph::Phase::kForward), c.forward);
    EXPECT_EQ(CountsOf(lowered, graph::Phase::kBackward), c.backward);
    EXPECT_EQ(CountsOf(lowered, graph::Phase::kWeightBackward), c.weight_backward);
  }
}

// Each sum of activations is reduced in as many parts: the same bytes, and hardly more memory. The
// sums of the split loss are too small for that.
TEST_F(StrategyQualityTest, TensorParallelInSubBatches) {
  const Setting setting = {"tp=2"};
  const Plan whole = PlanOf(setting);
  const int64_t activation = kBatch * kContext * setting.width * 4;
  const int64_t per_token = kBatch * kContext * 4;
  const int64_t sums = 4 * setting.layers + 2;
  for (const int64_t count : {2, 4}) {
    SCOPED_TRACE(count);
    const Plan plan = PlanOf({StrCat("tp=2,subbatches=", count)});
    EXPECT_THAT(TrafficOf(plan),
                UnorderedElementsAre(Pair("all_reduce", Traffic{count * sums + 3,
                                                                sums * activation + 3 * per_token}),
                                     Pair("all_reduce scalar", Traffic{1, 4})));
    EXPECT_EQ(StashBytes(plan), StashBytes(whole));
    EXPECT_LT(static_cast<double>(plan.devices[0].arena_bytes),
              1.08 * static_cast<double>(whole.devices[0].arena_bytes));
    // What is whole is not copied to be read in parts.
    EXPECT_EQ(CountKernels(plan, "local_slice"), CountKernels(whole, "local_slice"));
  }
}

// Each all_reduce of tensor parallelism becomes a reduce_scatter and an all_gather; 2 more
// all_gathers a layer backward, and 1 for the head, gather again what was gathered for the weights'
// products: kept from forward to backward, it would take the memory that sp saves. The gradients of
// norms and of the biases on the residual stream are summed over tp, in one bucket.
TEST_F(StrategyQualityTest, SequenceParallel) {
  const Setting setting = {"tp=2,sp=true"};
  const Plan plan = PlanOf(setting);
  const std::map<std::string, Traffic> traffic = TrafficOf(plan);
  const int64_t activation = kBatch * kContext * setting.width * 4;
  const int64_t per_token = kBatch * kContext * 4;
  const int64_t scatters = 4 * setting.layers + 2;
  const int64_t gathers = 6 * setting.layers + 3;
  // In each layer two norms and the biases of two projections; the last norm.
  const int64_t summed = (6 * setting.layers + 2) * setting.width * 4;
  // Better than expected at the embedding: its gradient is scattered as a table of terms, which is
  // half of the residual stream's gradient that would have been gathered.
  const int64_t table = kVocabulary * setting.width * 4;
  EXPECT_THAT(traffic,
              UnorderedElementsAre(
                  Pair("reduce_scatter", Traffic{scatters + 1, scatters * activation + table}),
                  Pair("all_gather", Traffic{gathers - 1, (gathers - 1) * activation}),
                  Pair("all_reduce", Traffic{4, 3 * per_token + summed}),
                  Pair("all_reduce scalar", Traffic{1, 4})));
  EXPECT_LT(plan.devices[0].channel_bytes, PlanOf({"tp=2"}).devices[0].channel_bytes);
}

// Each device sends its part of the activations of its micro-batches, and of their gradients: 1/tp
// of the bytes that it holds. So it does with the table of tokens, which both ends of the model
// read, and its gradient: tp splits those anyway. What is left are the scalars of the optimiser.
TEST_F(StrategyQualityTest, TensorParallelStagesSendEachByteOnce) {
  constexpr int64_t kScalars = 64;
  for (const int64_t tp : {2, 4}) {
    SCOPED_TRACE(StrCat("tp=", tp));
    const Setting whole = {"pp=2", 4};
    const Setting split = {StrCat("tp=", tp, ",pp=2"), 4};
    const Plan alone = PlanOf(whole);
    const Plan plan = PlanOf(split);
    const int64_t activation = kBatch * kContext * split.width * 4;
    const int64_t table = kVocabulary * split.width * 4;
    const int64_t per_token = kBatch * kContext * 4;
    for (const uint32_t stage : {0, 1}) {
      const int64_t whole_bytes = activation + table;
      EXPECT_NEAR(SentBytes(alone, stage), whole_bytes, kScalars);
      for (const uint32_t device : plan.stages[stage].devices) {
        EXPECT_NEAR(SentBytes(plan, device), whole_bytes / tp, kScalars);
      }
    }
    // In each micro-batch, the first stage has the 4 sums of 2 layers and that of the embedding, of
    // which the last, before its send, is scattered; the second has those of the other layers, of
    // the head's input gradient and of the loss. Each gathers what arrives once.
    const auto expect = [&](uint32_t device, int64_t reduced, int64_t scattered, int64_t losses) {
      std::map<std::string, Traffic> traffic = TrafficOf(plan, device);
      traffic.erase("all_reduce scalar");
      std::map<std::string, Traffic> expected = {
          {"all_reduce", {4 * (reduced + losses), reduced * activation + losses * per_token}},
          {"all_gather", {4, activation}}};
      if (scattered > 0) expected["reduce_scatter"] = {4 * scattered, scattered * activation};
      EXPECT_EQ(traffic, expected) << "device " << device;
    };
    expect(plan.stages[0].devices[0], 4 * 2, 1, 0);
    expect(plan.stages[1].devices[0], 4 * 2 + 1, 0, 3);
  }
}

// The gradients that are worth it are scattered and their parameters gathered, once a step, in
// buckets. Those of norms and biases share one all_reduce: the expected counts would scatter them
// too, but parts of 64 to 256 elements are not worth the memory of their states. The scalars are
// the loss and the norm of the gradients: though some are in parts and some are not, their squares
// are added before they are reduced.
TEST_F(StrategyQualityTest, ZeroScattersGradientsAndGathersParameters) {
  for (const int level : {1, 2}) {
    for (const int64_t microbatches : {1, 4}) {
      const Setting setting = {StrCat("dp=4,zero=", level), microbatches, kLayerBucket};
      SCOPED_TRACE(StrCat(setting.strategy, ", ", microbatches));
      const Plan plan = PlanOf(setting);
      const Split split = SplitOf(setting);
      // With several micro-batches, level 2 scatters in each and level 1 once a step.
      const int64_t scatters = level == 2 ? microbatches : 1;
      const std::map<std::string, int64_t> tensors = TensorsOf(plan);
      EXPECT_EQ(tensors.at("reduce_scatter"), scatters * split.tensors);
      EXPECT_EQ(tensors.at("all_gather"), split.tensors);
      // Of 18 tensors in four layers. Sums over micro-batches are scattered a layer at a time.
      const int64_t scattered = level == 1 && microbatches > 1 ? 6 : 13;
      const int64_t gathered = 5;
      EXPECT_THAT(TrafficOf(plan),
                  UnorderedElementsAre(
                      Pair("reduce_scatter", Traffic{scatters * scattered, scatters * split.bytes}),
                      Pair("all_gather", Traffic{gathered, split.bytes}),
                      Pair("all_reduce", Traffic{1, split.rest_bytes}),
                      Pair("all_reduce scalar", Traffic{2, 8})));
    }
  }
}

// One scatter of each gradient; two gathers of what backward reads, that is of all but the
// positions, one of those; both in buckets, of which those of gathers have half a layer, so that
// the other half is gathered meanwhile.
TEST_F(StrategyQualityTest, ZeroThreeGathersParametersInEachPhase) {
  for (const int64_t microbatches : {1, 4}) {
    SCOPED_TRACE(microbatches);
    const Setting setting = {"dp=4,zero=3", microbatches, kLayerBucket};
    const Plan plan = PlanOf(setting);
    const Split split = SplitOf(setting);
    const int64_t positions = kContext * setting.width * 4;
    const std::map<std::string, int64_t> tensors = TensorsOf(plan);
    EXPECT_EQ(tensors.at("reduce_scatter"), microbatches * split.tensors);
    EXPECT_EQ(tensors.at("all_gather"), microbatches * (2 * split.tensors - 1));
    const int64_t scatters = 13;  // of 18
    const int64_t gathers = 26;   // of 35
    EXPECT_THAT(
        TrafficOf(plan),
        UnorderedElementsAre(
            Pair("reduce_scatter", Traffic{microbatches * scatters, microbatches * split.bytes}),
            Pair("all_gather",
                 Traffic{microbatches * gathers, microbatches * (2 * split.bytes - positions)}),
            Pair("all_reduce", Traffic{1, split.rest_bytes}),
            Pair("all_reduce scalar", Traffic{2, 8})));
  }
}

// What is gathered in 16 bits is gathered like the parameters themselves: in no more collectives,
// though some activations are gathered as well, as they are smaller than gradients in f32.
TEST_F(StrategyQualityTest, FullyShardedDataParallelInMixedPrecision) {
  for (const int64_t microbatches : {1, 4}) {
    SCOPED_TRACE(microbatches);
    Setting setting = {"dp=4,zero=3", microbatches, kLayerBucket};
    const Plan f32 = PlanOf(setting);
    setting.precision = DType::kBF16;
    const Plan bf16 = PlanOf(setting);
    EXPECT_GE(TensorsOf(bf16).at("all_gather"), TensorsOf(f32).at("all_gather"));
    EXPECT_LE(TrafficOf(bf16).at("all_gather").count, TrafficOf(f32).at("all_gather").count);
    EXPECT_LT(TrafficOf(bf16).at("all_gather").bytes,
              0.6 * static_cast<double>(TrafficOf(f32).at("all_gather").bytes));
  }
}

// Gradients in 16 bits take half the bytes, in as many collectives as those in f32 or fewer, since
// more of them fit into a bucket. Those of several micro-batches are rounded after the last one and
// then reduced in buckets beside its backward pass: as in f32, only the gradient of the embedding,
// which is the sum of two, is left to the update. ZeRO scatters each micro-batch's from level 2 on,
// but that one once.
TEST_F(StrategyQualityTest, GradientsIn16Bits) {
  const auto count_in_update = [](const Plan& plan) {
    const planner::DevicePlan& device = plan.devices[0];
    int64_t count = 0;
    for (const planner::PhasePlan& phase : device.phases) {
      if (phase.lane != planner::Lane::kPerStep) continue;
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        if (device.actors[a].kind != ActorKind::kCollective) continue;
        const CollectiveSpec& spec = plan.collectives[device.actors[a].target];
        count += spec.kind != CollectiveKind::kAllGather ? 1 : 0;
      }
    }
    return count;
  };
  for (const std::string_view strategy : {"dp=4", "dp=4,zero=1", "dp=4,zero=2", "dp=4,zero=3"}) {
    for (const int64_t microbatches : {1, 4}) {
      SCOPED_TRACE(StrCat(strategy, ", ", microbatches));
      Setting setting = {std::string(strategy), microbatches, kLayerBucket};
      const Plan plan = PlanOf(setting);
      const std::map<std::string, Traffic> f32 = TrafficOf(plan);
      setting.gradient_dtype = DType::kBF16;
      const Plan rounding_plan = PlanOf(setting);
      const std::map<std::string, Traffic> bf16 = TrafficOf(rounding_plan);
      const bool scatters_often = microbatches > 1 && (*planner::ParseStrategy(strategy))->zero > 1;
      for (const auto& [kind, traffic] : f32) {
        SCOPED_TRACE(kind);
        ASSERT_TRUE(bf16.contains(kind));
        const bool are_gradients = kind == "all_reduce" || kind == "reduce_scatter";
        EXPECT_LE(bf16.at(kind).bytes, are_gradients ? traffic.bytes / 2 : traffic.bytes);
        EXPECT_LE(bf16.at(kind).count, traffic.count + (scatters_often ? 1 : 0));
      }
      EXPECT_LE(count_in_update(rounding_plan), count_in_update(plan) + (scatters_often ? 1 : 0));
    }
  }
}

// Before they are rounded, the sums of micro-batches take the memory that they take in f32; what is
// rounded shares bytes with what the last backward pass has read.
TEST_F(StrategyQualityTest, GradientsIn16BitsTakeLittleMemoryMore) {
  for (const std::string_view strategy : {"dp=4", "dp=4,zero=1"}) {
    SCOPED_TRACE(strategy);
    Setting setting = {std::string(strategy), 4, kLayerBucket};
    const uint64_t f32 = PlanOf(setting).devices[0].arena_bytes;
    setting.gradient_dtype = DType::kBF16;
    const uint64_t rounded_bytes = 2 * static_cast<uint64_t>(num_parameters_);
    EXPECT_LE(PlanOf(setting).devices[0].arena_bytes, f32 + rounded_bytes);
  }
}

// In each layer c - 1 exchanges of keys and values forward; backward as many again, and as many of
// the gradients that follow them. Beside them only gradients are summed, once; those of the
// positions belong to a part of the sequence, and are not.
TEST_F(StrategyQualityTest, RingAttention) {
  for (const int64_t cp : {2, 4}) {
    Setting setting = {StrCat("cp=", cp)};
    setting.bucket_bytes = 64 << 20;
    SCOPED_TRACE(setting.strategy);
    const Plan plan = PlanOf(setting);
    const int64_t exchanges = 3 * (cp - 1) * setting.layers;
    const int64_t keys_and_values = 2 * kBatch * kContext * setting.width * 4;
    const int64_t positions = kContext * setting.width * 4;
    EXPECT_THAT(
        TrafficOf(plan),
        UnorderedElementsAre(Pair("permute", Traffic{exchanges, exchanges * keys_and_values}),
                             Pair("all_reduce", Traffic{1, 4 * num_parameters_ - positions}),
                             Pair("all_reduce scalar", Traffic{2, 8})));
    // What is kept from forward to backward is what data parallelism keeps.
    Setting data = setting;
    data.strategy = StrCat("dp=", cp);
    EXPECT_LE(plan.devices[0].channel_bytes, PlanOf(data).devices[0].channel_bytes);
  }
}

// An all_to_all of queries, keys and values before attention and one of its result, and backward
// one of the result's gradient and one of theirs.
TEST_F(StrategyQualityTest, UlyssesMovesWhatAttentionReadsAndMakes) {
  for (const int64_t cp : {2, 4}) {
    Setting setting = {StrCat("cp=", cp, ",ulysses=true")};
    setting.bucket_bytes = 64 << 20;
    SCOPED_TRACE(setting.strategy);
    const Plan plan = PlanOf(setting);
    const int64_t activation = kBatch * kContext * setting.width * 4;
    const int64_t positions = kContext * setting.width * 4;
    EXPECT_THAT(
        TrafficOf(plan),
        UnorderedElementsAre(
            Pair("all_to_all", Traffic{4 * setting.layers, 8 * setting.layers * activation}),
            Pair("all_reduce", Traffic{1, 4 * num_parameters_ - positions}),
            Pair("all_reduce scalar", Traffic{2, 8})));
  }
}

// Beside tp, each form of attention moves what it moves alone, over the heads that tp splits, and
// tp and sp communicate as without cp; but that the gradient of the embedding is half as large as
// before, and its table no less.
TEST_F(StrategyQualityTest, ContextBesideTensorParallel) {
  for (const char* attention : {"", ",ulysses=true"}) {
    for (const bool sp : {false, true}) {
      const Setting setting = {StrCat("tp=2,cp=2", attention, sp ? ",sp=true" : "")};
      SCOPED_TRACE(setting.strategy);
      const std::map<std::string, Traffic> traffic = TrafficOf(PlanOf(setting));
      const int64_t half = kBatch * kContext * setting.width * 4 / 2;
      if (std::string_view(attention).empty()) {
        EXPECT_EQ(traffic.at("permute"), (Traffic{3 * setting.layers, 6 * setting.layers * half}));
      } else {
        EXPECT_EQ(traffic.at("all_to_all"),
                  (Traffic{4 * setting.layers, 8 * setting.layers * half}));
      }
      ASSERT_EQ(traffic.contains("all_gather"), sp);
      if (!sp) continue;
      const int64_t gathers = 6 * setting.layers + 3;
      const int64_t scatters = 4 * setting.layers + 2;
      EXPECT_EQ(traffic.at("all_gather"), (Traffic{gathers, gathers * half}));
      EXPECT_EQ(traffic.at("reduce_scatter"), (Traffic{scatters, scatters * half}));
    }
  }
}

// ZeRO splits what cp replicates too.
TEST_F(StrategyQualityTest, ZeroSplitsOverDataAndContext) {
  const Setting setting = {"dp=2,cp=2,zero=1"};
  const Plan plan = PlanOf(setting);
  const std::map<std::string, Traffic> traffic = TrafficOf(plan);
  EXPECT_EQ(traffic.at("reduce_scatter").bytes, traffic.at("all_gather").bytes);
  EXPECT_EQ(TensorsOf(plan).at("reduce_scatter"), TensorsOf(plan).at("all_gather"));
  EXPECT_EQ(traffic.at("permute").count, 3 * setting.layers);
  const auto state_bytes = [&](const std::string& strategy) {
    return static_cast<double>(PlanOf({strategy}).devices[0].state_bytes);
  };
  EXPECT_NEAR(state_bytes("dp=2,cp=2,zero=1"), state_bytes("dp=4,zero=1"),
              0.02 * state_bytes("dp=4"));
  EXPECT_NEAR(state_bytes("dp=2,cp=2,zero=3"), state_bytes("dp=4,zero=3"),
              0.02 * state_bytes("dp=4"));
}

// Beside tp, the collectives of either stay as they are, over parts of half the size.
TEST_F(StrategyQualityTest, ZeroBesideTensorParallel) {
  const Setting setting = {"dp=2,tp=2,zero=1"};
  const Plan plan = PlanOf(setting);
  const std::map<std::string, Traffic> traffic = TrafficOf(plan);
  EXPECT_EQ(TensorsOf(plan).at("reduce_scatter"), 4 * setting.layers + 2);
  EXPECT_EQ(TensorsOf(plan).at("all_gather"), 4 * setting.layers + 2);
  EXPECT_EQ(traffic.at("all_gather").bytes, traffic.at("reduce_scatter").bytes);
  EXPECT_EQ(traffic.at("all_reduce").count, 4 * setting.layers + 6);
  EXPECT_EQ(traffic.at("all_reduce scalar").count, 2);
}

// Nothing is copied on the way: parts are updated where the parameters lie, and scattered where the
// gradients do.
TEST_F(StrategyQualityTest, ZeroCopiesNothing) {
  for (const char* strategy : {"dp=4,zero=1", "dp=4,zero=2", "dp=4,zero=3"}) {
    for (const int64_t microbatches : {1, 4}) {
      const Plan plan = PlanOf({strategy, microbatches});
      for (const planner::ActorPlan& actor : plan.devices[0].actors) {
        if (actor.kind != ActorKind::kKernel) continue;
        const planner::KernelPlan& kernel = plan.kernels[actor.kernel];
        if (kernel.outputs[0].num_elements() <= 1) continue;
        const std::string& op = kernel.op;
        EXPECT_TRUE(op != "pack" && op != "unpack" && op != "copy" && op != "local_slice")
            << actor.name << " of " << strategy;
      }
    }
  }
}

// Bytes of device 0 that pass from its forward to its backward phase.
double StashedBytes(const Plan& plan) {
  const planner::DevicePlan& device = plan.devices[0];
  const auto kind_of = [&](uint32_t actor) {
    const auto phase = std::find_if(
        device.phases.begin(), device.phases.end(),
        [actor](const planner::PhasePlan& p) { return actor < p.first_actor + p.num_actors; });
    return phase->kind;
  };
  std::set<uint32_t> stashed;
  for (const planner::ChannelPlan& channel : device.channels) {
    if (channel.reg != planner::kNone &&
        kind_of(channel.producer) == planner::PhaseKind::kForward &&
        kind_of(channel.consumer) == planner::PhaseKind::kBackward) {
      stashed.insert(channel.reg);
    }
  }
  double bytes = 0;
  for (const uint32_t reg : stashed) {
    bytes += static_cast<double>(device.registers[reg].slots * device.registers[reg].slot_bytes);
  }
  return bytes;
}

// Bytes of a device for parameters, gradients and states, in f32 with AdamW on N devices: 8 + 8/N
// (level 1), 4 + 12/N (2) and 16/N (3) times the number of parameters, within 5 %. With several
// micro-batches, activations are what a plan without ZeRO has beyond 16 a parameter; with one,
// gradients lie where activations were, so those are counted by themselves. Beside these, a phase
// has a few tensors at a time: named below.
TEST_F(StrategyQualityTest, ZeroTakesTheMemoryOfItsParts) {
  constexpr double kDevices = 4;
  for (const int64_t microbatches : {1, 4}) {
    Setting setting = {"dp=4", microbatches};
    setting.layers = 12;
    setting.bucket_bytes = 256 << 10;
    double stashed = 0;
    const auto arena = [&](const std::string& strategy) {
      setting.strategy = strategy;
      const Plan plan = PlanOf(setting);
      stashed = StashedBytes(plan);
      return static_cast<double>(plan.devices[0].arena_bytes);
    };
    const double whole = arena("dp=4");
    const auto parameters = static_cast<double>(num_parameters_);
    const double activations = microbatches == 1 ? stashed : whole - 16 * parameters;
    const auto weight = static_cast<double>(4 * setting.width * setting.width * 4);  // the largest
    const auto table = static_cast<double>(kVocabulary * setting.width * 4);
    // One gradient is made while the one before is scattered; that of the tied embedding is begun
    // by the first layer and completed by the last.
    const double scattered = 2 * weight + table;
    // One parameter is gathered while the one before is used; the tied embedding is held from the
    // first use in a forward to the second.
    const double gathered = 2 * weight + table;
    const struct {
      int level;
      double bytes;
      double beside;
    } expected[] = {
        // With one micro-batch, gradients are scattered as they are made: better than 8 + 8/N.
        {1, microbatches == 1 ? 4 + 12 / kDevices : 8 + 8 / kDevices,
         microbatches == 1 ? scattered : 0},
        {2, 4 + 12 / kDevices, scattered},
        {3, 16 / kDevices, scattered + gathered},
    };
    for (const auto& [level, bytes, beside] : expected) {
      const double found = arena(StrCat("dp=4,zero=", level)) - activations;
      EXPECT_LE(found, 1.05 * bytes * parameters + beside)
          << "zero=" << level << ", " << microbatches << ": " << found / parameters;
      if (microbatches == 1) {
        const double of_states = level == 3 ? 12 / kDevices : 4 + 8 / kDevices;
        EXPECT_GE(found + activations, 0.95 * of_states * parameters) << "zero=" << level;
      } else {
        EXPECT_GE(found, 0.95 * bytes * parameters) << "zero=" << level << ", " << microbatches;
      }
    }
  }
}

// Of each layer, its input alone is kept with recompute=full; selective keeps ten tensors of the
// input's size and log-sums instead of sixteen: the activation function's result (four), and those
// of the norms (two) are computed again.
TEST_F(StrategyQualityTest, RecomputeKeepsLayerInputs) {
  const double activation = kBatch * kContext * 256 * 4;
  const auto kept_of_layer = [&](const std::string& strategy) {
    Setting setting = {strategy};
    const int64_t few = StashBytes(PlanOf(setting));
    setting.layers = 8;
    return static_cast<double>(StashBytes(PlanOf(setting)) - few) / 4 / activation;
  };
  const double none = kept_of_layer("dp=1");
  const double selective = kept_of_layer("recompute=selective");
  EXPECT_EQ(kept_of_layer("recompute=full"), 1);
  EXPECT_NEAR(none, 16, 0.16);
  EXPECT_NEAR(selective, 10, 0.1);
  // Segments are cut at the stages' bounds too.
  EXPECT_EQ(kept_of_layer("dp=2,recompute=full"), 0.5);
  EXPECT_EQ(kept_of_layer("tp=2,sp=true,recompute=full"), 0.5);
}

// The arena shrinks too.
TEST_F(StrategyQualityTest, RecomputeTakesLessMemory) {
  const auto arena = [&](const std::string& strategy) {
    Setting setting = {strategy};
    setting.layers = 12;
    return PlanOf(setting).devices[0].arena_bytes;
  };
  const uint64_t none = arena("dp=1");
  const uint64_t selective = arena("recompute=selective");
  const uint64_t full = arena("recompute=full");
  EXPECT_GT(none, selective);
  EXPECT_GT(selective, full);
}

// With full, one all_reduce a layer more in backward, of the attention's projection: the last one
// of a layer makes the input of the next, which is kept, and nothing of this layer reads it.
// Selective communicates nothing again.
TEST_F(StrategyQualityTest, RecomputeUnderTensorParallel) {
  const int64_t layers = 4;
  const int64_t activation = kBatch * kContext * 256 * 4;
  const std::map<std::string, Traffic> none = TrafficOf(PlanOf({"tp=2"}));
  EXPECT_EQ(TrafficOf(PlanOf({"tp=2,recompute=selective"})), none);
  std::map<std::string, Traffic> full = none;
  full["all_reduce"].count += layers;
  full["all_reduce"].bytes += layers * activation;
  EXPECT_EQ(TrafficOf(PlanOf({"tp=2,recompute=full"})), full);
  EXPECT_EQ(TrafficOf(PlanOf({"tp=2,sp=true,recompute=selective"})),
            TrafficOf(PlanOf({"tp=2,sp=true"})));
}

// Parameters are gathered once for what is computed again and its gradients.
TEST_F(StrategyQualityTest, RecomputeGathersNoParameterAgain) {
  const std::map<std::string, Traffic> again = TrafficOf(PlanOf({"dp=4,zero=3,recompute=full"}));
  const std::map<std::string, Traffic> once = TrafficOf(PlanOf({"dp=4,zero=3"}));
  EXPECT_EQ(again.at("all_gather").bytes, once.at("all_gather").bytes);
  EXPECT_EQ(again.at("reduce_scatter"), once.at("reduce_scatter"));
}

}  // namespace
}  // namespace penstock::testing
