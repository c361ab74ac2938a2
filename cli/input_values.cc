#include "cli/input_values.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "cli/npy.h"
#include "fmt/format.h"
#include <xxhash.h>

#include "base/counted.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/init_streams.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kIntegerLimit = 4;
// Apart from the streams of parameters of the same name.
constexpr uint64_t kInputSalt = 0xfeed;

// Values of the file at `path` as the input's element type.
absl::StatusOr<Tensor> Converted(const Tensor& stored, const std::string& path,
                                 std::string_view name, const TensorType& type) {
  absl::StatusOr<Tensor> converted = ConvertTensor(stored, type.dtype);
  if (!converted.ok()) {
    return absl::InvalidArgumentError(StrCat(path, ": ", ToStd(converted.status().message()),
                                             " (input ", name, " is ", ToString(type), ")"));
  }
  return converted;
}

absl::Status WrongShape(const std::string& path, const TensorType& stored, std::string_view name,
                        const TensorType& type) {
  std::string expected = ToString(type.shape);
  if (!type.shape.empty()) StrAppend(&expected, ", more rows of the first dimension");
  return absl::InvalidArgumentError(StrCat(path, ": holds ", ToString(stored), "; input ", name,
                                           " is ", ToString(type), ": expected ", expected,
                                           ", or one dimension before these for the steps"));
}

absl::Status RowsLeftOver(const std::string& path, const TensorType& stored, std::string_view name,
                          const TensorType& type) {
  const int64_t rows = type.shape[0];
  const int64_t left = stored.shape[0] % rows;
  return absl::InvalidArgumentError(StrCat(
      path, ": holds ", ToString(stored), "; input ", name, " is ", ToString(type), ": ",
      Counted(left, "row"), " would be left over after ", Counted(stored.shape[0] / rows, "step"),
      " of ", Counted(rows, "row"), "; use a number of rows that is a multiple of ", rows));
}

// Whole steps whose values a file of this shape holds; 0: it does not fit the input.
int64_t StepsIn(const Shape& stored, const Shape& wanted) {
  if (stored == wanted) return 1;
  if (stored.size() == wanted.size() + 1) {
    return std::equal(wanted.begin(), wanted.end(), stored.begin() + 1) ? stored[0] : 0;
  }
  if (stored.size() != wanted.size() || wanted.empty() || wanted[0] == 0) return 0;
  if (!std::equal(wanted.begin() + 1, wanted.end(), stored.begin() + 1)) return 0;
  return stored[0] / wanted[0];
}

}  // namespace

absl::StatusOr<Tensor> DrawInput(std::string_view name, const TensorType& type, uint64_t seed,
                                 int64_t step) {
  const RandomKey key = {seed, graph::StreamOfName(name, kInputSalt), static_cast<uint32_t>(step)};
  const bool is_float = IsFloat(type.dtype);
  // Drawn in the widest type of the kind, so that every dtype sees the same numbers.
  Tensor tensor({is_float                     ? DType::kF64
                 : type.dtype == DType::kBool ? DType::kBool
                                              : DType::kI64,
                 type.shape});
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    const auto index = static_cast<uint64_t>(i);
    if (is_float) {
      tensor.As<double>()[i] = RandomNormal(key, index);
    } else if (type.dtype == DType::kBool) {
      tensor.As<bool>()[i] = RandomWord(key, index) % 2 != 0;
    } else {
      tensor.As<int64_t>()[i] = RandomWord(key, index) % kIntegerLimit;
    }
  }
  return ConvertTensor(tensor, type.dtype);
}

absl::StatusOr<InputValues> InputValues::Open(std::string_view name, const TensorType& type,
                                              const Job::InputSource& source, uint64_t seed) {
  InputValues values;
  values.name_ = std::string(name);
  values.type_ = type;
  values.seed_ = seed;
  if (source.is_random) return values;
  std::error_code error;
  if (fs::is_directory(source.path, error)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(source.path, error)) {
      if (entry.path().extension() == ".npy") values.files_.push_back(entry.path().string());
    }
    if (error) return absl::NotFoundError(StrCat(source.path, ": ", error.message()));
    if (values.files_.empty()) {
      return absl::NotFoundError(
          StrCat(source.path, ": this folder holds no .npy file for input ", name));
    }
    std::sort(values.files_.begin(), values.files_.end());
    values.period_ = static_cast<int64_t>(values.files_.size());
    // What is wrong with the first is said before the run begins.
    RETURN_IF_ERROR(values.Get(0).status());
    return values;
  }
  ASSIGN_OR_RETURN(values.file_, NpyFile::Open(source.path));
  values.path_ = source.path;
  const TensorType& stored = values.file_->type();
  values.period_ = StepsIn(stored.shape, type.shape);
  if (values.period_ == 0) return WrongShape(source.path, stored, name, type);
  values.is_constant_ = stored.shape == type.shape;
  if (values.is_constant_) {
    ASSIGN_OR_RETURN(values.constant_, values.FromFile(0, type.shape));
    return values;
  }
  if (stored.shape.size() == type.shape.size() && stored.shape[0] % type.shape[0] != 0) {
    return RowsLeftOver(source.path, stored, name, type);
  }
  // What is wrong with a number is said before the run begins.
  for (int64_t step = 0; stored.dtype != type.dtype && step < values.period_; ++step) {
    RETURN_IF_ERROR(values.Get(step).status());
  }
  return values;
}

std::string InputValues::Fingerprint() const {
  constexpr size_t kHead = size_t{1} << 20;
  if (period_ == 0) return StrCat(name_, " random");
  uint64_t digest = 0;
  size_t left = kHead;
  const auto add = [&digest, &left](const Tensor& values) {
    const size_t size = std::min<size_t>(left, values.num_bytes());
    digest = XXH3_64bits_withSeed(values.data(), size, digest);
    left -= size;
  };
  if (file_.has_value()) {
    const auto most = static_cast<int64_t>(kHead / ByteSize(type_.dtype));
    const absl::StatusOr<Tensor> head =
        FromFile(0, {std::min(most, NumElements(file_->type().shape))});
    if (head.ok()) add(*head);  // as it is: Open has converted all numbers
  }
  for (int64_t step = 0; !files_.empty() && step < period_ && left > 0; ++step) {
    const absl::StatusOr<Tensor> values = Get(step);
    if (!values.ok()) break;  // the step that needs the file fails
    add(*values);
    if (values->num_bytes() == 0) break;  // the others are as empty
  }
  return StrCat(name_, " ", Counted(period_, "step"), " ", fmt::format("{:016x}", digest));
}

absl::StatusOr<Tensor> InputValues::FromFile(int64_t first, const Shape& shape) const {
  return Converted(file_->Values(first, shape), path_, name_, type_);
}

absl::StatusOr<Tensor> InputValues::Get(int64_t step) const {
  if (period_ == 0) return DrawInput(name_, type_, seed_, step);
  if (is_constant_) return constant_;
  const int64_t index = step % period_;
  if (files_.empty()) return FromFile(index * NumElements(type_.shape), type_.shape);
  const std::string& path = files_[static_cast<size_t>(index)];
  ASSIGN_OR_RETURN(const Tensor stored, ReadNpy(path));
  ASSIGN_OR_RETURN(Tensor value, Converted(stored, path, name_, type_));
  if (value.shape() == type_.shape) return value;
  return absl::InvalidArgumentError(
      StrCat(path, ": holds ", ToString(value.type()), "; input ", name_, " is ", ToString(type_)));
}

}  // namespace penstock::cli
