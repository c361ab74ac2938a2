// Amounts as text, for messages and listings.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_BASE_FORMAT_H_
#define PENSTOCK_BASE_FORMAT_H_

#include <cstdint>
#include <string>

namespace penstock {

// "512 B", "3.2 GiB": one decimal from 1 KiB on.
std::string FormatBytes(uint64_t num_bytes);

// "12.5 us", "3.40 ms", "206 ms", "1.25 s": three digits, at most two of them decimals.
std::string FormatSeconds(double seconds);

}  // namespace penstock

#endif  // PENSTOCK_BASE_FORMAT_H_
