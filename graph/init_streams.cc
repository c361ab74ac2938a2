#include "graph/init_streams.h"

#include "absl/container/flat_hash_set.h"
#include <xxhash.h>

#include "graph/op.h"

namespace penstock::graph {

uint32_t StreamOfName(std::string_view name, uint64_t salt) {
  constexpr uint32_t kUpperHalf = 0x80000000;
  return static_cast<uint32_t>(XXH64(name.data(), name.size(), salt)) | kUpperHalf;
}

std::vector<uint32_t> InitStreams(const Graph& graph) {
  std::vector<uint32_t> streams(graph.num_nodes(), 0);
  absl::flat_hash_set<uint32_t> taken;
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    if (!node.op->has_declared_type() || node.attributes.Find("stream") == nullptr) continue;
    streams[id] = static_cast<uint32_t>(node.attributes.GetInt("stream", 0));
    taken.insert(streams[id]);
  }
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    if (!node.op->has_declared_type() || node.attributes.Find("stream") != nullptr) continue;
    const std::string& name = graph.value(node.results[0]).name;
    uint64_t salt = 0;
    do {
      streams[id] = StreamOfName(name, salt++);
    } while (!taken.insert(streams[id]).second);
  }
  return streams;
}

}  // namespace penstock::graph
