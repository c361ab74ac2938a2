// Tokens in memory, as bytes of text or as integers of a token file.
//
// Thread rule: a view; what it refers to outlives it. Concurrent reads are safe.

#ifndef PENSTOCK_CLI_TOKEN_SPAN_H_
#define PENSTOCK_CLI_TOKEN_SPAN_H_

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/types/span.h"

namespace penstock::cli {

class TokenSpan {
 public:
  TokenSpan() = default;
  TokenSpan(const std::vector<uint8_t>& bytes)  // NOLINT: implicit, text is tokens
      : data_(bytes.data()), width_(1), size_(static_cast<int64_t>(bytes.size())) {}
  TokenSpan(absl::Span<const uint8_t> bytes)  // NOLINT: implicit
      : data_(bytes.data()), width_(1), size_(static_cast<int64_t>(bytes.size())) {}
  // `size` little-endian integers of `width` bytes: 1, 2, 4 or 8. They need not be aligned.
  TokenSpan(const void* data, int width, int64_t size)
      : data_(static_cast<const uint8_t*>(data)), width_(width), size_(size) {}

  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    uint64_t token = 0;
    std::memcpy(&token, data_ + i * width_, static_cast<size_t>(width_));
    return static_cast<int64_t>(token);
  }
  // The first token that is not less than `limit`, or that no int64_t holds; -1: there is none.
  // REQUIRES: limit >= 0.
  int64_t FindAtLeast(int64_t limit) const {
    const auto unsigned_limit = static_cast<uint64_t>(limit);
    switch (width_) {
      case 1:
        return FindAtLeast<uint8_t>(unsigned_limit);
      case 2:
        return FindAtLeast<uint16_t>(unsigned_limit);
      case 4:
        return FindAtLeast<uint32_t>(unsigned_limit);
      default:
        return FindAtLeast<uint64_t>(unsigned_limit);
    }
  }
  TokenSpan subspan(int64_t first, int64_t count) const {
    return {data_ + first * width_, width_, count};
  }
  // The memory of the first tokens, at most `most` bytes.
  absl::Span<const uint8_t> Head(int64_t most) const {
    return {data_, static_cast<size_t>(size_ * width_ < most ? size_ * width_ : most)};
  }

 private:
  template <typename T>
  int64_t FindAtLeast(uint64_t limit) const {
    if (limit > std::numeric_limits<T>::max()) return -1;
    // A block of tokens is compared as a whole.
    constexpr int64_t kBlock = 1024;
    for (int64_t first = 0; first < size_; first += kBlock) {
      const int64_t end = first + kBlock < size_ ? first + kBlock : size_;
      bool is_found = false;
      for (int64_t i = first; i < end; ++i) is_found |= At<T>(i) >= limit;
      for (int64_t i = first; is_found; ++i) {
        if (At<T>(i) >= limit) return i;
      }
    }
    return -1;
  }
  template <typename T>
  T At(int64_t i) const {
    T token;
    std::memcpy(&token, data_ + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return token;
  }

  const uint8_t* data_ = nullptr;
  int width_ = 1;
  int64_t size_ = 0;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_TOKEN_SPAN_H_
