#include "planner/chakra/read_chakra.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/chakra/chakra_files.h"
#include "planner/cluster/cluster_model.h"

namespace penstock::planner {
namespace {

constexpr uint64_t kMaxNodes = uint64_t{1} << 31;  // of all traces

// The messages of a file, each after its length.
class MessageStream {
 public:
  MessageStream(const std::string& path, const std::string& bytes) : path_(path), bytes_(bytes) {}

  bool IsAtEnd() const { return next_ == bytes_.size(); }
  // Where the message begins that Next has returned.
  size_t offset() const { return offset_; }

  absl::StatusOr<std::string_view> Next() {
    offset_ = next_;
    uint64_t length = 0;
    for (int shift = 0;; shift += 7) {
      if (next_ == bytes_.size()) return Error("the length of a message is cut off");
      const auto byte = static_cast<uint8_t>(bytes_[next_++]);
      if (shift > 28) return Error("the length of a message has more than 5 bytes");
      length |= uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80u) == 0) break;
    }
    if (length > bytes_.size() - next_) {
      return Error(StrCat("a message of ", length, " bytes begins ", bytes_.size() - next_,
                          " bytes before the end of the file"));
    }
    const std::string_view message = std::string_view(bytes_).substr(next_, length);
    next_ += length;
    return message;
  }

  absl::Status Error(std::string_view what) const {
    return absl::DataLossError(StrCat(path_, ": at byte ", offset_, ": ", what));
  }

 private:
  const std::string& path_;
  const std::string& bytes_;
  size_t next_ = 0;
  size_t offset_ = 0;
};

// A name as a terminal may show it.
std::string Printable(const std::string& name) { return absl::Utf8SafeCHexEscape(name); }

// A communication before it meets others.
struct Communication {
  uint32_t node = 0;
  ChakraNodeType type = ChakraNodeType::kSend;
  uint32_t source = 0;  // of messages
  uint32_t destination = 0;
  uint32_t tag = 0;     // of messages; of collectives the tag, or the number in the group
  bool has_tag = true;  // of collectives
  uint32_t group = 0;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  uint64_t num_bytes = 0;
};

class ChakraReader {
 public:
  explicit ChakraReader(const std::string& folder) : folder_(folder) {}

  absl::StatusOr<ChakraTraces> Run() {
    ASSIGN_OR_RETURN(const auto paths, FindChakraTraces(folder_));
    for (const auto& [rank, path] : paths) traces_.ranks.push_back(rank);
    traces_.num_ranks = traces_.ranks.back() + 1;
    RETURN_IF_ERROR(ReadGroups());
    for (const auto& [rank, path] : paths) {
      RETURN_IF_ERROR(ReadTrace(rank, path));
    }
    traces_.groups[0].resize(traces_.num_ranks);
    for (uint32_t rank = 0; rank < traces_.num_ranks; ++rank) traces_.groups[0][rank] = rank;
    RETURN_IF_ERROR(CheckRanks());
    RETURN_IF_ERROR(CheckSteps());
    RETURN_IF_ERROR(JoinMessages());
    RETURN_IF_ERROR(JoinCollectives());
    return std::move(traces_);
  }

 private:
  absl::Status ReadGroups() {
    traces_.groups.emplace_back();  // of all ranks
    group_of_name_[""] = 0;
    const std::string path = ChakraGroupsPath(folder_);
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      group_of_name_["0"] = 0;
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const std::string text, ReadChakraFile(path));
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object()) {
      return absl::InvalidArgumentError(
          StrCat(path, ": not a JSON object, expected {\"1\": [0, 1], ...}"));
    }
    for (const auto& [name, ranks] : json.items()) {
      group_of_name_[name] = static_cast<uint32_t>(traces_.groups.size());
      std::vector<uint32_t>& group = traces_.groups.emplace_back();
      if (!ranks.is_array() || ranks.empty()) {
        return absl::InvalidArgumentError(
            StrCat(path, ": group ", name, " is not a list of ranks"));
      }
      for (const nlohmann::json& rank : ranks) {
        if (!rank.is_number_unsigned() || rank.get<uint64_t>() >= kMaxClusterDevices) {
          return absl::InvalidArgumentError(StrCat(path, ": group ", name, " has ", rank.dump(),
                                                   ", expected a rank below ", kMaxClusterDevices));
        }
        group.push_back(rank.get<uint32_t>());
        traces_.num_ranks = std::max(traces_.num_ranks, group.back() + 1);
      }
      std::vector<uint32_t> sorted = group;
      std::sort(sorted.begin(), sorted.end());
      if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
        return absl::InvalidArgumentError(StrCat(path, ": group ", name, " has a rank twice"));
      }
    }
    group_of_name_.try_emplace("0", 0);
    return absl::OkStatus();
  }

  absl::Status ReadTrace(uint32_t rank, const std::string& path) {
    ASSIGN_OR_RETURN(const std::string bytes, ReadChakraFile(path));
    MessageStream stream(path, bytes);
    if (stream.IsAtEnd()) return stream.Error("the file is empty, expected its metadata");
    ASSIGN_OR_RETURN(std::string_view message, stream.Next());
    const absl::StatusOr<ChakraMetadata> metadata = ParseChakraMetadata(message);
    if (!metadata.ok()) {
      return stream.Error(
          StrCat("the first message is no GlobalMetadata: ", ToStd(metadata.status().message())));
    }
    if (metadata->num_ranks > kMaxClusterDevices) {
      return stream.Error(
          StrCat("num_ranks is ", metadata->num_ranks, ", expected at most ", kMaxClusterDevices));
    }
    if (metadata->stands_for == 0 || metadata->stands_for > kMaxClusterDevices) {
      return stream.Error(
          StrCat("stands_for is ", metadata->stands_for, ", expected 1 to ", kMaxClusterDevices));
    }
    traces_.num_ranks = std::max(traces_.num_ranks, metadata->num_ranks);
    traces_.stands_for.push_back(metadata->stands_for);
    const auto first_node = static_cast<uint32_t>(traces_.nodes.size());
    std::vector<std::vector<uint64_t>> deps;
    std::vector<size_t> offsets;
    absl::flat_hash_map<uint32_t, uint32_t> num_of_group;  // collectives without a tag
    while (!stream.IsAtEnd()) {
      ASSIGN_OR_RETURN(message, stream.Next());
      absl::StatusOr<ChakraNode> node = ParseChakraNode(message);
      if (!node.ok()) {
        return stream.Error(StrCat("node number ", deps.size() + 1,
                                   " of the file: ", ToStd(node.status().message())));
      }
      if (traces_.nodes.size() >= kMaxNodes) {
        return absl::ResourceExhaustedError(
            StrCat(folder_, ": the traces have more than ", kMaxNodes, " nodes"));
      }
      const absl::Status added = AddNode(rank, *node, &num_of_group);
      if (!added.ok()) {
        return stream.Error(
            StrCat("node ", node->id, " '", Printable(node->name), "': ", ToStd(added.message())));
      }
      deps.push_back(std::move(node->data_deps));
      deps.back().insert(deps.back().end(), node->ctrl_deps.begin(), node->ctrl_deps.end());
      offsets.push_back(stream.offset());
    }
    traces_.nodes_end.push_back(static_cast<uint32_t>(traces_.nodes.size()));
    return AddDependents(path, first_node, deps, offsets);
  }

  absl::Status AddNode(uint32_t rank, const ChakraNode& node,
                       absl::flat_hash_map<uint32_t, uint32_t>* num_of_group) {
    TracedNode& added = traces_.nodes.emplace_back();
    added.id = node.id;
    added.type = node.type;
    added.name = index_of_name_.try_emplace(node.name, static_cast<uint32_t>(traces_.names.size()))
                     .first->second;
    if (added.name == traces_.names.size()) traces_.names.push_back(node.name);
    added.stream = node.stream;
    if (node.step.has_value() && *node.step >= kMaxTracedSteps) {
      return absl::DataLossError(
          StrCat("it ends step ", *node.step, ", expected a step below ", kMaxTracedSteps));
    }
    added.step = node.step.value_or(kNone);
    Communication communication;
    communication.node = static_cast<uint32_t>(traces_.nodes.size()) - 1;
    communication.type = node.type;
    communication.num_bytes = node.comm_size.value_or(0);
    switch (node.type) {
      case ChakraNodeType::kInvalid:
      case ChakraNodeType::kMetadata:
        return absl::OkStatus();
      case ChakraNodeType::kMemoryLoad:
      case ChakraNodeType::kMemoryStore:
      case ChakraNodeType::kCompute:
        added.seconds = node.duration_ns.has_value()
                            ? 1e-9 * static_cast<double>(*node.duration_ns)
                            : 1e-6 * static_cast<double>(node.duration_micros);
        return absl::OkStatus();
      case ChakraNodeType::kSend:
      case ChakraNodeType::kReceive: {
        const bool is_send = node.type == ChakraNodeType::kSend;
        if (!(is_send ? node.comm_dst : node.comm_src).has_value()) {
          return absl::DataLossError(is_send ? "a send without comm_dst"
                                             : "a receive without comm_src");
        }
        communication.source = node.comm_src.value_or(rank);
        communication.destination = node.comm_dst.value_or(rank);
        communication.tag = node.comm_tag.value_or(0);
        if ((is_send ? communication.source : communication.destination) != rank) {
          return absl::DataLossError(
              StrCat(is_send ? "sends from rank " : "receives at rank ",
                     is_send ? communication.source : communication.destination,
                     " in the trace of rank ", rank));
        }
        if (communication.source == communication.destination) {
          return absl::DataLossError("a message from a rank to itself");
        }
        messages_.push_back(communication);
        return absl::OkStatus();
      }
      case ChakraNodeType::kCollective: {
        const auto group = group_of_name_.find(node.pg_name);
        if (group == group_of_name_.end()) {
          return absl::DataLossError(StrCat("there is no communicator group '", node.pg_name,
                                            "' in ", ChakraGroupsPath(folder_)));
        }
        const std::optional<CollectiveKind> kind = KindOfCommType(node.comm_type.value_or(-1));
        if (!kind.has_value()) {
          return absl::UnimplementedError(
              node.comm_type.has_value()
                  ? StrCat("collectives of comm_type ", *node.comm_type, " are not simulated")
                  : std::string("a collective without comm_type"));
        }
        communication.kind = *kind;
        communication.group = group->second;
        communication.has_tag = node.comm_tag.has_value();
        communication.tag =
            node.comm_tag.has_value() ? *node.comm_tag : (*num_of_group)[communication.group]++;
        collectives_.push_back(communication);
        return absl::OkStatus();
      }
    }
    return absl::UnimplementedError(
        StrCat("nodes of type ", static_cast<int32_t>(node.type), " are not simulated"));
  }

  absl::Status AddDependents(const std::string& path, uint32_t first_node,
                             const std::vector<std::vector<uint64_t>>& deps,
                             const std::vector<size_t>& offsets) {
    const auto error = [&](size_t i, std::string_view what) {
      const TracedNode& node = traces_.nodes[first_node + i];
      return absl::DataLossError(StrCat(path, ": at byte ", offsets[i], ": node ", node.id, " '",
                                        Printable(traces_.names[node.name]), "' ", what));
    };
    absl::flat_hash_map<uint64_t, uint32_t> index_of_id;
    index_of_id.reserve(deps.size());
    for (uint32_t i = 0; i < deps.size(); ++i) {
      const uint64_t id = traces_.nodes[first_node + i].id;
      if (!index_of_id.try_emplace(id, first_node + i).second) {
        return error(i, "has the id of an earlier node");
      }
    }
    std::vector<uint32_t> next(deps.size() + 1, 0);
    std::vector<std::pair<uint32_t, uint32_t>> edges;  // from, to
    for (uint32_t i = 0; i < deps.size(); ++i) {
      for (const uint64_t dep : deps[i]) {
        const auto found = index_of_id.find(dep);
        if (found == index_of_id.end()) {
          return error(i, StrCat("depends on node ", dep, ", which is not in the file"));
        }
        edges.emplace_back(found->second, first_node + i);
        ++next[found->second - first_node + 1];
      }
      traces_.nodes[first_node + i].num_deps = static_cast<uint32_t>(deps[i].size());
    }
    const size_t begin = traces_.dependents.size();
    if (begin + edges.size() > std::numeric_limits<uint32_t>::max()) {
      return absl::ResourceExhaustedError(StrCat(folder_, ": the traces have too many edges"));
    }
    traces_.dependents.resize(begin + edges.size());
    next[0] = static_cast<uint32_t>(begin);
    for (size_t i = 1; i < next.size(); ++i) {
      next[i] += next[i - 1];
      traces_.nodes[first_node + i - 1].dependents_end = next[i];
    }
    for (const auto& [from, to] : edges) traces_.dependents[next[from - first_node]++] = to;
    return absl::OkStatus();
  }

  bool HasTrace(uint32_t rank) const {
    return std::binary_search(traces_.ranks.begin(), traces_.ranks.end(), rank);
  }

  // Either all ranks have a trace, or those that have one stand for the others.
  absl::Status CheckRanks() {
    uint64_t represented = 0;
    for (const uint32_t stands_for : traces_.stands_for) represented += stands_for;
    if (represented == traces_.num_ranks) return absl::OkStatus();
    if (represented > traces_.ranks.size()) {
      return absl::InvalidArgumentError(StrCat(folder_, ": the traces stand for ", represented,
                                               " ranks, and the job has ", traces_.num_ranks));
    }
    for (uint32_t rank = 0; rank < traces_.num_ranks; ++rank) {
      if (HasTrace(rank)) continue;
      return absl::InvalidArgumentError(StrCat(folder_, ": rank ", rank, " of ", traces_.num_ranks,
                                               " has no trace; all ranks are simulated together"));
    }
    return absl::OkStatus();
  }

  // Times of steps are those between the ends of two that follow each other.
  absl::Status CheckSteps() const {
    std::vector<uint32_t> node_of_step;
    for (uint32_t node = 0; node < traces_.nodes.size(); ++node) {
      const uint32_t step = traces_.nodes[node].step;
      if (step == kNone) continue;
      if (step >= node_of_step.size()) node_of_step.resize(step + 1, kNone);
      node_of_step[step] = node;
    }
    const auto missing = std::find(node_of_step.begin(), node_of_step.end(), kNone);
    if (missing == node_of_step.end()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        StrCat(folder_, ": ", traces_.Describe(node_of_step.back()), " ends step ",
               node_of_step.size() - 1, ", but no node ends step ", missing - node_of_step.begin(),
               "; steps are numbered from 0"));
  }

  absl::Status Unmatched(const Communication& message, std::string_view why) const {
    const bool is_send = message.type == ChakraNodeType::kSend;
    return absl::FailedPreconditionError(StrCat(folder_, ": ", traces_.Describe(message.node),
                                                is_send ? " sends to" : " receives from", " rank ",
                                                is_send ? message.destination : message.source,
                                                " with tag ", message.tag, ", ", why));
  }

  absl::Status JoinMessages() {
    const auto key = [](const Communication& message) {
      return std::tuple(message.source, message.destination, message.tag);
    };
    std::vector<Communication> sends;
    std::vector<Communication> receives;
    for (const Communication& message : messages_) {
      (message.type == ChakraNodeType::kSend ? sends : receives).push_back(message);
    }
    for (std::vector<Communication>* side : {&sends, &receives}) {
      std::stable_sort(side->begin(), side->end(),
                       [&](const auto& a, const auto& b) { return key(a) < key(b); });
    }
    for (size_t i = 0; i < std::max(sends.size(), receives.size()); ++i) {
      const bool has_both = i < sends.size() && i < receives.size();
      if (!has_both || key(sends[i]) != key(receives[i])) {
        // The lesser of the two has no partner: all before them have met.
        const bool is_send =
            i >= receives.size() || (i < sends.size() && key(sends[i]) < key(receives[i]));
        const Communication& alone = is_send ? sends[i] : receives[i];
        const uint32_t peer = is_send ? alone.destination : alone.source;
        return Unmatched(alone, !HasTrace(peer) ? "which has no trace"
                                : is_send       ? "which never receives it"
                                                : "which never sends it");
      }
      if (sends[i].num_bytes != receives[i].num_bytes) {
        return Unmatched(sends[i], StrCat("a message of ", sends[i].num_bytes, " bytes, and ",
                                          traces_.Describe(receives[i].node), " receives ",
                                          receives[i].num_bytes));
      }
      TracedMeeting& meeting = traces_.meetings.emplace_back();
      meeting.num_bytes = sends[i].num_bytes;
      meeting.members = {sends[i].node, receives[i].node};
      for (const uint32_t node : meeting.members) {
        traces_.nodes[node].meeting = static_cast<uint32_t>(traces_.meetings.size()) - 1;
      }
    }
    return absl::OkStatus();
  }

  absl::Status JoinCollectives() {
    const auto key = [](const Communication& collective) {
      return std::tuple(collective.group, collective.has_tag, collective.tag);
    };
    std::stable_sort(collectives_.begin(), collectives_.end(),
                     [&](const auto& a, const auto& b) { return key(a) < key(b); });
    for (size_t begin = 0; begin < collectives_.size();) {
      size_t end = begin + 1;
      while (end < collectives_.size() && key(collectives_[end]) == key(collectives_[begin])) ++end;
      RETURN_IF_ERROR(
          JoinCollective(absl::MakeConstSpan(collectives_).subspan(begin, end - begin)));
      begin = end;
    }
    return absl::OkStatus();
  }

  // All that belong together, in increasing order of rank.
  absl::Status JoinCollective(absl::Span<const Communication> members) {
    const Communication& first = members[0];
    const auto error = [&](const Communication& member, std::string_view what) {
      return absl::FailedPreconditionError(StrCat(folder_, ": ", traces_.Describe(member.node),
                                                  " is collective ", first.tag,
                                                  " of its communicator group, ", what));
    };
    const std::vector<uint32_t>& present = PresentIn(first.group);
    TracedMeeting& meeting = traces_.meetings.emplace_back();
    for (size_t i = 0; i < members.size(); ++i) {
      const uint32_t rank = traces_.ranks[traces_.TraceOf(members[i].node)];
      if (i > 0 && rank == traces_.ranks[traces_.TraceOf(members[i - 1].node)]) {
        return error(members[i], "which the rank runs twice");
      }
      if (!std::binary_search(present.begin(), present.end(), rank)) {
        return error(members[i], "of which the rank is no member");
      }
      if (members[i].kind != first.kind) {
        return error(members[i], StrCat(Name(members[i].kind), " where ",
                                        traces_.Describe(first.node), " has ", Name(first.kind)));
      }
      meeting.num_bytes = std::max(meeting.num_bytes, members[i].num_bytes);
      meeting.members.push_back(members[i].node);
      traces_.nodes[members[i].node].meeting = static_cast<uint32_t>(traces_.meetings.size()) - 1;
    }
    meeting.kind = first.kind;
    meeting.group = first.group;
    if (members.size() == present.size()) return absl::OkStatus();
    for (size_t i = 0; i < present.size(); ++i) {
      const bool is_there =
          i < members.size() && traces_.ranks[traces_.TraceOf(members[i].node)] == present[i];
      if (!is_there) return error(first, StrCat("which rank ", present[i], " never runs"));
    }
    return absl::OkStatus();
  }

  // The ranks of a group that have traces, increasing.
  const std::vector<uint32_t>& PresentIn(uint32_t group) {
    const auto [it, is_new] = present_.try_emplace(group);
    if (is_new) {
      for (const uint32_t rank : traces_.groups[group]) {
        if (HasTrace(rank)) it->second.push_back(rank);
      }
      std::sort(it->second.begin(), it->second.end());
    }
    return it->second;
  }

  const std::string folder_;
  ChakraTraces traces_;
  std::map<uint32_t, std::vector<uint32_t>> present_;  // of groups with collectives
  std::map<std::string, uint32_t> group_of_name_;
  absl::flat_hash_map<std::string, uint32_t> index_of_name_;
  std::vector<Communication> messages_;
  std::vector<Communication> collectives_;
};

}  // namespace

absl::Span<const uint32_t> ChakraTraces::DependentsOf(uint32_t node) const {
  const uint32_t begin = node == 0 ? 0 : nodes[node - 1].dependents_end;
  return absl::MakeConstSpan(dependents).subspan(begin, nodes[node].dependents_end - begin);
}

uint32_t ChakraTraces::TraceOf(uint32_t node) const {
  return static_cast<uint32_t>(std::upper_bound(nodes_end.begin(), nodes_end.end(), node) -
                               nodes_end.begin());
}

std::string ChakraTraces::Describe(uint32_t node) const {
  return StrCat("node ", nodes[node].id, " '", Printable(names[nodes[node].name]), "' of rank ",
                ranks[TraceOf(node)]);
}

absl::StatusOr<ChakraTraces> ReadChakra(const std::string& folder) {
  return ChakraReader(folder).Run();
}

}  // namespace penstock::planner
