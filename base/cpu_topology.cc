#include "base/cpu_topology.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <hwloc.h>

#include "base/blocks.h"
#include "base/strings.h"

namespace penstock {
namespace {

using Cores = std::vector<std::vector<int>>;
using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

// `set_up` chooses what is loaded. Null if hwloc fails.
Topology LoadTopology(absl::FunctionRef<int(hwloc_topology_t)> set_up) {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {nullptr, hwloc_topology_destroy};
  Topology owned(topology, hwloc_topology_destroy);
  if (set_up(topology) != 0 || hwloc_topology_load(topology) != 0) {
    return {nullptr, hwloc_topology_destroy};
  }
  return owned;
}

// Of the processors in `allowed`, or of all.
Cores CoresOf(hwloc_topology_t topology, const std::optional<std::set<int>>& allowed) {
  Cores cores;
  hwloc_obj_t last_core = nullptr;
  hwloc_obj_t processor = nullptr;
  while ((processor = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, processor)) != nullptr) {
    const int index = static_cast<int>(processor->os_index);
    if (allowed.has_value() && !allowed->contains(index)) continue;
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, processor);
    if (cores.empty() || core == nullptr || core != last_core) cores.emplace_back();
    cores.back().push_back(index);
    last_core = core;
  }
  return cores;
}

std::set<int> AffinityOfThisThread() {
  std::set<int> processors;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.insert(i);
  }
  return processors;
}

}  // namespace

CpuTopology CpuTopology::Load() {
  const std::set<int> allowed = AffinityOfThisThread();
  Cores cores;
  if (allowed.size() > 1) {
    const Topology topology = LoadTopology([](hwloc_topology_t) { return 0; });
    if (topology != nullptr) cores = CoresOf(topology.get(), allowed);
  }
  size_t num_known = 0;
  for (const std::vector<int>& core : cores) num_known += core.size();
  if (num_known < allowed.size()) {
    cores.clear();
    for (const int processor : allowed) cores.push_back({processor});
  }
  return CpuTopology(std::move(cores));
}

absl::StatusOr<CpuTopology> CpuTopology::FromDescription(const std::string& description,
                                                         const std::vector<int>& allowed) {
  const Topology topology = LoadTopology([&description](hwloc_topology_t to) {
    return hwloc_topology_set_synthetic(to, description.c_str());
  });
  if (topology == nullptr) {
    return absl::InvalidArgumentError(StrCat("'", description,
                                             "' is not a machine in hwloc's notation, such as ",
                                             "\"numa:2 core:4 pu:2\""));
  }
  std::optional<std::set<int>> only;
  if (!allowed.empty()) only.emplace(allowed.begin(), allowed.end());
  return CpuTopology(CoresOf(topology.get(), only));
}

int CpuTopology::num_processors() const {
  size_t count = 0;
  for (const std::vector<int>& core : cores_) count += core.size();
  return static_cast<int>(count);
}

void CpuTopology::Limit(int count) {
  if (count <= 0) return;
  size_t most_threads = 0;
  for (const std::vector<int>& core : cores_) most_threads = std::max(most_threads, core.size());
  for (size_t threads = most_threads; threads > 1 && num_processors() > count; --threads) {
    for (auto core = cores_.rbegin(); core != cores_.rend() && num_processors() > count; ++core) {
      if (core->size() == threads) core->pop_back();
    }
  }
  if (cores_.size() > static_cast<size_t>(count) && num_processors() > count) {
    cores_.resize(static_cast<size_t>(count));
  }
}

std::vector<std::vector<int>> CpuTopology::Distribute(int count, Sharing sharing) const {
  Cores units = cores_;
  if (units.size() < static_cast<size_t>(count)) {
    units.clear();
    for (const std::vector<int>& core : cores_) {
      for (const int processor : core) units.push_back({processor});
    }
  }
  std::vector<std::vector<int>> shares(static_cast<size_t>(count));
  const auto num_units = static_cast<int>(units.size());
  for (int i = 0; i < count && num_units > 0; ++i) {
    const int block = static_cast<int>(int64_t{i} * num_units / count);
    const bool is_shared = num_units < count;
    const int begin = is_shared && sharing == Sharing::kRoundRobin ? i % num_units : block;
    const int end = is_shared ? begin + 1 : static_cast<int>((int64_t{i} + 1) * num_units / count);
    for (int unit = begin; unit < end; ++unit) {
      const std::vector<int>& processors = units[static_cast<size_t>(unit)];
      std::vector<int>& to = shares[static_cast<size_t>(i)];
      to.insert(to.end(), processors.begin(), processors.end());
    }
  }
  return shares;
}

absl::Status PinThisThread(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) {
    if (processor < 0 || processor >= CPU_SETSIZE) {
      return absl::InvalidArgumentError(StrCat("there is no processor ", processor));
    }
    CPU_SET(static_cast<size_t>(processor), &set);
  }
  if (const int error = pthread_setaffinity_np(pthread_self(), sizeof(set), &set); error != 0) {
    return absl::ErrnoToStatus(
        error, StrCat("confining a thread to processors ", StrJoin(processors, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace penstock
