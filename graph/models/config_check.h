// Checks on sizes that models share.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_GRAPH_MODELS_CONFIG_CHECK_H_
#define PENSTOCK_GRAPH_MODELS_CONFIG_CHECK_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

#include "graph/models/model.h"

namespace penstock::graph {

// Blocks that a model may have: a graph has some dozen nodes a block.
inline constexpr int64_t kMaxLayers = 1 << 12;
inline constexpr int64_t kMaxModelSize = 1 << 24;
inline constexpr int64_t kMaxExperts = 1 << 16;

// An error unless 1 <= size <= most; `name` is the job's key.
absl::Status CheckModelSize(std::string_view name, int64_t size, int64_t most = kMaxModelSize);

// layers, width, context, vocabulary, dropout and dtype.
absl::Status CheckModelConfig(const ModelConfig& config);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_MODELS_CONFIG_CHECK_H_
