// Files of /proc and /sys, which have no size of their own to read by.
//
// Thread rule: a function that only reads.

#ifndef PENSTOCK_BASE_SYSTEM_FILE_H_
#define PENSTOCK_BASE_SYSTEM_FILE_H_

#include <fstream>
#include <iterator>
#include <string>

namespace penstock {

// Empty if it cannot be read.
inline std::string ReadSystemFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace penstock

#endif  // PENSTOCK_BASE_SYSTEM_FILE_H_
