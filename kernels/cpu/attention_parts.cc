#include "fmt/format.h"

#include "base/shape.h"
#include "kernels/cpu/attention_layout.h"

namespace penstock::kernels {
namespace {

// The parts of one tile, one after the other.
template <typename T>
class AttentionParts : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const TileDesc& k = spec_.inputs[1];
    const TileDesc& o = spec_.outputs[0];
    const AttentionShape whole = SeparateShape(spec_, args.microbatch);
    const HeadStrides queries = SeparateStrides(whole.heads, whole.queries, whole.width);
    const HeadStrides keys = SeparateStrides(whole.key_heads, whole.keys, whole.width);
    const int64_t num_rows = whole.batch * whole.heads * whole.queries;
    const int64_t first_key = TileBegin(k, 2, args.microbatch);
    const int64_t first_part = TileBegin(o, 0, args.microbatch);
    for (int64_t part = 0; part < o.shape[0]; ++part) {
      const Range seen = PartOf(GlobalExtent(k, 2), first_part + part, GlobalExtent(o, 0));
      const int64_t begin = seen.begin - first_key;
      if (begin < 0 || begin + seen.size() > whole.keys) {
        return absl::InternalError(
            fmt::format("attention_parts: the keys [{}, {}) of part {} are not inside the tile of "
                        "{} keys at {}",
                        seen.begin, seen.end, first_part + part, whole.keys, first_key));
      }
      AttentionShape shape = whole;
      shape.keys = seen.size();
      shape.causal_offset -= begin;
      AttentionForward<T>(pool_, shape, {Input<T>(args, 0), queries},
                          {Input<T>(args, 1) + begin * keys.row, keys},
                          {Input<T>(args, 2) + begin * keys.row, keys},
                          {Output<T>(args, 0) + part * num_rows * whole.width, queries},
                          Output<T>(args, 1) + part * num_rows, args.workspace);
    }
    return absl::OkStatus();
  }
};

}  // namespace

KernelDef AttentionPartsKernel() {
  return {.workspace_bytes = SeparateForwardBytes,
          .create = CreateKernel<AttentionParts, Floats>,
          .prepare = PrepareAttention};
}

}  // namespace penstock::kernels
