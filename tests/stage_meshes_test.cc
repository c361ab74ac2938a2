// Pipeline stages on meshes with different numbers of devices: the numbers and gradients of one
// device, in one process and in several; on the wire, each receiver gets each element that it needs
// once, and devices that hold the same share the sending.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/npy.h"
#include "gmock/gmock.h"

#include "base/strings.h"
#include "graph/training.h"
#include "planner/plan/coordinates.h"
#include "planner/plan/folded_plan.h"
#include "planner/plan/plan_io.h"
#include "planner/plan/verify_plan.h"
#include "planner/strategy/stages.h"
#include "tests/support/planner_fixture.h"
#include "tests/support/temp_folder.h"

namespace penstock::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A mesh as "2x3" axes, and how the stage's weights [10, 10] are split.
struct StageLayout {
  std::vector<int64_t> axes;
  std::string weight;  // of the sharding: the axes are a, b
  std::string output;
};

struct PipelineCase {
  std::string name;
  int64_t microbatches;
  std::vector<StageLayout> stages;
  int64_t rows = 12;
};

void PrintTo(const PipelineCase& test, std::ostream* out) { *out << test.name; }

int64_t NumDevices(const PipelineCase& test) {
  int64_t devices = 0;
  for (const StageLayout& stage : test.stages) {
    int64_t count = 1;
    for (const int64_t size : stage.axes) count *= size;
    devices += count;
  }
  return devices;
}

// Layers y = tanh(x w + x tied) + t, one a stage. Every stage reads the feed `t` and the parameter
// `tied`, which lies on the first one; the value of each stage and the gradients are returned.
std::string PipelineText(const PipelineCase& test) {
  const std::string type = StrCat("f64[", test.rows, ", 10]");
  std::string text;
  for (size_t s = 0; s < test.stages.size(); ++s) {
    StrAppend(&text, "mesh m", s, " = [mb=", test.microbatches, " temporal");
    for (size_t a = 0; a < test.stages[s].axes.size(); ++a) {
      StrAppend(&text, ", ", std::string(1, static_cast<char>('a' + a)), "=",
                test.stages[s].axes[a]);
    }
    text += "]\n";
  }
  StrAppend(&text, "graph pipeline {\n", "  %x0 = input : ", type, " @[mb, _] on m0 stage 0\n",
            "  %t = input : ", type, " on m0 stage 0\n",
            "  %tied = parameter {std=0.3} : f64[10, 10] @", test.stages[0].weight,
            " on m0 stage 0\n");
  for (size_t s = 0; s < test.stages.size(); ++s) {
    const std::string on = StrCat(" on m", s, " stage ", s, "\n");
    StrAppend(&text, "  %w", s, " = parameter {std=0.3} : f64[10, 10] @", test.stages[s].weight,
              on);
    StrAppend(&text, "  %p", s, " = matmul(%x", s, ", %w", s, ") : ", type, on);
    StrAppend(&text, "  %q", s, " = matmul(%x", s, ", %tied) : ", type, on);
    StrAppend(&text, "  %r", s, " = add(%p", s, ", %q", s, ") : ", type, on);
    StrAppend(&text, "  %h", s, " = tanh(%r", s, ") : ", type, on);
    StrAppend(&text, "  %x", s + 1, " = add(%h", s, ", %t) : ", type, " @", test.stages[s].output,
              on);
  }
  const size_t last = test.stages.size();
  StrAppend(&text, "  %loss = sum_squares(%x", last, ") : f64[] on m", last - 1, " stage ",
            last - 1, "\n  return %loss\n}\n");
  return text;
}

graph::Graph OnOneDevice(graph::Graph graph) {
  graph.mutable_meshes().clear();
  for (graph::NodeId id = 0; id < graph.num_nodes(); ++id) {
    graph.mutable_node(id).mesh = 0;
    graph.mutable_node(id).stage = 0;
  }
  for (graph::ValueId id = 0; id < graph.num_values(); ++id) {
    graph.mutable_value(id).sharding.reset();
  }
  for (graph::Return& ret : graph.mutable_returns()) ret.sharding.reset();
  return graph;
}

class StageMeshesTest : public PlannerFixture {
 protected:
  // With gradients, the values of the stages returned too.
  graph::Graph Pipeline(const PipelineCase& test) const {
    graph::Graph graph = Differentiate(MustParse(PipelineText(test)));
    for (size_t s = 1; s <= test.stages.size(); ++s) {
      graph.mutable_returns().push_back({graph.FindValue(StrCat("x", s)), {}});
    }
    return graph;
  }

  // What `penstock eval` returns.
  std::vector<Tensor> Eval(const graph::Graph& graph, int processes) const {
    const TempFolder folder;
    std::ofstream(folder.Path("g.pst")) << graph::PrintGraph(graph);
    const std::string command =
        StrCat(PENSTOCK_COMMAND, " eval ", folder.Path("g.pst"), " --procs ", processes, " -o ",
               folder.path().string(), " > ", folder.Path("log"), " 2>&1");
    EXPECT_EQ(std::system(command.c_str()), 0)
        << std::ifstream(folder.Path("log")).rdbuf() << graph::PrintGraph(graph);
    std::vector<Tensor> results;
    for (size_t i = 0; i < graph.returns().size(); ++i) {
      absl::StatusOr<Tensor> result = cli::ReadNpy(folder.Path(StrCat("return", i, ".npy")));
      EXPECT_TRUE(result.ok()) << result.status();
      if (result.ok()) results.push_back(*std::move(result));
    }
    return results;
  }
};

void ExpectClose(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].shape(), want[i].shape());
    double scale = 1e-3;
    for (int64_t e = 0; e < want[i].num_elements(); ++e) {
      scale = std::max(scale, std::abs(want[i].As<double>()[e]));
    }
    for (int64_t e = 0; e < want[i].num_elements(); ++e) {
      ASSERT_NEAR(got[i].As<double>()[e], want[i].As<double>()[e], 1e-12 * scale)
          << "return " << i << ", element " << e;
    }
  }
}

const PipelineCase kCases[] = {
    {"Replicated", 1, {{{2}, "[_, _]", "[_, _]"}, {{3}, "[_, _]", "[_, _]"}}},
    {"Columns",
     2,
     {{{4}, "[_, a]", "[mb, a]"}, {{2}, "[_, a]", "[mb, a]"}, {{1}, "[?, ?]", "[mb, ?]"}}},
    {"Rows",
     2,
     {{{1}, "[?, ?]", "[mb, ?]"}, {{6}, "[a, _]", "[mb.a, _]"}, {{2}, "[_, _]", "[mb.a, _]"}}},
    {"Uneven",
     3,
     {{{3}, "[_, a]", "[mb, a]"}, {{4}, "[a, _]", "[mb, a]"}, {{6}, "[_, a]", "[mb, a]"}}},
    {"TwoAxes", 2, {{{2, 3}, "[a, b]", "[mb.a, b]"}, {{2, 2}, "[b, a]", "[mb, b]"}}},
    {"Fewer",
     4,
     {{{6}, "[_, a]", "[mb, _]"},
      {{3}, "[a, _]", "[mb, _]"},
      {{2}, "[_, a]", "[mb, a]"},
      {{1}, "[?, ?]", "[mb, ?]"}}},
    {"More",
     1,
     {{{1}, "[?, ?]", "[?, ?]"},
      {{2}, "[a, _]", "[a, _]"},
      {{3}, "[_, a]", "[_, a]"},
      {{4}, "[_, _]", "[a, _]"},
      {{6}, "[a, _]", "[_, a]"}}},
    // Each element is sent once, also where parts are uneven: 206 rows of a micro-batch over 3.
    {"Large",
     2,
     {{{2}, "[_, _]", "[mb, _]"},
      {{4}, "[_, a]", "[mb, _]"},
      {{2}, "[_, a]", "[mb, _]"},
      {{3}, "[_, _]", "[mb, _]"}},
     412},
    // Micro-batches that are not one part of the tensor are gathered before they are sent.
    {"TimeMinor", 2, {{{3}, "[_, _]", "[a.mb, _]"}, {{2}, "[_, _]", "[a.mb, _]"}}},
};

// Their meshes become one.
const PipelineCase kEqualStages = {
    "Equal", 2, {{{2}, "[_, a]", "[mb, a]"}, {{2}, "[a, _]", "[mb.a, _]"}}};

class PipelineTest : public StageMeshesTest, public ::testing::WithParamInterface<PipelineCase> {};

TEST_P(PipelineTest, GivesTheNumbersOfOneDevice) {
  const graph::Graph graph = Pipeline(GetParam());
  const std::vector<Tensor> one = Eval(OnOneDevice(graph), 1);
  ASSERT_THAT(one, SizeIs(1 + GetParam().stages.size() + 1 + GetParam().stages.size()));
  for (const int processes : {1, 2, 3}) {
    if (processes > NumDevices(GetParam())) continue;
    SCOPED_TRACE(processes);
    ExpectClose(Eval(graph, processes), one);
  }
}

TEST_P(PipelineTest, PlansSurviveTheirFile) {
  const planner::CompileOptions options = OptionsFor("1f1b");
  const auto folded = planner::CompileFolded(ops_, Pipeline(GetParam()), options);
  ASSERT_TRUE(folded.ok()) << folded.status();
  const auto plan = planner::ExpandPlan(*folded);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(static_cast<int64_t>(plan->devices.size()), NumDevices(GetParam()));
  const auto bytes = planner::PlanToBytes(*folded);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto read = planner::PlanFromBytes(*bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(*read == *plan);
  EXPECT_EQ(planner::Count(*folded).actors, planner::Count(*plan).actors);
  // A node gets the programs of its own devices alone.
  const auto slice = planner::ExpandDevices(*folded, {1});
  ASSERT_TRUE(slice.ok()) << slice.status();
  for (size_t d = 0; d < plan->devices.size(); ++d) {
    EXPECT_EQ(slice->devices[d].actors.empty(), d != 1);
    EXPECT_EQ(slice->devices[d].arena_bytes, plan->devices[d].arena_bytes);
  }
}

// After the passes, a graph prints as text that parses, and what it receives is received once.
TEST_P(PipelineTest, LoweredGraphsSurviveTheirText) {
  const graph::Graph lowered = Lower(Pipeline(GetParam()));
  const std::string text = graph::PrintGraph(lowered);
  EXPECT_THAT(text, HasSubstr("= receive("));
  EXPECT_EQ(graph::PrintGraph(MustParse(text)), text);
  EXPECT_EQ(CountOps(Lower(text))["receive"], CountOps(lowered)["receive"]);
}

INSTANTIATE_TEST_SUITE_P(Cases, PipelineTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// What passes from a stage of 4 devices to one of another number, in bytes by sender and receiver.
class WireTest : public StageMeshesTest {
 protected:
  struct Wire {
    std::map<uint32_t, uint64_t> sent;
    std::map<uint32_t, uint64_t> received;
    std::map<uint32_t, uint64_t> needed;  // by receiver: the tile in which the value arrives
    uint64_t largest = 0;                 // message
    uint64_t total = 0;
  };

  Wire Between(const std::string& from, int receivers, const std::string& to,
               const std::string& type) const {
    const std::string text = StrCat(
        "mesh m = [a=4]\nmesh n = [b=", receivers, "]\ngraph g {\n", "  %x = input : ", type, " @",
        from, " on m stage 0\n", "  %y = tanh(%x) : ", type, " @", from, " on m stage 0\n",
        "  %z = neg(%y) : ", type, " @", to, " on n stage 1\n", "  return %z\n}\n");
    const planner::Plan plan = Compile(MustParse(text));
    Wire wire;
    for (const planner::TransferPlan& transfer : plan.transfers) {
      EXPECT_LT(transfer.source, 4u);
      EXPECT_GE(transfer.destination, 4u);
      wire.sent[transfer.source] += transfer.num_bytes;
      wire.received[transfer.destination] += transfer.num_bytes;
      wire.largest = std::max(wire.largest, transfer.num_bytes);
      wire.total += transfer.num_bytes;
    }
    const graph::Graph lowered = Lower(text);
    for (const graph::Node& node : lowered.nodes()) {
      if (node.op->name() != "receive") continue;
      const graph::Value& value = lowered.value(node.results[0]);
      const graph::Mesh& mesh = lowered.meshes()[node.mesh];
      for (int64_t d = 0; d < mesh.num_devices(); ++d) {
        const auto tile =
            planner::TileOf(mesh, planner::ClosedSharding(mesh, value), value.type, d);
        EXPECT_TRUE(tile.ok()) << tile.status();
        if (tile->num_bytes() > 0) wire.needed[4 + static_cast<uint32_t>(d)] = tile->num_bytes();
      }
    }
    return wire;
  }
};

TEST_F(WireTest, ReceiversGetWhatTheyNeedAndNoMore) {
  for (const char* from : {"[_, _]", "[a, _]", "[_, a]"}) {
    for (const int receivers : {1, 2, 3, 6}) {
      for (const char* to : {"[_, _]", "[b, _]", "[_, b]"}) {
        SCOPED_TRACE(StrCat(from, " to ", receivers, " as ", to));
        const Wire wire = Between(from, receivers, to, "f32[10, 7]");
        EXPECT_EQ(wire.received, wire.needed);
        if (from[1] != '_' || from[4] != '_') continue;
        // All devices hold everything.
        ASSERT_FALSE(wire.sent.empty());
        uint64_t most = 0;
        for (const auto& [device, bytes] : wire.sent) most = std::max(most, bytes);
        EXPECT_LE(most, wire.total / 4 + wire.largest);
        EXPECT_EQ(wire.sent.size(), std::min<size_t>(4, receivers));
      }
    }
  }
}

// 64 KiB: the receivers of a whole value get a part each, and gather the rest from each other.
// Parts are uneven where the receivers divide no dimension.
TEST_F(WireTest, EachByteOfALargeValueIsSentOnce) {
  for (const char* from : {"[_, _]", "[a, _]", "[_, a]"}) {
    for (const int receivers : {1, 2, 3, 6, 8}) {
      SCOPED_TRACE(StrCat(from, " to ", receivers));
      const Wire wire = Between(from, receivers, "[_, _]", "f32[128, 128]");
      EXPECT_EQ(wire.total, 128u * 128 * 4);
      EXPECT_EQ(wire.received, wire.needed);
      // All devices hold everything: they share the messages, not each of them.
      if (receivers % 4 != 0 && from[1] == '_' && from[4] == '_') continue;
      for (const auto& [device, bytes] : wire.sent) EXPECT_EQ(bytes, wire.total / 4);
    }
  }
}

// A plan whose transfers do not fit together does not verify.
TEST_F(StageMeshesTest, BrokenTransfersAreRefused) {
  const planner::Plan plan = Compile(Pipeline(kCases[3]));
  ASSERT_TRUE(planner::VerifyPlan(plan, policies_).ok());
  const auto refused = [&](const std::string& what, const auto& change) {
    planner::Plan broken = plan;
    change(broken);
    const absl::Status status = planner::VerifyPlan(broken, policies_).status();
    EXPECT_FALSE(status.ok()) << what;
    EXPECT_THAT(std::string(status.message()), AnyOf(HasSubstr("transfer"), HasSubstr("'send ")))
        << what;
  };
  for (size_t t = 0; t < plan.transfers.size(); ++t) {
    SCOPED_TRACE(t);
    refused("more bytes", [&](planner::Plan& p) { p.transfers[t].num_bytes += 64 << 10; });
    refused("another sender", [&](planner::Plan& p) {
      p.transfers[t].source = (p.transfers[t].source + 1) % p.devices.size();
    });
    refused("another receiver", [&](planner::Plan& p) {
      p.transfers[t].destination = (p.transfers[t].destination + 1) % p.devices.size();
    });
    refused("another rate", [&](planner::Plan& p) {
      p.transfers[t].per_microbatch = !p.transfers[t].per_microbatch;
    });
    const size_t other = (t + 1) % plan.transfers.size();
    refused("a message of another transfer", [&](planner::Plan& p) {
      for (planner::ActorPlan& actor : p.devices[plan.transfers[t].source].actors) {
        if (actor.kind == planner::ActorKind::kSend && actor.target == t) {
          actor.target = static_cast<uint32_t>(other);
        }
      }
    });
  }
}

// A training step: the optimiser follows the parameters to their stages and meshes.
TEST_F(StageMeshesTest, TrainingFollowsTheStages) {
  const PipelineCase& test = kCases[1];
  absl::StatusOr<graph::Graph> graph =
      graph::BuildTrainingGraph(ops_, MustParse(PipelineText(test)), {});
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_TRUE(planner::FollowStages(*graph).ok());
  for (const graph::Node& node : graph->nodes()) {
    ASSERT_GE(node.stage, 0);
    EXPECT_EQ(graph->meshes()[node.mesh].name, StrCat("m", node.stage));
  }
  const planner::Plan plan = Compile(*graph);
  for (const planner::StatePlan& state : plan.states) {
    if (state.name.substr(0, 2) != "w2") continue;
    EXPECT_THAT(state.placements, SizeIs(1)) << state.name;
    EXPECT_EQ(state.placements[0].device, 6u) << state.name;
  }
}

// Jobs train such a file to the losses of one device, wherever the devices are.
TEST_F(StageMeshesTest, JobsGiveTheLossesOfOneDevice) {
  const TempFolder folder;
  const std::string losses = folder.Path("losses.npy");
  const auto train = [&](const graph::Graph& graph, int processes) {
    std::ofstream(folder.Path("g.pst")) << graph::PrintGraph(graph);
    std::ofstream(folder.Path("job.toml")) << "[model]\nfile = \"g.pst\"\n"
                                              "[data]\ninputs = \"random\"\n"
                                              "[train]\nsteps = 6\nlearning_rate = 1e-2\n";
    const std::string command =
        StrCat(PENSTOCK_COMMAND, " run ", folder.Path("job.toml"), " --procs ", processes,
               " --dump ", folder.path().string(), " > /dev/null 2>&1");
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    absl::StatusOr<Tensor> read = cli::ReadNpy(losses);
    EXPECT_TRUE(read.ok()) << read.status();
    return *std::move(read);
  };
  for (const PipelineCase& test : {kCases[3], kEqualStages}) {
    SCOPED_TRACE(test.name);
    const graph::Graph graph = MustParse(PipelineText(test));
    const Tensor one = train(OnOneDevice(graph), 1);
    EXPECT_EQ(one.num_elements(), 6);
    for (const int processes : {1, 3}) ExpectClose({train(graph, processes)}, {one});
  }
}

TEST_F(StageMeshesTest, PlansOfJobsSayWhatTheyAre) {
  const TempFolder folder;
  std::ofstream(folder.Path("g.pst")) << PipelineText(kCases[3]);
  std::ofstream(folder.Path("job.toml")) << "[model]\nfile = \"g.pst\"\n";
  const auto plan = [&](const std::string& options) {
    const std::string command = StrCat(PENSTOCK_COMMAND, " plan ", folder.Path("job.toml"), " ",
                                       options, " > ", folder.Path("out"), " 2>&1");
    const int status = std::system(command.c_str());
    std::ostringstream text;
    text << "status " << WEXITSTATUS(status) << "\n" << std::ifstream(folder.Path("out")).rdbuf();
    return text.str();
  };
  const std::string explained = plan(StrCat("--explain --svg ", folder.Path("plan.svg")));
  EXPECT_THAT(explained, HasSubstr("status 0\n"));
  EXPECT_THAT(explained, HasSubstr("plan: a=3; a=4; a=6, 3 micro-batches, 3 stages"));
  EXPECT_THAT(explained, HasSubstr("      13 devices of 1 thread"));
  EXPECT_THAT(explained, HasSubstr("their parts of a step are not estimated"));
  const std::string json = plan("--json");
  EXPECT_THAT(json, HasSubstr("\"devices\":13"));
  EXPECT_THAT(json, HasSubstr("\"strategy\":\"a=3; a=4; a=6\""));
  EXPECT_THAT(plan("--strategy dp=2"),
              HasSubstr("is laid out by the meshes of its stages; leave the strategy \"auto\""));
  EXPECT_THAT(plan("--devices 4"), HasSubstr("needs 13 devices, not 4 (--devices 4)"));

  std::ofstream(folder.Path("g.pst")) << PipelineText(kEqualStages);
  EXPECT_THAT(plan(""), HasSubstr("plan: a=2; a=2, 2 micro-batches, 2 stages"));
  EXPECT_THAT(plan("--strategy pp=2"),
              HasSubstr("is laid out by the meshes of its stages; leave the strategy \"auto\""));
  std::ofstream(folder.Path("g.pst")) << "graph g {\n  %w = parameter : f32[4] stage 0\n"
                                         "  %loss = sum_squares(%w) : f32[] stage 1\n"
                                         "  return %loss\n}\n";
  EXPECT_THAT(plan(""), HasSubstr("g.pst:3:3: a graph to train without a mesh assigns no stages; "
                                  "add a mesh, or let the job's strategy assign them (pp)"));
}

TEST_F(StageMeshesTest, AForwardStatementWithoutAStageIsNamed) {
  graph::Graph graph = MustParse(
      "mesh m = [a=2]\nmesh n = [b=3]\ngraph g {\n"
      "  %x = input : f32[4] on m stage 0\n"
      "  %y = neg(%x) : f32[4] on n\n  return %y\n}");
  EXPECT_THAT(
      std::string(planner::FollowStages(graph).message()),
      HasSubstr("test.pst:5:3: this statement has no stage; where one statement says its stage, "
                "all do\n  in: %y"));
}

// Two chunks of a group run on its devices, so they lie on one mesh.
TEST_F(StageMeshesTest, ChunksOfAGroupNeedTheSameDevices) {
  planner::CompileOptions options = OptionsFor("1f1b");
  options.chunks_per_group = 2;
  const auto plan = planner::Compile(ops_, Pipeline(kCases[0]), options);
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("stages 0 and 1 run on the same devices, but lie on 'm0' and 'm1', which "
                        "have different numbers of devices"));
}

}  // namespace
}  // namespace penstock::testing
