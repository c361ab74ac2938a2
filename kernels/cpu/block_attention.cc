#include "kernels/cpu/attention_layout.h"

namespace penstock::kernels {
namespace {

template <typename T>
class BlockAttention : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const Shape& q = spec_.inputs[0].shape;
    const int64_t row = q[2] * q[3];
    const HeadStrides queries = RowStrides(q[1], 1, q[2], q[3]);
    const Shape& kv_shape = spec_.inputs[1].shape;
    const HeadStrides keys = RowStrides(kv_shape[1], 2, kv_shape[3], q[3]);
    const int64_t values = kv_shape[3] * q[3];  // behind the keys of a row
    for (const AttentionBlock& block : BlocksOf(spec_, args.microbatch)) {
      const T* kv = Input<T>(args, 1) + block.key * keys.row;
      AttentionSoFar<T> so_far;
      const bool is_first = spec_.inputs.size() == 2;
      if (!is_first) {
        so_far = {{Input<T>(args, 2) + block.query * row, queries},
                  Input<T>(args, 3) + block.query};
      }
      AttentionForward<T>(
          pool_, block.shape, {Input<T>(args, 0) + block.query * row, queries}, {kv, keys},
          {kv + values, keys}, {Output<T>(args, 0) + block.query * row, queries},
          Output<T>(args, 1) + block.query, args.workspace, is_first ? nullptr : &so_far);
    }
    return absl::OkStatus();
  }
};

size_t BlockAttentionWorkspace(const KernelSpec& spec, int num_threads) {
  return AttentionBytes(spec, [&]<typename T>(std::type_identity<T>) {
    return AttentionWorkspaceBytes<T>(LargestBlock(spec), num_threads);
  });
}

// The result may take the place of what the queries have so far.
bool CanAliasBlockAttention(const KernelSpec& spec, int input) {
  return input == 2 && CanAliasElementwise(spec, input);
}

}  // namespace

KernelDef BlockAttentionKernel() {
  return {.workspace_bytes = BlockAttentionWorkspace,
          .create = CreateKernel<BlockAttention, Floats>,
          .prepare = PrepareAttention,
          .can_alias = CanAliasBlockAttention};
}

}  // namespace penstock::kernels
