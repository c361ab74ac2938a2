#include "cli/mapped_text.h"

#include <algorithm>
#include <utility>

namespace penstock::cli {
namespace {

constexpr int64_t kBlock = int64_t{16} << 20;

std::vector<MappedText::Part> WithoutEmpty(std::vector<MappedText::Part> parts) {
  std::erase_if(parts, [](const MappedText::Part& part) { return part.count == 0; });
  return parts;
}

}  // namespace

MappedText::MappedText(std::vector<Part> parts) : parts_(WithoutEmpty(std::move(parts))) {
  for (const Part& part : parts_) {
    pieces_.push_back({part.file->bytes().data() + part.first, size_});
    size_ += part.count;
  }
}

TokenSpan MappedText::tokens() const {
  if (pieces_.size() == 1) return {pieces_[0].data, /*width=*/1, size_};
  return {pieces_, size_};
}

void MappedText::CountBytes(std::array<int64_t, 256>* counts) const {
  for (const Part& part : parts_) {
    for (int64_t at = 0; at < part.count; at += kBlock) {
      const auto first = static_cast<size_t>(part.first + at);
      const auto count = static_cast<size_t>(std::min(kBlock, part.count - at));
      for (const uint8_t byte : part.file->bytes().subspan(first, count)) ++(*counts)[byte];
      part.file->Release(first, count);
    }
  }
}

}  // namespace penstock::cli
