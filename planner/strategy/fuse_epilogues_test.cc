#include "planner/strategy/fuse_epilogues.h"

#include <map>
#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "planner/opt.h"
#include "planner/policy/policy.h"
#include "tests/support/gpt_plan.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class FuseEpiloguesTest : public testing::PlannerFixture {
 protected:
  std::string Fused(std::string_view text) const {
    const auto fused = Optimize(text, "in.pst", "fuse-epilogues,verify", ops_);
    EXPECT_TRUE(fused.ok()) << fused.status();
    return fused.value_or("");
  }
  void ExpectFused(std::string_view text, std::string_view expected) const {
    const auto wanted = Optimize(expected, "out.pst", "verify", ops_);
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    EXPECT_EQ(Fused(text), *wanted);
  }
  void ExpectUnchanged(std::string_view text) const { ExpectFused(text, text); }
};

TEST_F(FuseEpiloguesTest, AProductTakesItsBias) {
  ExpectFused(R"(graph g {
  %x = input : f32[2, 3, 8]
  %w = parameter : f32[8, 3, 2, 4]
  %b = parameter : f32[3, 2, 4]
  %p = einsum(%x, %w) {equation="bsd,dchk->bschk"} : f32[2, 3, 3, 2, 4]
  %y = bias_add(%p, %b) : f32[2, 3, 3, 2, 4]
  return %y
})",
              R"(graph g {
  %x = input : f32[2, 3, 8]
  %w = parameter : f32[8, 3, 2, 4]
  %b = parameter : f32[3, 2, 4]
  %y = einsum_bias(%x, %w, %b) {equation="bsd,dchk->bschk"} : f32[2, 3, 3, 2, 4]
  return %y
})");
}

TEST_F(FuseEpiloguesTest, MatmulBecomesAnEquation) {
  EXPECT_THAT(Fused(R"(graph g {
  %x = input : f32[2, 3, 8]
  %w = parameter : f32[4, 8]
  %b = parameter : f32[4]
  %p = matmul(%x, %w) {transpose_b=true} : f32[2, 3, 4]
  %y = bias_gelu(%p, %b) : f32[2, 3, 4]
  return %y
})"),
              HasSubstr("%y = einsum_bias_gelu(%x, %w, %b) {equation=\"Amk,nk->Amn\"}"));
}

// An MLP with its gradients, as AddGradients writes it.
TEST_F(FuseEpiloguesTest, GradientsTakeThatOfGelu) {
  ExpectFused(R"(graph g {
  %x = input : f32[6, 8]
  %dz = input : f32[6, 5]
  %w = parameter : f32[8, 4]
  %b = parameter : f32[4]
  %v = parameter : f32[4, 5]
  %p = matmul(%x, %w) : f32[6, 4]
  %y = bias_gelu(%p, %b) : f32[6, 4]
  %z = matmul(%y, %v) : f32[6, 5]
  %dy = matmul(%dz, %v) {transpose_b=true} : f32[6, 4] phase backward
  %dp = bias_gelu_grad(%p, %b, %dy) : f32[6, 4] phase backward
  %db = reduce_sum(%dp) {axes=[0]} : f32[4] phase weight_backward
  %dw = matmul(%x, %dp) {transpose_a=true} : f32[8, 4] phase weight_backward
  return %z, %dw, %db
})",
              R"(graph g {
  %x = input : f32[6, 8]
  %dz = input : f32[6, 5]
  %w = parameter : f32[8, 4]
  %b = parameter : f32[4]
  %v = parameter : f32[4, 5]
  %y, %p.biased = einsum_bias_gelu(%x, %w, %b) {equation="mk,kn->mn"} : f32[6, 4], f32[6, 4]
  %z = matmul(%y, %v) : f32[6, 5]
  %dp = einsum_gelu_grad(%dz, %v, %p.biased) {equation="mk,nk->mn"} : f32[6, 4] phase backward
  %db = reduce_sum(%dp) {axes=[0]} : f32[4] phase weight_backward
  %dw = matmul(%x, %dp) {transpose_a=true} : f32[8, 4] phase weight_backward
  return %z, %dw, %db
})");
}

// Computed again for the backward pass, gelu reads what is kept.
TEST_F(FuseEpiloguesTest, RecomputedGeluReadsTheBiasedProduct) {
  const std::string fused = Fused(R"(graph g {
  %x = input : f32[6, 8]
  %w = parameter : f32[8, 4]
  %b = parameter : f32[4]
  %p = matmul(%x, %w) : f32[6, 4]
  %y = bias_gelu(%p, %b) : f32[6, 4]
  %again = bias_gelu(%p, %b) {recomputed=true} : f32[6, 4] phase backward
  return %y, %again
})");
  EXPECT_THAT(fused, HasSubstr("%y, %p.biased = einsum_bias_gelu(%x, %w, %b)"));
  EXPECT_THAT(fused, HasSubstr("%again = gelu(%p.biased) {recomputed=true}"));
}

TEST_F(FuseEpiloguesTest, WhatIsReadElsewhereStays) {
  // By the program.
  ExpectUnchanged(R"(graph g {
  %x = input : f32[6, 8]
  %w = parameter : f32[8, 4]
  %b = parameter : f32[4]
  %p = matmul(%x, %w) : f32[6, 4]
  %y = bias_add(%p, %b) : f32[6, 4]
  return %y, %p
})");
  // By another node, or in another place of the same.
  ExpectUnchanged(R"(graph g {
  %x = input : f32[6, 8]
  %w = parameter : f32[8, 4]
  %b = parameter : f32[4]
  %p = matmul(%x, %w) : f32[6, 4]
  %y = bias_gelu(%p, %b) : f32[6, 4]
  %q = square(%p) : f32[6, 4]
  %s = matmul(%x, %w) : f32[6, 4]
  %t = bias_gelu_grad(%y, %b, %s) : f32[6, 4]
  %u = bias_gelu_grad(%t, %b, %s) : f32[6, 4]
  return %y, %q, %u
})");
  // With another bias.
  ExpectUnchanged(R"(graph g {
  %x = input : f32[6, 8]
  %w = parameter : f32[8, 4]
  %b = parameter : f32[4]
  %c = parameter : f32[4]
  %p = matmul(%x, %w) : f32[6, 4]
  %y = bias_gelu(%p, %b) : f32[6, 4]
  %z = bias_gelu(%p, %c) : f32[6, 4]
  return %y, %z
})");
}

TEST_F(FuseEpiloguesTest, WhatTheLibraryDoesNotHaveStays) {
  // The exact gelu.
  ExpectUnchanged(R"(graph g {
  %x = input : f32[6, 8]
  %w = parameter : f32[8, 4]
  %b = parameter : f32[4]
  %p = matmul(%x, %w) : f32[6, 4]
  %y = bias_gelu(%p, %b) {approximate="none"} : f32[6, 4]
  %q = matmul(%x, %w) : f32[6, 4]
  %z = gelu_grad(%y, %q) {approximate="none"} : f32[6, 4]
  return %z
})");
  // A product in f32 of operands in 16 bits, whose bias is f32.
  ExpectUnchanged(R"(graph g {
  %x = input : bf16[6, 8]
  %w = parameter : bf16[8, 4]
  %b = parameter : f32[4]
  %p = matmul(%x, %w) {dtype=f32} : f32[6, 4]
  %y = bias_add(%p, %b) : f32[6, 4]
  return %y
})");
}

TEST_F(FuseEpiloguesTest, PhasesStayApart) {
  ExpectUnchanged(R"(graph g {
  %x = input : f32[6, 8]
  %w = parameter : f32[8, 4]
  %b = parameter : f32[4]
  %z = input : f32[6, 4]
  %p = matmul(%x, %w) : f32[6, 4]
  %y = bias_add(%p, %b) : f32[6, 4] phase backward
  %dy = matmul(%x, %w) : f32[6, 4] phase backward
  %dp = gelu_grad(%z, %dy) : f32[6, 4] phase weight_backward
  return %y, %dp
})");
}

// Rows of the weight on two devices: their terms are added up before the bias is.
TEST_F(FuseEpiloguesTest, NothingIsJoinedAcrossCommunication) {
  constexpr std::string_view kText = R"(mesh m = [tp=2]
graph g {
  %x = input : f32[6, 8] @[_, tp]
  %w = parameter : f32[8, 4] @[tp, _]
  %b = parameter : f32[4]
  %p = matmul(%x, %w) : f32[6, 4]
  %y = bias_add(%p, %b) : f32[6, 4] @[_, _]
  return %y
})";
  constexpr std::string_view kPasses =
      "propagate,insert-reshards,lower-reshards,fuse-epilogues,verify";
  const auto lowered = Optimize(kText, "in.pst", kPasses, ops_);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_THAT(*lowered, HasSubstr("all_reduce"));
  EXPECT_THAT(*lowered, HasSubstr("bias_add"));
  EXPECT_THAT(*lowered, Not(HasSubstr("einsum")));
}

// Nodes stay in their order, and the gradient would read what gelu makes.
TEST_F(FuseEpiloguesTest, AGradientBeforeGeluStays) {
  ExpectUnchanged(R"(graph g {
  %x = input : f32[6, 8]
  %dy = input : f32[6, 4]
  %w = parameter : f32[8, 4]
  %b = parameter : f32[4]
  %p = matmul(%x, %w) : f32[6, 4]
  %dp = bias_gelu_grad(%p, %b, %dy) : f32[6, 4]
  %y = bias_gelu(%p, %b) : f32[6, 4]
  return %y, %dp
})");
}

// ---- A GPT of 4 layers: in each, a bias after qkv, one after its projection, bias and gelu in the
// MLP, and a bias after it.

class FusedGptTest : public ::testing::Test {
 protected:
  // The kernels that one device runs, by operator. Each stands for one of each micro-batch.
  std::map<std::string, int> Kernels(const std::string& strategy, size_t device = 0,
                                     int64_t microbatches = 1) const {
    testing::GptPlanOptions options;
    options.strategy = strategy;
    options.microbatches = microbatches;
    options.fuses_epilogues = [](uint32_t first, uint32_t) { return first == 0; };
    const absl::StatusOr<Plan> plan = ExpandPlan(testing::PlanSmallGpt(options, policies_));
    std::map<std::string, int> counts;
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return counts;
    for (const ActorPlan& actor : plan->devices.at(device).actors) {
      if (actor.kernel != kNone) ++counts[plan->kernels[actor.kernel].op];
    }
    return counts;
  }

  static constexpr int kLayers = 4;
  const PolicyRegistry policies_ = BuiltinPolicies();
};

TEST_F(FusedGptTest, EveryBiasAndGeluOfALayerIsJoined) {
  for (const std::string strategy : {"dp=1", "dp=2", "dp=2,zero=1", "dp=2,zero=3"}) {
    SCOPED_TRACE(strategy);
    std::map<std::string, int> kernels = Kernels(strategy);
    EXPECT_EQ(kernels["einsum_bias"], 3 * kLayers);
    EXPECT_EQ(kernels["einsum_bias_gelu"], kLayers);
    EXPECT_EQ(kernels["einsum_gelu_grad"], kLayers);
    for (const char* op : {"bias_add", "bias_gelu", "bias_gelu_grad", "gelu_grad"}) {
      EXPECT_EQ(kernels[op], 0) << op;
    }
  }
}

// The projection and the second product of the MLP are sums over devices.
TEST_F(FusedGptTest, SumsOverDevicesComeBeforeTheirBias) {
  std::map<std::string, int> kernels = Kernels("tp=2");
  EXPECT_EQ(kernels["einsum_bias"], kLayers);
  EXPECT_EQ(kernels["bias_add"], 2 * kLayers);
  EXPECT_EQ(kernels["einsum_bias_gelu"], kLayers);
  EXPECT_EQ(kernels["einsum_gelu_grad"], kLayers);
}

TEST_F(FusedGptTest, OnlyStagesThatAreFasterForItAreJoined) {
  std::map<std::string, int> first = Kernels("pp=2", 0, 2);
  EXPECT_EQ(first["einsum_bias_gelu"], kLayers / 2);
  EXPECT_EQ(first["bias_gelu"], 0);
  std::map<std::string, int> last = Kernels("pp=2", 1, 2);
  EXPECT_EQ(last["einsum_bias_gelu"], 0);
  EXPECT_EQ(last["bias_gelu"], kLayers / 2);
}

}  // namespace
}  // namespace penstock::planner
