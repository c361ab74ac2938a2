#include "kernels/cpu/attention_layout.h"

namespace penstock::kernels {
namespace {

template <typename T>
class AttentionGrad : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const AttentionShape shape = SeparateShape(spec_, args.microbatch);
    const HeadStrides queries = SeparateStrides(shape.heads, shape.queries, shape.width);
    const HeadStrides keys = SeparateStrides(shape.key_heads, shape.keys, shape.width);
    const AttentionGradOperands<T> operands = {.q = {Input<T>(args, 0), queries},
                                               .k = {Input<T>(args, 1), keys},
                                               .v = {Input<T>(args, 2), keys},
                                               .o = {Input<T>(args, 3), queries},
                                               .d_o = {Input<T>(args, 5), queries},
                                               .lse = Input<Arith<T>>(args, 4),
                                               .dq = {Output<T>(args, 0), queries},
                                               .dk = {Output<T>(args, 1), keys},
                                               .dv = {Output<T>(args, 2), keys}};
    AttentionBackward<T>(pool_, shape, operands, args.workspace);
    return absl::OkStatus();
  }
};

size_t AttentionGradWorkspace(const KernelSpec& spec, int num_threads) {
  return AttentionBytes(spec, [&]<typename T>(std::type_identity<T>) {
    return AttentionGradWorkspaceBytes<T>(SeparateShape(spec, 0), num_threads);
  });
}

}  // namespace

KernelDef AttentionGradKernel() {
  return {.workspace_bytes = AttentionGradWorkspace,
          .create = CreateAttention<AttentionGrad>,
          .prepare = PrepareAttention};
}

}  // namespace penstock::kernels
