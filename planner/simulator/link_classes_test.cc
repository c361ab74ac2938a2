#include "planner/simulator/link_classes.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

using Routes = std::vector<std::vector<uint32_t>>;

// Links of odd numbers are slower.
Routes Merge(uint32_t num_links, Routes routes) {
  std::vector<double> bytes_per_s;
  for (uint32_t link = 0; link < num_links; ++link) bytes_per_s.push_back(link % 2 == 1 ? 1 : 2);
  MergeLinks(bytes_per_s, absl::MakeSpan(routes));
  return routes;
}

std::vector<uint32_t> Both(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  std::vector<uint32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

TEST(MergeLinksTest, LinksOnTheSameRoutesAreOne) {
  EXPECT_EQ(Merge(5, {{0, 1, 2, 3}, {2, 3, 4}}), (Routes{{1, 3}, {3, 4}}));
  EXPECT_EQ(Merge(3, {{2, 0, 1}, {0, 1, 2}}), (Routes{{1}, {1}}));
  EXPECT_EQ(Merge(3, {{2, 0}, {}}), (Routes{{0}, {}}));
}

// Which routes wait for each other is what it was, and no two classes lie on the same routes.
TEST(MergeLinksTest, RoutesMeetWhereTheyDid) {
  std::mt19937_64 random(1);
  for (int n = 0; n < 50; ++n) {
    Routes routes(1 + random() % 6);
    for (std::vector<uint32_t>& route : routes) {
      for (uint32_t link = 0; link < 40; ++link) {
        if (random() % 3 == 0) route.push_back(link);
      }
    }
    const Routes merged = Merge(40, routes);
    std::set<std::set<size_t>> of_links;
    std::set<std::set<size_t>> of_classes;
    for (uint32_t link = 0; link < 40; ++link) {
      std::set<size_t> with_link;
      std::set<size_t> with_class;
      for (size_t r = 0; r < routes.size(); ++r) {
        if (!Both(routes[r], {link}).empty()) with_link.insert(r);
        if (!Both(merged[r], {link}).empty()) with_class.insert(r);
      }
      of_links.insert(with_link);
      if (!with_class.empty()) {
        EXPECT_TRUE(of_classes.insert(with_class).second);
      }
    }
    of_links.erase(std::set<size_t>());
    EXPECT_EQ(of_links, of_classes);
  }
}

}  // namespace
}  // namespace penstock::planner
