#include "kernels/cpu/attention_layout.h"

namespace penstock::kernels {
namespace {

template <typename T>
class QkvAttention : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const AttentionShape shape = PackedShape(spec_, args.microbatch);
    const T* qkv = Input<T>(args, 0);
    AttentionForward<T>(
        pool_, shape, PackedPart(shape, qkv, 0), PackedPart(shape, qkv, 1),
        PackedPart(shape, qkv, 2),
        {Output<T>(args, 0), RowStrides(shape.queries, 1, shape.heads, shape.width)},
        args.outputs.size() > 1 ? Output<Arith<T>>(args, 1) : nullptr, args.workspace);
    return absl::OkStatus();
  }
};

size_t QkvAttentionWorkspace(const KernelSpec& spec, int num_threads) {
  return AttentionBytes(spec, [&]<typename T>(std::type_identity<T>) {
    return AttentionWorkspaceBytes<T>(PackedShape(spec, 0), num_threads);
  });
}

}  // namespace

KernelDef QkvAttentionKernel() {
  return {.workspace_bytes = QkvAttentionWorkspace,
          .create = CreateAttention<QkvAttention>,
          .prepare = PrepareAttention};
}

}  // namespace penstock::kernels
