#include "kernels/cpu/attention_layout.h"

namespace penstock::kernels {
namespace {

template <typename T>
class Attention : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const AttentionShape shape = SeparateShape(spec_, args.microbatch);
    const HeadStrides queries = SeparateStrides(shape.heads, shape.queries, shape.width);
    const HeadStrides keys = SeparateStrides(shape.key_heads, shape.keys, shape.width);
    AttentionForward<T>(pool_, shape, {Input<T>(args, 0), queries}, {Input<T>(args, 1), keys},
                        {Input<T>(args, 2), keys}, {Output<T>(args, 0), queries},
                        args.outputs.size() > 1 ? Output<Arith<T>>(args, 1) : nullptr,
                        args.workspace);
    return absl::OkStatus();
  }
};

}  // namespace

KernelDef AttentionKernel() {
  return {.workspace_bytes = SeparateForwardBytes,
          .create = CreateAttention<Attention>,
          .prepare = PrepareAttention};
}

}  // namespace penstock::kernels
