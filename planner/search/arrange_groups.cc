#include "planner/search/arrange_groups.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "planner/search/kernel_seconds.h"

namespace penstock::planner {
namespace {

// Of each group, the cores that its devices share: devices, and how many can compute at once.
std::vector<std::set<std::pair<int64_t, int64_t>>> CoresOf(const Machine& machine,
                                                           int64_t devices_per_group,
                                                           int num_groups) {
  std::vector<std::set<std::pair<int64_t, int64_t>>> cores(static_cast<size_t>(num_groups));
  int64_t device = 0;
  for (const CoreGroup& shared : machine.core_groups) {
    for (int64_t i = 0; i < shared.num_devices; ++i, ++device) {
      const auto group = static_cast<size_t>(device / devices_per_group);
      if (group < cores.size()) cores[group].insert({shared.num_devices, shared.num_at_once});
    }
  }
  return cores;
}

// Of each group, the class of those that are alike, numbered as they occur.
std::vector<int> ClassesOf(const Machine& machine, int64_t devices_per_group, int num_groups) {
  const std::vector<int> kinds = FirstAlikeGroups(machine.cluster, devices_per_group, num_groups);
  const auto cores = CoresOf(machine, devices_per_group, num_groups);
  std::map<std::tuple<int, int, std::set<std::pair<int64_t, int64_t>>>, int> class_of;
  std::vector<int> classes;
  for (int g = 0; g < num_groups; ++g) {
    const int64_t first = g * devices_per_group;
    const int level = machine.cluster.MeetingLevel(first, first + devices_per_group - 1);
    const auto next = static_cast<int>(class_of.size());
    classes.push_back(class_of.try_emplace({kinds[g], level, cores[g]}, next).first->second);
  }
  return classes;
}

// The groups in an order of classes; those of one class stay in theirs.
std::vector<int> GroupsInOrder(const std::vector<std::vector<int>>& groups_of_class,
                               const std::vector<int>& order) {
  std::vector<size_t> next(groups_of_class.size(), 0);
  std::vector<int> groups;
  for (const int c : order) groups.push_back(groups_of_class[c][next[c]++]);
  return groups;
}

}  // namespace

std::vector<std::vector<int>> ArrangeGroups(const Machine& machine, int64_t devices_per_group,
                                            int num_groups) {
  const std::vector<int> classes = ClassesOf(machine, devices_per_group, num_groups);
  std::vector<std::vector<int>> groups_of_class(
      static_cast<size_t>(*std::max_element(classes.begin(), classes.end())) + 1);
  for (int g = 0; g < num_groups; ++g) groups_of_class[classes[g]].push_back(g);
  std::vector<int> own_order(static_cast<size_t>(num_groups));
  std::iota(own_order.begin(), own_order.end(), 0);
  std::vector<std::vector<int>> arrangements = {own_order};
  if (groups_of_class.size() == 1) return arrangements;

  std::vector<int> order = classes;
  std::sort(order.begin(), order.end());
  do {
    if (order != classes) arrangements.push_back(GroupsInOrder(groups_of_class, order));
  } while (arrangements.size() <= kMaxArrangements &&
           std::next_permutation(order.begin(), order.end()));
  if (arrangements.size() <= kMaxArrangements) return arrangements;

  arrangements.resize(1);
  std::vector<int> blocks(groups_of_class.size());
  std::iota(blocks.begin(), blocks.end(), 0);
  do {
    order.clear();
    for (const int c : blocks) order.insert(order.end(), groups_of_class[c].size(), c);
    if (order != classes) arrangements.push_back(GroupsInOrder(groups_of_class, order));
  } while (arrangements.size() < kMaxArrangements &&
           std::next_permutation(blocks.begin(), blocks.end()));
  return arrangements;
}

}  // namespace penstock::planner
