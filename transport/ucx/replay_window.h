// Accepts each message of a peer once, by its serial number. Messages may arrive out of order, as
// they do over several network paths, but by at most kSize numbers.
//
// Example: after 0, 1, 3 the window accepts 2, and refuses 1 and 3. After kSize + 10 it refuses 5,
// whether or not it has arrived: that number is too old to tell.
//
// Source of the algorithm: the anti-replay window of IPsec (RFC 4303, section 3.4.3).
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_TRANSPORT_UCX_REPLAY_WINDOW_H_
#define PENSTOCK_TRANSPORT_UCX_REPLAY_WINDOW_H_

#include <algorithm>
#include <array>
#include <cstdint>

namespace penstock::transport::ucx {

class ReplayWindow {
 public:
  static constexpr uint64_t kSize = 1024;
  // No message has this number.
  static constexpr uint64_t kNever = ~uint64_t{0};

  // Whether `serial` may be accepted.
  bool MayAccept(uint64_t serial) const {
    if (serial >= next_) return serial != kNever;
    return next_ - serial <= kSize && (WordOf(serial) & BitOf(serial)) == 0;
  }

  // REQUIRES: MayAccept(serial).
  void Accept(uint64_t serial) {
    // The numbers that enter the window have not arrived yet.
    if (serial >= next_ && serial - next_ >= kSize) {
      words_ = {};
    } else {
      for (; next_ < serial; ++next_) WordOf(next_) &= ~BitOf(next_);
    }
    WordOf(serial) |= BitOf(serial);
    next_ = std::max(next_, serial + 1);
  }

 private:
  static uint64_t BitOf(uint64_t serial) { return uint64_t{1} << (serial % 64); }
  uint64_t& WordOf(uint64_t serial) { return words_[serial % kSize / 64]; }
  uint64_t WordOf(uint64_t serial) const { return words_[serial % kSize / 64]; }

  uint64_t next_ = 0;                            // above all that have arrived
  std::array<uint64_t, kSize / 64> words_ = {};  // the last kSize numbers below next_
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_REPLAY_WINDOW_H_
