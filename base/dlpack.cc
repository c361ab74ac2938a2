#include "base/dlpack.h"

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "base/dlpack_abi_internal.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/tensor_memory.h"

namespace penstock {
namespace {

DLDataType DataTypeOf(DType dtype) {
  uint8_t code = dlpack::kInt;
  if (dtype == DType::kBF16) {
    code = dlpack::kBfloat;
  } else if (dtype == DType::kBool) {
    code = dlpack::kBool;
  } else if (dtype == DType::kU8) {
    code = dlpack::kUInt;
  } else if (IsFloat(dtype)) {
    code = dlpack::kFloat;
  }
  return {code, static_cast<uint8_t>(8 * ByteSize(dtype)), 1};
}

std::optional<DType> DTypeOfDlpack(const DLDataType& type) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const DLDataType ours = DataTypeOf(dtype);
    if (ours.code == type.code && ours.bits == type.bits && ours.lanes == type.lanes) return dtype;
  }
  return std::nullopt;
}

// A tensor that is handed out, with all that the structure points to.
struct Exported {
  DLManagedTensorVersioned managed = {};
  Tensor tensor;
  std::array<int64_t, kMaxRank> shape = {};
  std::array<int64_t, kMaxRank> strides = {};
};

// Calls the deleter of an imported tensor.
struct Release {
  void operator()(DLManagedTensorVersioned* managed) const {
    if (managed->deleter != nullptr) managed->deleter(managed);
  }
};
using Imported = std::unique_ptr<DLManagedTensorVersioned, Release>;

absl::StatusOr<TensorType> TypeOf(const DLTensor& tensor) {
  if (tensor.device.device_type != dlpack::kCpu && tensor.device.device_type != dlpack::kCudaHost) {
    return absl::InvalidArgumentError(StrCat("the tensor is not in host memory: its DLPack device ",
                                             "type is ", tensor.device.device_type));
  }
  const std::optional<DType> dtype = DTypeOfDlpack(tensor.dtype);
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(StrCat(
        "tensors of this type are not supported: DLPack code ", static_cast<int>(tensor.dtype.code),
        ", ", static_cast<int>(tensor.dtype.bits), " bits, ", tensor.dtype.lanes, " lanes"));
  }
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
    return absl::InvalidArgumentError(
        StrCat("rank ", tensor.ndim, " is not between 0 and ", kMaxRank));
  }
  TensorType type = {*dtype, Shape(tensor.shape, tensor.shape + tensor.ndim)};
  RETURN_IF_ERROR(CheckShape(type.shape));
  return type;
}

bool IsRowMajor(const DLTensor& tensor, const Shape& shape) {
  if (tensor.strides == nullptr || NumElements(shape) == 0) return true;
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

// Copies the elements of dimension `dim` and those behind it to `to`, and returns its end.
std::byte* CopyStrided(const std::byte* from, const DLTensor& tensor, const Shape& shape,
                       size_t dim, size_t element_bytes, std::byte* to) {
  if (dim == shape.size()) {
    std::memcpy(to, from, element_bytes);
    return to + element_bytes;
  }
  const int64_t step = tensor.strides[dim] * static_cast<int64_t>(element_bytes);
  for (int64_t i = 0; i < shape[dim]; ++i) {
    to = CopyStrided(from + i * step, tensor, shape, dim + 1, element_bytes, to);
  }
  return to;
}

}  // namespace

DLManagedTensorVersioned* ToDlpack(Tensor tensor) {
  auto exported = std::make_unique<Exported>();
  exported->tensor = std::move(tensor);
  const Shape& shape = exported->tensor.shape();
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    exported->shape[i] = shape[i];
    exported->strides[i] = stride;
    stride *= shape[i];
  }
  DLManagedTensorVersioned& managed = exported->managed;
  managed.version = {dlpack::kMajor, dlpack::kMinor};
  managed.manager_ctx = exported.get();
  managed.deleter = [](DLManagedTensorVersioned* self) {
    delete static_cast<Exported*>(self->manager_ctx);
  };
  managed.dl_tensor.data = exported->tensor.data();
  managed.dl_tensor.device = {dlpack::kCpu, 0};
  managed.dl_tensor.ndim = static_cast<int32_t>(shape.size());
  managed.dl_tensor.dtype = DataTypeOf(exported->tensor.dtype());
  managed.dl_tensor.shape = exported->shape.data();
  managed.dl_tensor.strides = exported->strides.data();
  return &exported.release()->managed;
}

absl::StatusOr<Tensor> FromDlpack(DLManagedTensorVersioned* managed) {
  Imported imported(managed);
  // Of another version, nothing behind the deleter has a known place.
  if (managed->version.major != dlpack::kMajor) {
    return absl::InvalidArgumentError(StrCat("the tensor is of version ", managed->version.major,
                                             " of DLPack, not ", dlpack::kMajor));
  }
  const DLTensor& tensor = managed->dl_tensor;
  ASSIGN_OR_RETURN(TensorType type, TypeOf(tensor));
  auto* const bytes = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  const bool is_row_major = IsRowMajor(tensor, type.shape);
  const bool is_aligned = reinterpret_cast<uintptr_t>(bytes) % Tensor::kAlignment == 0;
  const bool is_read_only = (managed->flags & dlpack::kReadOnly) != 0;
  if (is_row_major && is_aligned && !is_read_only && tensor.data != nullptr) {
    const auto release = [owner = imported.release()](std::byte*) { Release()(owner); };
    return Tensor::Wrap(std::move(type), std::shared_ptr<std::byte>(bytes, release));
  }
  RETURN_IF_ERROR(CheckFitsMemory(type));
  Tensor copy(type);
  if (is_row_major) {
    if (copy.num_bytes() > 0) std::memcpy(copy.data(), bytes, copy.num_bytes());
  } else {
    CopyStrided(bytes, tensor, type.shape, 0, ByteSize(type.dtype),
                static_cast<std::byte*>(copy.data()));
  }
  return copy;
}

}  // namespace penstock
