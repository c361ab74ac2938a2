#include "fmt/format.h"

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {
namespace {

// The elements before the shift's end come from the end of the operand; the others follow.
template <typename T>
class Roll : public CpuKernel {
 public:
  Roll(const KernelSpec& spec, Device& device) : CpuKernel(spec, device) {
    const TileDesc& tile = spec.inputs[0];
    axis_ = NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(tile));
    const int64_t extent = GlobalExtent(tile, axis_);
    const int64_t shift = spec.attributes.GetInt("shift", 0);
    const int64_t first = extent == 0 ? 0 : (shift % extent + extent) % extent;
    is_whole_ = first == 0 || tile.shape[axis_] == extent;
    const Shape strides = RowMajorStrides(tile.shape);
    const auto add = [&](int64_t from, int64_t to, int64_t count) {
      Shape shape = tile.shape;
      shape[axis_] = count;
      pieces_.push_back(
          {StridedCopy(shape, strides, strides), from * strides[axis_], to * strides[axis_]});
    };
    add(0, first, tile.shape[axis_] - first);
    if (first > 0) add(tile.shape[axis_] - first, 0, first);
  }

  absl::Status Run(const KernelArgs& args) override {
    if (!is_whole_) {
      return absl::InternalError(
          fmt::format("roll: axis {} is split, and its parts do not come as messages", axis_));
    }
    for (const Piece& piece : pieces_) {
      piece.copy.Run(pool_, Input<T>(args, 0) + piece.source, Output<T>(args, 0) + piece.target);
    }
    return absl::OkStatus();
  }

 private:
  struct Piece {
    StridedCopy copy;
    int64_t source;  // in the operand
    int64_t target;  // in the result
  };
  int axis_ = 0;
  bool is_whole_ = true;
  std::vector<Piece> pieces_;
};

}  // namespace

KernelDef RollKernel() { return {.create = CreateBySize<Roll>}; }

}  // namespace penstock::kernels
