#include "cli/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "cli/files.h"

#include "base/half.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxHeaderBytes = 1 << 16;
constexpr size_t kAlignment = 64;

std::string_view Descr(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kBF16:
      return "<f4";
    case DType::kF64:
      return "<f8";
    case DType::kF16:
      return "<f2";
    case DType::kI8:
      return "|i1";
    case DType::kU8:
      return "|u1";
    case DType::kI32:
      return "<i4";
    case DType::kI64:
      return "<i8";
    case DType::kBool:
      return "|b1";
  }
  return "";
}

std::optional<DType> ParseDescr(std::string_view descr) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kI8, DType::kU8,
                            DType::kI32, DType::kI64, DType::kBool}) {
    if (Descr(dtype) == descr) return dtype;
  }
  return std::nullopt;
}

template <typename T>
T At(const void* data, int64_t index) {
  return static_cast<const T*>(data)[index];
}

int64_t ElementAsInt(DType dtype, const void* data, int64_t index) {
  switch (dtype) {
    case DType::kI8:
      return At<int8_t>(data, index);
    case DType::kI32:
      return At<int32_t>(data, index);
    case DType::kI64:
      return At<int64_t>(data, index);
    default:  // u8 and bool
      return At<uint8_t>(data, index);
  }
}

double ElementAsDouble(DType dtype, const void* data, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return At<float>(data, index);
    case DType::kF64:
      return At<double>(data, index);
    case DType::kF16:
      return ToFloat(Float16{At<uint16_t>(data, index)});
    case DType::kBF16:
      return ToFloat(BFloat16{At<uint16_t>(data, index)});
    default:
      return static_cast<double>(ElementAsInt(dtype, data, index));
  }
}

// Reads the Python literal of a header: a dict with the keys descr, fortran_order and shape.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  absl::StatusOr<TensorType> Parse() {
    std::optional<DType> dtype;
    std::optional<bool> is_fortran;
    std::optional<Shape> shape;
    if (!Take('{')) return Malformed();
    while (!Take('}')) {
      ASSIGN_OR_RETURN(const std::string_view key, String());
      if (!Take(':')) return Malformed();
      if (key == "descr") {
        if (Peek() == '[') return absl::InvalidArgumentError(StrCat(name_, ": has named fields"));
        ASSIGN_OR_RETURN(const std::string_view descr, String());
        dtype = ParseDescr(descr);
        if (!dtype.has_value()) {
          return absl::InvalidArgumentError(StrCat(name_, ": unsupported element type '", descr,
                                                   "'; expected <f4, <f8, <f2, |i1, |u1, <i4, <i8 "
                                                   "or |b1"));
        }
      } else if (key == "fortran_order") {
        if (TakeWord("True")) {
          is_fortran = true;
        } else if (TakeWord("False")) {
          is_fortran = false;
        } else {
          return Malformed();
        }
      } else if (key == "shape") {
        ASSIGN_OR_RETURN(shape, ShapeTuple());
      } else {
        return absl::InvalidArgumentError(StrCat(name_, ": unknown header key '", key, "'"));
      }
      if (!Take(',') && Peek() != '}') return Malformed();
    }
    if (!dtype.has_value() || !is_fortran.has_value() || !shape.has_value()) return Malformed();
    if (*is_fortran && shape->size() > 1) {
      return absl::InvalidArgumentError(
          StrCat(name_, ": is in Fortran order; save it with numpy.ascontiguousarray"));
    }
    if (absl::Status status = CheckShape(*shape); !status.ok()) {
      return absl::InvalidArgumentError(StrCat(name_, ": ", ToStd(status.message())));
    }
    return TensorType{*dtype, *shape};
  }

 private:
  absl::Status Malformed() const {
    return absl::InvalidArgumentError(StrCat(name_, ": malformed .npy header at its byte ", at_));
  }

  char Peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool Take(char c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }

  bool TakeWord(std::string_view word) {
    Peek();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  absl::StatusOr<std::string_view> String() {
    const char quote = Peek();
    if (quote != '\'' && quote != '"') return Malformed();
    const size_t begin = ++at_;
    const size_t end = text_.find(quote, begin);
    if (end == std::string_view::npos) return Malformed();
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }

  absl::StatusOr<Shape> ShapeTuple() {
    if (!Take('(')) return Malformed();
    Shape shape;
    while (!Take(')')) {
      Peek();
      int64_t extent = 0;
      const char* begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), extent);
      if (error != std::errc() || shape.size() >= kMaxRank) return Malformed();
      at_ += static_cast<size_t>(end - begin);
      shape.push_back(extent);
      if (!Take(',') && Peek() != ')') return Malformed();
    }
    return shape;
  }

  std::string_view text_;
  std::string_view name_;
  size_t at_ = 0;
};

}  // namespace

double ElementAsDouble(const Tensor& tensor, int64_t index) {
  return ElementAsDouble(tensor.dtype(), tensor.data(), index);
}

absl::StatusOr<Tensor> ConvertTensor(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  const auto refuse = [&](std::string_view why) {
    return absl::InvalidArgumentError(
        StrCat("holds ", ToString(tensor.type()), ", which is not ", Name(dtype), why));
  };
  Tensor result({dtype, tensor.shape()});
  const int64_t count = tensor.num_elements();
  if (IsFloat(tensor.dtype()) && IsFloat(dtype)) {
    for (int64_t i = 0; i < count; ++i) {
      const double value = ElementAsDouble(tensor, i);
      const auto single = static_cast<float>(value);
      if (dtype == DType::kF64) result.As<double>()[i] = value;
      if (dtype == DType::kF32) result.As<float>()[i] = single;
      if (dtype == DType::kF16) result.As<uint16_t>()[i] = ToFloat16(single).bits;
      if (dtype == DType::kBF16) result.As<uint16_t>()[i] = ToBFloat16(single).bits;
    }
    return result;
  }
  if (!IsInteger(tensor.dtype()) || !IsInteger(dtype)) return refuse("");
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = ElementAsInt(tensor.dtype(), tensor.data(), i);
    int64_t stored = value;
    if (dtype == DType::kI8) stored = result.As<int8_t>()[i] = static_cast<int8_t>(value);
    if (dtype == DType::kU8) stored = result.As<uint8_t>()[i] = static_cast<uint8_t>(value);
    if (dtype == DType::kI32) stored = result.As<int32_t>()[i] = static_cast<int32_t>(value);
    if (dtype == DType::kI64) result.As<int64_t>()[i] = value;
    if (stored != value) return refuse(StrCat(": ", value, " does not fit"));
  }
  return result;
}

std::string NpyToBytes(const Tensor& tensor) {
  std::string dims;
  for (const int64_t extent : tensor.shape()) StrAppend(&dims, extent, ", ");
  if (tensor.shape().size() > 1) dims.resize(dims.size() - 2);
  if (tensor.shape().size() == 1) dims.resize(dims.size() - 1);
  std::string header = StrCat("{'descr': '", Descr(tensor.dtype()),
                              "', 'fortran_order': False, 'shape': (", dims, "), }");
  constexpr size_t kPrefix = 10;  // magic, version, length
  header.append(kAlignment - 1 - (kPrefix + header.size()) % kAlignment, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  std::string bytes(kMagic);
  bytes += '\1';
  bytes += '\0';
  bytes += static_cast<char>(length & 0xff);
  bytes += static_cast<char>(length >> 8);
  bytes += header;
  if (tensor.dtype() == DType::kBF16) {
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      const float value = ToFloat(BFloat16{tensor.As<uint16_t>()[i]});
      bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  } else {
    bytes.append(static_cast<const char*>(tensor.data()), tensor.num_bytes());
  }
  return bytes;
}

namespace {

// What the bytes of a file hold, and where; bools are checked.
struct NpyContents {
  TensorType type;
  std::string_view data;
};

absl::StatusOr<NpyContents> ContentsOf(std::string_view bytes, std::string_view name) {
  const auto refuse = [name](std::string_view why) {
    return absl::InvalidArgumentError(StrCat(name, ": ", why));
  };
  if (bytes.size() < 10 || bytes.substr(0, kMagic.size()) != kMagic) {
    return refuse("not a .npy file");
  }
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3) return refuse(StrCat("unknown .npy version ", version));
  const size_t length_bytes = version == 1 ? 2 : 4;
  if (bytes.size() < 8 + length_bytes) return refuse("the header is cut off");
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) {
    length |= static_cast<size_t>(static_cast<unsigned char>(bytes[8 + i])) << (8 * i);
  }
  const size_t header_begin = 8 + length_bytes;
  if (length > kMaxHeaderBytes || bytes.size() - header_begin < length) {
    return refuse("the header is cut off");
  }
  ASSIGN_OR_RETURN(const TensorType type,
                   HeaderParser(bytes.substr(header_begin, length), name).Parse());
  const std::string_view data = bytes.substr(header_begin + length);
  if (data.size() != type.num_bytes()) {
    return refuse(StrCat("holds ", data.size(), " bytes of data; ", ToString(type), " has ",
                         type.num_bytes()));
  }
  if (type.dtype == DType::kBool) {
    for (const char value : data) {
      if (value != 0 && value != 1) return refuse("a bool is neither 0 nor 1");
    }
  }
  return NpyContents{type, data};
}

absl::StatusOr<std::shared_ptr<const MappedFile>> MapNpy(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(StrCat(path, ": no such file"));
  }
  return MappedFile::Open(path);
}

}  // namespace

absl::StatusOr<Tensor> NpyFromBytes(std::string_view bytes, std::string_view name) {
  ASSIGN_OR_RETURN(const NpyContents contents, ContentsOf(bytes, name));
  Tensor tensor(contents.type);
  if (!contents.data.empty()) {
    std::memcpy(tensor.data(), contents.data.data(), contents.data.size());
  }
  return tensor;
}

absl::StatusOr<NpyFile> NpyFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MapNpy(path));
  ASSIGN_OR_RETURN(NpyContents contents, ContentsOf(file->text(), path));
  const auto* data = reinterpret_cast<const uint8_t*>(contents.data.data());
  return NpyFile(std::move(contents.type), std::move(file), data);
}

void NpyFile::Read(int64_t first, double scale, absl::Span<float> values) const {
  // A block at a time, in aligned memory.
  constexpr size_t kBlock = 512;
  alignas(8) std::array<uint8_t, kBlock * sizeof(double)> block;
  const size_t size = ByteSize(type_.dtype);
  const uint8_t* from = data_ + static_cast<size_t>(first) * size;
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const size_t count = std::min(kBlock, values.size() - begin);
    std::memcpy(block.data(), from + begin * size, count * size);
    for (size_t i = 0; i < count; ++i) {
      values[begin + i] = static_cast<float>(
          ElementAsDouble(type_.dtype, block.data(), static_cast<int64_t>(i)) * scale);
    }
  }
}

Tensor NpyFile::Values(int64_t first, const Shape& shape) const {
  Tensor values({type_.dtype, shape});
  if (values.num_bytes() == 0) return values;
  const uint8_t* from = data_ + static_cast<size_t>(first) * ByteSize(type_.dtype);
  std::memcpy(values.data(), from, values.num_bytes());
  return values;
}

absl::StatusOr<Tensor> ReadNpy(const std::string& path) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MapNpy(path));
  return NpyFromBytes(file->text(), path);
}

absl::Status WriteNpy(const std::string& path, const Tensor& tensor) {
  return WriteTextFile(path, NpyToBytes(tensor));
}

}  // namespace penstock::cli
