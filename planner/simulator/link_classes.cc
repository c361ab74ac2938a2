#include "planner/simulator/link_classes.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"

namespace penstock::planner {

void MergeLinks(absl::Span<const double> bytes_per_s, absl::Span<std::vector<uint32_t>> routes) {
  const auto num_links = static_cast<uint32_t>(bytes_per_s.size());
  // Each route separates the links of a class that are on it from those that are not.
  std::vector<uint32_t> class_of(num_links, 0);
  std::vector<uint32_t> size_of_class = {num_links};
  absl::flat_hash_map<uint32_t, uint32_t> num_on_route;  // of a class
  absl::flat_hash_map<uint32_t, uint32_t> separated;     // class -> class of those on the route
  for (const std::vector<uint32_t>& route : routes) {
    num_on_route.clear();
    separated.clear();
    for (const uint32_t link : route) ++num_on_route[class_of[link]];
    for (const auto& [old, num] : num_on_route) {
      if (num == size_of_class[old]) continue;
      separated[old] = static_cast<uint32_t>(size_of_class.size());
      size_of_class[old] -= num;
      size_of_class.push_back(num);
    }
    for (const uint32_t link : route) {
      const auto found = separated.find(class_of[link]);
      if (found != separated.end()) class_of[link] = found->second;
    }
  }
  std::vector<uint32_t> slowest(size_of_class.size(), num_links);  // of each class
  for (uint32_t link = 0; link < num_links; ++link) {
    uint32_t& other = slowest[class_of[link]];
    if (other == num_links || bytes_per_s[link] < bytes_per_s[other]) other = link;
  }
  for (std::vector<uint32_t>& route : routes) {
    std::erase_if(route, [&](uint32_t link) { return slowest[class_of[link]] != link; });
    std::sort(route.begin(), route.end());
  }
}

}  // namespace penstock::planner
