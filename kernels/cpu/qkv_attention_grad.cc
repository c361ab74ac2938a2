#include "kernels/cpu/attention_layout.h"

namespace penstock::kernels {
namespace {

template <typename T>
class QkvAttentionGrad : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const AttentionShape shape = PackedShape(spec_, args.microbatch);
    const HeadStrides rows = RowStrides(shape.queries, 1, shape.heads, shape.width);
    const T* qkv = Input<T>(args, 0);
    T* dqkv = Output<T>(args, 0);
    const AttentionGradOperands<T> operands = {.q = PackedPart(shape, qkv, 0),
                                               .k = PackedPart(shape, qkv, 1),
                                               .v = PackedPart(shape, qkv, 2),
                                               .o = {Input<T>(args, 1), rows},
                                               .d_o = {Input<T>(args, 3), rows},
                                               .lse = Input<Arith<T>>(args, 2),
                                               .dq = PackedPart(shape, dqkv, 0),
                                               .dk = PackedPart(shape, dqkv, 1),
                                               .dv = PackedPart(shape, dqkv, 2)};
    AttentionBackward<T>(pool_, shape, operands, args.workspace);
    return absl::OkStatus();
  }
};

size_t QkvAttentionGradWorkspace(const KernelSpec& spec, int num_threads) {
  return AttentionBytes(spec, [&]<typename T>(std::type_identity<T>) {
    return AttentionGradWorkspaceBytes<T>(PackedShape(spec, 0), num_threads);
  });
}

}  // namespace

KernelDef QkvAttentionGradKernel() {
  return {.workspace_bytes = QkvAttentionGradWorkspace,
          .create = CreateAttention<QkvAttentionGrad>,
          .prepare = PrepareAttention};
}

}  // namespace penstock::kernels
