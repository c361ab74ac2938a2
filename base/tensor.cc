#include "base/tensor.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "base/strings.h"

namespace penstock {

std::string ToString(const TensorType& type) {
  return StrCat(Name(type.dtype), ToString(type.shape));
}

Tensor::Tensor(TensorType type) : type_(std::move(type)) {
  const size_t bytes = (type_.num_bytes() / kAlignment + 1) * kAlignment;
  void* const memory = std::aligned_alloc(kAlignment, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  data_ = std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                     [](std::byte* p) { std::free(p); });
  std::memset(memory, 0, bytes);
}

Tensor Tensor::Clone() const {
  Tensor copy(type_);
  std::memcpy(copy.data(), data(), num_bytes());
  return copy;
}

}  // namespace penstock
