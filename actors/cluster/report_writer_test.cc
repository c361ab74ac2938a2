#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>

#include "gtest/gtest.h"

#include "actors/cluster/report_writer_internal.h"

namespace penstock::actors {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
// A wait for the reader's end is short, as what the writer keeps arrives only once it is flushed.
constexpr int kPollMs = 10;

// The ends of a connection: what is written into the second one is read from the first.
struct Ends {
  int reader = -1;
  int writer = -1;
};

Ends MakePipe() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(pipe(ends), 0);
  return {ends[0], ends[1]};
}

Ends MakeSockets() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  return {ends[0], ends[1]};
}

Ends MakeTerminal() {
  Ends ends;
  EXPECT_EQ(openpty(&ends.reader, &ends.writer, nullptr, nullptr, nullptr), 0);
  termios settings{};
  tcgetattr(ends.writer, &settings);
  cfmakeraw(&settings);
  tcsetattr(ends.writer, TCSANOW, &settings);
  return ends;
}

class ReportWriterTest : public ::testing::TestWithParam<Ends (*)()> {
 protected:
  ReportWriterTest() : before_(signal(SIGPIPE, SIG_IGN)) {}
  ~ReportWriterTest() override {
    CloseReader();
    close(ends_.writer);
    (void)signal(SIGPIPE, before_);
  }

  void CloseReader() {
    if (ends_.reader >= 0) close(ends_.reader);
    ends_.reader = -1;
  }

  // As much as was written, which a terminal passes on later.
  std::string ReadAll(ReportWriter& writer, size_t num_bytes) const {
    fcntl(ends_.reader, F_SETFL, O_NONBLOCK);
    std::string text;
    std::array<char, 4096> bytes{};
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (text.size() < num_bytes && std::chrono::steady_clock::now() < deadline) {
      pollfd entry = {ends_.reader, POLLIN, 0};
      (void)poll(&entry, 1, kPollMs);
      const ssize_t num_read = read(ends_.reader, bytes.data(), bytes.size());
      if (num_read > 0) text.append(bytes.data(), static_cast<size_t>(num_read));
      writer.Flush();
    }
    EXPECT_TRUE(writer.is_empty());
    return text;
  }

  const sighandler_t before_;
  Ends ends_ = GetParam()();
};

TEST_P(ReportWriterTest, AReaderThatTakesNothingHoldsUpNobody) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  ReportWriter writer(ends_.writer, kMaxBytes);
  std::string all;
  for (int i = 0; writer.HasRoom(); ++i) {
    const std::string line = std::to_string(i) + " " + std::string(997, 'x');
    writer.Add(line);
    all += line + "\n";
  }
  EXPECT_FALSE(writer.IsClosed());
  EXPECT_FALSE(writer.is_empty());
  writer.Add("the end");  // beyond the limit
  all += "the end\n";
  EXPECT_EQ(ReadAll(writer, all.size()), all);
  EXPECT_TRUE(writer.HasRoom());
  // The descriptor, which others may have, still waits.
  EXPECT_EQ(fcntl(ends_.writer, F_GETFL) & O_NONBLOCK, 0);
}

TEST_P(ReportWriterTest, ThatNobodyReadsAnyMoreIsNoticed) {
  ReportWriter writer(ends_.writer);
  writer.Add("a line");
  EXPECT_FALSE(writer.IsClosed());
  CloseReader();
  EXPECT_TRUE(writer.IsClosed());
  writer.Add("another");
  EXPECT_TRUE(writer.is_empty());
}

INSTANTIATE_TEST_SUITE_P(Of, ReportWriterTest,
                         ::testing::Values(&MakePipe, &MakeSockets, &MakeTerminal));

}  // namespace
}  // namespace penstock::actors
