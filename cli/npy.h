// Tensors as .npy files (format versions 1 to 3,
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html), little endian, C order.
//
// Nothing in a file is trusted: header, shape and length are checked before memory is taken.
//
// Thread rule: pure functions; an NpyFile is immutable.

#ifndef PENSTOCK_CLI_NPY_H_
#define PENSTOCK_CLI_NPY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/mapped_file.h"

#include "base/tensor.h"

namespace penstock::cli {

// Errors begin with `path`.
absl::StatusOr<Tensor> ReadNpy(const std::string& path);

// A .npy file that is read where it lies in a mapped file (mapped_file.h), so it may be larger than
// the memory.
class NpyFile {
 public:
  // Errors begin with `path`. Of the data, only bools are read.
  static absl::StatusOr<NpyFile> Open(const std::string& path);

  const TensorType& type() const { return type_; }
  // Elements from `first` on, each times `scale`, rounded to f32.
  void Read(int64_t first, double scale, absl::Span<float> values) const;
  // As many elements as `shape` has, from `first` on, in the type of the file.
  Tensor Values(int64_t first, const Shape& shape) const;

 private:
  NpyFile(TensorType type, std::shared_ptr<const MappedFile> file, const uint8_t* data)
      : type_(std::move(type)), file_(std::move(file)), data_(data) {}

  TensorType type_;
  std::shared_ptr<const MappedFile> file_;
  const uint8_t* data_;  // which need not be aligned
};

// bf16 has no type in numpy: it is written as f32. Replaces the file.
absl::Status WriteNpy(const std::string& path, const Tensor& tensor);

// The contents of a file; `name` names it in errors.
absl::StatusOr<Tensor> NpyFromBytes(std::string_view bytes, std::string_view name);
std::string NpyToBytes(const Tensor& tensor);

// The tensor as another dtype of the same kind: floats are rounded, integers must fit (numpy's own
// defaults are f64 and i64, whatever a graph wants). An error names both types.
absl::StatusOr<Tensor> ConvertTensor(const Tensor& tensor, DType dtype);

// Element `index` as a double; exact for integers below 2^53.
double ElementAsDouble(const Tensor& tensor, int64_t index);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_NPY_H_
