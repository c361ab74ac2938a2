#include "planner/chakra/simulate_chakra.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "planner/chakra/chakra_files.h"
#include "planner/chakra/chakra_node.h"
#include "planner/chakra/read_chakra.h"
#include "planner/chakra/write_chakra.h"
#include "planner/cluster/collective_cost.h"
#include "planner/cluster/group_shape.h"
#include "planner/cluster/presets.h"
#include "planner/simulator/simulate_plan.h"
#include "tests/support/gpt_plan.h"
#include "tests/support/temp_folder.h"

namespace penstock::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ChakraTest : public ::testing::Test {
 protected:
  static Machine MachineOf(std::string_view preset) { return {*FindClusterPreset(preset)}; }

  void Write(uint32_t rank, const std::vector<ChakraNode>& nodes, uint32_t num_ranks = 0,
             uint32_t stands_for = 1) {
    std::string bytes;
    AppendChakraMetadata({"1", num_ranks, stands_for}, &bytes);
    for (const ChakraNode& node : nodes) AppendChakraNode(node, &bytes);
    WriteBytes(rank, bytes);
  }
  void WriteBytes(uint32_t rank, const std::string& bytes) {
    std::ofstream(ChakraTracePath(Folder(), rank), std::ios::binary) << bytes;
  }
  std::string ReadBytes(uint32_t rank) {
    std::ifstream file(ChakraTracePath(Folder(), rank), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void WriteGroups(std::string_view text) { std::ofstream(ChakraGroupsPath(Folder())) << text; }
  std::string Folder() const { return folder_.path().string(); }

  absl::StatusOr<ChakraSimulation> Simulate(const Machine& machine) {
    const absl::StatusOr<ChakraTraces> traces = ReadChakra(Folder());
    if (!traces.ok()) return traces.status();
    return SimulateChakra(*traces, machine);
  }
  // The message with which the traces are refused.
  std::string Refusal() {
    return std::string(Simulate(MachineOf("hgx-h100:1")).status().message());
  }

  static ChakraNode Compute(uint64_t id, uint64_t duration_ns, std::vector<uint64_t> deps = {}) {
    ChakraNode node;
    node.id = id;
    node.name = StrCat("work", id);
    node.type = ChakraNodeType::kCompute;
    node.data_deps = std::move(deps);
    node.duration_ns = duration_ns;
    return node;
  }
  static ChakraNode Message(uint64_t id, bool is_send, uint32_t source, uint32_t destination,
                            uint32_t tag) {
    ChakraNode node;
    node.id = id;
    node.name = is_send ? "put" : "get";
    node.type = is_send ? ChakraNodeType::kSend : ChakraNodeType::kReceive;
    node.comm_src = source;
    node.comm_dst = destination;
    node.comm_tag = tag;
    node.comm_size = 1000;
    return node;
  }
  static ChakraNode Collective(uint64_t id, std::string group) {
    ChakraNode node;
    node.id = id;
    node.name = "sum";
    node.type = ChakraNodeType::kCollective;
    node.comm_type = 0;
    node.comm_size = 1000;
    node.pg_name = std::move(group);
    return node;
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const PolicyRegistry policies_ = BuiltinPolicies();
  const testing::TempFolder folder_;
};

TEST_F(ChakraTest, ANodeComesBackAsItWasWritten) {
  ChakraNode node = Message(300, true, 3, 4, 5);
  node.ctrl_deps = {1, 200};
  node.data_deps = {2};
  node.duration_micros = 12;
  node.duration_ns = 12345;
  node.num_ops = 1;
  node.tensor_size = uint64_t{1} << 40;
  node.comm_type = 6;
  node.pg_name = "17";
  node.is_cpu_op = true;
  node.stream = 2;
  node.step = 0;
  std::string bytes;
  AppendChakraNode(node, &bytes);
  // Behind a length of two bytes.
  const absl::StatusOr<ChakraNode> read = ParseChakraNode(std::string_view(bytes).substr(2));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->id, node.id);
  EXPECT_EQ(read->name, node.name);
  EXPECT_EQ(read->type, node.type);
  EXPECT_EQ(read->ctrl_deps, node.ctrl_deps);
  EXPECT_EQ(read->data_deps, node.data_deps);
  EXPECT_EQ(read->duration_micros, node.duration_micros);
  EXPECT_EQ(read->is_cpu_op, node.is_cpu_op);
  EXPECT_EQ(read->duration_ns, node.duration_ns);
  EXPECT_EQ(read->num_ops, node.num_ops);
  EXPECT_EQ(read->tensor_size, node.tensor_size);
  EXPECT_EQ(read->comm_type, node.comm_type);
  EXPECT_EQ(read->comm_size, node.comm_size);
  EXPECT_EQ(read->comm_src, node.comm_src);
  EXPECT_EQ(read->comm_dst, node.comm_dst);
  EXPECT_EQ(read->comm_tag, node.comm_tag);
  EXPECT_EQ(read->pg_name, node.pg_name);
  EXPECT_EQ(read->stream, node.stream);
  EXPECT_EQ(read->step, node.step);
}

// A node with one attribute, whose value is as the schema stores it: its tag and its bytes.
absl::StatusOr<ChakraNode> ParseWithAttr(const std::string& name, const std::string& value) {
  const auto field = [](char tag, const std::string& bytes) {
    return std::string(1, tag) + static_cast<char>(bytes.size()) + bytes;
  };
  return ParseChakraNode(field('\x52', field('\x0a', name) + value));
}

TEST_F(ChakraTest, AttributesHaveTheNumbersOfTheirTypes) {
  const std::string uint64 = "\x68\x85\x80\x80\x80\x80\x80\x80\x80\x80\x01";  // 2^63 + 5
  absl::StatusOr<ChakraNode> node = ParseWithAttr("num_ops", uint64);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(*node->num_ops, (uint64_t{1} << 63) + 5);
  node = ParseWithAttr("comm_tag", "\x9d\x01\xf0\xff\xff\xff");  // fixed32
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(*node->comm_tag, 0xfffffff0u);
  const auto error = [](const std::string& name, const std::string& value) {
    return std::string(ParseWithAttr(name, value).status().message());
  };
  EXPECT_EQ(error("comm_tag", uint64),
            "attribute comm_tag is 9223372036854775813, expected a whole number from 0 to "
            "4294967295");
  EXPECT_THAT(error("comm_tag", "\xbd\x01\xf0\xff\xff\xff"), HasSubstr("comm_tag is -16,"));
  const std::string nan("\x19\0\0\0\0\0\0\xf8\x7f", 9);
  EXPECT_THAT(error("num_ops", nan), HasSubstr("num_ops is nan, expected a whole number"));
  EXPECT_THAT(error("num_ops", "\xea\x01\x01x"), HasSubstr("num_ops is 'x', expected"));
}

// Trace and plan are simulated by different code. With as many steps as the plan's simulation has,
// they agree to the rounding of durations to nanoseconds, but where permutes become messages, each
// of which takes its own links and latency. One step that nothing overlaps is close.
TEST_F(ChakraTest, ATraceTakesAsLongAsItsPlan) {
  struct Case {
    const char* strategy;
    const char* policy;
    const char* cluster;
    double tolerance = 0.002;
  };
  // The messages of an exchange wait for those between interleaved stages one by one in the trace,
  // and all together in the plan.
  for (const Case& each :
       {Case{"dp=2,tp=2,pp=2", "1f1b", "hgx-h100:1"}, Case{"pp=4", "zb-h1", "hgx-h100:1"},
        Case{"dp=4,zero=3", "1f1b", "v100-ib100:1"},
        Case{"dp=2,tp=4,sp=true", "gpipe", "hgx-h100:1"}, Case{"cp=16", "1f1b", "v100-ib100:2"},
        Case{"dp=4,cp=4", "1f1b", "v100-ib100:2"},
        Case{"cp=2,pp=2,vpp=2", "interleaved", "hgx-h100:1", 0.1}}) {
    SCOPED_TRACE(StrCat(each.strategy, " ", each.policy));
    testing::GptPlanOptions options;
    options.strategy = each.strategy;
    options.policy = each.policy;
    const FoldedPlan plan = testing::PlanSmallGpt(options, policies_);
    const Machine machine = MachineOf(each.cluster);
    const absl::StatusOr<Simulation> simulation = SimulatePlan(plan, ops_, policies_, machine);
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    for (const uint32_t num_steps : {1u, 4u}) {
      ChakraOptions chakra;
      chakra.num_steps = num_steps;
      const absl::StatusOr<ChakraFiles> files =
          WriteChakra(plan, simulation->stage_orders, ops_, machine, chakra, Folder());
      ASSERT_TRUE(files.ok()) << files.status();
      EXPECT_EQ(files->num_traces, plan.num_devices());
      const absl::StatusOr<ChakraSimulation> again = Simulate(machine);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(again->num_steps, num_steps);
      const double tolerance = num_steps == 1 ? 0.25 : each.tolerance;
      EXPECT_NEAR(again->step_s / simulation->step_s, 1, tolerance) << num_steps << " steps";
    }
  }
}

TEST_F(ChakraTest, OneRankOfEachProgramStandsForTheOthers) {
  testing::GptPlanOptions options;
  options.strategy = "dp=4,tp=2,pp=2";
  const FoldedPlan plan = testing::PlanSmallGpt(options, policies_);
  const Machine machine = MachineOf("hgx-h100:2");
  const absl::StatusOr<Simulation> simulation = SimulatePlan(plan, ops_, policies_, machine);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  ChakraOptions chakra;
  chakra.one_of_each_program = true;
  chakra.num_steps = 4;
  const absl::StatusOr<ChakraFiles> files =
      WriteChakra(plan, simulation->stage_orders, ops_, machine, chakra, Folder());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->num_traces, plan.programs.size());
  EXPECT_LT(files->num_traces, 16u);
  const absl::StatusOr<ChakraSimulation> again = Simulate(machine);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NEAR(again->step_s / simulation->step_s, 1, 0.02);

  // What stands for others does not stand for a trace that was removed.
  std::filesystem::remove(ChakraTracePath(Folder(), 0));
  EXPECT_THAT(Refusal(), HasSubstr("the traces stand for"));
  // Single ranks are no job.
  ASSERT_TRUE(WriteChakra(plan, simulation->stage_orders, ops_, machine,
                          {.ranks = {0, 9}, .one_of_each_program = false, .num_steps = 1}, Folder())
                  .ok());
  EXPECT_THAT(Refusal(), HasSubstr("rank 1 of 16 has no trace"));
  EXPECT_THAT(WriteChakra(plan, simulation->stage_orders, ops_, machine,
                          {.ranks = {16}, .one_of_each_program = false, .num_steps = 1}, Folder())
                  .status()
                  .message(),
              HasSubstr("there is no rank 16: the plan has 16 ranks, numbered from 0"));
}

// Whom a rank sends to in a ring has a trace too; all traces stand for all ranks.
TEST_F(ChakraTest, RingsAreWholeWhereOneRankOfEachProgramIsWritten) {
  for (const char* strategy : {"dp=4,cp=2", "dp=2,cp=4,pp=2", "cp=4,pp=2", "dp=2,tp=2,cp=2"}) {
    SCOPED_TRACE(strategy);
    testing::GptPlanOptions options;
    options.strategy = strategy;
    const FoldedPlan plan = testing::PlanSmallGpt(options, policies_);
    const Machine machine = MachineOf("hgx-h100:2");
    const absl::StatusOr<Simulation> simulation = SimulatePlan(plan, ops_, policies_, machine);
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    const ChakraOptions chakra = {.ranks = {}, .one_of_each_program = true, .num_steps = 4};
    const absl::StatusOr<ChakraFiles> files =
        WriteChakra(plan, simulation->stage_orders, ops_, machine, chakra, Folder());
    ASSERT_TRUE(files.ok()) << files.status();
    const absl::StatusOr<ChakraTraces> traces = ReadChakra(Folder());
    ASSERT_TRUE(traces.ok()) << traces.status();
    EXPECT_EQ(std::accumulate(traces->stands_for.begin(), traces->stands_for.end(), 0u),
              plan.num_devices());
    const absl::StatusOr<ChakraSimulation> again = Simulate(machine);
    ASSERT_TRUE(again.ok()) << again.status();
    // A plan's permute takes all links of its group at once; a message takes those of its ends.
    EXPECT_NEAR(again->step_s / simulation->step_s, 1, 0.1);
  }
}

TEST_F(ChakraTest, MicrosecondsDoNotDrift) {
  testing::GptPlanOptions options;
  options.strategy = "dp=1";
  const FoldedPlan plan = testing::PlanSmallGpt(options, policies_);
  const Machine machine = MachineOf("hgx-h100:1");
  const absl::StatusOr<Simulation> simulation = SimulatePlan(plan, ops_, policies_, machine);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  ASSERT_TRUE(WriteChakra(plan, simulation->stage_orders, ops_, machine, {}, Folder()).ok());
  const std::string bytes = ReadBytes(0);
  std::vector<double> sum_ns(3, 0);
  std::vector<double> sum_micros(3, 0);
  for (size_t next = 0; next < bytes.size();) {
    size_t length = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes[next++]);
      length |= size_t{byte & 0x7fu} << shift;
      if (byte < 0x80) break;
    }
    const bool is_metadata = next < 3;
    const absl::StatusOr<ChakraNode> node =
        ParseChakraNode(std::string_view(bytes).substr(next, length));
    next += length;
    if (is_metadata || !node.ok() || node->type != ChakraNodeType::kCompute) continue;
    ASSERT_LT(node->stream, 3u);
    EXPECT_GE(*node->num_ops, 1u);
    EXPECT_GE(*node->tensor_size, 1u);
    sum_ns[node->stream] += static_cast<double>(*node->duration_ns);
    sum_micros[node->stream] += static_cast<double>(node->duration_micros);
    EXPECT_NEAR(sum_micros[node->stream], 1e-3 * sum_ns[node->stream], 0.5 + 1e-9);
  }
  EXPECT_GT(sum_ns[0], 0);
}

TEST_F(ChakraTest, NodesOfAStreamRunOneAfterAnother) {
  Write(0, {Compute(1, 1000), Compute(2, 2000), Compute(3, 4000, {1})});
  absl::StatusOr<ChakraSimulation> simulation = Simulate(MachineOf("hgx-h100:1"));
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_NEAR(simulation->step_s, 7e-6, 1e-12);
  ChakraNode beside = Compute(2, 2000);
  beside.stream = 1;
  Write(0, {Compute(1, 1000), beside, Compute(3, 4000, {1})});
  simulation = Simulate(MachineOf("hgx-h100:1"));
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_NEAR(simulation->step_s, 5e-6, 1e-12);
}

// c and d wait for the same stream from the same moment on; e follows c. Whichever of a and b is
// taken first, c is first in the file.
TEST_F(ChakraTest, OfNodesThatBecomeReadyTogetherTheFirstInTheFileRuns) {
  for (const bool a_is_first : {true, false}) {
    ChakraNode a = Compute(1, 1000);
    ChakraNode b = Compute(2, 1000);
    a.stream = 1;
    b.stream = 2;
    const ChakraNode c = Compute(3, 10000, {a_is_first ? 1u : 2u});
    const ChakraNode d = Compute(4, 1000, {a_is_first ? 2u : 1u});
    ChakraNode e = Compute(5, 10000, {3});
    e.stream = 3;
    Write(0, {a, b, c, d, e});
    const absl::StatusOr<ChakraSimulation> simulation = Simulate(MachineOf("hgx-h100:1"));
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    EXPECT_NEAR(simulation->total_s, 21e-6, 1e-12) << a_is_first;
  }
}

TEST_F(ChakraTest, StepsEndInOrder) {
  const auto chain = [&](const std::vector<uint32_t>& steps) {
    std::vector<ChakraNode> nodes;
    for (const uint32_t step : steps) {
      const uint64_t id = nodes.size() + 1;
      nodes.push_back(Compute(id, 1000, id == 1 ? std::vector<uint64_t>() : std::vector{id - 1}));
      nodes.back().step = step;
    }
    Write(0, nodes);
  };
  chain({0, 1, 2, 2});
  const absl::StatusOr<ChakraSimulation> simulation = Simulate(MachineOf("hgx-h100:1"));
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_EQ(simulation->num_steps, 3u);
  EXPECT_NEAR(simulation->step_s, 1e-6, 1e-12);
  chain({3, 2, 1, 0});
  EXPECT_EQ(Refusal(), "step 1 of the traces ends before step 0");
  chain({5, 9});
  EXPECT_THAT(Refusal(), HasSubstr("node 2 'work2' of rank 0 ends step 9, but no node ends step 0; "
                                   "steps are numbered from 0"));
  chain({0, 65536});
  EXPECT_THAT(Refusal(), HasSubstr("node 2 'work2': it ends step 65536, expected a step below "
                                   "65536"));
}

// Each of the collectives is one of as many ranks as there may be: neither may be walked for the
// other.
TEST_F(ChakraTest, ManyCollectivesOfManyRanks) {
  constexpr uint32_t kNumRanks = 1 << 17;
  constexpr uint64_t kNumCollectives = 20000;
  std::vector<ChakraNode> nodes;
  for (uint64_t id = 1; id <= kNumCollectives; ++id) {
    nodes.push_back(Collective(id, ""));
    if (id > 1) nodes.back().ctrl_deps = {id - 1};
  }
  Write(0, nodes, kNumRanks, kNumRanks);
  const Machine machine = MachineOf("hgx-h100:16384");
  const absl::StatusOr<ChakraSimulation> simulation = Simulate(machine);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  std::vector<int64_t> ranks(kNumRanks);
  std::iota(ranks.begin(), ranks.end(), 0);
  const double each = PredictCollective(machine.cluster, ShapeOf(machine.cluster, ranks),
                                        CollectiveKind::kAllReduce, 1000)
                          .seconds;
  EXPECT_NEAR(simulation->total_s / (each * kNumCollectives), 1, 1e-6);
}

TEST_F(ChakraTest, MessagesThatDoNotMeetAreNamed) {
  Write(0, {Message(4, true, 0, 1, 7)});
  Write(1, {Message(9, false, 0, 1, 8)});
  EXPECT_THAT(Refusal(), HasSubstr("node 4 'put' of rank 0 sends to rank 1 with tag 7, which never "
                                   "receives it"));
  Write(0, {Compute(1, 10)});
  EXPECT_THAT(Refusal(), HasSubstr("node 9 'get' of rank 1 receives from rank 0 with tag 8, which "
                                   "never sends it"));
  ChakraNode larger = Message(4, true, 0, 1, 8);
  larger.comm_size = 1001;
  Write(0, {larger});
  EXPECT_THAT(Refusal(),
              HasSubstr("a message of 1001 bytes, and node 9 'get' of rank 1 receives 1000"));
  Write(0, {Message(4, true, 0, 5, 8)});
  Write(1, {});
  EXPECT_THAT(Refusal(), HasSubstr("node 4 'put' of rank 0 sends to rank 5 with tag 8, which has "
                                   "no trace"));
}

TEST_F(ChakraTest, CollectivesThatDoNotMeetAreNamed) {
  WriteGroups(R"({"1": [0, 1], "2": [1, 0]})");
  Write(0, {Collective(1, "1")});
  Write(1, {});
  EXPECT_THAT(Refusal(), HasSubstr("node 1 'sum' of rank 0 is collective 0 of its communicator "
                                   "group, which rank 1 never runs"));
  // Each waits in a collective for the other.
  ChakraNode second = Collective(2, "2");
  second.ctrl_deps = {1};
  Write(0, {Collective(1, "1"), second});
  ChakraNode first = Collective(1, "1");
  first.ctrl_deps = {2};
  Write(1, {Collective(2, "2"), first});
  EXPECT_THAT(Refusal(), AllOf(HasSubstr(" waits for node "), HasSubstr(", which never starts")));
  ChakraNode gather = Collective(1, "1");
  gather.comm_type = 2;
  Write(0, {Collective(1, "1")});
  Write(1, {gather});
  EXPECT_THAT(Refusal(), HasSubstr("all_gather where node 1 'sum' of rank 0 has all_reduce"));
  Write(1, {Collective(1, "3")});
  EXPECT_THAT(Refusal(), HasSubstr("there is no communicator group '3'"));
}

TEST_F(ChakraTest, ARankWithoutATraceIsNamed) {
  WriteGroups(R"({"1": [0, 1, 2]})");
  Write(0, {Collective(1, "1")});
  Write(2, {Collective(1, "1")});
  EXPECT_THAT(Refusal(), HasSubstr("rank 1 of 3 has no trace"));
  WriteGroups(R"({"1": [0, -1]})");
  EXPECT_THAT(Refusal(), HasSubstr("group 1 has -1, expected a rank"));
  WriteGroups(R"({"1": [0,)");
  EXPECT_THAT(Refusal(), HasSubstr("not a JSON object"));
}

TEST_F(ChakraTest, DamagedFilesAreRefused) {
  EXPECT_THAT(Refusal(), HasSubstr("there is no Chakra trace"));
  std::filesystem::create_directory(ChakraTracePath(Folder(), 0));
  EXPECT_THAT(Refusal(), HasSubstr("trace.0.et: not a regular file"));
  std::filesystem::remove(ChakraTracePath(Folder(), 0));
  ASSERT_EQ(mkfifo(ChakraTracePath(Folder(), 0).c_str(), 0600), 0);
  EXPECT_THAT(Refusal(), HasSubstr("trace.0.et: not a regular file"));
  std::filesystem::remove(ChakraTracePath(Folder(), 0));
  Write(0, {Compute(1, 10), Compute(2, 10, {1})});
  const std::string whole = ReadBytes(0);
  ASSERT_TRUE(Simulate(MachineOf("hgx-h100:1")).ok());
  // Cut anywhere, it is an error with the place, but where a node ends.
  std::vector<size_t> ends;
  for (const std::vector<ChakraNode>& nodes :
       {std::vector<ChakraNode>{}, std::vector<ChakraNode>{Compute(1, 10)}}) {
    Write(0, nodes);
    ends.push_back(ReadBytes(0).size());
  }
  for (size_t size = 0; size < whole.size(); ++size) {
    WriteBytes(0, whole.substr(0, size));
    const absl::Status status = Simulate(MachineOf("hgx-h100:1")).status();
    EXPECT_EQ(status.ok(), std::find(ends.begin(), ends.end(), size) != ends.end()) << size;
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("trace.0.et: at byte "));
    }
  }
  // Any byte may be anything: what was damaged is refused, or simulated as something else.
  WriteGroups(R"({"1": [0, 1]})");
  ChakraNode sum = Collective(3, "1");
  sum.ctrl_deps = {1, 2};
  Write(0, {Compute(1, 10), Message(2, true, 0, 1, 7), sum});
  Write(1, {Compute(1, 10), Message(2, false, 0, 1, 7), sum});
  const std::string joined = ReadBytes(0);
  ASSERT_TRUE(Simulate(MachineOf("hgx-h100:1")).ok());
  size_t num_refused = 0;
  for (size_t i = 0; i < joined.size(); ++i) {
    for (const int change : {1, 0x80, 0xff}) {
      std::string damaged = joined;
      damaged[i] = static_cast<char>(damaged[i] ^ change);
      WriteBytes(0, damaged);
      if (!Simulate(MachineOf("hgx-h100:1")).ok()) ++num_refused;
    }
  }
  EXPECT_GT(num_refused, joined.size());
  std::filesystem::remove(ChakraTracePath(Folder(), 1));
  std::filesystem::remove(ChakraGroupsPath(Folder()));
  WriteBytes(0, "");
  EXPECT_THAT(Refusal(), HasSubstr("the file is empty"));
  WriteBytes(0, "\x04\x08\x07zz");
  EXPECT_THAT(Refusal(), HasSubstr("the first message is no GlobalMetadata: "));
  Write(0, {}, 4, 0);
  EXPECT_THAT(Refusal(), HasSubstr("stands_for is 0, expected 1 to 131072"));
  ChakraNode colored = Message(1, true, 0, 5, 0);
  colored.name = "\x1b[31mred";
  Write(0, {colored});
  EXPECT_THAT(Refusal(), HasSubstr("node 1 '\\x1b[31mred' of rank 0"));
  WriteBytes(0, whole + "\xff\xff\xff\xff\x7f");
  EXPECT_THAT(Refusal(), HasSubstr("a message of 34359738367 bytes begins 0 bytes before the end"));
  Write(0, {Compute(1, 10), Compute(1, 10)});
  EXPECT_THAT(Refusal(), HasSubstr("node 1 'work1' has the id of an earlier node"));
  Write(0, {Compute(1, 10, {5})});
  EXPECT_THAT(Refusal(), HasSubstr("node 1 'work1' depends on node 5, which is not in the file"));
  Write(0, {Compute(1, 10, {2}), Compute(2, 10, {1})});
  EXPECT_THAT(Refusal(), HasSubstr("depend on each other in a circle"));
  Write(0, {Message(1, true, 1, 0, 0)});
  EXPECT_THAT(Refusal(), HasSubstr("sends from rank 1 in the trace of rank 0"));
  ChakraNode storage = Compute(1, 10);
  storage.type = static_cast<ChakraNodeType>(8);
  Write(0, {storage});
  EXPECT_THAT(Refusal(), HasSubstr("nodes of type 8 are not simulated"));
}

}  // namespace
}  // namespace penstock::planner
