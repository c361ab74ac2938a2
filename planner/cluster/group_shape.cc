#include "planner/cluster/group_shape.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace penstock::planner {
namespace {

using Dimension = TorusShape::Dimension;

// How different coordinates, in increasing order, lie on a ring of `extent`.
Dimension DimensionOf(const std::vector<int64_t>& coordinates, int64_t extent) {
  Dimension dimension;
  const auto n = static_cast<int64_t>(coordinates.size());
  dimension.members = n;
  if (n == 1) return dimension;
  // Gaps on the ring; a line starts behind the largest.
  std::vector<int64_t> gaps;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t next = i + 1 < n ? coordinates[i + 1] : coordinates[0] + extent;
    gaps.push_back(next - coordinates[i]);
  }
  std::sort(gaps.begin(), gaps.end());
  dimension.wraps = n > 2 && gaps.front() == gaps.back();
  dimension.stride = dimension.wraps ? gaps.back() : gaps[n - 2];
  return dimension;
}

int64_t DiameterOf(const Dimension& dimension) {
  return (dimension.wraps ? dimension.members / 2 : dimension.members - 1) * dimension.stride;
}

// Of all ordered pairs of the members of a box, how many share the busiest link in a dimension.
// There are `box` / members lines in this dimension, and as many messages for each ordered pair of
// positions in a line. A strided line shares its links with those between its members.
double DirectLoad(const Dimension& dimension, int64_t box) {
  const int64_t n = dimension.members;
  double pairs = 0;  // of positions in a line
  if (dimension.wraps) {
    for (int64_t k = 1; k < n; ++k) pairs += static_cast<double>(std::min(k, n - k));
    pairs /= 2;  // two directions
  } else {
    pairs = static_cast<double>((n / 2) * ((n + 1) / 2));  // through the link in the middle
  }
  return pairs * static_cast<double>(box / n) * static_cast<double>(dimension.stride);
}

// Edges of the ring through `members`, in their order, that share the busiest directed link under
// dimension-ordered routing.
double RingLoad(const Cluster& cluster, absl::Span<const int64_t> members) {
  const std::vector<int64_t>& torus = cluster.level(0).torus;
  const auto num_dimensions = static_cast<int64_t>(torus.size());
  absl::flat_hash_map<int64_t, int64_t> loads;  // by device, dimension and direction
  int64_t most = 1;
  for (size_t i = 0; i < members.size(); ++i) {
    std::vector<int64_t> at = cluster.TorusCoordinates(members[i]);
    const std::vector<int64_t> to = cluster.TorusCoordinates(members[(i + 1) % members.size()]);
    for (int64_t d = 0; d < num_dimensions; ++d) {
      const int64_t forward = (to[d] - at[d] + torus[d]) % torus[d];
      const int64_t direction = forward <= torus[d] - forward ? 1 : -1;
      for (; at[d] != to[d]; at[d] = (at[d] + direction + torus[d]) % torus[d]) {
        int64_t index = 0;
        for (int64_t e = 0; e < num_dimensions; ++e) index = index * torus[e] + at[e];
        index = (index * num_dimensions + d) * 2 + (direction > 0 ? 1 : 0);
        most = std::max(most, ++loads[index]);
      }
    }
  }
  return static_cast<double>(most);
}

// Of members of one torus.
TorusShape TorusShapeOf(const Cluster& cluster, absl::Span<const int64_t> members) {
  const std::vector<int64_t>& torus = cluster.level(0).torus;
  std::vector<std::vector<int64_t>> coordinates(torus.size());
  for (const int64_t member : members) {
    const std::vector<int64_t> at = cluster.TorusCoordinates(member);
    for (size_t d = 0; d < torus.size(); ++d) coordinates[d].push_back(at[d]);
  }
  TorusShape shape;
  int64_t box = 1;
  for (size_t d = 0; d < torus.size(); ++d) {
    std::vector<int64_t>& values = coordinates[d];
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    if (values.size() == 1) continue;
    const Dimension& dimension = shape.dimensions.emplace_back(DimensionOf(values, torus[d]));
    box *= dimension.members;
    shape.diameter += DiameterOf(dimension);
  }
  shape.is_box = box == static_cast<int64_t>(members.size());
  for (const Dimension& dimension : shape.dimensions) {
    shape.direct_load = std::max(shape.direct_load, DirectLoad(dimension, box));
  }
  for (size_t i = 0; i < members.size(); ++i) {
    const int64_t next = members[(i + 1) % members.size()];
    shape.ring_links = std::max(shape.ring_links, cluster.TorusLinks(members[i], next));
  }
  shape.ring_load = RingLoad(cluster, members);
  return shape;
}

// What is worse of two tori that a group has members in.
TorusShape Worse(TorusShape a, const TorusShape& b) {
  a.is_box = a.is_box && b.is_box && a.dimensions == b.dimensions;
  if (!a.is_box) a.dimensions.clear();
  a.diameter = std::max(a.diameter, b.diameter);
  a.ring_links = std::max(a.ring_links, b.ring_links);
  a.ring_load = std::max(a.ring_load, b.ring_load);
  a.direct_load = std::max(a.direct_load, b.direct_load);
  return a;
}

}  // namespace

GroupShape ShapeOf(const Cluster& cluster, absl::Span<const int64_t> devices) {
  std::vector<int64_t> members(devices.begin(), devices.end());
  std::sort(members.begin(), members.end());
  GroupShape shape;
  shape.num_members = static_cast<int64_t>(members.size());
  const int top = cluster.MeetingLevel(members.front(), members.back());
  for (int l = 0; l <= top; ++l) {
    GroupShape::Level& level = shape.levels.emplace_back();
    for (size_t begin = 0; begin < members.size();) {
      const int64_t child = cluster.GroupOf(members[begin], l - 1);
      size_t end = begin + 1;
      while (end < members.size() && cluster.GroupOf(members[end], l - 1) == child) ++end;
      level.members_per_child.push_back(static_cast<int64_t>(end - begin));
      ++level.num_children;
      begin = end;
    }
    std::vector<int64_t>& counts = level.members_per_child;
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  }
  if (top < 0 || cluster.level(0).torus.empty()) return shape;
  for (size_t begin = 0; begin < members.size();) {
    const int64_t group = cluster.GroupOf(members[begin], 0);
    size_t end = begin + 1;
    while (end < members.size() && cluster.GroupOf(members[end], 0) == group) ++end;
    if (end - begin > 1) {
      const TorusShape here =
          TorusShapeOf(cluster, absl::MakeConstSpan(members).subspan(begin, end - begin));
      shape.torus = shape.torus ? Worse(*std::move(shape.torus), here) : here;
    }
    begin = end;
  }
  return shape;
}

GroupsAtOnce CountGroupsAtOnce(const Cluster& cluster,
                               absl::Span<const std::vector<int64_t>> groups) {
  GroupsAtOnce most(cluster.num_levels(), 1);
  for (int l = 0; l < cluster.num_levels(); ++l) {
    const int64_t num_children = l == 0 ? cluster.num_devices() : cluster.NumGroups(l - 1);
    std::vector<int64_t> groups_of_child(static_cast<size_t>(num_children), 0);
    std::vector<int64_t> children;  // of a group
    for (const std::vector<int64_t>& group : groups) {
      children.clear();
      for (const int64_t device : group) children.push_back(cluster.GroupOf(device, l - 1));
      std::sort(children.begin(), children.end());
      children.erase(std::unique(children.begin(), children.end()), children.end());
      if (children.size() < 2) continue;
      for (const int64_t child : children) most[l] = std::max(most[l], ++groups_of_child[child]);
    }
  }
  return most;
}

std::vector<int64_t> CountCrossing(const Cluster& cluster, absl::Span<const MessageEnds> messages) {
  std::vector<int64_t> most(cluster.num_levels(), 0);
  for (int l = 0; l < cluster.num_levels(); ++l) {
    absl::flat_hash_map<int64_t, int64_t> leaving;  // by child
    absl::flat_hash_map<int64_t, int64_t> entering;
    for (const auto& [from, to] : messages) {
      const int64_t source = cluster.GroupOf(from, l - 1);
      const int64_t destination = cluster.GroupOf(to, l - 1);
      if (source == destination) continue;
      most[l] = std::max({most[l], ++leaving[source], ++entering[destination]});
    }
  }
  return most;
}

}  // namespace penstock::planner
