// A node of a Chakra execution trace (MLCommons Chakra, schema/et_def.proto in this folder), as far
// as Penstock uses the format, and how it is stored.
//
// A trace is a file for each rank: a sequence of messages, each after its length as a varint. The
// first is a GlobalMetadata, all others are Nodes. What the schema leaves to attributes has the
// names that ASTRA-sim's feeder reads: num_ops, tensor_size, comm_type, comm_size, comm_src,
// comm_dst, comm_tag, pg_name and is_cpu_op. Three more are Penstock's:
//   duration_ns  the exact duration; the schema's has whole microseconds
//   stream       of computation: nodes of one stream run one after another (0)
//   step         of the node at the end of a phase: the step that it belongs to
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_PLANNER_CHAKRA_CHAKRA_NODE_H_
#define PENSTOCK_PLANNER_CHAKRA_CHAKRA_NODE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "base/collective.h"

namespace penstock::planner {

// The numbers are the schema's.
enum class ChakraNodeType : int32_t {
  kInvalid = 0,
  kMetadata = 1,
  kMemoryLoad = 2,
  kMemoryStore = 3,
  kCompute = 4,
  kSend = 5,
  kReceive = 6,
  kCollective = 7,
};

// The schema's number of a collective. REQUIRES: not a permute, which the format lacks.
int64_t ChakraCommType(CollectiveKind kind);
// nullopt: a collective that Penstock lacks.
std::optional<CollectiveKind> KindOfCommType(int64_t comm_type);

struct ChakraNode {
  uint64_t id = 0;
  std::string name;
  ChakraNodeType type = ChakraNodeType::kInvalid;
  std::vector<uint64_t> ctrl_deps;
  std::vector<uint64_t> data_deps;
  uint64_t duration_micros = 0;

  // Attributes; those without a value are not stored.
  bool is_cpu_op = false;
  std::optional<uint64_t> duration_ns;
  std::optional<uint64_t> num_ops;
  std::optional<uint64_t> tensor_size;  // bytes
  std::optional<int64_t> comm_type;
  std::optional<uint64_t> comm_size;  // bytes
  std::optional<uint32_t> comm_src;
  std::optional<uint32_t> comm_dst;
  std::optional<uint32_t> comm_tag;
  std::string pg_name;  // empty: the group of all ranks
  uint32_t stream = 0;
  std::optional<uint32_t> step;
};

// What the file of a rank says of itself. All but the version are Penstock's attributes.
struct ChakraMetadata {
  std::string version;
  uint32_t num_ranks = 0;   // of the whole job; 0: not said
  uint32_t stands_for = 1;  // ranks that run the same program, of which only this one has a file
};

// Append a message with its length.
void AppendChakraMetadata(const ChakraMetadata& metadata, std::string* stream);
void AppendChakraNode(const ChakraNode& node, std::string* stream);

// From the bytes of a message. kDataLoss says what is malformed.
absl::StatusOr<ChakraMetadata> ParseChakraMetadata(std::string_view message);
absl::StatusOr<ChakraNode> ParseChakraNode(std::string_view message);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CHAKRA_CHAKRA_NODE_H_
