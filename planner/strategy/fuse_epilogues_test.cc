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

TEST_F(FuseEpiloguesTest, AResidualIsAddedWithTheBias) {
  constexpr std::string_view kExpected = R"(graph g {
  %x = input : f32[2, 3, 8]
  %r = input : f32[2, 3, 4]
  %w = parameter : f32[8, 4]
  %b = parameter : f32[4]
  %s = einsum_bias(%x, %w, %b, %r) {equation="Amk,kn->Amn"} : f32[2, 3, 4]
  return %s
})";
  for (const std::string_view operands : {"%r, %y", "%y, %r"}) {
    ExpectFused(StrCat(R"(graph g {
  %x = input : f32[2, 3, 8]
  %r = input : f32[2, 3, 4]
  %w = parameter : f32[8, 4]
  %b = parameter : f32[4]
  %p = matmul(%x, %w) : f32[2, 3, 4]
  %y = bias_add(%p, %b) : f32[2, 3, 4]
  %s = add()",
                       operands, R"() : f32[2, 3, 4]
  return %s
})"),
                kExpected);
  }
}

// As of a SwiGLU's gradient, and the residual of a model without biases.
TEST_F(FuseEpiloguesTest, ProductsAreAddedToWhatIsThere) {
  ExpectFused(R"(graph g {
  %x = input : f32[6, 8]
  %y = input : f32[6, 8]
  %r = input : f32[6, 4]
  %v = parameter : f32[4, 8]
  %w = parameter : f32[4, 8]
  %p = matmul(%x, %v) {transpose_b=true} : f32[6, 4]
  %q = einsum(%y, %w) {equation="mk,nk->mn"} : f32[6, 4]
  %s = add(%p, %q) : f32[6, 4]
  %t = matmul(%s, %w) : f32[6, 8]
  %u = add(%t, %x) : f32[6, 8]
  return %u
})",
              R"(graph g {
  %x = input : f32[6, 8]
  %y = input : f32[6, 8]
  %r = input : f32[6, 4]
  %v = parameter : f32[4, 8]
  %w = parameter : f32[4, 8]
  %p = matmul(%x, %v) {transpose_b=true} : f32[6, 4]
  %s = einsum_bias(%y, %w, %p) {equation="mk,nk->mn"} : f32[6, 4]
  %u = einsum_bias(%s, %w, %x) {equation="mk,kn->mn"} : f32[6, 8]
  return %u
})");
}

TEST_F(FuseEpiloguesTest, GradientsOfNormsTakeTheOtherGradient) {
  ExpectFused(R"(graph g {
  %x = input : f32[6, 8]
  %dy = input : f32[6, 8]
  %dr = input : f32[6, 8]
  %scale = parameter : f32[8]
  %mean = input : f32[6]
  %rstd = input : f32[6]
  %dx = layer_norm_grad(%dy, %x, %scale, %mean, %rstd) : f32[6, 8] phase backward
  %s = add(%dr, %dx) : f32[6, 8] phase backward
  %dz = rms_norm_grad(%s, %x, %scale, %rstd) : f32[6, 8] phase backward
  %t = add(%dz, %s) : f32[6, 8] phase backward
  return %t
})",
              R"(graph g {
  %x = input : f32[6, 8]
  %dy = input : f32[6, 8]
  %dr = input : f32[6, 8]
  %scale = parameter : f32[8]
  %mean = input : f32[6]
  %rstd = input : f32[6]
  %s = layer_norm_grad(%dy, %x, %scale, %mean, %rstd, %dr) : f32[6, 8] phase backward
  %t = rms_norm_grad(%s, %x, %scale, %rstd, %s) : f32[6, 8] phase backward
  return %t
})");
}

TEST_F(FuseEpiloguesTest, SumsThatNoOperatorHasStay) {
  // A term that something else reads, the program reads, or that is both terms.
  ExpectUnchanged(R"(graph g {
  %x = input : f32[6, 8]
  %r = input : f32[6, 4]
  %w = parameter : f32[8, 4]
  %p = matmul(%x, %w) : f32[6, 4]
  %s = add(%r, %p) : f32[6, 4]
  %q = square(%p) : f32[6, 4]
  %t = matmul(%x, %w) : f32[6, 4]
  %u = add(%r, %t) : f32[6, 4]
  %v = matmul(%x, %w) : f32[6, 4]
  %z = add(%v, %v) : f32[6, 4]
  return %s, %q, %t, %u, %z
})");
  // A term that is made before the other one.
  ExpectUnchanged(R"(graph g {
  %x = input : f32[6, 8]
  %w = parameter : f32[8, 4]
  %r = input : f32[6, 4]
  %p = matmul(%x, %w) : f32[6, 4]
  %q = square(%r) : f32[6, 4]
  %s = add(%p, %q) : f32[6, 4]
  return %s
})");
  // Scalars, products of another type, and more than one addend.
  ExpectUnchanged(R"(graph g {
  %c = input : f32[]
  %x = input : f32[6, 8]
  %y = input : f32[6, 8]
  %h = input : bf16[6, 8]
  %r = input : f32[6, 4]
  %w = parameter : f32[8, 4]
  %v = parameter : bf16[8, 4]
  %scale = parameter : f32[8]
  %rstd = input : f32[6]
  %d = einsum(%x, %y) {equation="mk,mk->"} : f32[]
  %e = add(%c, %d) : f32[]
  %p = matmul(%x, %w) : f32[6, 4]
  %s = add(%e, %p) : f32[6, 4]
  %q = matmul(%h, %v) {dtype=f32} : f32[6, 4]
  %t = add(%s, %q) : f32[6, 4]
  %dx = rms_norm_grad(%x, %y, %scale, %rstd, %y) : f32[6, 8]
  %u = add(%x, %dx) : f32[6, 8]
  return %t, %u
})");
  // In another phase.
  ExpectUnchanged(R"(graph g {
  %x = input : f32[6, 8]
  %r = input : f32[6, 4]
  %w = parameter : f32[8, 4]
  %p = matmul(%x, %w) : f32[6, 4]
  %s = add(%r, %p) : f32[6, 4] phase backward
  return %s
})");
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
  %r = input : f32[6, 4]
  %p = matmul(%x, %w) : f32[6, 4]
  %y = bias_add(%p, %b) : f32[6, 4] @[_, _]
  %q = matmul(%x, %w) : f32[6, 4]
  %s = add(%q, %r) : f32[6, 4] @[_, _]
  return %y, %s
})";
  constexpr std::string_view kPasses =
      "propagate,insert-reshards,lower-reshards,fuse-epilogues,verify";
  const auto lowered = Optimize(kText, "in.pst", kPasses, ops_);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_THAT(*lowered, HasSubstr("all_reduce"));
  EXPECT_THAT(*lowered, HasSubstr("bias_add"));
  EXPECT_THAT(*lowered, HasSubstr(" add("));
  EXPECT_THAT(*lowered, Not(HasSubstr("einsum")));
}

// A sum of sums over devices, which is added up once, after both.
TEST_F(FuseEpiloguesTest, PartialTermsAreAddedApart) {
  constexpr std::string_view kText = R"(mesh m = [tp=2]
graph g {
  %x = input : f32[6, 8] @[_, tp]
  %w = parameter : f32[8, 4] @[tp, _]
  %v = parameter : f32[8, 4] @[tp, _]
  %p = matmul(%x, %w) : f32[6, 4] @[_, _] partial(sum, tp)
  %q = matmul(%x, %v) : f32[6, 4] @[_, _] partial(sum, tp)
  %s = add(%p, %q) : f32[6, 4] @[_, _] partial(sum, tp)
  return %s
})";
  const auto lowered = Optimize(
      kText, "in.pst", "propagate,insert-reshards,lower-reshards,fuse-epilogues,verify", ops_);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_THAT(*lowered, HasSubstr(" add("));
  EXPECT_THAT(*lowered, Not(HasSubstr("einsum_bias")));
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
  Plan PlanOf(const std::string& strategy, int64_t microbatches = 1, bool fuses = true) const {
    testing::GptPlanOptions options;
    options.strategy = strategy;
    options.microbatches = microbatches;
    options.dropout = 0;  // which would come between a product and its residual
    if (fuses) options.fuses_epilogues = [](uint32_t first, uint32_t) { return first == 0; };
    const absl::StatusOr<Plan> plan = ExpandPlan(testing::PlanSmallGpt(options, policies_));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : Plan();
  }

  // The kernels that one device runs, by operator. Each stands for one of each micro-batch.
  static std::map<std::string, int> KernelsOf(const Plan& plan, size_t device = 0) {
    std::map<std::string, int> counts;
    for (const ActorPlan& actor : plan.devices.at(device).actors) {
      if (actor.kernel != kNone) ++counts[plan.kernels[actor.kernel].op];
    }
    return counts;
  }
  std::map<std::string, int> Kernels(const std::string& strategy, size_t device = 0,
                                     int64_t microbatches = 1) const {
    return KernelsOf(PlanOf(strategy, microbatches), device);
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

// Two residuals in each layer, of which the backward pass adds up the gradients.
TEST_F(FusedGptTest, ResidualsAndTheirGradientsAreJoined) {
  for (const std::string strategy : {"dp=1", "dp=2,zero=1", "dp=2,zero=3", "recompute=full"}) {
    SCOPED_TRACE(strategy);
    std::map<std::string, int> apart = KernelsOf(PlanOf(strategy, 1, false));
    std::map<std::string, int> joined = Kernels(strategy);
    const int num_forward = strategy == "recompute=full" ? 3 : 2;
    EXPECT_EQ(apart["add"] - joined["add"], (num_forward + 2) * kLayers);
    EXPECT_EQ(joined["layer_norm_grad"], apart["layer_norm_grad"]);
  }
  // Those of the forward pass are added to sums over devices.
  std::map<std::string, int> apart = KernelsOf(PlanOf("tp=2", 1, false));
  std::map<std::string, int> joined = Kernels("tp=2");
  EXPECT_EQ(apart["add"] - joined["add"], 2 * kLayers);
}

TEST_F(FusedGptTest, NoDeviceNeedsMoreMemory) {
  for (const std::string strategy :
       {"dp=1", "recompute=full", "dp=2,zero=1", "dp=2,zero=3", "tp=2,sp=true", "pp=2"}) {
    SCOPED_TRACE(strategy);
    const Plan apart = PlanOf(strategy, 2, false);
    const Plan joined = PlanOf(strategy, 2, true);
    ASSERT_EQ(joined.devices.size(), apart.devices.size());
    for (size_t i = 0; i < joined.devices.size(); ++i) {
      EXPECT_LE(joined.devices[i].arena_bytes, apart.devices[i].arena_bytes) << "device " << i;
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
