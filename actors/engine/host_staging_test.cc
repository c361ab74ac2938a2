#include "actors/engine/host_staging.h"

#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "base/emulated_device.h"

namespace penstock::actors {
namespace {

using planner::ActorKind;
using planner::Lane;

constexpr size_t kBytes = 16;

std::vector<Comm> Comms(ActorKind kind, size_t count = 1, bool is_in_place = false) {
  std::vector<Comm> comms(count);
  for (Comm& comm : comms) {
    comm.kind = kind;
    CommTensor& tensor = comm.tensors[0];
    if (kind != ActorKind::kRecv) tensor.input_bytes = kBytes;
    if (kind != ActorKind::kSend) tensor.output_bytes = kBytes;
    tensor.is_in_place = is_in_place;
  }
  return comms;
}

class HostStagingTest : public ::testing::Test {
 protected:
  ~HostStagingTest() override {
    if (staging_ != nullptr) staging_->Close();
    lane_.Close();
  }
  void Make(const std::vector<Comm>& comms, const std::vector<HostCopy>& copies = {}) {
    const std::vector<uint32_t> streams(comms.size());
    auto staging = HostStaging::Create(*device_, comms, streams, copies);
    ASSERT_TRUE(staging.ok()) << staging.status();
    staging_ = *std::move(staging);
  }
  std::byte* At(int index) { return memory_->data() + index * kBytes; }
  void Write(int index, const std::string& text) {
    host_.push_back(text);
    stream_->Copy(At(index), host_.back().data(), kBytes, CopyKind::kHostToDevice);
  }
  std::string Read(int index) {
    std::string text(kBytes, '?');
    stream_->Copy(text.data(), At(index), kBytes, CopyKind::kDeviceToHost);
    const std::unique_ptr<Event> end = device_->CreateEvent();
    stream_->Record(end.get());
    while (!end->IsDone()) Poll();
    EXPECT_EQ(end->error(), nullptr);
    return text;
  }
  void Begin(uint32_t comm, int input, int output, Lane lane = Lane::kCompute) {
    CommStart start;
    start.comm = comm;
    start.sequence = 5;
    input_ = At(input);
    output_ = At(output);
    start.inputs = &input_;
    start.outputs = &output_;
    staging_->Begin(start, lane, &lane_);
  }
  void Poll() {
    stream_->Poll();
    staging_->Poll();
  }
  CommStart AwaitReady() {
    CommStart start;
    while (!staging_->NextReady(&start, &error_)) Poll();
    EXPECT_EQ(start.sequence, 5u);
    return start;
  }
  static std::string TextAt(const void* data) {
    return std::string(static_cast<const char*>(data), kBytes);
  }

  const std::unique_ptr<EmulatedDevice> device_ =
      EmulatedDevice::Create({.has_thread = false, .seed = 1});
  const std::unique_ptr<Memory> memory_ = *device_->Allocate(4 * kBytes, MemoryKind::kDevice);
  std::deque<std::string> host_;  // what is copied from
  void* input_ = nullptr;         // of the last communication
  void* output_ = nullptr;
  const StreamError* error_ = nullptr;
  LaneStream lane_{*device_};
  Stream* const stream_ = &lane_.stream();
  std::unique_ptr<HostStaging> staging_;
};

TEST_F(HostStagingTest, ACollectiveReadsAndWritesHostMemory) {
  Make(Comms(ActorKind::kCollective));
  for (const std::string input : {"one two three 4.", "five six seven 8"}) {
    Write(0, input);
    Begin(0, 0, 1);
    EXPECT_EQ(staging_->num_pending(), 1u);
    const CommStart ready = AwaitReady();
    EXPECT_EQ(staging_->num_pending(), 0u);
    Write(0, "what comes later");
    EXPECT_EQ(error_, nullptr);
    EXPECT_EQ(TextAt(ready.inputs[0]), input);
    std::memcpy(ready.outputs[0], "result of 16 by.", kBytes);
    staging_->End(0, &lane_);
    EXPECT_EQ(Read(1), "result of 16 by.");
    EXPECT_EQ(Read(0), "what comes later");
    Write(1, "................");
  }
}

// The lane's stream is not polled again after Begin, so that none of its later work runs.
TEST_F(HostStagingTest, CopiesWaitForNothingThatTheLaneIsGivenLater) {
  constexpr int kManyPolls = 500;  // of which one in four does something
  Make(Comms(ActorKind::kCollective));
  Write(0, "one two three 4.");
  Begin(0, 0, 1);
  for (int i = 0; i < kManyPolls; ++i) stream_->Poll();
  Write(2, "what comes later");
  CommStart ready;
  for (int i = 0; i < kManyPolls; ++i) staging_->Poll();
  ASSERT_TRUE(staging_->NextReady(&ready, &error_));
  EXPECT_EQ(TextAt(ready.inputs[0]), "one two three 4.");
  std::memcpy(ready.outputs[0], "result of 16 by.", kBytes);
  staging_->End(0, &lane_);
  for (int i = 0; i < kManyPolls; ++i) staging_->Poll();
  std::string result(kBytes, '?');
  std::string later(kBytes, '?');
  const std::unique_ptr<Stream> other = device_->CreateStream();
  other->Copy(result.data(), At(1), kBytes, CopyKind::kDeviceToHost);
  other->Copy(later.data(), At(2), kBytes, CopyKind::kDeviceToHost);
  for (int i = 0; i < kManyPolls; ++i) other->Poll();
  EXPECT_EQ(result, "result of 16 by.");
  EXPECT_NE(later, "what comes later");
  EXPECT_EQ(Read(2), "what comes later");
}

// As floating phases are, of which one may wait for what the other sends.
TEST_F(HostStagingTest, CopiesOfAnotherStreamDoNotWait) {
  const std::vector<Comm> comms = Comms(ActorKind::kSend, 2);
  staging_ = *HostStaging::Create(*device_, comms, std::vector<uint32_t>{0, 1}, {});
  LaneStream stuck(*device_);
  const std::unique_ptr<Event> never = device_->CreateEvent();
  const std::unique_ptr<Stream> silent = device_->CreateStream();
  silent->Record(never.get());  // it is not polled
  stuck.stream().Wait(never.get());
  Write(0, "one two three 4.");
  CommStart start;
  start.sequence = 5;
  start.inputs = &input_;
  input_ = At(0);
  staging_->Begin(start, Lane::kFloating, &stuck);
  start.comm = 1;
  staging_->Begin(start, Lane::kFloating, &lane_);
  const CommStart ready = AwaitReady();
  EXPECT_EQ(ready.comm, 1u);
  EXPECT_EQ(TextAt(ready.inputs[0]), "one two three 4.");
  staging_->Close();
  stuck.Close();
}

TEST_F(HostStagingTest, InPlaceTakesTheMemoryOnce) {
  Make(Comms(ActorKind::kCollective));
  const uint64_t apart = staging_->num_bytes();
  Make(Comms(ActorKind::kCollective, 1, true));
  EXPECT_EQ(2 * staging_->num_bytes(), apart);
  Write(2, "one two three 4.");
  Begin(0, 2, 2);
  const CommStart ready = AwaitReady();
  EXPECT_EQ(ready.inputs[0], ready.outputs[0]);
}

TEST_F(HostStagingTest, EveryTensorIsCopied) {
  std::vector<Comm> comms = Comms(ActorKind::kCollective);
  comms[0].tensors.push_back(comms[0].tensors[0]);
  Make(comms);
  Write(0, "one two three 4.");
  Write(1, "five six seven 8");
  std::vector<void*> inputs = {At(0), At(1)};
  std::vector<void*> outputs = {At(2), At(3)};
  staging_->Begin({0, 0, 5, inputs.data(), outputs.data()}, Lane::kCompute, &lane_);
  outputs.assign(2, nullptr);  // of the next run
  const CommStart ready = AwaitReady();
  EXPECT_EQ(TextAt(ready.inputs[0]), "one two three 4.");
  EXPECT_EQ(TextAt(ready.inputs[1]), "five six seven 8");
  std::memcpy(ready.outputs[0], "result of 16 by.", kBytes);
  std::memcpy(ready.outputs[1], "another of them.", kBytes);
  staging_->End(0, &lane_);
  EXPECT_EQ(Read(2), "result of 16 by.");
  EXPECT_EQ(Read(3), "another of them.");
}

// A buffer that is still read by a copy to the device is not given to the transport.
TEST_F(HostStagingTest, AReceiveWaitsUntilItsLastResultHasBeenCopied) {
  Make(Comms(ActorKind::kRecv));
  Begin(0, 0, 0);
  CommStart start;
  ASSERT_TRUE(staging_->NextReady(&start, &error_));  // without any work of the stream
  std::memcpy(start.outputs[0], "one two three 4.", kBytes);
  staging_->End(0, &lane_);
  Begin(0, 0, 1);
  EXPECT_FALSE(staging_->NextReady(&start, &error_));
  start = AwaitReady();
  std::memcpy(start.outputs[0], "five six seven 8", kBytes);
  staging_->End(0, &lane_);
  EXPECT_EQ(Read(0), "one two three 4.");
  EXPECT_EQ(Read(1), "five six seven 8");
}

TEST_F(HostStagingTest, OnesOfALaneGetReadyInTheirOrder) {
  constexpr uint32_t kCount = 20;
  Make(Comms(ActorKind::kSend, kCount));
  for (uint32_t i = 0; i < kCount; ++i) Begin(i, 0, 0);
  std::vector<uint32_t> pending;
  staging_->ForEachPending([&](uint32_t comm) { pending.push_back(comm); });
  for (uint32_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(pending[i], i);
    ASSERT_EQ(AwaitReady().comm, i);
  }
}

TEST_F(HostStagingTest, AnErrorOfTheStreamComesWithTheBytes) {
  Make(Comms(ActorKind::kSend));
  stream_->Copy(this, this, 1, CopyKind::kDeviceToDevice);  // not the device's memory
  Begin(0, 0, 0);
  AwaitReady();
  ASSERT_NE(error_, nullptr);
  EXPECT_EQ(error_->status.code(), absl::StatusCode::kInternal);
}

TEST_F(HostStagingTest, TilesOfInstancesThatOverlapAreApart) {
  graph::TileDesc tile;
  tile.dtype = DType::kF32;
  tile.shape = tile.global = {5};
  Make({}, {{TileCopy(tile), 0, 20}, {TileCopy(tile), 1, 20}});
  std::vector<std::byte*> tiles;
  for (uint32_t copy : {0, 1}) {
    EXPECT_EQ(staging_->TileOf(copy, 0), staging_->TileOf(copy, HostStaging::kCopySlots));
    for (int64_t instance : {0, 1}) tiles.push_back(staging_->TileOf(copy, instance));
  }
  for (size_t i = 1; i < tiles.size(); ++i) EXPECT_GE(tiles[i] - tiles[i - 1], 20);
}

// A part that is gathered into the whole where the whole begins, and the reverse.
TEST_F(HostStagingTest, InPlaceTheLargerOfTheTwoHasRoom) {
  for (const bool is_gather : {true, false}) {
    std::vector<Comm> comms = Comms(ActorKind::kCollective, 1, /*is_in_place=*/true);
    CommTensor& tensor = comms[0].tensors[0];
    (is_gather ? tensor.output_bytes : tensor.input_bytes) = 64 * kBytes;
    EXPECT_GE(HostStaging::BytesFor(comms, {}), 64 * kBytes) << is_gather;
  }
}

}  // namespace
}  // namespace penstock::actors
