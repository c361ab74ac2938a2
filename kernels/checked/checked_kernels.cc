#include "kernels/checked/checked_kernels.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "base/tensor.h"

namespace penstock::kernels {
namespace {

// IEEE formats: all bits of the exponent set, and a mantissa that is zero for an infinity.
template <typename Bits>
NotFinite Find(const void* data, int64_t num_elements, Bits exponent, Bits mantissa) {
  const auto* bytes = static_cast<const std::byte*>(data);
  NotFinite found;
  for (int64_t i = 0; i < num_elements && found.nan < 0; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * sizeof(Bits), sizeof(Bits));
    if ((bits & exponent) != exponent) continue;
    if ((bits & mantissa) != 0) {
      found.nan = i;
    } else if (found.infinity < 0) {
      found.infinity = i;
    }
  }
  return found;
}

NotFinite FindIn(const TileDesc& tile, const void* data) {
  if (!tile.is_bound || data == nullptr) return {};
  return FindNotFinite(tile.dtype, data, tile.num_elements());
}

// Whether a result may be infinite by definition.
bool MayBeInfinite(const std::string& op, size_t result) {
  return op == "constant" || (op == "attention_parts" && result == 1);
}

class CheckedKernel : public Kernel {
 public:
  CheckedKernel(std::unique_ptr<Kernel> kernel, const KernelSpec& spec, ResultCheck check)
      : kernel_(std::move(kernel)), spec_(spec), may_be_infinite_(spec.outputs.size(), false) {
    learns_ = check == ResultCheck::kAfterFirstStep;
    for (size_t i = 0; i < may_be_infinite_.size(); ++i) {
      may_be_infinite_[i] = MayBeInfinite(spec.op, i);
    }
  }

  absl::Status Run(const KernelArgs& args) override {
    if (first_step_ < 0) first_step_ = args.step;
    // Before the run, which may overwrite an operand.
    bool has_nan = false;
    bool has_infinity = false;
    for (size_t i = 0; i < spec_.inputs.size(); ++i) {
      const NotFinite found = FindIn(spec_.inputs[i], args.inputs[i]);
      has_nan = has_nan || found.nan >= 0;
      has_infinity = has_infinity || found.infinity >= 0;
    }
    const absl::Status status = kernel_->Run(args);
    if (!status.ok()) return status;
    for (size_t i = 0; i < spec_.outputs.size(); ++i) {
      const NotFinite found = FindIn(spec_.outputs[i], args.outputs[i]);
      if (found.nan >= 0) return Describe(i, "nan", found.nan, has_nan, has_infinity);
      if (found.infinity < 0 || has_nan || has_infinity || may_be_infinite_[i]) continue;
      if (learns_ && args.step == first_step_) {
        may_be_infinite_[i] = true;
      } else {
        return Describe(i, "an infinity", found.infinity, false, false);
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Describe(size_t result, std::string_view what, int64_t index, bool has_nan,
                        bool has_infinity) const {
    const TileDesc& tile = spec_.outputs[result];
    return absl::OutOfRangeError(StrCat(
        "result ", result, " of ", spec_.op, " (a tile ",
        ToString(TensorType{tile.dtype, tile.shape}), ") holds ", what, " at element ", index,
        has_nan        ? "; an operand has a nan already, from a state or a collective"
        : has_infinity ? "; an operand is infinite there or elsewhere"
                       : "; its operands are finite"));
  }

  const std::unique_ptr<Kernel> kernel_;
  const KernelSpec spec_;
  bool learns_ = false;
  int64_t first_step_ = -1;
  std::vector<bool> may_be_infinite_;  // of each result
};

}  // namespace

NotFinite FindNotFinite(DType dtype, const void* data, int64_t num_elements) {
  switch (dtype) {
    case DType::kF32:
      return Find<uint32_t>(data, num_elements, 0x7f800000, 0x007fffff);
    case DType::kF64:
      return Find<uint64_t>(data, num_elements, 0x7ff0000000000000, 0x000fffffffffffff);
    case DType::kF16:
      return Find<uint16_t>(data, num_elements, 0x7c00, 0x03ff);
    case DType::kBF16:
      return Find<uint16_t>(data, num_elements, 0x7f80, 0x007f);
    default:
      return {};
  }
}

KernelRegistry CheckedKernels(const KernelRegistry& registry, ResultCheck check) {
  KernelRegistry checked;
  for (const std::string_view name : registry.Names()) {
    KernelDef def = *registry.Find(name);
    if (def.create != nullptr) {
      def.create = [create = def.create, check](
                       const KernelSpec& spec, Device& device,
                       Stream& stream) -> absl::StatusOr<std::unique_ptr<Kernel>> {
        absl::StatusOr<std::unique_ptr<Kernel>> kernel = create(spec, device, stream);
        if (!kernel.ok()) return kernel.status();
        return std::make_unique<CheckedKernel>(*std::move(kernel), spec, check);
      };
    }
    checked.Add(std::string(name), std::move(def)).IgnoreError();  // the names are distinct
  }
  return checked;
}

}  // namespace penstock::kernels
