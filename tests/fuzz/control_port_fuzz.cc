// libFuzzer target for both sides of the control plane. The first byte of an input says whom the
// rest is sent to, and whether a right hello goes before it:
//
//   bit 0: 0 the coordinator, 1 a node      bit 1: a right hello first
//   bit 2: plans get the hash that they claim to have
//
// With --write-seeds=DIR it writes recorded sessions and their frames there, and ends.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/control_harness.h"

namespace {

namespace testing = penstock::testing;

constexpr unsigned kToNode = 1;
constexpr unsigned kAfterHello = 2;
constexpr unsigned kRehash = 4;

void WriteSeeds(const std::string& folder) {
  int count = 0;
  const auto write = [&](unsigned mode, std::string_view bytes) {
    std::ofstream file(
        folder + "/" + (mode & kToNode ? "node_" : "coordinator_") + std::to_string(count++),
        std::ios::binary);
    file.put(static_cast<char>(mode));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  testing::NodeHarness node;
  const std::pair<unsigned, std::string> sessions[] = {{0, testing::CoordinatorHarness().Record()},
                                                       {kToNode, node.Record()},
                                                       {kToNode | kRehash, node.RecordWhole()}};
  for (const auto& [mode, session] : sessions) {
    write(mode, session.substr(0, testing::kControlHelloBytes));
    write(mode, session);
    // The session broken off after each of its frames.
    std::string begin;
    for (const std::string& frame :
         testing::SplitFrames(std::string_view(session).substr(testing::kControlHelloBytes))) {
      begin += frame;
      write(mode | kAfterHello, begin);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kFlag = "--write-seeds=";
  for (int i = 1; i < *argc; ++i) {
    const std::string_view argument = (*argv)[i];
    if (argument.substr(0, kFlag.size()) != kFlag) continue;
    WriteSeeds(std::string(argument.substr(kFlag.size())));
    _Exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static testing::CoordinatorHarness coordinator;
  static testing::NodeHarness node;
  if (size == 0) return 0;
  const unsigned mode = data[0];
  std::string bytes;
  if (mode & kAfterHello) {
    bytes = mode & kToNode ? testing::CoordinatorHello() : testing::NodeHello();
  }
  bytes.append(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (mode & kRehash) bytes = testing::RehashPlans(std::move(bytes));
  const testing::ControlOutcome outcome =
      mode & kToNode ? node.Feed(bytes) : coordinator.Feed(bytes);
  if (!outcome.has_ended) {
    fprintf(stderr, "the connection has not ended\n");
    abort();
  }
  return 0;
}
