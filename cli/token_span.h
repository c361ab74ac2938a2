// Tokens in memory, as bytes of text, which may lie in several places, or as integers of a token
// file.
//
// Thread rule: a view; what it refers to outlives it. Concurrent reads are safe.

#ifndef PENSTOCK_CLI_TOKEN_SPAN_H_
#define PENSTOCK_CLI_TOKEN_SPAN_H_

#include <algorithm>
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

  // Bytes that lie in several places. Those of a piece are tokens from its `begin` on.
  struct Piece {
    const uint8_t* data = nullptr;
    int64_t begin = 0;
  };
  // REQUIRES: the pieces are in their order, and the first one begins at 0.
  TokenSpan(absl::Span<const Piece> pieces, int64_t size) : size_(size), pieces_(pieces) {}

  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    if (!pieces_.empty()) return ByteOfPieces(first_ + i);
    uint64_t token = 0;
    std::memcpy(&token, data_ + i * width_, static_cast<size_t>(width_));
    return static_cast<int64_t>(token);
  }
  // The first token that is not less than `limit`, or that no int64_t holds; -1: there is none.
  // REQUIRES: limit >= 0, and the tokens lie in one place.
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
    TokenSpan part = *this;
    part.size_ = count;
    part.first_ = first_ + first;
    part.data_ = pieces_.empty() ? data_ + first * width_ : nullptr;
    return part;
  }
  // A copy of the memory of the first tokens, at most `most` bytes.
  std::vector<uint8_t> Head(int64_t most) const {
    const int64_t num_bytes = std::min(size_ * width_, most);
    if (pieces_.empty()) return {data_, data_ + num_bytes};
    std::vector<uint8_t> bytes(static_cast<size_t>(num_bytes));
    for (int64_t i = 0; i < num_bytes; ++i) {
      bytes[static_cast<size_t>(i)] = static_cast<uint8_t>((*this)[i]);
    }
    return bytes;
  }

 private:
  int64_t ByteOfPieces(int64_t i) const {
    const auto next =
        std::upper_bound(pieces_.begin(), pieces_.end(), i,
                         [](int64_t at, const Piece& piece) { return at < piece.begin; });
    const Piece& piece = *(next - 1);
    return piece.data[i - piece.begin];
  }
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
  absl::Span<const Piece> pieces_;  // instead of data_; empty: none
  int64_t first_ = 0;               // of the tokens of the pieces
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_TOKEN_SPAN_H_
