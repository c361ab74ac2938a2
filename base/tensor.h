// Host memory and tensors that live in it: what feeds, fetches, checkpoints and references use.
//
// Thread rule: a Tensor is a value; concurrent reads are safe, writes need the owner's order.

#ifndef PENSTOCK_BASE_TENSOR_H_
#define PENSTOCK_BASE_TENSOR_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/dtype.h"
#include "base/shape.h"

namespace penstock {

// The dtype and static shape of a value; equality is structural.
struct TensorType {
  DType dtype = DType::kF32;  // of each element
  Shape shape;                // the extent of each dimension; empty: a scalar

  // The product of the extents.
  int64_t num_elements() const { return NumElements(shape); }
  // What they take, without padding.
  size_t num_bytes() const { return static_cast<size_t>(num_elements()) * ByteSize(dtype); }
  // Whether dtype and shape are equal.
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

// "f32[8, 16]".
std::string ToString(const TensorType& type);

// A dense row-major tensor in host memory, 64-byte aligned. Copies share the memory; Clone does
// not.
class Tensor {
 public:
  static constexpr size_t kAlignment = 64;  // of its memory, in bytes

  Tensor() = default;
  // Zero-filled. Throws std::bad_alloc if there is no memory for it.
  explicit Tensor(TensorType type);
  // Of memory that others may share, which `data` keeps. REQUIRES: type.num_bytes() bytes, aligned
  // to kAlignment.
  static Tensor Wrap(TensorType type, std::shared_ptr<std::byte> data) {
    Tensor tensor;
    tensor.type_ = std::move(type);
    tensor.data_ = std::move(data);
    return tensor;
  }

  // Its dtype and shape together.
  const TensorType& type() const { return type_; }
  // The extent of each dimension.
  const Shape& shape() const { return type_.shape; }
  // The type of its elements.
  DType dtype() const { return type_.dtype; }
  // The product of the extents.
  int64_t num_elements() const { return type_.num_elements(); }
  // What the elements take.
  size_t num_bytes() const { return type_.num_bytes(); }

  // The first element; null in a tensor without memory.
  void* data() { return data_.get(); }
  // Const overload.
  const void* data() const { return data_.get(); }

  // The elements in row-major order. REQUIRES: DTypeOf<T>() == dtype().
  template <typename T>
  T* As() {
    return reinterpret_cast<T*>(data_.get());
  }
  // Const overload.
  template <typename T>
  const T* As() const {
    return reinterpret_cast<const T*>(data_.get());
  }

  // A copy with memory of its own.
  Tensor Clone() const;

 private:
  TensorType type_;
  std::shared_ptr<std::byte> data_;
};

}  // namespace penstock

#endif  // PENSTOCK_BASE_TENSOR_H_
