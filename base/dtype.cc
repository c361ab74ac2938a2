#include "base/dtype.h"

#include <array>

namespace penstock {
namespace {

struct DTypeInfo {
  std::string_view name;
  size_t bytes;
  bool is_float;
  bool is_integer;
};

constexpr std::array<DTypeInfo, kNumDTypes> kInfos = {{
    {"f32", 4, true, false},
    {"f64", 8, true, false},
    {"f16", 2, true, false},
    {"bf16", 2, true, false},
    {"i8", 1, false, true},
    {"u8", 1, false, true},
    {"i32", 4, false, true},
    {"i64", 8, false, true},
    {"bool", 1, false, false},
}};

const DTypeInfo& Info(DType dtype) { return kInfos[static_cast<size_t>(dtype)]; }

}  // namespace

size_t ByteSize(DType dtype) { return Info(dtype).bytes; }

std::string_view Name(DType dtype) { return Info(dtype).name; }

std::optional<DType> ParseDType(std::string_view name) {
  for (size_t i = 0; i < kInfos.size(); ++i) {
    if (kInfos[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

bool IsFloat(DType dtype) { return Info(dtype).is_float; }

bool IsInteger(DType dtype) { return Info(dtype).is_integer; }

}  // namespace penstock
