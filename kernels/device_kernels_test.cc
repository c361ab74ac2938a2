#include "kernels/device_kernels.h"

#include <string>
#include <string_view>

#include "gmock/gmock.h"

namespace penstock::kernels {
namespace {

// Kernels of "add", and of `op`, which takes workspace of its own.
graph::KernelTraits Traits(std::string op, size_t workspace_bytes) {
  graph::KernelTraits traits;
  traits.check_kernel = [op](const KernelSpec& spec) -> absl::Status {
    if (spec.op == "add" || spec.op == op) return absl::OkStatus();
    return absl::UnimplementedError("only " + op);
  };
  traits.workspace_bytes = [workspace_bytes](const KernelSpec&) { return workspace_bytes; };
  traits.can_alias = [op](const KernelSpec& spec, int input) {
    return spec.op == op || (spec.op == "add" && input == 0);
  };
  traits.supports_accumulate = [op](std::string_view name) { return name == "add" || name == op; };
  return traits;
}

KernelSpec Spec(std::string op) {
  KernelSpec spec;
  spec.op = std::move(op);
  return spec;
}

TEST(DeviceKernelsTest, CommonTraitsHoldOnEveryKind) {
  const graph::KernelTraits common = CommonTraits({Traits("sub", 64), Traits("mul", 128)});
  EXPECT_TRUE(common.check_kernel(Spec("add")).ok());
  EXPECT_EQ(common.check_kernel(Spec("mul")).message(), "only sub");
  EXPECT_EQ(common.check_kernel(Spec("sub")).message(), "only mul");
  EXPECT_EQ(common.workspace_bytes(Spec("add")), 128u);
  EXPECT_TRUE(common.can_alias(Spec("add"), 0));
  EXPECT_FALSE(common.can_alias(Spec("add"), 1));
  EXPECT_FALSE(common.can_alias(Spec("sub"), 0));
  EXPECT_TRUE(common.supports_accumulate("add"));
  EXPECT_FALSE(common.supports_accumulate("mul"));
}

TEST(DeviceKernelsTest, OneKindStaysAsItIs) {
  const graph::KernelTraits common = CommonTraits({Traits("sub", 64)});
  EXPECT_TRUE(common.check_kernel(Spec("sub")).ok());
  EXPECT_EQ(common.workspace_bytes(Spec("sub")), 64u);
}

}  // namespace
}  // namespace penstock::kernels
