#include "planner/chakra/write_chakra.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/chakra/chakra_files.h"
#include "planner/chakra/chakra_node.h"
#include "planner/chakra/program_nodes.h"
#include "planner/cluster/group_shape.h"
#include "planner/plan/plan_peers.h"
#include "planner/simulator/kernel_table.h"
#include "planner/simulator/machine_resources.h"

namespace penstock::planner {
namespace {

constexpr char kVersion[] = "1.0.0";

uint64_t Rounded(double value) { return static_cast<uint64_t>(std::llround(std::max(value, 0.0))); }

// The trace of a program on devices of one kind. Nodes that are the same on all ranks are encoded.
struct Template {
  struct Communication {
    size_t offset = 0;  // in `fixed`, where it belongs
    uint32_t actor = 0;
    uint32_t instance = 0;
    ChakraNode node;            // without what the rank determines
    uint64_t extra_id = kNone;  // of a permute: its send; the receive has the next
  };
  std::string fixed;
  std::vector<Communication> communications;
  uint64_t num_nodes = 0;
};

// Whole microseconds of durations one after another, without drift.
class MicrosOfStream {
 public:
  uint64_t Next(uint64_t duration_ns) {
    const uint64_t before = (sum_ns_ + 500) / 1000;
    sum_ns_ += duration_ns;
    return (sum_ns_ + 500) / 1000 - before;
  }

 private:
  uint64_t sum_ns_ = 0;
};

class ChakraWriter {
 public:
  ChakraWriter(const FoldedPlan& plan, const std::vector<std::vector<uint32_t>>& stage_orders,
               const graph::OpRegistry& ops, const Machine& machine, const ChakraOptions& options,
               const PlanPeers& peers)
      : plan_(plan),
        stage_orders_(stage_orders),
        machine_(machine),
        options_(options),
        peers_(peers),
        kernels_(plan.is_folded() ? plan.kernels : plan.common.kernels, ops, machine,
                 Iota(plan.num_devices())) {
    uint32_t next = 1;
    for (uint32_t s = 0; s < peers.sets().size(); ++s) {
      first_group_.push_back(next);
      next += static_cast<uint32_t>(peers.sets()[s].groups.size());
    }
    for (uint32_t m = 0; m < peers.num_collectives(); ++m) is_named_[peers.SetOf(m)] = true;
  }

  absl::StatusOr<ChakraFiles> Run(const std::string& folder) {
    ASSIGN_OR_RETURN(const std::vector<uint32_t> ranks, RanksToWrite());
    if (options_.one_of_each_program) CountRepresented(ranks);
    RETURN_IF_ERROR(RemoveChakraTraces(folder));
    for (const uint32_t rank : ranks) {
      ASSIGN_OR_RETURN(const std::string bytes, TraceOf(rank));
      RETURN_IF_ERROR(WriteBytes(ChakraTracePath(folder, rank), bytes));
      ++files_.num_traces;
      files_.num_bytes += bytes.size();
    }
    RETURN_IF_ERROR(WriteBytes(ChakraGroupsPath(folder), Groups()));
    return files_;
  }

 private:
  static std::vector<uint32_t> Iota(uint32_t size) {
    std::vector<uint32_t> numbers(size);
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }

  absl::StatusOr<std::vector<uint32_t>> RanksToWrite() const {
    if (options_.one_of_each_program) return WithPeers(FirstOfPrograms(plan_));
    if (options_.ranks.empty()) return Iota(plan_.num_devices());
    for (const uint32_t rank : options_.ranks) {
      if (rank < plan_.num_devices()) continue;
      return absl::InvalidArgumentError(StrCat("there is no rank ", rank, ": the plan has ",
                                               Counted(int64_t{plan_.num_devices()}, "rank"),
                                               ", numbered from 0"));
    }
    std::vector<uint32_t> ranks = options_.ranks;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  // These and those that they exchange messages with, directly or through others, increasing: what
  // a rank receives has to be sent by a rank that has a trace.
  std::vector<uint32_t> WithPeers(std::vector<uint32_t> ranks) const {
    std::vector<bool> is_added(plan_.num_devices(), false);
    for (const uint32_t rank : ranks) is_added[rank] = true;
    const auto add = [&](uint32_t rank) {
      if (is_added[rank]) return;
      is_added[rank] = true;
      ranks.push_back(rank);
    };
    for (size_t i = 0; i < ranks.size(); ++i) {
      const uint32_t rank = ranks[i];
      for (const ActorPlan& actor : plan_.ProgramOnDevice(rank).actors) {
        const uint32_t rendezvous = peers_.MeetingOf(actor);
        if (rendezvous == kNone) continue;
        const uint32_t group = peers_.GroupOf(rendezvous, rank);
        const std::vector<uint32_t>& devices = peers_.DevicesOf(rendezvous, group);
        if (peers_.IsTransfer(rendezvous)) {
          for (const uint32_t device : devices) add(device);
        } else if (IsPermute(actor, rank)) {
          // Whoever sends to the rank is reached by going on to whom others send.
          const CollectiveSpec& spec = peers_.SpecOf(rendezvous, group);
          add(devices[spec.peers[PlaceOf(devices, rank)]]);
        }
      }
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  static uint32_t PlaceOf(const std::vector<uint32_t>& devices, uint32_t rank) {
    return static_cast<uint32_t>(std::find(devices.begin(), devices.end(), rank) - devices.begin());
  }

  uint32_t ProgramOf(uint32_t rank) const {
    return plan_.is_folded() ? plan_.ProgramOf(rank) : rank;
  }

  // Shares the ranks of each program out among those that have a trace.
  void CountRepresented(const std::vector<uint32_t>& ranks) {
    std::map<uint32_t, uint32_t> left;     // of each program: ranks
    std::map<uint32_t, uint32_t> writers;  // of each program: traces that are left
    for (uint32_t rank = 0; rank < plan_.num_devices(); ++rank) ++left[ProgramOf(rank)];
    for (const uint32_t rank : ranks) ++writers[ProgramOf(rank)];
    for (const uint32_t rank : ranks) {
      const uint32_t program = ProgramOf(rank);
      const uint32_t share = left[program] / writers[program]--;
      left[program] -= share;
      stands_for_[rank] = share;
    }
  }

  uint32_t StandsFor(uint32_t rank) const {
    const auto found = stands_for_.find(rank);
    return found == stands_for_.end() ? 1 : found->second;
  }

  absl::StatusOr<std::string> TraceOf(uint32_t rank) {
    const std::pair<uint32_t, uint32_t> key = {ProgramOf(rank), kernels_.KindOf(rank)};
    if (!templates_.contains(key)) {
      if (!plan_.is_folded()) templates_.clear();  // each is used once
      ASSIGN_OR_RETURN(Template lowered, Lower(rank));
      templates_[key] = std::make_unique<Template>(std::move(lowered));
    }
    const Template& trace = *templates_[key];
    std::string bytes;
    AppendChakraMetadata({kVersion, plan_.num_devices(), StandsFor(rank)}, &bytes);
    bytes.reserve(trace.fixed.size() + 192 * trace.communications.size());
    size_t done = 0;
    for (const Template::Communication& communication : trace.communications) {
      bytes.append(trace.fixed, done, communication.offset - done);
      done = communication.offset;
      RETURN_IF_ERROR(AppendCommunication(communication, rank, &bytes));
    }
    bytes.append(trace.fixed, done);
    files_.num_nodes += trace.num_nodes;
    return bytes;
  }

  bool IsPermute(const ActorPlan& actor, uint32_t rank) const {
    if (actor.kind != ActorKind::kCollective) return false;
    const uint32_t group = peers_.GroupOf(actor.target, rank);
    return peers_.SpecOf(actor.target, group).kind == CollectiveKind::kPermute;
  }

  absl::StatusOr<Template> Lower(uint32_t rank) {
    const DevicePlan& program = plan_.ProgramOnDevice(rank);
    std::vector<uint32_t> group_of(program.actors.size(), kNone);
    for (size_t a = 0; a < program.actors.size(); ++a) {
      const ActorPlan& actor = program.actors[a];
      if (actor.kind == ActorKind::kCollective) group_of[a] = peers_.SetOf(actor.target);
    }
    ASSIGN_OR_RETURN(const ProgramNodes nodes,
                     LowerProgram(program, plan_.common.num_microbatches,
                                  stage_orders_[program.stage], group_of, options_.num_steps));
    // A permute is three nodes.
    std::vector<uint64_t> ids;
    uint64_t next_id = 0;
    for (const ProgramNode& node : nodes.nodes) {
      if (node.actor != kNone && IsPermute(program.actors[node.actor], rank)) next_id += 2;
      ids.push_back(next_id++);
    }
    // Computation of the lanes, and of each floating phase, runs beside each other.
    std::vector<uint32_t> streams;
    uint32_t num_streams = 2;
    for (const PhasePlan& phase : program.phases) {
      streams.push_back(phase.lane == Lane::kCompute   ? 0
                        : phase.lane == Lane::kPerStep ? 1
                                                       : num_streams++);
    }
    std::vector<MicrosOfStream> micros(num_streams);
    Template lowered;
    for (uint32_t i = 0; i < nodes.nodes.size(); ++i) {
      const ProgramNode& from = nodes.nodes[i];
      const PhasePlan& phase = program.phases[from.phase];
      ChakraNode node;
      node.id = ids[i];
      for (const uint32_t dep : nodes.DataDepsOf(i)) node.data_deps.push_back(ids[dep]);
      for (const uint32_t dep : nodes.CtrlDepsOf(i)) node.ctrl_deps.push_back(ids[dep]);
      ++lowered.num_nodes;
      if (from.actor == kNone) {
        node.type = ChakraNodeType::kMetadata;
        node.is_cpu_op = true;
        node.name = StrCat(from.is_end ? "end " : "begin ", phase.name, " ", from.instance);
        const uint32_t per_step = FiringsPerStep(plan_.common, phase);
        if (from.is_end) node.step = from.instance / per_step;
        AppendChakraNode(node, &lowered.fixed);
        continue;
      }
      const ActorPlan& actor = program.actors[from.actor];
      node.name = actor.name;
      if (!IsCommunication(actor.kind)) {
        const uint32_t stream = streams[from.phase];
        AddComputation(actor, rank, stream, &micros[stream], &node);
        AppendChakraNode(node, &lowered.fixed);
        continue;
      }
      Template::Communication& added = lowered.communications.emplace_back();
      added.offset = lowered.fixed.size();
      added.actor = from.actor;
      added.instance = from.instance;
      if (IsPermute(actor, rank)) {
        added.extra_id = node.id - 2;
        lowered.num_nodes += 2;
      }
      added.node = std::move(node);
    }
    return lowered;
  }

  void AddComputation(const ActorPlan& actor, uint32_t rank, uint32_t stream,
                      MicrosOfStream* micros, ChakraNode* node) const {
    const graph::OpCost cost =
        actor.kernel == kNone ? graph::OpCost() : kernels_.CostOf(actor.kernel);
    const double seconds = actor.kernel == kNone ? 0 : kernels_.Seconds(actor.kernel, rank);
    const std::vector<KernelPlan>& specs = plan_.is_folded() ? plan_.kernels : plan_.common.kernels;
    node->type = ChakraNodeType::kCompute;
    if (actor.kind == ActorKind::kCopy && actor.kernel != kNone) {
      const bool is_store = specs[actor.kernel].op == "to_host";
      node->type = is_store ? ChakraNodeType::kMemoryStore : ChakraNodeType::kMemoryLoad;
    }
    node->num_ops = std::max<uint64_t>(Rounded(cost.flops), 1);
    node->tensor_size = std::max<uint64_t>(Rounded(cost.bytes), 1);
    node->duration_ns = Rounded(1e9 * seconds);
    node->duration_micros = micros->Next(*node->duration_ns);
    node->stream = stream;
  }

  // A tag for each run of a meeting.
  absl::StatusOr<uint32_t> TagOf(uint32_t meeting, uint32_t instance) const {
    const uint64_t runs = uint64_t{options_.num_steps} * plan_.common.num_microbatches;
    const uint64_t tag = meeting * runs + instance;
    if (tag <= std::numeric_limits<int32_t>::max()) return static_cast<uint32_t>(tag);
    return absl::ResourceExhaustedError(
        "the plan has more communications than a trace has tags for; write fewer steps");
  }

  absl::Status AppendCommunication(const Template::Communication& communication, uint32_t rank,
                                   std::string* bytes) {
    const ActorPlan& actor = plan_.ProgramOnDevice(rank).actors[communication.actor];
    const uint32_t meeting = peers_.MeetingOf(actor);
    const uint32_t group = peers_.GroupOf(meeting, rank);
    const std::vector<uint32_t>& devices = peers_.DevicesOf(meeting, group);
    ASSIGN_OR_RETURN(const uint32_t tag, TagOf(meeting, communication.instance));
    ChakraNode node = communication.node;
    if (peers_.IsTransfer(meeting)) {
      AddMessage(actor.kind == ActorKind::kSend, devices[0], devices[1],
                 peers_.MessageBytes(meeting, group), tag, &node);
      AppendChakraNode(node, bytes);
      return absl::OkStatus();
    }
    const CollectiveSpec& spec = peers_.SpecOf(meeting, group);
    if (spec.kind == CollectiveKind::kPermute) {
      AppendPermute(communication, spec, devices, rank, tag, bytes);
      return absl::OkStatus();
    }
    const double num_bytes = CollectiveBytes(spec, devices.size());
    double brought = num_bytes;  // by the member that brings most
    if (spec.kind == CollectiveKind::kAllGather) {
      brought = static_cast<double>(*std::max_element(spec.counts.begin(), spec.counts.end())) *
                static_cast<double>(ByteSize(spec.dtype));
    }
    node.type = ChakraNodeType::kCollective;
    node.comm_type = ChakraCommType(spec.kind);
    node.comm_size = Rounded(brought);
    node.comm_tag = tag;
    if (spec.kind == CollectiveKind::kBroadcast) node.comm_src = devices[spec.root];
    node.pg_name = StrCat(first_group_[peers_.SetOf(meeting)] + group);
    const double seconds =
        CollectiveRoute(machine_, ShapeOfGroup(peers_.SetOf(meeting), group), spec.kind, num_bytes)
            .seconds;
    node.duration_ns = Rounded(1e9 * seconds);
    node.duration_micros = Rounded(1e6 * seconds);
    AppendChakraNode(node, bytes);
    return absl::OkStatus();
  }

  void AddMessage(bool is_send, uint32_t source, uint32_t destination, uint64_t num_bytes,
                  uint32_t tag, ChakraNode* node) const {
    node->type = is_send ? ChakraNodeType::kSend : ChakraNodeType::kReceive;
    node->comm_src = source;
    node->comm_dst = destination;
    node->comm_size = num_bytes;
    node->comm_tag = tag;
    const double seconds =
        MessageRoute(machine_, source, destination, static_cast<double>(num_bytes)).seconds;
    node->duration_ns = Rounded(1e9 * seconds);
    node->duration_micros = Rounded(1e6 * seconds);
  }

  // Its send and its receive, and a node after both. A rank that keeps its part has the node alone.
  void AppendPermute(const Template::Communication& communication, const CollectiveSpec& spec,
                     const std::vector<uint32_t>& devices, uint32_t rank, uint32_t tag,
                     std::string* bytes) const {
    const uint32_t place = PlaceOf(devices, rank);
    const auto sender = static_cast<uint32_t>(
        std::find(spec.peers.begin(), spec.peers.end(), place) - spec.peers.begin());
    ChakraNode join = communication.node;
    join.type = ChakraNodeType::kMetadata;
    join.is_cpu_op = true;
    for (const bool is_send : {true, false}) {
      ChakraNode node = communication.node;
      node.id = communication.extra_id + (is_send ? 0 : 1);
      const uint32_t from = is_send ? place : sender;
      const uint32_t to = is_send ? spec.peers[place] : place;
      if (from == to) {
        node.type = ChakraNodeType::kMetadata;
        node.is_cpu_op = true;
      } else {
        AddMessage(is_send, devices[from], devices[to],
                   static_cast<uint64_t>(spec.counts[from]) * ByteSize(spec.dtype), tag, &node);
      }
      AppendChakraNode(node, bytes);
      join.data_deps.push_back(node.id);
    }
    AppendChakraNode(join, bytes);
  }

  const GroupShape& ShapeOfGroup(uint32_t set, uint32_t group) {
    const auto [it, is_new] = shapes_.try_emplace({set, group}, nullptr);
    if (is_new) {
      const std::vector<uint32_t>& devices = peers_.sets()[set].groups[group];
      it->second = std::make_unique<GroupShape>(
          ShapeOf(machine_.cluster, std::vector<int64_t>(devices.begin(), devices.end())));
    }
    return *it->second;
  }

  // Of collectives; transfers need none.
  std::string Groups() {
    std::string text = "{";
    for (uint32_t s = 0; s < peers_.sets().size(); ++s) {
      if (!is_named_.contains(s)) continue;
      for (uint32_t g = 0; g < peers_.sets()[s].groups.size(); ++g) {
        StrAppend(&text, text.size() == 1 ? "\n" : ",\n", "  \"", first_group_[s] + g, "\": [",
                  StrJoin(peers_.sets()[s].groups[g], ", "), "]");
        ++files_.num_groups;
      }
    }
    return text + "\n}\n";
  }

  absl::Status WriteBytes(const std::string& path, const std::string& bytes) const {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (file) return absl::OkStatus();
    return absl::UnavailableError(StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }

  const FoldedPlan& plan_;
  const std::vector<std::vector<uint32_t>>& stage_orders_;
  const Machine& machine_;
  const ChakraOptions& options_;
  const PlanPeers& peers_;
  const KernelTable kernels_;
  std::vector<uint32_t> first_group_;             // of each set: the number of its first group
  absl::flat_hash_map<uint32_t, bool> is_named_;  // sets of collectives
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Template>> templates_;
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, std::unique_ptr<GroupShape>> shapes_;
  std::map<uint32_t, uint32_t> stands_for_;  // with one_of_each_program, of each rank with a trace
  ChakraFiles files_;
};

}  // namespace

absl::StatusOr<ChakraFiles> WriteChakra(const FoldedPlan& plan,
                                        const std::vector<std::vector<uint32_t>>& stage_orders,
                                        const graph::OpRegistry& ops, const Machine& machine,
                                        const ChakraOptions& options, const std::string& folder) {
  ASSIGN_OR_RETURN(const PlanPeers peers, PlanPeers::Create(plan));
  return ChakraWriter(plan, stage_orders, ops, machine, options, peers).Run(folder);
}

}  // namespace penstock::planner
