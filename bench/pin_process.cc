#include "bench/pin_process.h"

#include <cstddef>
#include <vector>

#include "base/cpu_topology.h"

namespace penstock::bench {

void PinProcess(int index, int count) {
  const CpuTopology topology = CpuTopology::Load();
  if (topology.num_processors() < 2) return;
  const std::vector<std::vector<int>> processors =
      topology.Distribute(count, CpuTopology::Sharing::kRoundRobin);
  (void)PinThisThread({processors[static_cast<size_t>(index)].front()});
}

}  // namespace penstock::bench
