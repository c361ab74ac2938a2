// Random programs give the values and states of one device, however they are split over devices, in
// time and over stages. What fails is shrunk and printed in the text format.
//
// PENSTOCK_PROPERTY_CASES and PENSTOCK_PROPERTY_SEED choose the number of cases and the first seed;
// a failure names its seed, and PENSTOCK_PROPERTY_SEED=it PENSTOCK_PROPERTY_CASES=1 runs it alone.
// A share of the cases runs over several processes too.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "gtest/gtest.h"

#include "actors/cluster/cluster.h"
#include "actors/session/session.h"
#include "actors/session/state_init.h"
#include "actors/session/stream_launches.h"
#include "base/emulated_device.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "kernels/emulated/emulated_kernels.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/cost/kernel_cost.h"
#include "planner/plan/plan_io.h"
#include "planner/strategy/move_optimizer.h"
#include "tests/support/cluster_fixture.h"
#include "tests/support/interpreter.h"
#include "tests/support/random_graph.h"
#include "tests/support/shrink.h"
#include "tests/support/tested_plugin.h"
#include "transport/emulated/emulated_communicator.h"

namespace penstock::testing {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;

constexpr int kShards = 12;
constexpr int kDefaultCases = 2400;
constexpr int kCasesInCi = 1200;  // where CI is in the environment
constexpr int kCasesUnderSanitizers = 240;
constexpr int kMinOccurrences = 15;
constexpr double kLeastScale = 0.02;
constexpr int kProcessShards = 3;
constexpr int kEveryForProcesses = 5;  // of the cases; odd, so that there are cases of any kind
constexpr uint32_t kMaxProcesses = 4;

int64_t FromEnvironment(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : fallback;
}

int64_t NumCases() {
  int fallback = std::getenv("CI") == nullptr ? kDefaultCases : kCasesInCi;
  if (kSlowdown > 1) fallback = kCasesUnderSanitizers;
  return FromEnvironment("PENSTOCK_PROPERTY_CASES", fallback);
}
int64_t FirstSeed() { return FromEnvironment("PENSTOCK_PROPERTY_SEED", 0); }

// Registries that all cases share.
struct Registries : penstock::Registries {
  Registries() : penstock::Registries(TestedRegistries()) {}
  std::shared_ptr<const kernels::KernelRegistry> emulated_kernels =
      std::make_shared<const kernels::KernelRegistry>(kernels::EmulatedKernels(kernels));
};

// ------------------------------------------------------------------------------------ comparison

double Element(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::kF32:
      return tensor.As<float>()[i];
    case DType::kF64:
      return tensor.As<double>()[i];
    case DType::kI8:
      return tensor.As<int8_t>()[i];
    case DType::kU8:
      return tensor.As<uint8_t>()[i];
    case DType::kI32:
      return tensor.As<int32_t>()[i];
    case DType::kI64:
      return static_cast<double>(tensor.As<int64_t>()[i]);
    case DType::kBool:
      return tensor.As<bool>()[i] ? 1 : 0;
    default:
      return NAN;
  }
}

bool IsFinite(const Tensor& tensor) {
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    if (!std::isfinite(Element(tensor, i))) return false;
  }
  return true;
}

// The first integer or bool that is not the same, to the bit.
std::optional<std::string> ExactDifference(const Tensor& got, const Tensor& want) {
  const auto* got_bytes = static_cast<const std::byte*>(got.data());
  const auto* want_bytes = static_cast<const std::byte*>(want.data());
  const size_t size = ByteSize(want.dtype());
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    if (std::memcmp(got_bytes + i * size, want_bytes + i * size, size) == 0) continue;
    return StrCat("element ", i, " of ", ToString(want.type()), " is ", Element(got, i),
                  " instead of ", Element(want, i), ", which is to be exact");
  }
  return std::nullopt;
}

// What differs, in words; floats may differ by `tolerance` times the largest magnitude, or of
// smaller ones by what rounding leaves of terms that cancel.
std::optional<std::string> Difference(const Tensor& got, const Tensor& want, double tolerance) {
  if (got.type() != want.type()) {
    return StrCat("is ", ToString(got.type()), " instead of ", ToString(want.type()));
  }
  if (!IsFloat(want.dtype())) return ExactDifference(got, want);
  double scale = kLeastScale;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    scale = std::max(scale, std::abs(Element(want, i)));
  }
  const double allowed = tolerance * scale;
  int64_t worst = -1;
  double worst_by = allowed;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    const double by = std::abs(Element(got, i) - Element(want, i));
    if (by <= worst_by) continue;
    worst = i;
    worst_by = by;
    if (std::isnan(by)) break;
  }
  if (worst < 0) return std::nullopt;
  return StrCat("element ", worst, " of ", ToString(want.type()), " is ", Element(got, worst),
                " instead of ", Element(want, worst), ", off by ", worst_by, " (allowed ", allowed,
                ")");
}

// The mean of nothing is NaN, which plans need not give as the reference does.
bool HasEmptyValues(const Graph& graph) {
  for (graph::ValueId value = 0; value < graph.num_values(); ++value) {
    if (NumElements(graph.value(value).type.shape) == 0) return true;
  }
  return false;
}

absl::Status NotFinite() { return absl::OutOfRangeError("the reference is not finite"); }

double ToleranceOf(const Graph& graph) {
  for (graph::ValueId value = 0; value < graph.num_values(); ++value) {
    if (graph.value(value).type.dtype == DType::kF32) return 5e-4;
  }
  return 1e-9;
}

// ---------------------------------------------------------------------------------- running a case

std::map<std::string, Tensor> InitialStates(const Graph& graph, uint64_t seed) {
  std::map<std::string, Tensor> states;
  for (const Node& node : graph.nodes()) {
    const std::string_view op = node.op->name();
    if (op != "parameter" && op != "state") continue;
    const graph::Value& value = graph.value(node.results[0]);
    planner::StatePlan plan;
    plan.type = value.type;
    plan.init = node.attributes.GetString("init", op == "parameter" ? "normal" : "zeros");
    plan.std = node.attributes.GetDouble("std", 0.02);
    plan.stream = static_cast<uint32_t>(node.attributes.GetInt("stream", 0));
    Tensor tensor(value.type);
    actors::InitState(plan, {0, 0, WholeTile(value.type)}, seed, 0, tensor.num_bytes(),
                      tensor.data());
    states[value.name] = std::move(tensor);
  }
  return states;
}

actors::Feeds MakeFeeds(const RandomCase& test, int step) {
  actors::Feeds feeds;
  for (const Node& node : test.graph.nodes()) {
    if (node.op->name() != "input") continue;
    const graph::Value& value = test.graph.value(node.results[0]);
    const auto range = test.inputs.find(value.name);
    feeds[value.name] =
        MakeInput(value.type, range == test.inputs.end() ? InputRange{} : range->second, test.seed,
                  value.name, step);
  }
  return feeds;
}

// Whether the parameters and the update have a stage of their own: in half of the cases where that
// may be.
bool MovesOptimizer(const Registries& registries, const RandomCase& test) {
  Graph moved = test.graph;
  return test.seed % 2 == 0 &&
         planner::CheckMovedOptimizer(*registries.policies.Find(test.policy), test.chunks_per_group)
             .ok() &&
         planner::MoveOptimizer(registries.ops, moved).ok();
}

planner::CompileOptions CompileOptionsOf(const Registries& registries, const RandomCase& test) {
  planner::CompileOptions options;
  options.policy = test.policy;
  options.policies = &registries.policies;
  options.kernels = kernels::TraitsOf(registries.kernels, 1);
  options.split_weight_gradients = test.split_weight_gradients;
  options.chunks_per_group = test.chunks_per_group;
  // The tensors are small: without latency, three quarters of the cases split what they send.
  if (test.seed % 4 != 1) options.send_costs.collective = 0;
  options.sub_batch_bytes = 0;
  // Some tensors are larger than a bucket.
  if (test.seed % 3 == 1) options.bucket_bytes = 256;
  // In a third of the cases on all devices, in another on some stages.
  if (test.seed % 3 > 0) {
    options.fuses_epilogues = [is_everywhere = test.seed % 3 == 1](uint32_t first, uint32_t) {
      return is_everywhere || first % 4 == 0;
    };
  }
  options.optimizer_on_host = MovesOptimizer(registries, test);
  return options;
}

// The case's plan. Half of the cases have their collectives made in other ways than the planner's,
// over hosts of any kind: they have to give the same values.
absl::StatusOr<planner::Plan> CompileCase(const Registries& registries, const RandomCase& test,
                                          const planner::CompileOptions& options) {
  constexpr CollectiveAlgorithm kAlgorithms[] = {
      CollectiveAlgorithm::kDirect, CollectiveAlgorithm::kRing, CollectiveAlgorithm::kHierarchical};
  ASSIGN_OR_RETURN(const planner::FoldedPlan folded,
                   planner::CompileFolded(registries.ops, test.graph, options));
  ASSIGN_OR_RETURN(const std::string bytes, planner::PlanToBytes(folded));
  ASSIGN_OR_RETURN(planner::Plan plan, planner::PlanFromBytes(bytes));
  planner::CompileOptions unfolded = options;
  unfolded.fold = false;
  ASSIGN_OR_RETURN(const planner::Plan spelled_out,
                   planner::Compile(registries.ops, test.graph, unfolded));
  EXPECT_TRUE(plan == spelled_out)
      << "seed " << test.seed << ": devices that share a program differ";
  RETURN_IF_ERROR(planner::CheckKernelTiles(registries.ops, plan.kernels));
  if (const auto launches = actors::PlanStreamLaunches(plan, registries.policies); launches.ok()) {
    EXPECT_EQ(launches->why_not_messages, "") << "seed " << test.seed;
  } else if (!absl::StrContains(launches.status().message(), "decides in which order")) {
    return launches.status();  // only a policy that decides while the plan runs leaves none
  }
  std::mt19937_64 random(test.seed);
  if (random() % 2 == 0) return plan;
  for (CollectiveSpec& spec : plan.collectives) {
    spec.algorithm = kAlgorithms[random() % std::size(kAlgorithms)];
    spec.chunk_bytes = int64_t{64} << random() % 12;
    spec.hosts.clear();
    if (spec.algorithm != CollectiveAlgorithm::kHierarchical) continue;
    for (size_t i = 0; i < spec.devices.size(); ++i) {
      spec.hosts.push_back(static_cast<uint32_t>(random() % spec.devices.size()));
    }
  }
  return plan;
}

// What a case runs on: CPUs, devices that behave like GPUs, or some of each.
enum class Devices { kCpu, kEmulated, kMixed };

// A quarter of the cases have emulated devices, and a third of those have CPUs as well.
Devices DevicesOf(const RandomCase& test) {
  if (test.seed % 4 != 3) return Devices::kCpu;
  return test.seed % 3 == 0 ? Devices::kMixed : Devices::kEmulated;
}

// Half of the emulated devices have a thread of their own. In half of the cases where all devices
// are emulated, they run their collectives themselves.
void UseDevices(Devices devices, const Registries& registries, uint64_t seed,
                actors::SessionOptions* options) {
  options->create_device = nullptr;
  options->create_communicator = nullptr;
  options->kernels = &registries.kernels;
  options->kernels_by_kind = {{"emulated", registries.emulated_kernels}};
  if (devices == Devices::kCpu) return;
  options->create_device = [=](uint32_t index) -> absl::StatusOr<std::unique_ptr<Device>> {
    std::seed_seq seeds{seed, uint64_t{index}};
    if (devices == Devices::kMixed && std::mt19937(seeds)() % 2 == 0) return nullptr;
    return EmulatedDevice::Create({.has_thread = seed % 16 < 8, .seed = seed * 8 + index});
  };
  if (devices == Devices::kEmulated && seed / 16 % 2 == 1) {
    options->create_communicator = transport::CreateEmulatedCommunicators();
  }
}

// Half of the emulated and half of the others fire in any order.
actors::SessionOptions SessionOptionsOf(const Registries& registries, const RandomCase& test) {
  actors::SessionOptions options;
  options.seed = test.seed;
  options.timeout = absl::Seconds(60);
  options.policies = &registries.policies;
  if (test.seed % 8 >= 4) options.firing_seed = test.seed;
  UseDevices(DevicesOf(test), registries, test.seed, &options);
  return options;
}

// Node processes, as many as a case can use, one job of each number and kind of devices for all
// cases.
class Processes {
 public:
  // For a plan of so many devices; null: an error was reported.
  absl::StatusOr<actors::Cluster*> For(size_t num_devices, Devices devices) {
    const auto count = std::min(static_cast<uint32_t>(num_devices), kMaxProcesses);
    std::unique_ptr<actors::Cluster>& cluster = clusters_[{count, devices}];
    if (cluster == nullptr) {
      actors::ClusterOptions options;
      options.num_processes = count;
      options.heartbeat_timeout *= kSlowdown;
      options.node_command = {PENSTOCK_COMMAND, "node"};
      if (kSlowdown > 1) {  // the command is not built with sanitizers
        options.node_command = {PENSTOCK_FAULTY_NODE};
      } else if (HasPluginUnderTest()) {
        options.node_command.insert(options.node_command.end(), {"--plugin", PluginUnderTest()});
      }
      if (devices != Devices::kCpu) {
        options.node_command = {PENSTOCK_FAULTY_NODE, "--devices",
                                devices == Devices::kEmulated ? "emulated" : "mixed"};
      }
      ASSIGN_OR_RETURN(cluster, actors::Cluster::Start(options));
    }
    return cluster.get();
  }
  // After a failure: the nodes may be gone.
  void Restart() { clusters_.clear(); }

 private:
  std::map<std::pair<uint32_t, Devices>, std::unique_ptr<actors::Cluster>> clusters_;
};

// Both ways to run a case, step by step, and what comes out of them compared. In this process, or
// over several.
class Comparison {
 public:
  Comparison(const Registries& registries, Processes* processes, const RandomCase& test)
      : registries_(registries),
        processes_(processes),
        test_(test),
        tolerance_(ToleranceOf(test.graph)),
        has_empty_values_(HasEmptyValues(test.graph)),
        states_(InitialStates(test.graph, test.seed)) {}

  // An error says what differs.
  absl::Status Run() {
    ASSIGN_OR_RETURN(planner::Plan plan,
                     CompileCase(registries_, test_, CompileOptionsOf(registries_, test_)));
    actors::SessionOptions options = SessionOptionsOf(registries_, test_);
    if (processes_ != nullptr) {
      ASSIGN_OR_RETURN(actors::Cluster * cluster,
                       processes_->For(plan.devices.size(), DevicesOf(test_)));
      options.start_engine = cluster->engine_factory();
    }
    ASSIGN_OR_RETURN(session_, actors::Session::Start(std::move(plan), options));
    // Half of the cases have all their steps under way at once.
    const bool is_overlapped = test_.seed % 2 == 1;
    for (int step = 0; step < test_.num_steps; ++step) {
      if (is_overlapped) {
        RETURN_IF_ERROR(session_->Submit(MakeFeeds(test_, step)).status());
        continue;
      }
      ASSIGN_OR_RETURN(const actors::StepResult got, session_->Run(MakeFeeds(test_, step)));
      RETURN_IF_ERROR(CheckStep(step, got));
      RETURN_IF_ERROR(CheckStates(step));
    }
    for (int step = 0; is_overlapped && step < test_.num_steps; ++step) {
      ASSIGN_OR_RETURN(const actors::StepResult got, session_->Wait(step));
      RETURN_IF_ERROR(CheckStep(step, got));
    }
    return CheckStates(test_.num_steps - 1);
  }

 private:
  // Runs the reference's step and compares the values returned.
  absl::Status CheckStep(int step, const actors::StepResult& got) {
    const actors::Feeds feeds = MakeFeeds(test_, step);
    std::map<std::string, Tensor> reference_feeds = states_;
    reference_feeds.insert(feeds.begin(), feeds.end());
    ASSIGN_OR_RETURN(Interpretation want,
                     InterpretStep(test_.graph, registries_.kernels, reference_feeds,
                                   {.seed = test_.seed, .step = step}));
    if (got.fetches.size() != want.returns.size()) {
      return absl::InternalError(
          StrCat(got.fetches.size(), " values returned instead of ", want.returns.size()));
    }
    for (const Tensor& value : want.returns) {
      if (!IsFinite(value) && !has_empty_values_) return NotFinite();
    }
    for (size_t i = 0; i < want.returns.size(); ++i) {
      const std::string& name = test_.graph.value(test_.graph.returns()[i].value).name;
      if (got.fetches[i].first != name) {
        return absl::InternalError(
            StrCat("return ", i, " is called ", got.fetches[i].first, " instead of ", name));
      }
      if (!IsFinite(want.returns[i])) continue;
      const std::optional<std::string> difference =
          Difference(got.fetches[i].second, want.returns[i], tolerance_);
      if (!difference) continue;
      return absl::InternalError(
          StrCat("step ", step, ", return ", i, " %", name, ": ", *difference));
    }
    for (auto& [name, value] : want.assigned) {
      if (!IsFinite(value) && !has_empty_values_) return NotFinite();
      states_[name] = std::move(value);
    }
    return absl::OkStatus();
  }

  // REQUIRES: the session has run as many steps as the reference.
  absl::Status CheckStates(int step) const {
    for (const planner::StatePlan& state : session_->plan().states) {
      ASSIGN_OR_RETURN(const Tensor held, session_->Fetch(state.name));
      if (!IsFinite(states_.at(state.name))) continue;
      const std::optional<std::string> difference =
          Difference(held, states_.at(state.name), tolerance_);
      if (!difference) continue;
      return absl::InternalError(
          StrCat("after step ", step, ", state %", state.name, ": ", *difference));
    }
    return absl::OkStatus();
  }

  const Registries& registries_;
  Processes* const processes_;
  const RandomCase& test_;
  const double tolerance_;
  const bool has_empty_values_;
  std::map<std::string, Tensor> states_;  // of the reference
  std::unique_ptr<actors::Session> session_;
};

absl::Status CheckCase(const Registries& registries, Processes* processes, const RandomCase& test) {
  const absl::Status status = Comparison(registries, processes, test).Run();
  if (processes != nullptr && !status.ok()) processes->Restart();
  return status;
}

// What kind of failure it is: a shrunk case must fail in the same way.
std::string KindOf(const absl::Status& status) {
  const std::string_view message = ToStd(status.message());
  return StrCat(static_cast<int>(status.code()), message.substr(0, message.find(' ')));
}

std::string ShrunkReport(const Registries& registries, Processes* processes, const RandomCase& test,
                         const absl::Status& failure) {
  const std::string kind = KindOf(failure);
  const RandomCase shrunk = Shrink(
      test,
      [&](const RandomCase& candidate) {
        const absl::Status status = CheckCase(registries, processes, candidate);
        return !status.ok() && KindOf(status) == kind;
      },
      /*max_attempts=*/processes == nullptr ? 400 : 40);
  return StrCat("seed ", test.seed, ": ", failure.message(),
                "\nshrunk: ", CheckCase(registries, processes, shrunk).message(), "\n",
                Describe(shrunk));
}

// What lower-reshards and split-batches make.
bool IsRedistribution(std::string_view op) {
  static constexpr std::string_view kNames[] = {
      "local_slice",   "all_gather",     "all_to_all",      "permute",
      "all_reduce",    "reduce_scatter", "accumulate",      "gather_microbatches",
      "halo_exchange", "receive",        "join_sub_batches"};
  return std::find(std::begin(kNames), std::end(kNames), op) != std::end(kNames);
}

// Checks the cases from `first` on, `every` apart.
void CheckCases(int64_t first, int64_t every, Processes* processes) {
  const Registries registries;
  int failures = 0;
  for (int64_t i = first; i < NumCases() && failures < 3; i += every) {
    const absl::StatusOr<RandomCase> test = MakeRandomCase(registries.ops, FirstSeed() + i);
    ASSERT_TRUE(test.ok()) << "seed " << FirstSeed() + i << ": " << test.status();
    const absl::Status verified = graph::VerifyGraph(test->graph);
    ASSERT_TRUE(verified.ok()) << verified << "\n" << Describe(*test);
    const absl::Status status = CheckCase(registries, processes, *test);
    if (status.ok()) continue;
    ++failures;
    ADD_FAILURE() << ShrunkReport(registries, processes, *test, status);
  }
}

class PropertyTest : public ::testing::TestWithParam<int> {};

TEST_P(PropertyTest, RandomProgramsGiveTheValuesOfOneDevice) {
  CheckCases(GetParam(), kShards, nullptr);
}

// What a case returns, step by step, and the states that it leaves.
absl::StatusOr<std::vector<Tensor>> ResultsOf(const planner::Plan& plan, const RandomCase& test,
                                              const actors::SessionOptions& options) {
  std::vector<Tensor> results;
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   actors::Session::Start(plan, options));
  for (int step = 0; step < test.num_steps; ++step) {
    ASSIGN_OR_RETURN(actors::StepResult got, session->Run(MakeFeeds(test, step)));
    for (auto& [name, value] : got.fetches) results.push_back(std::move(value));
  }
  for (const planner::StatePlan& state : plan.states) {
    ASSIGN_OR_RETURN(Tensor held, session->Fetch(state.name));
    results.push_back(std::move(held));
  }
  return results;
}

TEST_P(PropertyTest, FiringOrdersGiveTheSameBits) {
  constexpr int kEvery = 5;  // of the cases
  const Registries registries;
  for (int64_t i = GetParam(); i < NumCases(); i += kShards * kEvery) {
    const absl::StatusOr<RandomCase> test = MakeRandomCase(registries.ops, FirstSeed() + i);
    ASSERT_TRUE(test.ok()) << test.status();
    const absl::StatusOr<planner::Plan> plan =
        CompileCase(registries, *test, CompileOptionsOf(registries, *test));
    ASSERT_TRUE(plan.ok()) << plan.status();
    actors::SessionOptions options = SessionOptionsOf(registries, *test);
    options.firing_seed = 0;
    UseDevices(Devices::kCpu, registries, test->seed, &options);
    const absl::StatusOr<std::vector<Tensor>> planned = ResultsOf(*plan, *test, options);
    ASSERT_TRUE(planned.ok()) << planned.status();
    for (const Devices devices :
         {Devices::kCpu, test->seed % 3 == 0 ? Devices::kMixed : Devices::kEmulated}) {
      options.firing_seed = test->seed + 1;
      UseDevices(devices, registries, test->seed, &options);
      const absl::StatusOr<std::vector<Tensor>> any = ResultsOf(*plan, *test, options);
      ASSERT_TRUE(any.ok()) << any.status();
      ASSERT_EQ(any->size(), planned->size());
      for (size_t k = 0; k < any->size(); ++k) {
        const Tensor& want = (*planned)[k];
        ASSERT_EQ((*any)[k].num_bytes(), want.num_bytes());
        EXPECT_EQ(std::memcmp((*any)[k].data(), want.data(), want.num_bytes()), 0)
            << "result " << k << ", Devices " << static_cast<int>(devices) << "\n"
            << Describe(*test);
      }
    }
  }
}

class ProcessesPropertyTest : public ::testing::TestWithParam<int> {};

TEST_P(ProcessesPropertyTest, RandomProgramsGiveTheValuesOfOneDevice) {
  Processes processes;
  CheckCases(GetParam() * kEveryForProcesses, kProcessShards * kEveryForProcesses, &processes);
}

// "decomposed OP" for every live operator of which decompose has made others.
std::vector<std::string> Decomposed(const Graph& before, const Graph& after) {
  std::set<std::string> kept;
  for (NodeId id = 0; id < after.num_nodes(); ++id) {
    for (graph::ValueId result : after.node(id).results) kept.insert(after.value(result).name);
  }
  std::vector<std::string> decomposed;
  const std::vector<bool> is_live = LiveNodes(before);
  for (NodeId id = 0; id < before.num_nodes(); ++id) {
    const Node& node = before.node(id);
    if (!is_live[id] || node.results.empty()) continue;
    if (kept.contains(before.value(node.results[0]).name)) continue;
    decomposed.push_back(StrCat("decomposed ", node.op->name()));
  }
  return decomposed;
}

int64_t CountOps(const Graph& graph, std::string_view op) {
  return std::count_if(graph.nodes().begin(), graph.nodes().end(),
                       [op](const Node& node) { return node.op->name() == op; });
}

// Counts by operator and by element type. Of a program as written and, for what the planner makes,
// of its lowered graph and of the plan.
std::map<std::string, int> CountCase(const Registries& registries, const RandomCase& test) {
  std::map<std::string, int> counts;
  const auto count_live = [&](const Graph& graph, bool is_lowered) {
    const std::vector<bool> is_live = LiveNodes(graph);
    for (NodeId id = 0; id < graph.num_nodes(); ++id) {
      const std::string op(graph.node(id).op->name());
      if (!is_live[id] || (is_lowered && !IsRedistribution(op))) continue;
      ++counts[op];
      if (op == "permute" && graph.node(id).attributes.Find("shift") != nullptr) {
        ++counts["roll over devices"];
      }
      for (graph::ValueId result : graph.node(id).results) {
        const DType dtype = graph.value(result).type.dtype;
        ++counts[std::string(Name(dtype))];
        if (op == "matmul" && IsInteger(dtype)) ++counts["integer matmul"];
        if (op == "all_reduce" && IsInteger(dtype)) ++counts["integer all_reduce"];
      }
    }
  };
  count_live(test.graph, /*is_lowered=*/false);
  if (test.graph.meshes().size() > 1) ++counts["several meshes"];
  if (MovesOptimizer(registries, test)) ++counts["optimizer on the host"];
  for (const Node& node : test.graph.nodes()) {
    for (const char* mark : {"recompute", "offload"}) {
      if (node.attributes.Find(mark) != nullptr) ++counts[mark];
    }
    if (node.attributes.GetString("memory", "") == "host") ++counts["states on the host"];
    for (graph::ValueId result : node.results) {
      const graph::Value& value = test.graph.value(result);
      if (NumElements(value.type.shape) == 0) ++counts["no elements"];
      if (!value.sharding.has_value()) continue;
      for (const graph::DimSharding& dim : value.sharding->dims) {
        if (dim.priority > 0) ++counts["priorities"];
      }
    }
  }
  planner::CompileOptions options = CompileOptionsOf(registries, test);
  options.verify = false;
  std::optional<Graph> propagated;
  std::string unsplit;
  options.passes.dump_after = {"propagate", "decompose", "insert-reshards", "split-sends",
                               "split-batches"};
  options.passes.on_dump = [&](std::string_view pass, std::string_view text) {
    if (pass == "insert-reshards") unsplit = text;
    if (pass == "split-sends" && text != unsplit) ++counts["split sends"];
    absl::StatusOr<Graph> dumped = graph::ParseGraph(text, pass, registries.ops);
    ASSERT_TRUE(dumped.ok()) << dumped.status();
    if (pass == "propagate") {
      propagated = *std::move(dumped);
    } else if (pass == "split-batches") {
      count_live(*dumped, /*is_lowered=*/true);
    } else if (pass == "decompose" && propagated.has_value()) {
      for (const std::string& op : Decomposed(*propagated, *dumped)) ++counts[op];
      for (const char* op : {"block_attention", "block_attention_grad"}) {
        if (CountOps(*dumped, op) > CountOps(*propagated, op)) ++counts[StrCat("ring of ", op)];
      }
    }
  };
  const absl::StatusOr<planner::Plan> plan = CompileCase(registries, test, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return counts;
  if (plan->devices.size() > 8) ++counts["more than 8 devices"];
  for (const CollectiveSpec& spec : plan->collectives) {
    const auto bytes = InputCount(spec, 0) * static_cast<int64_t>(ByteSize(spec.dtype));
    if (bytes > options.bucket_bytes) ++counts["larger than a bucket"];
    const std::set<uint32_t> hosts(spec.hosts.begin(), spec.hosts.end());
    // Over hosts of which one has several ranks.
    const bool is_shared = hosts.size() > 1 && hosts.size() < spec.devices.size();
    ++counts[is_shared ? "shared hosts" : std::string(Name(spec.algorithm))];
  }
  for (const planner::ActorPlan& actor : plan->devices[0].actors) {
    if (actor.kernel == planner::kNone) continue;
    const std::string& op = plan->kernels[actor.kernel].op;
    if (op == "copy" || op == "pack" || op == "unpack" || op == "join_halo") ++counts[op];
  }
  for (const planner::KernelPlan& kernel : plan->kernels) {
    if (kernel.op == "join_tiles") ++counts[kernel.op];
  }
  return counts;
}

// The cases say nothing of a plug-in whose operators no device runs in them.
TEST(PluginPropertyTest, ItsOperatorsRunInManyCasesOfSeveralDevices) {
  if (!HasPluginUnderTest()) GTEST_SKIP() << "for a plug-in: see tests/support/tested_plugin.h";
  const Registries registries;
  std::map<std::string, int64_t> counts;  // of cases
  for (const OpCase& test : PluginOpCases()) counts[test.op] = 0;
  for (int64_t i = 0; i < NumCases(); ++i) {
    const absl::StatusOr<RandomCase> test = MakeRandomCase(registries.ops, FirstSeed() + i);
    ASSERT_TRUE(test.ok()) << "seed " << FirstSeed() + i << ": " << test.status();
    const absl::StatusOr<planner::Plan> plan =
        CompileCase(registries, *test, CompileOptionsOf(registries, *test));
    ASSERT_TRUE(plan.ok()) << "seed " << FirstSeed() + i << ": " << plan.status();
    if (plan->devices.size() == 1) continue;
    for (auto& [op, count] : counts) {
      count +=
          std::any_of(plan->kernels.begin(), plan->kernels.end(),
                      [&op = op](const planner::KernelPlan& kernel) { return kernel.op == op; });
    }
  }
  const auto num_ops = static_cast<int64_t>(counts.size());
  for (const auto& [op, count] : counts) {
    EXPECT_GE(count, std::max<int64_t>(NumCases() / (2 * num_ops), 1)) << op;
    std::cout << op << ": in " << count << " of " << NumCases() << " cases" << std::endl;
  }
}

TEST(PropertyCoverageTest, EveryOperatorAndRedistributionOccursOften) {
  if (NumCases() < kDefaultCases) GTEST_SKIP() << "for " << kDefaultCases << " cases or more";
  const Registries registries;
  std::map<std::string, int> counts;
  for (int64_t i = 0; i < NumCases(); ++i) {
    const absl::StatusOr<RandomCase> test = MakeRandomCase(registries.ops, FirstSeed() + i);
    ASSERT_TRUE(test.ok()) << "seed " << FirstSeed() + i << ": " << test.status();
    for (const auto& [op, count] : CountCase(registries, *test)) counts[op] += count;
  }
  std::vector<std::string> names = {"pack",
                                    "unpack",
                                    "join_halo",
                                    "join_tiles",  // kernels alone
                                    "direct",
                                    "ring",  // collectives
                                    "hierarchical",
                                    "shared hosts",
                                    "ring of block_attention",
                                    "ring of block_attention_grad",
                                    "roll over devices",
                                    "split sends",
                                    "several meshes",
                                    "recompute",
                                    "offload",
                                    "states on the host",
                                    "optimizer on the host",
                                    "no elements",
                                    "priorities",
                                    "more than 8 devices",
                                    "larger than a bucket"};
  for (const char* name : {"integer matmul", "integer all_reduce"}) names.emplace_back(name);
  for (DType dtype :
       {DType::kF32, DType::kF64, DType::kI8, DType::kU8, DType::kI32, DType::kI64, DType::kBool}) {
    names.emplace_back(Name(dtype));
  }
  for (const char* op :
       {"softmax", "softmax_grad", "layer_norm", "layer_norm_grad", "rms_norm", "rms_norm_grad",
        "cross_entropy", "attention", "qkv_attention", "qkv_attention_grad", "batch_norm"}) {
    names.push_back(StrCat("decomposed ", op));
  }
  for (std::string_view op : registries.ops.Names()) names.emplace_back(op);
  for (const std::string& op : names) EXPECT_GE(counts[op], kMinOccurrences) << op;
}

INSTANTIATE_TEST_SUITE_P(Shards, PropertyTest, ::testing::Range(0, kShards));
INSTANTIATE_TEST_SUITE_P(Shards, ProcessesPropertyTest, ::testing::Range(0, kProcessShards));

}  // namespace
}  // namespace penstock::testing
