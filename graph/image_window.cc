#include "graph/image_window.h"

#include <string_view>

#include "base/shape.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::graph {
namespace {

// Keeps every sum and product of window and image far from overflow.
constexpr int64_t kMaxEntry = int64_t{1} << 30;

absl::Status CheckEntries(std::string_view name, const Shape& entries, int64_t least) {
  for (const int64_t entry : entries) {
    if (entry >= least && entry <= kMaxEntry) continue;
    return absl::InvalidArgumentError(StrCat("attribute '", name, "' has the entry ", entry,
                                             "; expected ", least, " to ", kMaxEntry));
  }
  return absl::OkStatus();
}

// The two entries of the attribute, or `fallback`.
absl::StatusOr<std::array<int64_t, 2>> ReadPair(const Attributes& attributes, std::string_view name,
                                                const std::array<int64_t, 2>& fallback) {
  const Shape entries = attributes.GetInts(name);
  if (attributes.Find(name) == nullptr) return fallback;
  if (entries.size() != 2) {
    return absl::InvalidArgumentError(
        StrCat("attribute '", name, "' has ", entries.size(), " entries; expected [h, w]"));
  }
  RETURN_IF_ERROR(CheckEntries(name, entries, 1));
  return std::array<int64_t, 2>{entries[0], entries[1]};
}

}  // namespace

int64_t ImageAxis::NumResults(int64_t extent) const {
  const int64_t room = extent + low + high - span();
  return room < 0 ? 0 : room / stride + 1;
}

absl::StatusOr<ImageWindow> ReadImageWindow(const Attributes& attributes,
                                            const std::array<int64_t, 2>& taps,
                                            const std::array<int64_t, 2>& strides) {
  ASSIGN_OR_RETURN(const auto stride, ReadPair(attributes, "strides", strides));
  ASSIGN_OR_RETURN(const auto dilation, ReadPair(attributes, "dilation", {1, 1}));
  RETURN_IF_ERROR(CheckEntries("window", Shape(taps.begin(), taps.end()), 1));
  Shape padding = attributes.GetInts("padding");
  if (attributes.Find("padding") == nullptr) padding = {0, 0};
  if (padding.size() == 2) padding = {padding[0], padding[0], padding[1], padding[1]};
  if (padding.size() != 4) {
    return absl::InvalidArgumentError(StrCat("attribute 'padding' has ", padding.size(),
                                             " entries; expected [h, w] or [top, bottom, left, "
                                             "right]"));
  }
  RETURN_IF_ERROR(CheckEntries("padding", padding, 0));
  ImageWindow window;
  for (size_t d = 0; d < 2; ++d) {
    window[d] = {.taps = taps[d],
                 .stride = stride[d],
                 .low = padding[2 * d],
                 .high = padding[2 * d + 1],
                 .dilation = dilation[d]};
  }
  return window;
}

ImageWindow ImageWindowOf(const Attributes& attributes, const std::array<int64_t, 2>& taps,
                          const std::array<int64_t, 2>& strides) {
  return ReadImageWindow(attributes, taps, strides).value_or(ImageWindow());
}

}  // namespace penstock::graph
