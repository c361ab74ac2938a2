#include "planner/collective_choice.h"

#include <algorithm>

namespace penstock::planner {

CollectiveChoice ChooseCollective(CollectiveKind /*kind*/, int /*group_size*/,
                                  int64_t /*num_bytes*/) {
  return {};
}

void ChooseCollective(CollectiveSpec* spec) {
  int64_t most = 0;
  const int n = static_cast<int>(spec->devices.size());
  for (int rank = 0; rank < n; ++rank) most = std::max(most, InputCount(*spec, rank));
  const CollectiveChoice choice =
      ChooseCollective(spec->kind, n, most * static_cast<int64_t>(ByteSize(spec->dtype)));
  spec->algorithm = choice.algorithm;
  spec->chunk_bytes = choice.chunk_bytes;
}

}  // namespace penstock::planner
