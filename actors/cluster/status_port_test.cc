#include "actors/cluster/status_port.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/cluster/status_client.h"
#include "tests/support/temp_folder.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using State = DeviceSnapshot::State;

constexpr absl::Duration kStatusPortTimeout = absl::Seconds(20);

JobStatus SomeStatus() {
  JobStatus status;
  status.id = "0123456789abcdef";
  status.name = "gpt";
  status.strategy = "pp=2";
  status.host = "host-a";
  status.pid = 4711;
  status.activity = "training";
  status.session = 3;
  status.steps_done = 7;
  status.steps = 50;
  status.microbatches = 4;
  status.loss = 3.25;
  status.step_time_s = 0.5;
  status.tokens_per_s = 1000;
  status.age_s = 12;
  status.processes = {{.rank = 0, .pid = 1, .host = "a", .resident_bytes = 9, .num_devices = 1},
                      {.rank = 1,
                       .pid = 2,
                       .host = "b",
                       .answers = false,
                       .silence_ns = 5,
                       .first_device = 1,
                       .num_devices = 1}};
  status.devices.resize(2);
  DeviceSnapshot& waiting = status.devices[0].state;
  waiting.state = State::kWaiting;
  waiting.step = 7;
  waiting.age_ns = 100;
  waiting.idle_ns = 60;
  waiting.collective_ns = 20;
  waiting.transfer_ns = 30;
  waiting.still_ns = 40;
  waiting.microbatches = 28;
  waiting.graphs = "3 of 5 phases";
  waiting.channels = {.credits = 8, .credits_in_use = 3, .tokens_waiting = 2, .bytes_in_use = 640};
  status.devices[0].memory_bytes = 77;
  status.devices[0].num_pending = 3;
  status.devices[0].waits_for = {1};
  status.devices[1].state.device = 1;
  status.devices[1].state.running = "mm";
  status.devices[1].stage = 1;
  status.waits = {{"h", 0, "device 1, recv of 'h'", {1}}};
  status.roots = {1};
  status.cycles = {{0, 1}};
  return status;
}

// A connection that does not speak the protocol.
class StatusConnection {
 public:
  explicit StatusConnection(const std::string& path)
      : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  StatusConnection(StatusConnection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~StatusConnection() {
    if (fd_ >= 0) close(fd_);
  }
  void Say(std::string_view bytes) { (void)!send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

 private:
  int fd_;
};

class StatusPortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto client = StatusClient::Create();
    ASSERT_TRUE(client.ok());
    client_ = *std::move(client);
  }

  void Open(StatusAnswers::Source source) {
    auto port = StatusPort::Open(path_, std::make_shared<StatusAnswers>(std::move(source)));
    ASSERT_TRUE(port.ok()) << port.status();
    port_ = *std::move(port);
  }

  absl::StatusOr<JobStatus> Ask() {
    return client_->Ask({"unix:" + path_, ""}, kStatusPortTimeout);
  }

  const testing::TempFolder folder_;
  const std::string path_ = folder_.Path("job.sock");
  std::unique_ptr<StatusClient> client_;
  std::unique_ptr<StatusPort> port_;
};

TEST_F(StatusPortTest, TellsAllOfTheStatus) {
  Open([] { return SomeStatus(); });
  const absl::StatusOr<JobStatus> status = Ask();
  ASSERT_TRUE(status.ok()) << status.status();
  const JobStatus expected = SomeStatus();
  EXPECT_EQ(status->id, expected.id);
  EXPECT_EQ(status->name, expected.name);
  EXPECT_EQ(status->strategy, expected.strategy);
  EXPECT_EQ(status->host, expected.host);
  EXPECT_EQ(status->pid, expected.pid);
  EXPECT_EQ(status->activity, expected.activity);
  EXPECT_EQ(status->note, "");
  EXPECT_EQ(status->session, 3u);
  EXPECT_EQ(status->steps_done, 7);
  EXPECT_EQ(status->steps, 50);
  EXPECT_EQ(status->microbatches, 4);
  EXPECT_EQ(status->loss, 3.25);
  EXPECT_EQ(status->step_time_s, 0.5);
  EXPECT_EQ(status->tokens_per_s, 1000);
  EXPECT_EQ(status->age_s, 12);
  ASSERT_EQ(status->processes.size(), 2u);
  EXPECT_TRUE(status->processes[0].answers);
  EXPECT_EQ(status->processes[0].resident_bytes, 9u);
  EXPECT_FALSE(status->processes[1].answers);
  EXPECT_EQ(status->processes[1].silence_ns, 5);
  EXPECT_EQ(status->processes[1].first_device, 1u);
  ASSERT_EQ(status->devices.size(), 2u);
  const JobStatus::Device& device = status->devices[0];
  EXPECT_EQ(device.state.state, State::kWaiting);
  EXPECT_EQ(device.state.age_ns, 100);
  EXPECT_EQ(device.state.idle_ns, 60);
  EXPECT_EQ(device.state.collective_ns, 20);
  EXPECT_EQ(device.state.transfer_ns, 30);
  EXPECT_EQ(device.state.still_ns, 40);
  EXPECT_EQ(device.state.microbatches, 28);
  EXPECT_EQ(device.state.graphs, "3 of 5 phases");
  EXPECT_EQ(device.state.channels, expected.devices[0].state.channels);
  EXPECT_EQ(device.memory_bytes, 77u);
  EXPECT_EQ(device.num_pending, 3u);
  EXPECT_THAT(device.waits_for, ElementsAre(1));
  EXPECT_EQ(status->devices[1].state.running, "mm");
  EXPECT_EQ(status->devices[1].stage, 1u);
  EXPECT_EQ(status->waits, expected.waits);
  EXPECT_THAT(status->roots, ElementsAre(1));
  EXPECT_THAT(status->cycles, ElementsAre(ElementsAre(0, 1)));
}

TEST_F(StatusPortTest, LeavesOutDevicesThatThereAreNot) {
  Open([] {
    JobStatus status = SomeStatus();
    status.roots = {1, 2, 4'000'000'000};
    status.cycles = {{0, 7}};
    status.devices[0].waits_for = {5};
    status.waits[0].device = 2;
    status.processes[1].num_devices = 4'000'000'000;
    return status;
  });
  const absl::StatusOr<JobStatus> status = Ask();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_THAT(status->roots, ElementsAre(1));
  EXPECT_THAT(status->cycles, ElementsAre(ElementsAre(0)));
  EXPECT_TRUE(status->devices[0].waits_for.empty());
  EXPECT_TRUE(status->waits.empty());
  EXPECT_EQ(status->processes[1].num_devices, 1u);
}

TEST_F(StatusPortTest, TheSocketIsThePrivateFileOfTheUser) {
  Open([] { return SomeStatus(); });
  struct stat info = {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  port_ = nullptr;
  EXPECT_NE(stat(path_.c_str(), &info), 0);
  const absl::StatusOr<JobStatus> status = Ask();
  EXPECT_EQ(status.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.status().message()), HasSubstr("no job answers at unix:" + path_));
}

TEST_F(StatusPortTest, AnErrorReachesTheClient) {
  Open([]() -> absl::StatusOr<JobStatus> { return absl::AbortedError("no answer today"); });
  const absl::StatusOr<JobStatus> status = Ask();
  EXPECT_EQ(status.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.status().message()), HasSubstr("no answer today"));
}

TEST_F(StatusPortTest, ASecondPortNeedsAnotherFile) {
  Open([] { return SomeStatus(); });
  const auto second =
      StatusPort::Open(path_, std::make_shared<StatusAnswers>([] { return SomeStatus(); }));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Ask().ok());  // the file of the first one is still there
}

TEST_F(StatusPortTest, APathThatIsTooLongIsRefused) {
  const auto port = StatusPort::Open(folder_.Path(std::string(200, 'x')),
                                     std::make_shared<StatusAnswers>([] { return SomeStatus(); }));
  EXPECT_EQ(port.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StatusPortTest, SilentAndHostileClientsBlockNobody) {
  Open([] { return SomeStatus(); });
  std::vector<StatusConnection> others;
  for (size_t i = 0; i < 3 * kMaxStatusConnections; ++i) {
    others.emplace_back(path_);
    if (i % 3 == 1) others.back().Say("GET / HTTP/1.0\r\n\r\n");
    // A message of 2^31 segments.
    if (i % 3 == 2) others.back().Say(std::string("\xff\xff\xff\x7f\xff\xff\xff\x7f", 8));
  }
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<JobStatus> status = Ask();
    EXPECT_TRUE(status.ok()) << status.status();
  }
}

TEST_F(StatusPortTest, QuestionsThatWaitAreAnsweredTogether) {
  std::atomic<int> num_calls{0};
  absl::Notification is_asked;
  absl::Notification may_answer;
  Answers<int> answers([&]() -> absl::StatusOr<int> {
    if (++num_calls == 1) {
      is_asked.Notify();
      may_answer.WaitForNotification();
    }
    return num_calls.load();
  });
  std::atomic<int> num_replies{0};
  std::atomic<int> num_refused{0};
  const auto count = [&](const absl::StatusOr<int>& answer) {
    ++(answer.ok() ? num_replies : num_refused);
  };
  answers.Ask(count);
  is_asked.WaitForNotification();
  for (size_t i = 0; i < Answers<int>::kMaxWaiting + 5; ++i) answers.Ask(count);
  EXPECT_EQ(num_refused, 5);
  may_answer.Notify();
  while (num_calls < 2 || num_replies < 1 + static_cast<int>(Answers<int>::kMaxWaiting)) {
    std::this_thread::yield();
  }
  EXPECT_EQ(num_calls, 2);
  answers.Stop();
  answers.Ask(count);
  EXPECT_EQ(num_refused, 6);
}

}  // namespace
}  // namespace penstock::actors
