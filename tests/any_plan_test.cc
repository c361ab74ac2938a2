// Any plan, same numbers: the demo's model, and a model with experts, trained under every kind of
// parallelism gives the losses of one device at every step, and twice the same plan gives the same
// bits.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/npy.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "actors/checkpoint/checkpoint.h"
#include "actors/checkpoint/checkpoint_folder.h"
#include "actors/session/session.h"
#include "actors/session/stream_launches.h"
#include "base/collective.h"
#include "base/emulated_device.h"
#include "base/strings.h"
#include "base/tensor.h"
#include "kernels/emulated/emulated_kernels.h"
#include "kernels/kernel.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_io.h"
#include "tests/support/random.h"
#include "tests/support/temp_folder.h"
#include "transport/emulated/emulated_communicator.h"

namespace penstock::testing {
namespace {

struct Layout {
  std::string strategy;
  int devices;
  int microbatches;
  std::string policy;
};

std::string Name(const Layout& layout) {
  std::string name =
      layout.strategy + "_mb" + std::to_string(layout.microbatches) + "_" + layout.policy;
  std::erase(name, '=');
  for (char& c : name) c = c == ',' || c == '-' ? '_' : c;
  return name;
}

const std::string kDemo = PENSTOCK_SOURCE_DIR "/examples/gpt/demo.toml";
const std::string kExperts = PENSTOCK_SOURCE_DIR "/examples/moe/moe.toml";

// A call of the command on a job with this layout.
std::string Command(const std::string& subcommand, const Layout& layout,
                    const std::string& job = kDemo) {
  return std::string(PENSTOCK_COMMAND) + " " + subcommand + " " + job +
         " --set cluster.processes=1 --set cluster.threads=1 --set cluster.devices=" +
         std::to_string(layout.devices) + " --set 'parallel.strategy=\"" + layout.strategy +
         "\"' --set 'parallel.schedule=\"" + layout.policy +
         "\"' --set parallel.microbatches=" + std::to_string(layout.microbatches);
}

// The losses of a run of a job, a step each, in full precision.
std::vector<double> Losses(const Layout& layout, const std::string& settings, int steps,
                           const std::string& job = kDemo) {
  const TempFolder folder;
  // The draws are the same under any plan, too.
  const std::string dropout = job == kDemo ? " --set model.dropout=0.05 " : " ";
  const std::string command = Command("run", layout, job) + dropout + settings +
                              " --set train.steps=" + std::to_string(steps) +
                              " --set train.validation_sequences=0 --set sample.bytes=0 --dump " +
                              folder.path().string() + " >/dev/null 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  const absl::StatusOr<Tensor> losses = cli::ReadNpy(folder.Path("losses.npy"));
  EXPECT_TRUE(losses.ok()) << losses.status();
  if (!losses.ok()) return {};
  const double* begin = losses->As<double>();
  return {begin, begin + losses->num_elements()};
}

void ExpectSameLosses(const std::vector<double>& one, const std::vector<double>& many,
                      double tolerance) {
  ASSERT_EQ(many.size(), one.size());
  ASSERT_FALSE(one.empty());
  EXPECT_LT(one.back(), one.front());
  for (size_t step = 0; step < one.size(); ++step) {
    EXPECT_LE(std::abs(many[step] - one[step]), tolerance * std::abs(one[step])) << "step " << step;
  }
}

const Layout kOneDevice = {"dp=1", 1, 1, "1f1b"};
const std::string kConstantRate =
    "--set train.learning_rate=3e-4 --set 'train.schedule=\"constant\"' --set "
    "train.warmup_steps=0 --set model.dropout=0.1";

// The layouts of the demo with less to compute: every layout runs in f32 and f64.
const std::string kSmall = "--set model.width=64 --set model.context=32 ";

constexpr int kSteps = 6;
constexpr int kDoubleSteps = 4;  // keeps the suite short
constexpr int kPlacedSteps = 3;  // of the same plan in several processes

class AnyPlanTest : public ::testing::TestWithParam<Layout> {};

TEST_P(AnyPlanTest, GivesTheLossesOfOneDevice) {
  const std::string settings = kSmall + kConstantRate;
  std::vector<double> losses = Losses(GetParam(), settings, kSteps);
  ExpectSameLosses(Losses(kOneDevice, settings, kSteps), losses, 1e-4);
  // Wherever the devices are, the same bits.
  losses.resize(kPlacedSteps);
  for (const int processes : {2, 4}) {
    if (processes > GetParam().devices) continue;
    EXPECT_EQ(losses,
              Losses(GetParam(), settings + " --procs " + std::to_string(processes), kPlacedSteps))
        << processes << " processes";
  }
}

const Layout kLayouts[] = {
    {"dp=1", 1, 4, "1f1b"},
    {"dp=2", 2, 1, "1f1b"},
    {"dp=2", 2, 4, "1f1b"},
    {"tp=2", 2, 1, "1f1b"},
    {"tp=2", 2, 4, "1f1b"},
    {"pp=2", 2, 1, "1f1b"},
    {"pp=2", 2, 4, "1f1b"},
    {"pp=2", 2, 1, "gpipe"},
    {"pp=2", 2, 4, "gpipe"},
    {"dp=2,tp=2", 4, 1, "1f1b"},
    {"dp=2,tp=2", 4, 4, "1f1b"},
    {"dp=2,tp=2,pp=2", 8, 1, "1f1b"},
    {"dp=2,tp=2,pp=2", 8, 4, "1f1b"},
    {"pp=2,vpp=2", 2, 4, "1f1b"},
    {"pp=2,vpp=3", 2, 4, "gpipe"},
    {"tp=2,pp=2,vpp=2", 4, 2, "1f1b"},
    {"pp=2", 2, 4, "dualpipe"},
    {"dp=2,pp=2,zero=3,recompute=full", 4, 4, "dualpipe"},
    {"tp=2,pp=2,sp=true,offload=all", 4, 4, "chimera"},
    {"dp=2,zero=1", 2, 1, "1f1b"},
    {"dp=4,zero=1", 4, 4, "1f1b"},
    {"dp=2,zero=2", 2, 4, "1f1b"},
    {"dp=4,zero=2", 4, 1, "1f1b"},
    {"dp=2,zero=3", 2, 1, "1f1b"},
    {"dp=4,zero=3", 4, 4, "1f1b"},
    {"dp=2,tp=2,zero=1", 4, 4, "1f1b"},
    {"dp=2,tp=2,zero=3", 4, 4, "1f1b"},
    {"dp=2,pp=2,zero=1", 4, 4, "1f1b"},
    {"dp=2,pp=2,zero=2", 4, 4, "gpipe"},
    {"tp=2,sp=true", 2, 1, "1f1b"},
    {"tp=2,sp=true", 2, 4, "1f1b"},
    {"dp=2,tp=2,zero=2,sp=true", 4, 4, "1f1b"},
    {"tp=2,pp=2,sp=true", 4, 4, "1f1b"},
    {"dp=2,pp=2,zero=3", 4, 4, "1f1b"},
    {"dp=2,pp=2,vpp=2,zero=3", 4, 4, "1f1b"},
    {"tp=2,splits=cost", 2, 1, "1f1b"},
    {"dp=2,tp=2,zero=2,splits=cost", 4, 4, "1f1b"},
    {"tp=2,pp=2,splits=cost", 4, 4, "1f1b"},
    {"cp=2", 2, 1, "1f1b"},
    {"cp=4", 4, 4, "1f1b"},
    {"cp=2,tp=2", 4, 1, "1f1b"},
    {"cp=2,ulysses=true", 2, 4, "1f1b"},
    {"cp=2,tp=2,ulysses=true", 4, 1, "1f1b"},
    {"dp=2,cp=2,tp=2,sp=true", 8, 4, "1f1b"},
    {"dp=2,cp=2,zero=2", 4, 4, "1f1b"},
    {"cp=4,zero=3", 4, 1, "1f1b"},
    {"cp=2,pp=2", 4, 4, "gpipe"},
    {"cp=2,pp=2,vpp=2,ulysses=true", 4, 4, "1f1b"},
    {"dp=2,cp=2,pp=2,zero=1", 8, 4, "1f1b"},
    {"recompute=full", 1, 1, "1f1b"},
    {"recompute=selective", 1, 4, "1f1b"},
    {"tp=2,recompute=full", 2, 4, "1f1b"},
    {"tp=2,sp=true,recompute=selective", 2, 1, "1f1b"},
    {"tp=2,sp=true,recompute=full", 2, 4, "1f1b"},
    {"dp=2,zero=1,recompute=full", 2, 4, "1f1b"},
    {"dp=4,zero=3,recompute=full", 4, 4, "1f1b"},
    {"dp=2,pp=2,recompute=full", 4, 4, "1f1b"},
    {"pp=2,vpp=3,recompute=full", 2, 4, "gpipe"},
    {"dp=2,tp=2,pp=2,zero=2,recompute=selective", 8, 4, "1f1b"},
    {"offload=states", 1, 4, "1f1b"},
    {"dp=2,zero=1,offload=states", 2, 1, "1f1b"},
    {"dp=2,tp=2,pp=2,zero=1,offload=states", 8, 4, "1f1b"},
    {"offload=all", 1, 1, "1f1b"},
    {"tp=2,offload=activations", 2, 1, "1f1b"},
    {"pp=2,offload=all", 2, 4, "1f1b"},
    {"pp=2,vpp=3,offload=all", 2, 4, "gpipe"},
    {"dp=4,zero=3,offload=all", 4, 4, "1f1b"},
    {"cp=2,pp=2,offload=activations", 4, 4, "1f1b"},
    {"tp=2,sp=true,recompute=full,offload=all", 2, 4, "1f1b"},
    {"tp=2,subbatches=2", 2, 1, "1f1b"},
    {"tp=2,sp=true,subbatches=4", 2, 4, "1f1b"},
    {"dp=2,tp=2,pp=2,recompute=full,subbatches=2", 8, 2, "1f1b"},
    {"cp=2,tp=2,ulysses=true,subbatches=2", 4, 1, "1f1b"},
    {"optimizer=host", 2, 1, "1f1b"},
    {"dp=2,optimizer=host", 3, 4, "1f1b"},
    {"pp=2,optimizer=host", 3, 4, "zb-h1"},
    {"dp=2,tp=2,sp=true,recompute=full,optimizer=host", 5, 2, "1f1b"},
    {"tp=2,pp=2,recompute=selective,offload=activations,optimizer=host", 5, 4, "gpipe"},
    {"cp=2,tp=2,ulysses=true,subbatches=2,optimizer=host", 5, 1, "1f1b"},
};

INSTANTIATE_TEST_SUITE_P(Layouts, AnyPlanTest, ::testing::ValuesIn(kLayouts),
                         [](const auto& info) { return Name(info.param); });

// In f64, in groups that share the run on one device.
constexpr int kPlanGroups = 15;
class AnyPlanDoubleTest : public ::testing::TestWithParam<int> {};

TEST_P(AnyPlanDoubleTest, AgreesToNineDigits) {
  const std::string settings = kSmall + "--set 'train.dtype=\"f64\"'";
  const std::vector<double> one = Losses(kOneDevice, settings, kDoubleSteps);
  for (size_t i = GetParam(); i < std::size(kLayouts); i += kPlanGroups) {
    const Layout& layout = kLayouts[i];
    SCOPED_TRACE(Name(layout));
    ExpectSameLosses(one, Losses(layout, settings, kDoubleSteps), 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, AnyPlanDoubleTest, ::testing::Range(0, kPlanGroups));

// Products are one node with their bias and gelu, and gradients likewise: every other layout.
class AnyPlanWithEpiloguesTest : public ::testing::TestWithParam<int> {};

TEST_P(AnyPlanWithEpiloguesTest, AgreesToNineDigits) {
  // Without dropout, which comes between products and their residuals.
  const std::string settings = kSmall + "--set model.dropout=0 --set 'train.dtype=\"f64\"'";
  const std::vector<double> one = Losses(kOneDevice, settings, kDoubleSteps);
  for (size_t i = 2 * static_cast<size_t>(GetParam()); i < std::size(kLayouts);
       i += 2 * kPlanGroups) {
    const Layout& layout = kLayouts[i];
    SCOPED_TRACE(Name(layout));
    ExpectSameLosses(
        one, Losses(layout, settings + " --set parallel.fuse_epilogues=true", kDoubleSteps), 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, AnyPlanWithEpiloguesTest, ::testing::Range(0, kPlanGroups));

// On the CPU each is what it stands for, in f32 to the bit.
TEST(AnyPlanWithEpiloguesOnceTest, OneDeviceGivesTheSameBits) {
  for (const std::string dropout : {"0.0", "0.1"}) {
    const std::string settings = kSmall + kConstantRate + " --set model.dropout=" + dropout;
    for (const Layout& layout : {kOneDevice, Layout{"dp=1", 1, 4, "1f1b"}}) {
      EXPECT_EQ(Losses(layout, settings, kSteps),
                Losses(layout, settings + " --set parallel.fuse_epilogues=true", kSteps));
    }
  }
}

// At the demo's own size, which has several buckets of gradients and long messages.
TEST(AnyPlanDoubleOfDemoTest, AgreesToNineDigits) {
  const std::string settings = "--set 'train.dtype=\"f64\"'";
  const std::vector<double> one = Losses(kOneDevice, settings, kDoubleSteps);
  for (const Layout& layout :
       {Layout{"dp=2,tp=2,pp=2", 8, 4, "1f1b"},
        Layout{"tp=2,pp=2,sp=true,offload=all", 4, 4, "chimera"},
        Layout{"dp=4,zero=1", 4, 4, "1f1b"}, Layout{"dp=4,zero=3,recompute=full", 4, 4, "1f1b"},
        Layout{"dp=2,cp=2,tp=2,sp=true", 8, 4, "1f1b"},
        Layout{"tp=2,sp=true,subbatches=4", 2, 4, "1f1b"}}) {
    SCOPED_TRACE(Name(layout));
    ExpectSameLosses(one, Losses(layout, settings, kDoubleSteps), 1e-9);
  }
}

// Three replicas divide few of the dimensions: tensors of one bucket are split evenly and not, and
// along different dimensions.
TEST(AnyPlanOfZeroTest, UnevenPartsAgreeToNineDigits) {
  constexpr int kZeroSteps = 3;
  const std::string settings =
      "--set model.width=64 --set model.context=32 --set train.batch=12 --set "
      "'train.dtype=\"f64\"'";
  const std::vector<double> one = Losses(kOneDevice, settings, kZeroSteps);
  for (const Layout& layout :
       {Layout{"dp=3,zero=1", 3, 4, "1f1b"}, Layout{"dp=3,zero=2", 3, 1, "1f1b"},
        Layout{"dp=3,zero=2", 3, 4, "1f1b"}, Layout{"dp=3,zero=3", 3, 2, "1f1b"}}) {
    SCOPED_TRACE(Name(layout));
    const std::vector<double> losses = Losses(layout, settings, kZeroSteps);
    ExpectSameLosses(one, losses, 1e-9);
    EXPECT_EQ(losses, Losses(layout, settings + " --procs 3", kZeroSteps));
  }
}

// Llama, in f64: two heads of queries share one of the keys. Rotary positions are global, wherever
// a sequence is split, and gradients of shared heads add up, also where devices split those that
// share one.
const Layout kLlamaLayouts[] = {
    {"dp=2", 2, 4, "1f1b"},
    {"tp=2", 2, 1, "1f1b"},
    {"pp=2", 2, 4, "gpipe"},
    {"dp=2,tp=2,pp=2", 8, 2, "1f1b"},
    {"dp=4,zero=3", 4, 2, "1f1b"},
    {"tp=2,sp=true", 2, 2, "1f1b"},
    {"cp=2", 2, 1, "1f1b"},
    {"cp=4", 4, 2, "1f1b"},
    {"cp=2,tp=2,sp=true", 4, 1, "1f1b"},
    {"cp=2,ulysses=true", 2, 2, "1f1b"},
    {"cp=2,tp=2,ulysses=true", 4, 1, "1f1b"},
    {"tp=2,splits=cost", 2, 1, "1f1b"},
    {"tp=2,recompute=full", 2, 2, "1f1b"},
    {"dp=2,pp=2,zero=1,offload=all", 4, 4, "1f1b"},
    // More devices than heads of keys.
    {"tp=4", 4, 1, "1f1b"},
    {"tp=4,sp=true", 4, 2, "1f1b"},
    {"dp=2,tp=4,zero=2", 8, 2, "1f1b"},
    {"tp=4,pp=2,recompute=full", 8, 4, "1f1b"},
    {"tp=4,zero=1,dp=2,subbatches=2", 8, 2, "1f1b"},
};

TEST(AnyPlanOfLlamaTest, AgreesToNineDigits) {
  constexpr int kLlamaSteps = 3;
  const std::string settings =
      "--set 'model.name=\"llama\"' --set model.kv_heads=2 --set model.width=64 --set "
      "model.context=32 --set model.dropout=0.1 --set 'train.dtype=\"f64\"'";
  const std::vector<double> one = Losses(kOneDevice, settings, kLlamaSteps);
  for (const Layout& layout : kLlamaLayouts) {
    SCOPED_TRACE(Name(layout));
    ExpectSameLosses(one, Losses(layout, settings, kLlamaSteps), 1e-9);
  }
  // One head of keys for all.
  const std::string one_head = settings + " --set model.kv_heads=1";
  ExpectSameLosses(Losses(kOneDevice, one_head, kLlamaSteps),
                   Losses({"dp=2,tp=2,zero=3", 4, 2, "1f1b"}, one_head, kLlamaSteps), 1e-9);
  const std::string tied = settings + " --set model.tied=true";
  ExpectSameLosses(Losses(kOneDevice, tied, kLlamaSteps),
                   Losses({"dp=2,tp=2", 4, 2, "1f1b"}, tied, kLlamaSteps), 1e-9);
}

// With experts, in f64: a token goes to the same experts, and the same tokens are dropped, however
// the batch, the experts and the layers are split. One step that routed a token otherwise would
// show in the losses of those that follow.
const Layout kExpertLayouts[] = {
    {"dp=1", 1, 4, "1f1b"},
    {"dp=2", 2, 1, "1f1b"},
    {"dp=2,ep=2", 2, 1, "1f1b"},
    {"dp=4,ep=2", 4, 2, "1f1b"},
    {"dp=4,ep=4", 4, 1, "1f1b"},
    {"dp=4,ep=4", 4, 4, "1f1b"},
    {"tp=2", 2, 2, "1f1b"},
    {"dp=2,tp=2,ep=2", 4, 2, "1f1b"},
    {"pp=2", 2, 4, "gpipe"},
    {"dp=2,pp=2,ep=2", 4, 1, "1f1b"},
    {"dp=2,pp=2,ep=2", 4, 4, "1f1b"},
    {"dp=2,tp=2,pp=2,ep=2", 8, 4, "1f1b"},
    {"dp=4,ep=2,zero=1", 4, 2, "1f1b"},
    {"dp=4,ep=4,zero=2", 4, 4, "1f1b"},
    {"dp=4,ep=2,zero=3", 4, 1, "1f1b"},
    {"dp=2,tp=2,ep=2,sp=true", 4, 2, "1f1b"},
    {"cp=2", 2, 1, "1f1b"},
    {"dp=2,cp=2,ulysses=true", 4, 2, "1f1b"},
    {"dp=4,ep=4,recompute=full", 4, 2, "1f1b"},
    {"dp=2,tp=2,ep=2,recompute=selective", 4, 2, "1f1b"},
    {"dp=2,pp=2,ep=2,offload=all", 4, 4, "1f1b"},
    {"dp=2,tp=2,ep=2,subbatches=2", 4, 2, "1f1b"},
    {"dp=2,ep=2,cp=2", 4, 2, "1f1b"},
    {"dp=2,pp=2,ep=2,optimizer=host", 5, 4, "1f1b"},
    {"dp=2,ep=2,cp=2,ulysses=true,zero=3", 4, 1, "1f1b"},
    {"dp=2,pp=2,ep=2,cp=2", 8, 4, "1f1b"},
};

struct ExpertSettings {
  std::string name;
  std::string settings;
};

class AnyPlanOfExpertsTest : public ::testing::TestWithParam<ExpertSettings> {};

TEST_P(AnyPlanOfExpertsTest, AgreesToNineDigits) {
  // Few steps of a small model keep the suite short: there are 88 runs.
  constexpr int kExpertSteps = 4;
  const std::string settings = kSmall + "--set 'train.dtype=\"f64\"' " + GetParam().settings;
  const std::vector<double> one = Losses(kOneDevice, settings, kExpertSteps, kExperts);
  for (const Layout& layout : kExpertLayouts) {
    SCOPED_TRACE(Name(layout));
    ExpectSameLosses(one, Losses(layout, settings, kExpertSteps, kExperts), 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, AnyPlanOfExpertsTest,
    ::testing::Values(ExpertSettings{"TwoOfEight", "--set model.dropout=0.1"},
                      ExpertSettings{"FewPlaces", "--set model.capacity_factor=0.5"},
                      ExpertSettings{"OneOfEightDropless",
                                     "--set model.top_k=1 --set model.capacity_factor=0"},
                      ExpertSettings{"EveryOtherBlock", "--set model.expert_every=2"}),
    [](const auto& info) { return info.param.name; });

// The summary of a run of the job with experts.
nlohmann::json Summary(const std::string& command) {
  const TempFolder folder;
  const std::string file = folder.Path("summary");
  EXPECT_EQ(std::system((command + " --json 2>/dev/null | tail -n 1 > " + file).c_str()), 0);
  std::ifstream stream(file);
  const nlohmann::json json = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.contains("summary")) << command;
  return json.contains("summary") ? json["summary"] : nlohmann::json();
}

// Validation and the sample, which drop no tokens, do not depend on the plan either.
TEST(AnyPlanOfExpertsSummaryTest, ValidatesAndSamplesAsOneDevice) {
  const auto summary = [](const Layout& layout) {
    return Summary(Command("run", layout, kExperts) +
                   " --set 'train.dtype=\"f64\"' --set train.steps=4 --set "
                   "train.validation_sequences=8 --set sample.bytes=8");
  };
  const nlohmann::json one = summary(kOneDevice);
  for (const Layout& layout :
       {Layout{"dp=4,ep=4", 4, 1, "1f1b"}, Layout{"dp=2,tp=2,pp=2,ep=2", 8, 4, "1f1b"}}) {
    SCOPED_TRACE(Name(layout));
    const nlohmann::json many = summary(layout);
    ASSERT_FALSE(one.is_null() || many.is_null());
    EXPECT_NEAR(many["validation_loss"].get<double>(), one["validation_loss"].get<double>(), 1e-8);
    EXPECT_EQ(many["sample"], one["sample"]);
  }
}

TEST(AnyPlanOfExpertsSummaryTest, AnyPlacementGivesTheSameBits) {
  const Layout layout = {"dp=4,ep=4", 4, 2, "1f1b"};
  const std::vector<double> losses = Losses(layout, "", 8, kExperts);
  EXPECT_EQ(losses.size(), 8u);
  for (const char* settings : {"", " --procs 2", " --procs 4"}) {
    EXPECT_EQ(losses, Losses(layout, settings, 8, kExperts)) << settings;
  }
}

// The job as it stands learns more than how frequent bytes are.
TEST(ExpertsExampleTest, LossFallsBelowTheUnigramEntropy) {
  const nlohmann::json summary = Summary(PENSTOCK_COMMAND " run " + kExperts);
  ASSERT_FALSE(summary.is_null());
  EXPECT_EQ(summary["strategy"], "dp=4,tp=1,pp=1,ep=4");
  EXPECT_LT(summary["validation_loss"].get<double>(),
            summary["unigram_entropy"].get<double>() - 0.2);
  EXPECT_FALSE(summary["sample"].get<std::string>().empty());
}

// Every policy with a process a stage: the bits of one process, and the losses of one device.
class AnyPolicyInProcessesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(AnyPolicyInProcessesTest, GivesTheLossesOfOneDevice) {
  const std::string small = kConstantRate +
                            " --set model.layers=8 --set model.width=32 --set model.heads=2 --set "
                            "model.context=16";
  constexpr int kFewSteps = 4;
  const Layout layout = {"pp=4", 4, 8, GetParam()};
  const std::vector<double> losses = Losses(layout, small + " --procs 4", kFewSteps);
  EXPECT_EQ(losses, Losses(layout, small, kFewSteps));
  ExpectSameLosses(Losses(kOneDevice, small, kFewSteps), losses, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Policies, AnyPolicyInProcessesTest,
                         ::testing::Values("gpipe", "1f1b", "eager-1f1b", "interleaved",
                                           "looped-bfs", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v",
                                           "v-half", "v-min", "dualpipe", "dualpipev", "chimera",
                                           "auto"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// What a user states of single values, by pattern.
TEST(AnyPlanHintsTest, GiveTheLossesOfOneDevice) {
  const std::vector<double> one = Losses(kOneDevice, kSmall + kConstantRate, 10);
  const std::pair<Layout, const char*> cases[] = {
      {{"dp=2,tp=2", 4, 2, "1f1b"},
       R"(["h*.mlp.w1 @[tp, dp]", "h{1-2}.attn.qkv_w @[_, _, _, _]", "*.m @[?, dp]"])"},
      {{"dp=4,zero=1", 4, 1, "1f1b"}, R"(["wte.m @[_, dp]", "h0.*.grad @[?, ?]"])"},
      {{"dp=2,tp=2,pp=2", 8, 2, "1f1b"}, R"(["h*.mlp.w2 @[dp.tp, _]", "wpe @[_, tp]"])"},
  };
  for (const auto& [layout, hints] : cases) {
    const std::string settings = kSmall + kConstantRate + " --set 'parallel.hints=" + hints + "'";
    ExpectSameLosses(one, Losses(layout, settings, 10), 1e-4);
  }
}

// What is computed again has the bits of what it replaces.
TEST(AnyPlanRecomputeTest, GivesTheSameBits) {
  for (const Layout& layout : {Layout{"dp=1", 1, 2, "1f1b"}, Layout{"tp=2", 2, 1, "1f1b"},
                               Layout{"dp=2,pp=2", 4, 4, "1f1b"}}) {
    const std::vector<double> losses = Losses(layout, kSmall + kConstantRate, 8);
    EXPECT_EQ(losses.size(), 8u);
    for (const char* level : {"selective", "full"}) {
      Layout again = layout;
      again.strategy += StrCat(",recompute=", level);
      EXPECT_EQ(losses, Losses(again, kSmall + kConstantRate, 8)) << again.strategy;
    }
  }
}

// So has what is on the host for a while.
TEST(AnyPlanOffloadTest, GivesTheSameBits) {
  for (const Layout& layout : {Layout{"dp=1", 1, 2, "1f1b"}, Layout{"dp=2,zero=1", 2, 1, "1f1b"},
                               Layout{"dp=2,pp=2", 4, 4, "1f1b"}}) {
    const std::vector<double> losses = Losses(layout, kSmall + kConstantRate, 8);
    EXPECT_EQ(losses.size(), 8u);
    for (const char* what : {"states", "activations", "all"}) {
      Layout offloading = layout;
      offloading.strategy += StrCat(",offload=", what);
      EXPECT_EQ(losses, Losses(offloading, kSmall + kConstantRate, 8)) << offloading.strategy;
    }
  }
}

TEST(AnyPlanTwiceTest, GivesTheSameBits) {
  const Layout layout = {"dp=2,tp=2,pp=2", 8, 4, "1f1b"};
  const std::vector<double> losses = Losses(layout, "", 10);
  EXPECT_EQ(losses.size(), 10u);
  EXPECT_EQ(losses, Losses(layout, "", 10));
}

// In mixed precision: parts of sums in 16 bits are rounded, so that plans differ by more than in
// f32. A plan has the same bits wherever its devices are.
TEST(AnyPlanInMixedPrecisionTest, GivesTheLossesOfOneDeviceAndOfF32) {
  const std::string small = kConstantRate +
                            " --set model.layers=2 --set model.width=64 --set model.heads=2 --set "
                            "model.context=32 ";
  const std::string mixed = small + "--set 'train.dtype=\"bf16\"'";
  const std::vector<double> one = Losses(kOneDevice, mixed, kSteps);
  for (const Layout& layout :
       {Layout{"dp=2", 2, 4, "1f1b"}, Layout{"tp=2,sp=true", 2, 2, "1f1b"},
        Layout{"dp=2,tp=2,pp=2", 8, 4, "1f1b"}, Layout{"dp=4,zero=3", 4, 2, "1f1b"},
        Layout{"cp=2,zero=2", 2, 2, "1f1b"}, Layout{"pp=2,recompute=full", 2, 4, "zb-h1"},
        Layout{"dp=2,tp=2,optimizer=host", 5, 2, "1f1b"}}) {
    SCOPED_TRACE(Name(layout));
    const std::vector<double> many = Losses(layout, mixed, kSteps);
    ExpectSameLosses(one, many, 1e-3);
    if (layout.devices < 4) continue;
    EXPECT_EQ(many, Losses(layout, mixed + " --procs 2", kSteps));
  }
  const std::string f32_residuals = mixed + " --set 'train.residual_dtype=\"f32\"'";
  const std::vector<double> nearer = Losses(kOneDevice, f32_residuals, kSteps);
  for (const Layout& layout :
       {Layout{"dp=2,tp=2,pp=2", 8, 4, "1f1b"}, Layout{"tp=2,sp=true,recompute=full", 2, 2, "1f1b"},
        Layout{"cp=2,zero=3", 2, 2, "1f1b"}, Layout{"dp=2,pp=2,optimizer=host", 5, 2, "1f1b"}}) {
    SCOPED_TRACE(Name(layout));
    ExpectSameLosses(nearer, Losses(layout, f32_residuals, kSteps), 1e-3);
  }
  constexpr int kManySteps = 200;
  const std::vector<double> exact = Losses(kOneDevice, small, kManySteps);
  ExpectSameLosses(exact, Losses(kOneDevice, mixed, kManySteps), 2e-2);
  ExpectSameLosses(exact, Losses(kOneDevice, f32_residuals, kManySteps), 5e-3);
  const std::string f16 = small + "--set 'train.dtype=\"f16\"'";
  ExpectSameLosses(exact, Losses(kOneDevice, f16, kManySteps), 2e-2);
  ExpectSameLosses(Losses(kOneDevice, f16, kSteps),
                   Losses({"dp=2,pp=2,optimizer=host", 5, 2, "1f1b"}, f16, kSteps), 1e-3);
}

// The f32 parameters after some steps, all in one, in the order of their names. `with_states`: with
// the states of the optimiser.
std::vector<float> Weights(const Layout& layout, const std::string& settings, int steps,
                           bool with_states = false) {
  const TempFolder folder;
  const std::string checkpoints = folder.Path("checkpoints");
  Losses(layout, settings + " --set 'checkpoint.path=\"" + checkpoints + "\"'", steps);
  const absl::StatusOr<actors::Checkpoint> checkpoint =
      actors::Checkpoint::Open(actors::CheckpointFolder::PathOf(checkpoints, steps));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::vector<float> weights;
  if (!checkpoint.ok()) return weights;
  for (const actors::CheckpointTensor& tensor : checkpoint->tensors()) {
    const bool is_optimizer_state = tensor.name.ends_with(".m") || tensor.name.ends_with(".v");
    const bool is_counter = tensor.name == "step" || tensor.name.starts_with("loss_scale");
    if ((is_optimizer_state && !with_states) || is_counter) continue;
    EXPECT_EQ(tensor.type.dtype, DType::kF32) << tensor.name;
    const absl::StatusOr<Tensor> value = checkpoint->Read(tensor);
    EXPECT_TRUE(value.ok()) << value.status();
    if (!value.ok()) continue;
    const float* begin = value->As<float>();
    weights.insert(weights.end(), begin, begin + value->num_elements());
  }
  return weights;
}

// |a - b| / |a|, where |a| is the root of the sum of squares.
double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    sum += double{a[i]} * a[i];
  }
  return std::sqrt(difference / sum);
}

// The weights that mixed precision updates are f32: of one plan, the same bits in every run and
// wherever its devices are. Plans that split the batch or the layers are as near to each other as
// in f32. Those that split features round parts of sums to 16 bits before they add them up, and
// those that split sequences round the exponentials of attention by the maximum of a part of the
// keys: they are about as near to each other as to f32. AdamW scales each update to the learning
// rate, so rounding of the smallest gradients shows in full.
TEST(AnyPlanInMixedPrecisionTest, MasterWeightsAreThoseOfOneDevice) {
  const std::string mixed = kConstantRate +
                            " --set model.layers=2 --set model.width=64 --set model.heads=2 --set "
                            "model.context=32 --set 'train.dtype=\"bf16\"' ";
  const std::vector<float> one = Weights(kOneDevice, mixed, kSteps);
  ASSERT_GT(one.size(), 100000u);
  EXPECT_EQ(Weights(kOneDevice, mixed, kSteps, true), Weights(kOneDevice, mixed, kSteps, true));
  const std::string f32 = mixed + "--set 'train.dtype=\"f32\"' ";
  const double rounding = RelativeDistance(Weights(kOneDevice, f32, kSteps), one);
  EXPECT_GT(rounding, 0);
  EXPECT_LT(rounding, 1e-3);
  // Seen: 1.1e-4. Products of fewer rows may add up their terms in another order, and AdamW
  // amplifies the few elements that are rounded the other way.
  constexpr double kF32Tolerance = 2e-4;
  for (const auto& [layout, tolerance] :
       {std::pair{Layout{"dp=4", 4, 2, "1f1b"}, kF32Tolerance},
        std::pair{Layout{"dp=4,zero=3", 4, 2, "1f1b"}, kF32Tolerance},
        std::pair{Layout{"pp=2", 2, 4, "1f1b"}, kF32Tolerance},
        std::pair{Layout{"cp=2", 2, 2, "1f1b"}, rounding},
        std::pair{Layout{"tp=2,sp=true", 2, 2, "1f1b"}, 2 * rounding},
        std::pair{Layout{"dp=2,tp=2", 4, 2, "1f1b"}, 2 * rounding}}) {
    SCOPED_TRACE(Name(layout));
    EXPECT_LE(RelativeDistance(one, Weights(layout, mixed, kSteps)), tolerance);
    EXPECT_EQ(Weights(layout, mixed, kSteps, true),
              Weights(layout, mixed + " --procs 2", kSteps, true));
  }
}

// With sums in f32, a product whose terms are split over devices is rounded as on one device, once:
// the first update is nearly that of one device. Later ones amplify the few elements that another
// order of the terms rounds the other way.
TEST(AnyPlanInMixedPrecisionTest, SumsInF32GiveTheUpdateOfOneDevice) {
  const std::string mixed = kConstantRate +
                            " --set model.layers=2 --set model.width=64 --set model.heads=2 --set "
                            "model.context=32 --set 'train.dtype=\"bf16\"' ";
  const std::string f32_sums = mixed + "--set 'train.sum_dtype=\"f32\"' ";
  const std::vector<float> one = Weights(kOneDevice, mixed, 1);
  EXPECT_EQ(one, Weights(kOneDevice, f32_sums, 1));
  constexpr double kF32Tolerance = 1e-4;
  for (const Layout& layout :
       {Layout{"tp=2", 2, 1, "1f1b"}, Layout{"tp=2,sp=true", 2, 2, "1f1b"},
        Layout{"dp=2,tp=2", 4, 2, "1f1b"}, Layout{"tp=2,pp=2,recompute=full", 4, 2, "1f1b"},
        Layout{"tp=2,sp=true,subbatches=2", 2, 1, "1f1b"}}) {
    SCOPED_TRACE(Name(layout));
    EXPECT_LT(RelativeDistance(one, Weights(layout, f32_sums, 1)), kF32Tolerance);
    EXPECT_GT(RelativeDistance(one, Weights(layout, mixed, 1)), 2 * kF32Tolerance);
    EXPECT_EQ(Weights(layout, f32_sums, kSteps, true),
              Weights(layout, f32_sums + " --procs 2", kSteps, true));
  }
}

// Gradients that f16 cannot hold are zero without a loss scale; with one that is too large they
// overflow, and steps update nothing until it has been halved often enough.
TEST(AnyPlanInMixedPrecisionTest, ALossScaleKeepsGradientsInTheRangeOfF16) {
  const std::string f32 = kConstantRate +
                          " --set model.layers=2 --set model.width=64 --set model.heads=2 --set "
                          "model.context=32 ";
  const std::string f16 = f32 + "--set 'train.dtype=\"f16\"' ";
  for (const Layout& layout : {kOneDevice, Layout{"dp=2,tp=2", 4, 2, "1f1b"}}) {
    SCOPED_TRACE(Name(layout));
    const std::vector<float> exact = Weights(layout, f32, kSteps);
    const double scaled = RelativeDistance(exact, Weights(layout, f16, kSteps));
    const double unscaled =
        RelativeDistance(exact, Weights(layout, f16 + "--set train.loss_scale=0 ", kSteps));
    EXPECT_LT(2 * scaled, unscaled);
    const std::string huge = f16 + "--set train.loss_scale=16777216.0 ";  // 2^24
    const std::vector<float> initial = Weights(layout, f32 + "--set train.learning_rate=1e-30 ", 1);
    EXPECT_LT(RelativeDistance(initial, Weights(layout, huge, 1)), 1e-20);
    EXPECT_GT(RelativeDistance(initial, Weights(layout, huge, 12)), 1e-4);
  }
}

// Some devices are CPUs and others behave like GPUs, whose memory the host cannot touch: whole
// stages, or members of the same groups.
TEST(AnyPlanOnSeveralKindsTest, GivesTheBitsOfCpuDevices) {
  const std::string small = kConstantRate +
                            " --set model.layers=2 --set model.width=64 --set model.heads=2 --set "
                            "model.context=32 ";
  const std::vector<double> one = Losses(kOneDevice, small, kSteps);
  const std::pair<Layout, std::string> kLayoutsOnKinds[] = {
      {{"pp=2", 2, 4, "1f1b"}, "\"cpu\", \"emulated\""},
      {{"pp=2", 2, 4, "zb-h1"}, "\"emulated\", \"cpu\""},
      {{"dp=2,zero=2", 2, 2, "1f1b"}, "\"cpu\", \"emulated\""},
      {{"tp=2,sp=true,offload=all", 2, 2, "1f1b"}, "\"emulated\", \"cpu\""},
      {{"dp=2,pp=2,zero=1", 4, 4, "1f1b"}, "\"cpu\", \"emulated\""},
      {{"dp=2,pp=2", 4, 4, "dualpipe"}, "\"cpu\", \"emulated\", \"emulated\", \"cpu\""},
      {{"dp=2,tp=2,pp=2", 8, 4, "1f1b"}, "\"cpu\", \"emulated\", \"cpu\", \"emulated\""},
      {{"optimizer=host", 2, 2, "1f1b"}, "\"cpu\", \"emulated\""},
      {{"dp=2,optimizer=host", 3, 2, "1f1b"}, "\"cpu\", \"emulated\", \"emulated\""},
      {{"pp=2,optimizer=host", 3, 2, "1f1b"}, "\"cpu\", \"emulated\", \"emulated\""},
  };
  for (const auto& [layout, kinds] : kLayoutsOnKinds) {
    SCOPED_TRACE(StrCat(Name(layout), " ", kinds));
    const std::vector<double> cpu = Losses(layout, small, kSteps);
    ExpectSameLosses(one, cpu, 1e-4);
    const std::string mixed = StrCat(small, "--set 'cluster.device_kind=[", kinds, "]'");
    EXPECT_EQ(cpu, Losses(layout, mixed, kSteps));
    EXPECT_EQ(cpu, Losses(layout, mixed + " --procs 2", kSteps));
  }
}

// The CPU has all parameters, states and updates. What passes between it and the others are the
// weights and the gradients, once a step; in mixed precision weights of 16 bits.
TEST(AnyPlanOnSeveralKindsTest, AnOptimizerOnTheHostSendsWeightsAndGetsGradientsOnceAStep) {
  const std::string small =
      " --set model.layers=2 --set model.width=64 --set model.heads=2 --set model.context=32 ";
  constexpr uint64_t kLeastSplitBytes = 32 << 10;
  for (const std::string dtype : {"f32", "bf16"}) {
    const std::string settings =
        StrCat(kConstantRate, small, "--set 'train.dtype=\"", dtype, "\"' ");
    const std::vector<double> one = Losses(kOneDevice, settings, kSteps);
    for (const auto& [layout, is_pipeline] :
         {std::pair{Layout{"optimizer=host", 2, 2, "1f1b"}, false},
          std::pair{Layout{"dp=2,optimizer=host", 3, 2, "1f1b"}, false},
          std::pair{Layout{"pp=2,optimizer=host", 3, 2, "1f1b"}, true}}) {
      SCOPED_TRACE(StrCat(Name(layout), " ", dtype));
      const std::string on_kinds =
          StrCat(settings, "--set 'cluster.device_kind=[\"cpu\", \"emulated\"",
                 layout.devices == 3 ? ", \"emulated\"" : "", "]'");
      const std::vector<double> losses = Losses(layout, on_kinds, kSteps);
      ExpectSameLosses(one, losses, dtype == "f32" ? 1e-4 : 1e-3);
      EXPECT_EQ(losses, Losses(layout, on_kinds + " --procs 2", kSteps));

      const TempFolder folder;
      const std::string file = folder.Path("job.plan");
      const std::string command =
          StrCat(Command("plan", layout), " ", on_kinds, " -o ", file, " > /dev/null 2>&1");
      ASSERT_EQ(std::system(command.c_str()), 0) << command;
      const absl::StatusOr<planner::Plan> plan = planner::ReadPlan(file);
      ASSERT_TRUE(plan.ok()) << plan.status();
      uint64_t weights = 0;    // bytes that are sent
      uint64_t gradients = 0;  // likewise
      for (const planner::StatePlan& state : plan->states) {
        ASSERT_EQ(state.placements.size(), 1u) << state.name;
        EXPECT_EQ(state.placements[0].device, 0u) << state.name;
        if (!state.is_parameter) continue;
        const uint64_t size = state.type.num_bytes() / (dtype == "f32" ? 1 : 2);
        // Replicas get parts of what is large, and both stages the embedding.
        const bool is_sent_twice = layout.strategy.starts_with("dp")
                                       ? size < kLeastSplitBytes
                                       : is_pipeline && state.name == "wte";
        weights += is_sent_twice ? 2 * size : size;
        gradients += state.type.num_bytes();
      }
      for (size_t d = 1; d < plan->devices.size(); ++d) {
        EXPECT_EQ(plan->devices[d].state_bytes, 0u);
      }
      uint64_t down = 0;
      uint64_t up = 0;
      for (const planner::TransferPlan& transfer : plan->transfers) {
        if (transfer.source != 0 && transfer.destination != 0) continue;
        EXPECT_FALSE(transfer.per_microbatch);
        (transfer.source == 0 ? down : up) += transfer.num_bytes;
      }
      EXPECT_EQ(down, weights);
      // And squares of their norms.
      EXPECT_GE(up, gradients);
      EXPECT_LE(up, gradients + 64);
    }
  }
}

// A job in `folder` that trains the graph of a file. Returns the path of the job.
std::string WriteFileJob(const TempFolder& folder, const std::string& graph) {
  std::ofstream(folder.Path("g.pst")) << graph;
  std::ofstream(folder.Path("job.toml"))
      << "[model]\nfile = \"g.pst\"\n[data]\ntext = [\"" PENSTOCK_SOURCE_DIR
         "/docs\"]\n"
         "[train]\nsteps = 10\nvalidation_sequences = 0\nlearning_rate = 1e-2\n";
  return folder.Path("job.toml");
}

std::vector<double> LossesOfFile(const std::string& graph, const std::string& options) {
  const TempFolder folder;
  const std::string command =
      StrCat(PENSTOCK_COMMAND, " run ", WriteFileJob(folder, graph), " ", options, " --dump ",
             folder.path().string(), " > /dev/null 2>&1");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  const absl::StatusOr<Tensor> losses = cli::ReadNpy(folder.Path("losses.npy"));
  EXPECT_TRUE(losses.ok()) << losses.status();
  if (!losses.ok()) return {};
  return {losses->As<double>(), losses->As<double>() + losses->num_elements()};
}

planner::Plan PlanOfFile(const std::string& graph, const std::string& options) {
  const TempFolder folder;
  const std::string file = folder.Path("job.plan");
  const std::string command = StrCat(PENSTOCK_COMMAND, " plan ", WriteFileJob(folder, graph), " ",
                                     options, " -o ", file, " > /dev/null 2>&1");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  absl::StatusOr<planner::Plan> plan = planner::ReadPlan(file);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : planner::Plan();
}

// A stage of one device that has the embedding and its part of the optimiser, and one of two
// devices that has the rest.
TEST(AnyPlanOnSeveralKindsTest, AnEmbeddingOnACpuOfItsOwnGivesTheBitsOfCpuDevices) {
  const std::string graph = R"(mesh table = [mb=2 temporal, one=1]
mesh rest = [mb=2 temporal, dp=2]
graph bigrams {
  %tokens = input : i32[8, 16] @[mb, _] on table stage 0
  %wte = parameter {std=0.1} : f32[256, 32] on table stage 0
  %x = embedding(%wte, %tokens) : f32[8, 16, 32] @[mb, _, _] on table stage 0
  %labels = input : i32[8, 16] @[mb.dp, _] on rest stage 1
  %w1 = parameter {std=0.1} : f32[32, 64] on rest stage 1
  %p = matmul(%x, %w1) : f32[8, 16, 64] @[mb.dp, _, _] on rest stage 1
  %h = gelu(%p) : f32[8, 16, 64] on rest stage 1
  %w2 = parameter {std=0.1} : f32[64, 256] on rest stage 1
  %logits = matmul(%h, %w2) : f32[8, 16, 256] on rest stage 1
  %losses, %max, %log_sum = cross_entropy(%logits, %labels) : f32[8, 16], f32[8, 16], f32[8, 16] on rest stage 1
  %loss = reduce_mean(%losses) {axes=[0, 1]} : f32[] on rest stage 1
  return %loss
}
)";
  const std::vector<double> cpu = LossesOfFile(graph, "");
  ASSERT_EQ(cpu.size(), 10u);
  EXPECT_LT(cpu.back(), cpu.front());
  const std::string kinds = "--set 'cluster.device_kind=[\"cpu\", \"emulated\", \"emulated\"]'";
  for (const char* processes : {" --procs 1", " --procs 3"}) {
    EXPECT_EQ(cpu, LossesOfFile(graph, kinds + processes)) << processes;
  }
}

// All parameters, and with them the optimiser, are on a CPU, and the operators on one device or two
// that behave like GPUs.
TEST(AnyPlanOnSeveralKindsTest, AnOptimizerOnACpuOfItsOwnGivesTheBitsOfCpuDevices) {
  for (const int others : {1, 2}) {
    const std::string graph = StrCat("mesh host = [mb=2 temporal, one=1]\n",
                                     "mesh rest = [mb=2 temporal, dp=", others, "]\n",
                                     R"(graph bigrams {
  %wte = parameter {std=0.1} : f32[256, 32] on host stage 0
  %w1 = parameter {std=0.1} : f32[32, 64] on host stage 0
  %w2 = parameter {std=0.1} : f32[64, 256] on host stage 0
  %tokens = input : i32[8, 16] @[mb.dp, _] on rest stage 1
  %labels = input : i32[8, 16] @[mb.dp, _] on rest stage 1
  %x = embedding(%wte, %tokens) : f32[8, 16, 32] @[mb.dp, _, _] on rest stage 1
  %p = matmul(%x, %w1) : f32[8, 16, 64] on rest stage 1
  %h = gelu(%p) : f32[8, 16, 64] on rest stage 1
  %logits = matmul(%h, %w2) : f32[8, 16, 256] on rest stage 1
  %losses, %max, %log_sum = cross_entropy(%logits, %labels) : f32[8, 16], f32[8, 16], f32[8, 16] on rest stage 1
  %loss = reduce_mean(%losses) {axes=[0, 1]} : f32[] on rest stage 1
  return %loss
}
)");
    const std::string kinds = StrCat("--set 'cluster.device_kind=[\"cpu\", \"emulated\"",
                                     others == 1 ? "" : ", \"emulated\"", "]'");
    uint64_t sent_bytes = 0;  // by the CPU, in f32
    for (const std::string_view dtype : {"f32", "bf16"}) {
      SCOPED_TRACE(StrCat(others, " other devices, ", dtype));
      const std::string type = StrCat("--set 'train.dtype=\"", dtype, "\"' ");
      const std::vector<double> cpu = LossesOfFile(graph, type);
      ASSERT_EQ(cpu.size(), 10u);
      EXPECT_LT(cpu.back(), cpu.front());
      for (const int processes : {1, 1 + others}) {
        EXPECT_EQ(cpu, LossesOfFile(graph, StrCat(type, kinds, " --procs ", processes)));
      }
      const planner::Plan plan = PlanOfFile(graph, type + kinds);
      ASSERT_EQ(plan.devices.size(), static_cast<size_t>(1 + others));
      EXPECT_GT(plan.devices[0].state_bytes, 0u);
      for (int d = 1; d <= others; ++d) EXPECT_EQ(plan.devices[d].state_bytes, 0u);
      EXPECT_GT(plan.states.size(), 3u);  // the parameters, and the moments
      for (const planner::StatePlan& state : plan.states) {
        ASSERT_EQ(state.placements.size(), 1u) << state.name;
        EXPECT_EQ(state.placements[0].device, 0u) << state.name;
      }
      // The weights, once a step, in the type in which the others compute. Two devices get large
      // ones in parts and small ones whole.
      if (others > 1) continue;
      uint64_t bytes = 0;
      for (const planner::TransferPlan& transfer : plan.transfers) {
        if (transfer.source == 0 && !transfer.per_microbatch) bytes += transfer.num_bytes;
      }
      EXPECT_GT(bytes, 0u);
      if (dtype == "f32") sent_bytes = bytes;
      EXPECT_EQ(dtype == "f32" ? bytes : 2 * bytes, sent_bytes);
    }
  }
}

// Gradients that devices add up in 16 bits are rounded on one device, too.
TEST(AnyPlanWithSmallGradientsTest, GivesTheLossesOfOneDevice) {
  const std::string small = kConstantRate +
                            " --set model.layers=2 --set model.width=64 --set model.heads=2 --set "
                            "model.context=32 --set 'train.gradient_dtype=\"bf16\"' ";
  for (const std::string_view dtype : {"f32", "f16"}) {
    const std::string settings = small + StrCat("--set 'train.dtype=\"", dtype, "\"'");
    const std::vector<double> one = Losses(kOneDevice, settings, kSteps);
    for (const Layout& layout :
         {Layout{"dp=2", 2, 4, "1f1b"}, Layout{"dp=2,tp=2,pp=2", 8, 4, "1f1b"},
          Layout{"dp=2,zero=1", 2, 4, "1f1b"}, Layout{"dp=4,zero=3", 4, 2, "1f1b"},
          Layout{"dp=2,zero=2", 2, 1, "1f1b"}}) {
      SCOPED_TRACE(StrCat(Name(layout), " ", dtype));
      const std::vector<double> many = Losses(layout, settings, kSteps);
      ExpectSameLosses(one, many, 1e-3);
      if (layout.devices != 2 || dtype != "f32") continue;
      EXPECT_EQ(many, Losses(layout, settings + " --procs 2", kSteps));
      // Where kernels and collectives of a floating phase run on streams.
      const std::string kinds = " --set 'cluster.device_kind=[\"emulated\", \"cpu\"]'";
      EXPECT_EQ(many, Losses(layout, settings + kinds, kSteps));
    }
  }
}

// --- The plan of the demo's model ----------------------------------------------------------------

planner::Plan DemoPlan(const Layout& layout, int context, int width = 256,
                       const std::string& settings = "") {
  const TempFolder folder;
  const std::string file = folder.Path("demo.plan");
  const std::string command = Command("plan", layout) +
                              " --set model.width=" + std::to_string(width) +
                              " --set model.context=" + std::to_string(context) + settings +
                              " -o " + file + " >/dev/null 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  absl::StatusOr<planner::Plan> plan = planner::ReadPlan(file);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : planner::Plan();
}

// CPU devices, or devices that behave like GPUs, whose collectives and messages the host or they
// themselves run, or some of each.
enum class SessionDevices { kCpu, kEmulated, kEmulatedWithCollectives, kMixed };

// The losses of the plan's steps on random bytes.
std::vector<double> SessionLosses(const planner::Plan& plan, SessionDevices devices) {
  constexpr int kSessionSteps = 4;
  constexpr int64_t kBytes = 16;  // that occur, so that the loss falls
  const kernels::KernelRegistry cpu_kernels = kernels::CpuKernels();
  actors::SessionOptions options;
  options.seed = 1;
  options.kernels = &cpu_kernels;
  options.kernels_by_kind["emulated"] =
      std::make_shared<const kernels::KernelRegistry>(kernels::EmulatedKernels(cpu_kernels));
  if (devices != SessionDevices::kCpu) {
    // Of the devices, every other one works beside its executor and the others in its polls. CPUs
    // are 0, 3, 5, 6 and so on.
    options.create_device = [is_mixed = devices == SessionDevices::kMixed](
                                uint32_t index) -> absl::StatusOr<std::unique_ptr<Device>> {
      if (is_mixed && std::popcount(index) % 2 == 0) return nullptr;
      return EmulatedDevice::Create({.has_thread = index % 2 == 0, .seed = index});
    };
  }
  if (devices == SessionDevices::kEmulatedWithCollectives) {
    options.create_communicator = transport::CreateEmulatedCommunicators();
  }
  const absl::StatusOr<std::unique_ptr<actors::Session>> session =
      actors::Session::Start(plan, options);
  EXPECT_TRUE(session.ok()) << session.status();
  if (!session.ok()) return {};
  Random random(1);
  std::vector<double> losses;
  for (int step = 0; step < kSessionSteps; ++step) {
    actors::Feeds feeds;
    for (const planner::FeedPlan& feed : plan.feeds) {
      Tensor tensor(feed.type);
      EXPECT_EQ(feed.type.dtype, DType::kI32) << feed.name;
      for (int64_t i = 0; i < tensor.num_elements(); ++i) {
        tensor.As<int32_t>()[i] = static_cast<int32_t>(random.Below(kBytes));
      }
      feeds[feed.name] = std::move(tensor);
    }
    const absl::StatusOr<actors::StepResult> result = (*session)->Run(feeds);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    losses.push_back(result->fetches[0].second.As<float>()[0]);
  }
  return losses;
}

// On devices that run their work later, and whose memory the host cannot touch.
TEST(AnyPlanEmulatedTest, GivesTheBitsOfCpuDevices) {
  constexpr int kContext = 32;
  constexpr int kWidth = 64;
  const std::vector<double> one =
      SessionLosses(DemoPlan(kOneDevice, kContext, kWidth), SessionDevices::kCpu);
  for (const Layout& layout : {
           Layout{"dp=2,tp=2", 4, 1, "1f1b"},
           Layout{"pp=2,vpp=2", 2, 4, "1f1b"},
           Layout{"dp=4,zero=3", 4, 4, "1f1b"},
           Layout{"tp=2,sp=true,recompute=full,offload=all", 2, 4, "1f1b"},
           Layout{"pp=2", 2, 4, "dualpipe"},
           Layout{"tp=2,pp=2,sp=true", 4, 4, "zb-h1"},
           Layout{"pp=4", 4, 4, "interleaved"},
           Layout{"dp=2,pp=2", 4, 4, "chimera"},
       }) {
    SCOPED_TRACE(Name(layout));
    const planner::Plan plan = DemoPlan(layout, kContext, kWidth);
    const std::vector<double> losses = SessionLosses(plan, SessionDevices::kCpu);
    ExpectSameLosses(one, losses, 1e-4);
    const absl::StatusOr<actors::StreamLaunches> launches =
        actors::PlanStreamLaunches(plan, planner::BuiltinPolicies());
    EXPECT_EQ(launches.status(), absl::OkStatus());
    EXPECT_EQ(launches.ok() ? launches->why_not_messages : "", "");
    EXPECT_EQ(losses, SessionLosses(plan, SessionDevices::kEmulated));
    EXPECT_EQ(losses, SessionLosses(plan, SessionDevices::kEmulatedWithCollectives));
    EXPECT_EQ(losses, SessionLosses(plan, SessionDevices::kMixed));
  }
}

// Every schedule of a pipeline has an order in which devices can launch collectives and messages,
// and gives the bits of CPUs with it.
class AnyPolicyOnStreamsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(AnyPolicyOnStreamsTest, GivesTheBitsOfCpuDevices) {
  const Layout layout = {"pp=4", 4, 8, GetParam()};
  const planner::Plan plan = DemoPlan(layout, 16, 32, " --set model.layers=8 --set model.heads=2");
  const absl::StatusOr<actors::StreamLaunches> launches =
      actors::PlanStreamLaunches(plan, planner::BuiltinPolicies());
  ASSERT_EQ(launches.status(), absl::OkStatus());
  EXPECT_EQ(launches->launched, planner::Launched::kCollectivesAndMessages);
  EXPECT_EQ(SessionLosses(plan, SessionDevices::kEmulatedWithCollectives),
            SessionLosses(plan, SessionDevices::kCpu));
}

INSTANTIATE_TEST_SUITE_P(Policies, AnyPolicyOnStreamsTest,
                         ::testing::Values("gpipe", "1f1b", "eager-1f1b", "interleaved",
                                           "looped-bfs", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v",
                                           "v-half", "v-min", "dualpipe", "dualpipev", "chimera"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The states of the optimiser are on the host, each in full, and nothing else changes but what the
// update works in.
TEST(DemoPlanTest, OffloadedStatesLeaveTheDevice) {
  for (const Layout& layout : {Layout{"dp=1", 1, 1, "1f1b"}, Layout{"dp=2,zero=1", 2, 4, "1f1b"},
                               Layout{"dp=2,tp=2,pp=2", 8, 4, "1f1b"}}) {
    SCOPED_TRACE(Name(layout));
    const planner::Plan kept = DemoPlan(layout, 128);
    Layout offloading = layout;
    offloading.strategy += ",offload=states";
    const planner::Plan plan = DemoPlan(offloading, 128);
    ASSERT_EQ(plan.devices.size(), kept.devices.size());
    EXPECT_EQ(plan.graph_fingerprint, kept.graph_fingerprint);
    std::vector<uint64_t> moved(plan.devices.size(), 0);
    size_t num_moved = 0;
    for (const planner::StatePlan& state : plan.states) {
      for (const planner::StatePlacement& placement : state.placements) {
        const planner::DevicePlan& device = plan.devices[placement.device];
        const planner::RegisterPlan& reg = device.registers[placement.reg];
        if (!planner::IsOnHost(device, reg)) continue;
        EXPECT_FALSE(state.is_parameter) << state.name;
        moved[placement.device] += reg.slot_bytes;
        ++num_moved;
      }
    }
    EXPECT_GT(num_moved, plan.devices.size());
    for (size_t d = 0; d < plan.devices.size(); ++d) {
      EXPECT_EQ(plan.devices[d].state_bytes + moved[d], kept.devices[d].state_bytes);
      EXPECT_EQ(plan.devices[d].host_bytes, moved[d]);
      EXPECT_EQ(plan.devices[d].channel_bytes, kept.devices[d].channel_bytes);
      EXPECT_GT(moved[d], kept.devices[d].state_bytes / 3);
      EXPECT_LE(plan.devices[d].workspace_bytes,
                kept.devices[d].workspace_bytes + kept.devices[d].state_bytes / 4);
    }
  }
}

// Whatever else the phases do.
TEST(DemoPlanTest, OffloadedActivationsLeaveTheDevice) {
  for (const Layout& layout : {Layout{"dp=1", 1, 1, "1f1b"}, Layout{"dp=4", 4, 1, "1f1b"}}) {
    SCOPED_TRACE(Name(layout));
    Layout offloading = layout;
    offloading.strategy += ",offload=activations";
    const planner::Plan kept = DemoPlan(layout, 128);
    const planner::Plan plan = DemoPlan(offloading, 128);
    ASSERT_EQ(plan.devices.size(), kept.devices.size());
    EXPECT_LT(plan.devices[0].arena_bytes + plan.devices[0].host_bytes / 2,
              kept.devices[0].arena_bytes);
  }
}

// Of 16 x 128 x 256 logits, split over the vocabulary, none travel, in whole or in micro-batches.
TEST(DemoPlanTest, TensorParallelMovesNoLogits) {
  for (const Layout& layout : {Layout{"tp=2", 2, 1, "1f1b"}, Layout{"tp=2", 2, 4, "1f1b"},
                               Layout{"dp=2,tp=2", 4, 1, "1f1b"}}) {
    const planner::Plan plan = DemoPlan(layout, 128);
    ASSERT_EQ(plan.devices.size(), static_cast<size_t>(layout.devices));
    const int64_t parts = layout.devices / 2 * layout.microbatches;
    const int64_t logits = 16 / parts * 128 * 256;
    bool reduces = false;
    for (const CollectiveSpec& collective : plan.collectives) {
      const int64_t count =
          std::accumulate(collective.counts.begin(), collective.counts.end(), int64_t{0});
      if (collective.kind == CollectiveKind::kAllReduce) {
        reduces = true;
      } else {
        EXPECT_LT(count, logits) << layout.strategy;
      }
    }
    EXPECT_TRUE(reduces);
  }
}

// Sums of activations in f32 take twice the bytes of those in bf16; those of gradients stay.
TEST(DemoPlanTest, SumsInF32MoveTwiceTheBytes) {
  struct ReducedBytes {
    int64_t low = 0;  // in bf16
    int64_t f32 = 0;
  };
  const auto reduced_bytes = [](const Layout& layout, const std::string& settings) {
    ReducedBytes bytes;
    for (const CollectiveSpec& collective : DemoPlan(layout, 32, 64, settings).collectives) {
      const bool is_sum = (collective.kind == CollectiveKind::kAllReduce ||
                           collective.kind == CollectiveKind::kReduceScatter) &&
                          collective.reduce == ReduceOp::kSum;
      if (!is_sum) continue;
      const int64_t count =
          std::accumulate(collective.counts.begin(), collective.counts.end(), int64_t{0});
      (collective.dtype == DType::kBF16 ? bytes.low : bytes.f32) +=
          count * ByteSize(collective.dtype);
    }
    return bytes;
  };
  const std::string mixed = " --set 'train.dtype=\"bf16\"'";
  for (const Layout& layout :
       {Layout{"dp=2,tp=2", 4, 2, "1f1b"}, Layout{"tp=2,sp=true,subbatches=2", 2, 2, "1f1b"}}) {
    SCOPED_TRACE(Name(layout));
    const ReducedBytes before = reduced_bytes(layout, mixed);
    const ReducedBytes after = reduced_bytes(layout, mixed + " --set 'train.sum_dtype=\"f32\"'");
    EXPECT_GT(before.low, 0);
    EXPECT_EQ(after.low, 0);
    EXPECT_EQ(after.f32, before.f32 + 2 * before.low);
    // What gradient_dtype says of gradients holds beside it.
    if (layout.devices < 4) continue;
    const ReducedBytes gradients =
        reduced_bytes(layout, mixed +
                                  " --set 'train.sum_dtype=\"f32\"' --set "
                                  "'train.gradient_dtype=\"bf16\"'");
    EXPECT_GT(gradients.low, 0);
    EXPECT_LT(gradients.f32, after.f32);
  }
}

// Attention never makes the square of the sequence, forward or backward.
TEST(DemoPlanTest, ArenasGrowLinearlyWithTheContext) {
  for (const Layout& layout : {kOneDevice, Layout{"tp=2", 2, 1, "1f1b"}}) {
    std::vector<double> bytes;
    for (int context : {256, 512, 1024}) {
      const planner::Plan plan = DemoPlan(layout, context);
      ASSERT_FALSE(plan.devices.empty());
      bytes.push_back(static_cast<double>(plan.devices[0].arena_bytes));
    }
    EXPECT_NEAR((bytes[2] - bytes[1]) / (bytes[1] - bytes[0]), 2.0, 0.02) << layout.strategy;
  }
}

// The same of full and causal attention on operands of their own, whole, over split keys and over
// split queries. All sequences are longer than the 1,024 terms beyond which sums have f64 scratch.
TEST(AttentionPlanTest, ArenasGrowLinearlyWithTheSequence) {
  const TempFolder folder;
  for (const std::string_view causal : {"false", "true"}) {
    for (const auto& [q, k] :
         {std::pair("_", "_"), std::pair("_", "x"), std::pair("x", "_"), std::pair("x", "x")}) {
      std::vector<double> bytes;
      for (const int sequence : {2048, 4096, 8192}) {
        const std::string type = StrCat(" : f32[2, 2, ", sequence, ", 16]");
        std::ofstream(folder.Path("attention.pst"))
            << "mesh m = [x=2]\ngraph g {\n  %q = parameter" << type << " @[_, _, " << q
            << ", _]\n  %k = parameter" << type << " @[_, _, " << k << ", _]\n  %v = parameter"
            << type << " @[_, _, " << k << ", _]\n  %o = attention(%q, %k, %v) {causal=" << causal
            << "}" << type << "\n  %l = reduce_mean(%o) {axes=[0, 1, 2, 3]} : f32[]\n"
            << "  return %l\n}\n";
        std::ofstream(folder.Path("job.toml"))
            << "[model]\nfile = \"attention.pst\"\n[cluster]\nthreads = 1\n";
        const std::string file = folder.Path("job.plan");
        const std::string command =
            StrCat(PENSTOCK_COMMAND " plan ", folder.Path("job.toml"), " -o ", file, " >/dev/null");
        ASSERT_EQ(std::system(command.c_str()), 0) << command;
        const absl::StatusOr<planner::Plan> plan = planner::ReadPlan(file);
        ASSERT_TRUE(plan.ok()) << plan.status();
        bytes.push_back(static_cast<double>(plan->devices[0].arena_bytes));
      }
      // A square would give 4; how tight an arena is packed varies a little.
      EXPECT_NEAR((bytes[2] - bytes[1]) / (bytes[1] - bytes[0]), 2.0, 0.15)
          << "causal " << causal << ", queries @" << q << ", keys @" << k;
    }
  }
}

}  // namespace
}  // namespace penstock::testing
