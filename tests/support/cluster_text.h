// The text of a cluster file (planner/cluster/cluster_file.h) with devices of one kind.
//
//   ClusterText({.memory_bytes = 20'000, .levels = {{"host", 2, 1e9, 1e-6}}})
//
// Thread rule: a pure function.

#ifndef PENSTOCK_TESTS_SUPPORT_CLUSTER_TEXT_H_
#define PENSTOCK_TESTS_SUPPORT_CLUSTER_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/strings.h"

namespace penstock::testing {

struct ClusterTextLevel {
  std::string name;
  int64_t fan_out = 1;
  double bytes_per_s = 1e9;
  double latency_s = 1e-6;
  std::string more = {};  // lines of other keys
};

struct ClusterTextSpec {
  int64_t memory_bytes = 1'000'000'000;
  double memory_bytes_per_s = 1e9;
  double f32_flops_per_s = 1e9;
  std::string more = {};  // lines of other keys of the kind
  std::vector<ClusterTextLevel> levels;
};

inline std::string ClusterText(const ClusterTextSpec& spec) {
  std::string text =
      StrCat("name = \"test\"\n[[kind]]\nname = \"device\"\nmemory_bytes = ", spec.memory_bytes,
             "\nmemory_bytes_per_s = ", spec.memory_bytes_per_s,
             "\npeak_flops_per_s = {f32 = ", spec.f32_flops_per_s, "}\n", spec.more);
  for (const ClusterTextLevel& level : spec.levels) {
    StrAppend(&text, "[[level]]\nname = \"", level.name, "\"\nfan_out = ", level.fan_out,
              "\nbytes_per_s = ", level.bytes_per_s, "\nlatency_s = ", level.latency_s, "\n",
              level.more);
  }
  return text;
}

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_CLUSTER_TEXT_H_
