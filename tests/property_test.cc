// Random programs give the values and states of one device, however they are split over devices, in
// time and over stages. What fails is shrunk and printed in the text format.
//
// PENSTOCK_PROPERTY_CASES and PENSTOCK_PROPERTY_SEED choose the number of cases and the first seed;
// a failure names its seed, and PENSTOCK_PROPERTY_SEED=it PENSTOCK_PROPERTY_CASES=1 runs it alone.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"

#include "actors/session.h"
#include "actors/state_init.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/decompose.h"
#include "planner/insert_reshards.h"
#include "planner/lower_reshards.h"
#include "planner/lower_to_plan.h"
#include "planner/propagate.h"
#include "tests/support/interpreter.h"
#include "tests/support/random_graph.h"
#include "tests/support/shrink.h"

namespace penstock::testing {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;

constexpr int kShards = 12;
constexpr int kDefaultCases = 600;
constexpr int kMinOccurrences = 20;

int64_t FromEnvironment(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : fallback;
}

int64_t NumCases() { return FromEnvironment("PENSTOCK_PROPERTY_CASES", kDefaultCases); }
int64_t FirstSeed() { return FromEnvironment("PENSTOCK_PROPERTY_SEED", 0); }

// Registries that all cases share.
struct Registries {
  graph::OpRegistry ops = graph::BuiltinOps();
  kernels::KernelRegistry kernels = kernels::CpuKernels();
  planner::PolicyRegistry policies = planner::BuiltinPolicies();
};

// ------------------------------------------------------------------------------------ comparison

double Element(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::kF32:
      return tensor.As<float>()[i];
    case DType::kF64:
      return tensor.As<double>()[i];
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

// What differs, in words; floats may differ by `tolerance` times the largest magnitude.
std::optional<std::string> Difference(const Tensor& got, const Tensor& want, double tolerance) {
  if (got.type() != want.type()) {
    return StrCat("is ", ToString(got.type()), " instead of ", ToString(want.type()));
  }
  double scale = 1;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    scale = std::max(scale, std::abs(Element(want, i)));
  }
  const double allowed = IsFloat(want.dtype()) ? tolerance * scale : 0;
  int64_t worst = -1;
  double worst_by = allowed;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    if (!std::isfinite(Element(want, i))) return StrCat("element ", i, " is not finite");
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
    actors::InitState(plan, {0, 0, WholeTile(value.type)}, seed, tensor.data());
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

absl::StatusOr<planner::Plan> CompileCase(const Registries& registries, const RandomCase& test) {
  planner::CompileOptions options;
  options.policy = test.policy;
  options.policies = &registries.policies;
  options.kernels = kernels::TraitsOf(registries.kernels, 1);
  options.split_weight_gradients = test.split_weight_gradients;
  return planner::Compile(registries.ops, test.graph, options);
}

// Runs the case both ways; an error says what differs.
absl::Status CheckCase(const Registries& registries, const RandomCase& test) {
  ASSIGN_OR_RETURN(planner::Plan plan, CompileCase(registries, test));
  actors::SessionOptions options;
  options.seed = test.seed;
  options.timeout = absl::Seconds(20);
  options.kernels = &registries.kernels;
  options.policies = &registries.policies;
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   actors::Session::Start(std::move(plan), options));

  const double tolerance = ToleranceOf(test.graph);
  std::map<std::string, Tensor> states = InitialStates(test.graph, test.seed);
  for (int step = 0; step < test.num_steps; ++step) {
    const actors::Feeds feeds = MakeFeeds(test, step);
    std::map<std::string, Tensor> reference_feeds = states;
    reference_feeds.insert(feeds.begin(), feeds.end());
    ASSIGN_OR_RETURN(Interpretation want,
                     InterpretStep(test.graph, registries.kernels, reference_feeds,
                                   {.seed = test.seed, .step = step}));
    ASSIGN_OR_RETURN(const actors::StepResult got, session->Run(feeds));
    if (got.fetches.size() != want.returns.size()) {
      return absl::InternalError(
          StrCat(got.fetches.size(), " values returned instead of ", want.returns.size()));
    }
    for (size_t i = 0; i < want.returns.size(); ++i) {
      const std::optional<std::string> difference =
          Difference(got.fetches[i].second, want.returns[i], tolerance);
      if (!difference) continue;
      return absl::InternalError(StrCat("step ", step, ", return ", i, " %",
                                        test.graph.value(test.graph.returns()[i].value).name, ": ",
                                        *difference));
    }
    for (auto& [name, value] : want.assigned) states[name] = std::move(value);
    for (const planner::StatePlan& state : session->plan().states) {
      ASSIGN_OR_RETURN(const Tensor held, session->Fetch(state.name));
      const std::optional<std::string> difference =
          Difference(held, states.at(state.name), tolerance);
      if (!difference) continue;
      return absl::InternalError(StrCat("step ", step, ", state %", state.name, ": ", *difference));
    }
  }
  return absl::OkStatus();
}

// What kind of failure it is: a shrunk case must fail in the same way.
std::string KindOf(const absl::Status& status) {
  const std::string_view message = ToStd(status.message());
  return StrCat(static_cast<int>(status.code()), message.substr(0, message.find(' ')));
}

std::string ShrunkReport(const Registries& registries, const RandomCase& test,
                         const absl::Status& failure) {
  const std::string kind = KindOf(failure);
  const RandomCase shrunk = Shrink(
      test,
      [&](const RandomCase& candidate) {
        const absl::Status status = CheckCase(registries, candidate);
        return !status.ok() && KindOf(status) == kind;
      },
      /*max_attempts=*/400);
  return StrCat("seed ", test.seed, ": ", failure.message(),
                "\nshrunk: ", CheckCase(registries, shrunk).message(), "\n", Describe(shrunk));
}

class PropertyTest : public ::testing::TestWithParam<int> {};

TEST_P(PropertyTest, RandomProgramsGiveTheValuesOfOneDevice) {
  const Registries registries;
  int failures = 0;
  for (int64_t i = GetParam(); i < NumCases() && failures < 3; i += kShards) {
    const absl::StatusOr<RandomCase> test = MakeRandomCase(registries.ops, FirstSeed() + i);
    ASSERT_TRUE(test.ok()) << "seed " << FirstSeed() + i << ": " << test.status();
    const absl::Status verified = graph::VerifyGraph(test->graph);
    ASSERT_TRUE(verified.ok()) << verified << "\n" << Describe(*test);
    const absl::Status status = CheckCase(registries, *test);
    if (status.ok()) continue;
    ++failures;
    ADD_FAILURE() << ShrunkReport(registries, *test, status);
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, PropertyTest, ::testing::Range(0, kShards));

}  // namespace
}  // namespace penstock::testing
