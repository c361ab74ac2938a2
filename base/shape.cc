#include "base/shape.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace penstock {

int64_t NumElements(absl::Span<const int64_t> shape) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

absl::Status CheckShape(absl::Span<const int64_t> shape) {
  constexpr int64_t kMaxElements = int64_t{1} << 48;
  if (shape.size() > kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", shape.size(), " is above the limit of ", kMaxRank));
  }
  int64_t count = 1;
  for (int64_t extent : shape) {
    if (extent < 0) {
      return absl::InvalidArgumentError(absl::StrCat("extent ", extent, " is negative"));
    }
    if (extent > kMaxElements || (extent > 0 && count > kMaxElements / extent)) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape ", ToString(shape), " has more than 2^48 elements"));
    }
    count *= extent > 0 ? extent : 1;
  }
  return absl::OkStatus();
}

std::string ToString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

Shape RowMajorStrides(absl::Span<const int64_t> shape) {
  Shape strides(shape.size(), 1);
  for (int i = static_cast<int>(shape.size()) - 2; i >= 0; --i) {
    strides[i] = strides[i + 1] * shape[i + 1];
  }
  return strides;
}

Range PartOf(int64_t extent, int64_t part, int64_t parts) {
  auto bound = [&](int64_t p) { return (p * extent + parts - 1) / parts; };
  return {bound(part), bound(part + 1)};
}

}  // namespace penstock
