#include "actors/trace/perfetto_trace.h"

#include <protozero/pbf_reader.hpp>

#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using planner::kNone;
using planner::Lane;
using planner::PhaseKind;
using ::testing::ElementsAre;
using testing::EnginePlanBuilder;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

struct Slice {
  std::string name;
  int64_t begin_ns = 0;
  int64_t end_ns = -1;
  uint64_t starts_flow = 0;
  uint64_t ends_flow = 0;
};

// A trace as its readers see it; numbers of fields are those of the published schema.
struct ReadTrace {
  std::map<uint64_t, std::string> track_names;
  std::map<uint64_t, uint64_t> parents;
  std::map<std::string, std::vector<Slice>> slices;                        // by path of the track
  std::map<std::string, std::vector<std::pair<int64_t, int64_t>>> counts;  // the same

  std::string PathOf(uint64_t track) const {
    std::string path = track_names.at(track);
    for (auto it = parents.find(track); it != parents.end(); it = parents.find(it->second)) {
      path = track_names.at(it->second) + "/" + path;
    }
    return path;
  }
};

void ReadDescriptor(protozero::pbf_reader descriptor, ReadTrace* trace) {
  uint64_t uuid = 0;
  uint64_t parent = 0;
  std::string name;
  while (descriptor.next()) {
    switch (descriptor.tag()) {
      case 1:
        uuid = descriptor.get_uint64();
        break;
      case 2:
        name = descriptor.get_string();
        break;
      case 3: {
        protozero::pbf_reader process = descriptor.get_message();
        while (process.next()) {
          if (process.tag() == 6) {
            name = process.get_string();
          } else {
            process.skip();
          }
        }
        break;
      }
      case 5:
        parent = descriptor.get_uint64();
        break;
      default:
        descriptor.skip();
    }
  }
  EXPECT_TRUE(trace->track_names.try_emplace(uuid, name).second);
  if (parent != 0) trace->parents[uuid] = parent;
}

void ReadNames(protozero::pbf_reader interned, std::map<uint64_t, std::string>* names) {
  while (interned.next(2)) {
    protozero::pbf_reader entry = interned.get_message();
    uint64_t number = 0;
    std::string name;
    while (entry.next()) {
      if (entry.tag() == 1) {
        number = entry.get_uint64();
      } else {
        name = entry.get_string();
      }
    }
    (*names)[number] = name;
  }
}

ReadTrace Read(const std::string& bytes) {
  ReadTrace trace;
  std::map<uint64_t, std::string> names;
  protozero::pbf_reader packets(bytes);
  while (packets.next(1)) {
    protozero::pbf_reader packet = packets.get_message();
    int64_t at_ns = 0;
    std::optional<protozero::pbf_reader> event;
    while (packet.next()) {
      switch (packet.tag()) {
        case 8:
          at_ns = static_cast<int64_t>(packet.get_uint64());
          break;
        case 11:
          event = packet.get_message();
          break;
        case 12:
          ReadNames(packet.get_message(), &names);
          break;
        case 60:
          ReadDescriptor(packet.get_message(), &trace);
          break;
        default:
          packet.skip();
      }
    }
    if (!event.has_value()) continue;
    int32_t type = 0;
    uint64_t track = 0;
    int64_t value = 0;
    Slice slice;
    slice.begin_ns = at_ns;
    while (event->next()) {
      switch (event->tag()) {
        case 9:
          type = event->get_enum();
          break;
        case 10:
          slice.name = names.at(event->get_uint64());
          break;
        case 11:
          track = event->get_uint64();
          break;
        case 30:
          value = event->get_int64();
          break;
        case 47:
          slice.starts_flow = event->get_fixed64();
          break;
        case 48:
          slice.ends_flow = event->get_fixed64();
          break;
        default:
          event->skip();
      }
    }
    const std::string path = trace.PathOf(track);
    if (type == 1) {
      trace.slices[path].push_back(slice);
    } else if (type == 2) {
      std::vector<Slice>& slices = trace.slices[path];
      if (slices.empty() || slices.back().end_ns != -1) {
        ADD_FAILURE() << "a slice of " << path << " ends that has not begun";
        continue;
      }
      slices.back().end_ns = at_ns;
    } else {
      trace.counts[path].emplace_back(at_ns, value);
    }
  }
  return trace;
}

// Device 0 computes and sends, device 1 receives; both of one micro-batch.
planner::Plan TransferPlan() {
  EnginePlanBuilder b(1);
  b.AddDevice(0);
  b.AddDevice(1);
  const uint32_t x = b.AddRegister(0);
  const uint32_t y = b.AddRegister(1);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t f = b.AddKernel(0, "f", "t.iota", {}, {x});
  b.BeginPhase(0, "send x", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t send = b.AddSend(0, "x.send", x, 1);
  b.BeginPhase(1, "recv x", PhaseKind::kTransfer, Lane::kFloating);
  b.AddRecv(1, "x.recv", y, b.last_transfer());
  b.AddChannel(0, f, send);
  planner::Plan plan = b.Build();
  plan.devices[0].channels[0].reg = x;
  return plan;
}

std::vector<TraceEvent> TransferEvents() {
  return {{0, 0, 0, 0, 0, 100, 400}, {0, kNone, 0, 0, 0, 90, 410},
          {0, 1, 1, 0, 0, 420, 600}, {0, kNone, 1, 0, 0, 415, 610},
          {1, 0, 0, 0, 0, 50, 620},  {1, kNone, 0, 0, 0, 40, 630}};
}

ReadTrace Write(const planner::Plan& plan, const std::vector<TraceEvent>& events,
                const TraceContext& context = {}) {
  std::ostringstream out;
  WritePerfettoTrace(plan, events, context, out);
  return Read(out.str());
}

TEST(PerfettoTraceTest, EveryEventIsASliceOfItsTrack) {
  TraceContext context;
  context.processes = {{"node 0", 0, 1}, {"node 1", 1, 1}};
  const ReadTrace trace = Write(TransferPlan(), TransferEvents(), context);
  std::map<std::string, size_t> counts;
  for (const auto& [path, slices] : trace.slices) counts[path] = slices.size();
  EXPECT_THAT(counts,
              UnorderedElementsAre(Pair("node 0/stage 0/device 0/compute phases", 1),
                                   Pair("node 0/stage 0/device 0/floating phases/send x", 1),
                                   Pair("node 0/stage 0/device 0/kernels/f", 1),
                                   Pair("node 0/stage 0/device 0/sends/x.send", 1),
                                   Pair("node 1/stage 1/device 1/floating phases/recv x", 1),
                                   Pair("node 1/stage 1/device 1/receives/x.recv", 1)));
  const Slice& kernel = trace.slices.at("node 0/stage 0/device 0/kernels/f")[0];
  EXPECT_EQ(kernel.name, "f");
  EXPECT_EQ(kernel.begin_ns, 100);
  EXPECT_EQ(kernel.end_ns, 400);
}

TEST(PerfettoTraceTest, AFlowLeadsFromSendToReceive) {
  const ReadTrace trace = Write(TransferPlan(), TransferEvents());
  const Slice& send = trace.slices.at("penstock/stage 0/device 0/sends/x.send")[0];
  const Slice& receive = trace.slices.at("penstock/stage 1/device 1/receives/x.recv")[0];
  EXPECT_NE(send.starts_flow, 0u);
  EXPECT_EQ(send.starts_flow, receive.ends_flow);
  EXPECT_EQ(send.ends_flow, 0u);
  // The receive was posted at 50; data could move from 420.
  EXPECT_EQ(receive.begin_ns, 420);
  EXPECT_EQ(receive.end_ns, 620);
}

TEST(PerfettoTraceTest, CountersShowCreditsAndBytes) {
  const ReadTrace trace = Write(TransferPlan(), TransferEvents());
  EXPECT_THAT(trace.counts.at("penstock/stage 0/device 0/credits in use, F to send x (of 1)"),
              ElementsAre(Pair(90, 1), Pair(610, 0)));
  EXPECT_THAT(trace.counts.at("penstock/stage 0/device 0/tokens waiting, F to send x"),
              ElementsAre(Pair(410, 1), Pair(415, 0)));
  EXPECT_THAT(trace.counts.at("penstock/stage 0/device 0/bytes in channel registers"),
              ElementsAre(Pair(90, 64), Pair(610, 0)));
  EXPECT_THAT(trace.counts.at("penstock/stage 1/device 1/communications under way"),
              ElementsAre(Pair(50, 1), Pair(620, 0)));
}

TEST(PerfettoTraceTest, PlannedMemoryIsALineADevice) {
  planner::Plan plan = TransferPlan();
  plan.devices[0].arena_bytes = 4096;
  plan.devices[0].state_bytes = 1024;
  plan.devices[0].workspace_bytes = 512;
  plan.devices[1].host_bytes = 256;
  const ReadTrace trace = Write(plan, TransferEvents());
  const auto is_always = [](int64_t value) {
    return ElementsAre(Pair(40, value), Pair(630, value));
  };
  const std::string first = "penstock/stage 0/device 0/";
  EXPECT_THAT(trace.counts.at(first + "bytes of the arena, planned"), is_always(4096));
  EXPECT_THAT(trace.counts.at(first + "bytes of states, planned"), is_always(1024));
  EXPECT_THAT(trace.counts.at(first + "bytes of workspace, planned"), is_always(512));
  EXPECT_FALSE(trace.counts.contains(first + "bytes of host memory, planned"));
  EXPECT_THAT(trace.counts.at("penstock/stage 1/device 1/bytes of host memory, planned"),
              is_always(256));
}

// Samples before and after the events are not lost, but do not make the trace longer.
TEST(PerfettoTraceTest, AProcessHasItsMemory) {
  planner::Plan plan = TransferPlan();
  plan.devices[0].arena_bytes = 4096;
  plan.devices[1].arena_bytes = 1024;
  TraceContext context;
  context.processes = {{"both", 0, 2, {{10, 5000}, {20, 6000}, {300, 7000}, {900, 8000}}}};
  const ReadTrace both = Write(plan, TransferEvents(), context);
  EXPECT_THAT(both.counts.at("both/resident bytes"),
              ElementsAre(Pair(40, 6000), Pair(300, 7000), Pair(630, 8000)));
  EXPECT_THAT(both.counts.at("both/bytes of arenas, planned"),
              ElementsAre(Pair(40, 5120), Pair(630, 5120)));
  context.processes = {{"node 0", 0, 1, {{10, 5000}}}, {"node 1", 1, 1, {}}};
  const ReadTrace apart = Write(plan, TransferEvents(), context);
  EXPECT_THAT(apart.counts.at("node 0/resident bytes"), ElementsAre(Pair(40, 5000)));
  EXPECT_FALSE(apart.counts.contains("node 1/resident bytes"));
  EXPECT_THAT(apart.counts.at("node 1/bytes of arenas, planned"),
              ElementsAre(Pair(40, 1024), Pair(630, 1024)));
}

TEST(PerfettoTraceTest, StepsAndTheCriticalPathHaveTracks) {
  const planner::Plan plan = TransferPlan();
  const std::vector<StepWindow> steps = {{0, 0, 630}, {1, 630, 700}};
  const CriticalPath path = FindCriticalPath(plan, TransferEvents(), steps[0]);
  TraceContext context;
  context.steps = steps;
  context.path = &path;
  const ReadTrace trace = Write(plan, TransferEvents(), context);
  const std::vector<Slice>& shown = trace.slices.at("steps");
  ASSERT_EQ(shown.size(), 2u);
  EXPECT_EQ(shown[0].name, "step 1");
  EXPECT_EQ(shown[1].begin_ns, 630);
  const std::vector<Slice>& segments = trace.slices.at("critical path of step 1");
  EXPECT_EQ(segments.size(), path.segments.size());
  EXPECT_EQ(segments.front().begin_ns, 0);
  EXPECT_EQ(segments.back().end_ns, 630);
}

TEST(PerfettoTraceTest, SlicesOfATrackDoNotOverlap) {
  // The second firing seems to begin before the first has ended.
  const ReadTrace trace =
      Write(TransferPlan(), {{0, kNone, 0, 0, 0, 100, 400}, {0, kNone, 0, 0, 1, 350, 500}});
  const std::vector<Slice>& slices = trace.slices.at("penstock/stage 0/device 0/compute phases");
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].end_ns, 400);
  EXPECT_EQ(slices[1].begin_ns, 400);
  EXPECT_EQ(slices[1].end_ns, 500);
}

TEST(PerfettoTraceTest, UnknownEventsAndOddNamesDoNoHarm) {
  planner::Plan plan = TransferPlan();
  plan.devices[0].actors[0].name = "caf\xe9";
  const ReadTrace trace = Write(
      plan,
      {{7, 0, 0, 0, 0, 1, 2}, {0, 9, 0, 0, 0, 1, 2}, {0, 0, 9, 0, 0, 1, 2}, {0, 0, 0, 0, 0, 1, 2}});
  ASSERT_EQ(trace.slices.size(), 1u);
  EXPECT_EQ(trace.slices.begin()->second[0].name, "caf\xef\xbf\xbd");
  EXPECT_THAT(Write(plan, {}).slices, IsEmpty());
}

}  // namespace
}  // namespace penstock::actors
