// How nodes agree on communicators, and jobs whose nodes run in this process, on emulated devices
// that share a source of communicators.

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <capnp/message.h>

#include "actors/cluster/cluster.h"
#include "actors/cluster/node.h"
#include "actors/cluster/stream_collectives_internal.h"
#include "actors/session/session.h"
#include "base/emulated_device.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/emulated/emulated_kernels.h"
#include "tests/support/cluster_fixture.h"
#include "transport/emulated/emulated_communicator.h"

namespace penstock::actors {
namespace {

using ::testing::HasSubstr;
using testing::kSlowdown;
using transport::Communicator;
using transport::CommunicatorFactory;
using transport::CommunicatorSource;
using transport::DeviceGroup;
using transport::GroupIds;
using transport::GroupUse;

// ---- What nodes tell and are told.

NodeCommunicators Nccl(std::vector<std::string> hardware) {
  return {.name = "NCCL 2.28.9", .why_not = "", .hardware = std::move(hardware)};
}

std::string WhyNot(const std::vector<NodeCommunicators>& nodes) {
  const std::vector<std::string> names = {"rank 0 on a", "rank 1 on b"};
  const absl::StatusOr<std::string> agreed = AgreeOnCommunicators(nodes, names);
  EXPECT_EQ(agreed.status().code(), absl::StatusCode::kFailedPrecondition);
  return std::string(agreed.status().message());
}

TEST(StreamCollectivesTest, NodesAgreeOrSayWhyNot) {
  const std::vector<std::string> names = {"rank 0 on a", "rank 1 on b"};
  EXPECT_EQ(AgreeOnCommunicators({Nccl({"GPU-1", "GPU-2"}), Nccl({"GPU-3"})}, names).value_or(""),
            "NCCL 2.28.9");
  NodeCommunicators older = Nccl({"GPU-3"});
  older.name = "NCCL 2.20.5";
  EXPECT_EQ(WhyNot({Nccl({"GPU-1"}), older}),
            "rank 0 on a has NCCL 2.28.9, and rank 1 on b has NCCL 2.20.5");
  EXPECT_EQ(
      WhyNot({Nccl({"GPU-1"}), {.name = "", .why_not = "NCCL cannot be loaded", .hardware = {}}}),
      "rank 1 on b: NCCL cannot be loaded");
  EXPECT_EQ(WhyNot({Nccl({"GPU-1"}), Nccl({"GPU-2", "GPU-1"})}),
            "NCCL 2.28.9 wants a GPU for each device, and rank 0 on a and rank 1 on b share GPU-1");
  EXPECT_EQ(WhyNot({Nccl({"GPU-1"}), Nccl({"GPU-2", "GPU-2"})}),
            "NCCL 2.28.9 wants a GPU for each device, and devices of rank 1 on b share GPU-2");
}

NodeCollectives Collectives() {
  NodeCollectives collectives;
  collectives.launches.order = {{{0, 2}, {1, 1}}, {{0, 3}}, {}, {{2, 1}}};
  collectives.launches.tells_failures = {true, false, true};
  collectives.launches.launched = planner::Launched::kCollectivesAndMessages;
  collectives.ids = {{{0, 1}, "one"},
                     {DeviceGroup({1, 2}, GroupUse::kMessages), "of messages"},
                     {{0, 1, 2, 3}, std::string("\0two", 4)},
                     {{2, 3}, "three"}};
  return collectives;
}

TEST(StreamCollectivesTest, ANodeGetsItsOwnPart) {
  const DeviceRange devices = {0, 2};
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<control::StreamCollectives>();
  WriteCollectives(PartOf(Collectives(), devices), devices, builder);
  const absl::StatusOr<NodeCollectives> read = ReadCollectives(builder.asReader(), devices, 4);
  ASSERT_TRUE(read.ok()) << read.status();
  NodeCollectives expected = Collectives();
  expected.launches.order[3].clear();
  expected.ids.erase({2, 3});
  EXPECT_EQ(read->launches.order, expected.launches.order);
  EXPECT_EQ(read->launches.tells_failures, expected.launches.tells_failures);
  EXPECT_EQ(read->ids, expected.ids);
  EXPECT_EQ(read->launches.launched, planner::Launched::kCollectivesAndMessages);
}

TEST(StreamCollectivesTest, RefusesWhatDoesNotFitTheDevices) {
  const DeviceRange devices = {0, 2};
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<control::StreamCollectives>();
  WriteCollectives(PartOf(Collectives(), devices), devices, builder);
  const auto code = [&](DeviceRange range, uint32_t num_devices) {
    return ReadCollectives(builder.asReader(), range, num_devices).status().code();
  };
  EXPECT_EQ(code({0, 1}, 4), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({3, 2}, 4), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({0xffffffff, 2}, 4), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({0, 2}, 3), absl::StatusCode::kInvalidArgument);  // a group of four
  const std::string id(transport::kMaxGroupIdBytes + 1, 'x');
  builder.getGroups()[0].setId(
      capnp::Data::Reader(reinterpret_cast<const kj::byte*>(id.data()), id.size()));
  EXPECT_EQ(code(devices, 4), absl::StatusCode::kInvalidArgument);

  auto told = message.initRoot<control::Communicators>();
  WriteCommunicators(Nccl({"GPU-1", "GPU-2"}), told);
  EXPECT_EQ(ReadCommunicators(told.asReader(), 2)->hardware,
            (std::vector<std::string>{"GPU-1", "GPU-2"}));
  EXPECT_EQ(ReadCommunicators(told.asReader(), 3).status().code(), absl::StatusCode::kInternal);
}

// ---- Jobs.

// Counts what a node does with a source that nodes share.
class CountingSource final : public CommunicatorSource {
 public:
  explicit CountingSource(std::shared_ptr<CommunicatorSource> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name(); }
  std::string HardwareOf(uint32_t index) const override { return inner_->HardwareOf(index); }
  absl::StatusOr<std::string> CreateGroupId() override {
    ++num_ids;
    return inner_->CreateGroupId();
  }
  CommunicatorFactory CreateFactory(GroupIds given) override {
    ids = given;
    if (!fault.ok()) {
      return [fault = fault](uint32_t, Device&, absl::Span<const DeviceGroup>) { return fault; };
    }
    return [this, create = inner_->CreateFactory(std::move(given))](
               uint32_t index, Device& device, absl::Span<const DeviceGroup> groups) {
      {
        const absl::MutexLock lock(&mutex);
        joined[index].assign(groups.begin(), groups.end());
      }
      return create(index, device, groups);
    };
  }

  int num_ids = 0;
  GroupIds ids;        // that it was given
  absl::Status fault;  // that communicators are made with
  absl::Mutex mutex;
  std::map<uint32_t, std::vector<DeviceGroup>> joined;  // by device

 private:
  const std::shared_ptr<CommunicatorSource> inner_;
};

class StreamClusterTest : public testing::ClusterTest {
 protected:
  static constexpr uint32_t kNodes = 2;
  static constexpr uint32_t kDevices = 4;

  StreamClusterTest() {
    const auto shared = transport::CreateEmulatedSource(
        [this](uint32_t index) { return StrCat("device ", shares_hardware_ ? 0 : index); });
    for (uint32_t rank = 0; rank < kNodes; ++rank) {
      sources_.push_back(std::make_shared<CountingSource>(shared));
      NodeOptions& node = nodes_.emplace_back();
      node.kernels = &kernels_;
      node.kernels_by_kind["emulated"] = emulated_kernels_;
      node.policies = &policies_;
      node.create_device = [](uint32_t index) { return EmulatedDevice::Create({.seed = index}); };
      node.communicators = sources_.back();
    }
  }

  // Rows and columns of a matrix that a 2 x 2 mesh holds are added up: groups of the mesh's axes
  // lie in one process and in two.
  planner::Plan PlanOfAxes() {
    return PlanOf(
        "mesh m = [a=2, b=2]\n"
        "graph g {\n"
        "  %x = input : f32[4, 4] @[a, b]\n"
        "  %y = neg(%x) : f32[4, 4] @[a, b]\n"
        "  %r = reduce_sum(%y) {axes=[0]} : f32[4] @[b]\n"
        "  %c = reduce_sum(%y) {axes=[1]} : f32[4] @[a]\n"
        "  %s = reduce_sum(%y) {axes=[0, 1]} : f32[]\n"
        "  return %r, %c, %s\n"
        "}\n");
  }

  // Starts the nodes, runs two steps of the plan, and checks their results.
  absl::Status RunJob(const planner::Plan& plan) {
    std::vector<std::future<absl::Status>> nodes;
    ClusterOptions options;
    options.num_processes = kNodes;
    options.join_timeout = absl::Seconds(10 * kSlowdown);
    options.on_listening = [&](const std::string& address, const std::string& key) {
      for (uint32_t rank = 0; rank < kNodes; ++rank) {
        nodes_[rank].coordinator = address;
        nodes_[rank].key = key;
        nodes_[rank].rank = static_cast<int>(rank);
        nodes.push_back(
            std::async(std::launch::async, [&node = nodes_[rank]] { return RunNode(node); }));
      }
    };
    options.on_collectives = [this](const absl::StatusOr<std::string>& how,
                                    const std::string& why_not_messages) {
      told_.push_back(how);
      why_not_messages_ = why_not_messages;
    };
    ASSIGN_OR_RETURN(const std::unique_ptr<Cluster> cluster, Cluster::Start(options));
    const absl::Status status = RunSteps(*cluster, plan);
    EXPECT_EQ(cluster->Stop(), absl::OkStatus());
    for (std::future<absl::Status>& node : nodes) EXPECT_EQ(node.get(), absl::OkStatus());
    return status;
  }

  absl::Status RunSteps(Cluster& cluster, const planner::Plan& plan) {
    SessionOptions options;
    options.kernels = &kernels_;
    options.timeout = absl::Seconds(20 * kSlowdown);
    options.start_engine = cluster.engine_factory();
    ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Start(plan, options));
    Tensor x({DType::kF32, {4, 4}});
    for (int step = 0; step < 2; ++step) {
      for (int i = 0; i < 16; ++i) x.As<float>()[i] = static_cast<float>(i + step);
      ASSIGN_OR_RETURN(const StepResult result, session->Run({{"x", x}}));
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(result.Find("r")->As<float>()[i], -(24 + 4 * (i + step)));
        EXPECT_EQ(result.Find("c")->As<float>()[i], -(6 + 16 * i + 4 * step));
      }
      EXPECT_EQ(result.Find("s")->As<float>()[0], -(120 + 16 * step));
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<const kernels::KernelRegistry> emulated_kernels_ =
      std::make_shared<const kernels::KernelRegistry>(kernels::EmulatedKernels(kernels_));
  std::vector<std::shared_ptr<CountingSource>> sources_;
  std::vector<NodeOptions> nodes_;
  std::vector<absl::StatusOr<std::string>> told_;
  std::string why_not_messages_;
  bool shares_hardware_ = false;
};

// The first device's node makes the id of a group, and the nodes of its members alone get it.
TEST_F(StreamClusterTest, DevicesOfSeveralNodesRunCollectivesThemselves) {
  const planner::Plan plan = PlanOfAxes();
  const std::vector<DeviceGroup> groups = GroupsOf(plan, planner::Launched::kCollectives);
  EXPECT_THAT(groups, ::testing::IsSupersetOf({DeviceGroup{0, 1}, DeviceGroup{0, 2},
                                               DeviceGroup{1, 3}, DeviceGroup{2, 3}}));
  ASSERT_EQ(RunJob(plan), absl::OkStatus());
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].value_or(""), "emulated communicators");
  std::map<DeviceGroup, std::string> ids;
  for (uint32_t rank = 0; rank < kNodes; ++rank) {
    CountingSource& source = *sources_[rank];
    const std::vector<DeviceGroup> own = GroupsWith(groups, 2 * rank, 2);
    EXPECT_EQ(source.ids.size(), own.size());
    int num_led = 0;
    for (const DeviceGroup& group : groups) num_led += group.devices.front() / 2 == rank ? 1 : 0;
    EXPECT_EQ(source.num_ids, num_led);
    for (const DeviceGroup& group : own) {
      ASSERT_TRUE(source.ids.contains(group));
      EXPECT_EQ(ids.try_emplace(group, source.ids[group]).first->second, source.ids[group]);
    }
    for (uint32_t device = 2 * rank; device < 2 * rank + 2; ++device) {
      EXPECT_EQ(source.joined[device], GroupsWith(groups, device, 1));
    }
  }
  EXPECT_EQ(ids.size(), groups.size());
}

// Stages lie in different processes, and one reads what the other has made.
TEST_F(StreamClusterTest, StagesOfSeveralNodesExchangeMessagesThemselves) {
  const planner::Plan plan = PlanOf(
      "mesh m = [mb=2 temporal, a=2]\n"
      "graph g {\n"
      "  %x = input : f32[4, 4] @[mb.a, _] stage 0\n"
      "  %y = neg(%x) : f32[4, 4] @[mb.a, _] stage 0\n"
      "  %r = reduce_sum(%y) {axes=[0]} : f32[4] stage 1\n"
      "  %c = reduce_sum(%y) {axes=[1]} : f32[4] stage 1\n"
      "  %s = reduce_sum(%y) {axes=[0, 1]} : f32[] stage 1\n"
      "  return %r, %c, %s\n"
      "}\n");
  ASSERT_EQ(plan.devices.size(), size_t{kDevices});
  ASSERT_FALSE(plan.transfers.empty());
  const std::vector<DeviceGroup> groups =
      GroupsOf(plan, planner::Launched::kCollectivesAndMessages);
  EXPECT_THAT(groups, ::testing::IsSupersetOf({DeviceGroup({0, 2}, GroupUse::kSmallMessages),
                                               DeviceGroup({1, 3}, GroupUse::kSmallMessages)}));
  ASSERT_EQ(RunJob(plan), absl::OkStatus());
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].value_or(""), "emulated communicators");
  EXPECT_EQ(why_not_messages_, "");
  for (uint32_t device = 0; device < kDevices; ++device) {
    EXPECT_EQ(sources_[device / 2]->joined[device], GroupsWith(groups, device, 1));
  }
}

TEST_F(StreamClusterTest, TheHostRunsThemIfANodeHasNoCommunicators) {
  nodes_[1].communicators = nullptr;
  nodes_[1].no_communicators = "NCCL cannot be loaded";
  ASSERT_EQ(RunJob(PlanOfAxes()), absl::OkStatus());
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(told_[0].status().message()), HasSubstr("NCCL cannot be loaded"));
  EXPECT_THAT(std::string(told_[0].status().message()), HasSubstr("node 1"));
  EXPECT_EQ(sources_[0]->num_ids, 0);
  EXPECT_TRUE(sources_[0]->joined.empty());
}

TEST_F(StreamClusterTest, TheHostRunsThemIfDevicesShareHardware) {
  shares_hardware_ = true;
  ASSERT_EQ(RunJob(PlanOfAxes()), absl::OkStatus());
  EXPECT_THAT(std::string(told_.at(0).status().message()), HasSubstr("share device 0"));
  EXPECT_EQ(sources_[0]->num_ids, 0);
}

// The others do not wait for it.
TEST_F(StreamClusterTest, ANodeThatCannotJoinEndsTheSession) {
  sources_[1]->fault = absl::InternalError("the group of devices 0, 2 is not to be joined");
  const absl::Status status = RunJob(PlanOfAxes());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("node 1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not to be joined"));
}

}  // namespace
}  // namespace penstock::actors
