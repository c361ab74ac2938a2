#include "kernels/cpu/attention_layout.h"

namespace penstock::kernels {
namespace {

template <typename T>
class Attention : public AttentionCpuKernel {
 public:
  using AttentionCpuKernel::AttentionCpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const AttentionShape shape = SeparateShape(spec_, args.microbatch);
    const HeadStrides queries = SeparateStrides(shape.heads, shape.queries, shape.width);
    const HeadStrides keys = SeparateStrides(shape.heads, shape.keys, shape.width);
    AttentionForward<T>(pool_, shape, {Input<T>(args, 0), queries}, {Input<T>(args, 1), keys},
                        {Input<T>(args, 2), keys}, {Output<T>(args, 0), queries},
                        args.outputs.size() > 1 ? Output<T>(args, 1) : nullptr, args.workspace);
    return absl::OkStatus();
  }
};

size_t WorkspaceBytes(const KernelSpec& spec, int num_threads) {
  return AttentionBytes(spec, [&]<typename T>(std::type_identity<T>) {
    return AttentionWorkspaceBytes<T>(SeparateShape(spec, 0), num_threads);
  });
}

}  // namespace

KernelDef AttentionKernel() {
  return {.workspace_bytes = WorkspaceBytes, .create = CreateKernel<Attention, Floats>};
}

}  // namespace penstock::kernels
