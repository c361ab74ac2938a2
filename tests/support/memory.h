// Memory of the process that tests run in.
//
// Thread rule: a pure function of what the system says.

#ifndef PENSTOCK_TESTS_SUPPORT_MEMORY_H_
#define PENSTOCK_TESTS_SUPPORT_MEMORY_H_

#include <cstdint>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace penstock::testing {

// Bytes that are resident and no part of a mapped file; the test fails where the system does not
// say.
inline int64_t AnonymousBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssAnon:", 0) == 0) return std::stoll(line.substr(8)) * 1024;
  }
  ADD_FAILURE() << "/proc/self/status has no RssAnon";
  return 0;
}

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_MEMORY_H_
