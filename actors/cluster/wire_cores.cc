#include <algorithm>
#include <cmath>
#include <string>

#include "actors/cluster/wire_cores_internal.h"

namespace penstock::actors::control {
namespace {

constexpr unsigned kMaxProcessors = 65536;
constexpr unsigned kMaxQuotas = 64;
constexpr size_t kMaxGroupBytes = 64;

}  // namespace

void WriteCores(const ProcessCores& cores, NodeInfo::Builder info) {
  auto processors = info.initProcessors(static_cast<unsigned>(cores.processors.size()));
  for (unsigned i = 0; i < processors.size(); ++i) processors.set(i, cores.processors[i]);
  auto quotas = info.initQuotas(static_cast<unsigned>(cores.quotas.size()));
  for (unsigned i = 0; i < quotas.size(); ++i) {
    quotas[i].setGroup(cores.quotas[i].group.c_str());
    quotas[i].setNumCores(cores.quotas[i].num_cores);
  }
}

ProcessCores ReadCores(NodeInfo::Reader info) {
  ProcessCores cores;
  const auto processors = info.getProcessors();
  for (unsigned i = 0; i < std::min(processors.size(), kMaxProcessors); ++i) {
    cores.processors.push_back(processors[i]);
  }
  std::sort(cores.processors.begin(), cores.processors.end());
  cores.processors.erase(std::unique(cores.processors.begin(), cores.processors.end()),
                         cores.processors.end());
  const auto quotas = info.getQuotas();
  for (unsigned i = 0; i < std::min(quotas.size(), kMaxQuotas); ++i) {
    const auto group = quotas[i].getGroup();
    const double num_cores = quotas[i].getNumCores();
    if (!std::isfinite(num_cores) || num_cores <= 0) continue;
    cores.quotas.push_back(
        {std::string(group.begin(), std::min(group.size(), kMaxGroupBytes)), num_cores});
  }
  return cores;
}

}  // namespace penstock::actors::control
