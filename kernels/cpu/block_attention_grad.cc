#include "kernels/cpu/attention_layout.h"

namespace penstock::kernels {
namespace {

template <typename T>
class BlockAttentionGrad : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const Shape& q = spec_.inputs[0].shape;
    const int64_t row = q[2] * q[3];
    const HeadStrides queries = RowStrides(q[1], 1, q[2], q[3]);
    const Shape& kv_shape = spec_.inputs[1].shape;
    const HeadStrides keys = RowStrides(kv_shape[1], 2, kv_shape[3], q[3]);
    const int64_t values = kv_shape[3] * q[3];  // behind the keys of a row
    // A tile may have keys and none of their queries.
    if (q[1] == 0) std::fill_n(Output<T>(args, 1), spec_.outputs[1].num_elements(), T{});
    for (const AttentionBlock& block : BlocksOf(spec_, args.microbatch)) {
      const T* kv = Input<T>(args, 1) + block.key * keys.row;
      T* dkv = Output<T>(args, 1) + block.key * keys.row;
      const int64_t query = block.query * row;
      const AttentionGradOperands<T> operands = {.q = {Input<T>(args, 0) + query, queries},
                                                 .k = {kv, keys},
                                                 .v = {kv + values, keys},
                                                 .o = {Input<T>(args, 2) + query, queries},
                                                 .d_o = {Input<T>(args, 4) + query, queries},
                                                 .lse = Input<T>(args, 3) + block.query,
                                                 .dq = {Output<T>(args, 0) + query, queries},
                                                 .dk = {dkv, keys},
                                                 .dv = {dkv + values, keys}};
      AttentionBackward<T>(pool_, block.shape, operands, args.workspace);
    }
    return absl::OkStatus();
  }
};

size_t BlockAttentionGradWorkspace(const KernelSpec& spec, int num_threads) {
  return AttentionBytes(spec, [&]<typename T>(std::type_identity<T>) {
    return AttentionGradWorkspaceBytes<T>(LargestBlock(spec), num_threads);
  });
}

}  // namespace

KernelDef BlockAttentionGradKernel() {
  return {.workspace_bytes = BlockAttentionGradWorkspace,
          .create = CreateKernel<BlockAttentionGrad, Floats>,
          .prepare = PrepareAttention};
}

}  // namespace penstock::kernels
