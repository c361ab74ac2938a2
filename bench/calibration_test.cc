// Guards what an act, a message and a collective cost, so that a tenfold regression fails wherever
// the tests run: each is held against a loop of plain computation timed in the same run.
//
// Measurements and the loop alternate, each taking less than a time slice, and the fastest of
// each counts: other programs then disturb few of them.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "bench/actors_bench.h"
#include "bench/count_allocations.h"
#include "planner/cost/collective_choice.h"
#include "transport/collective.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_transport.h"

namespace penstock::bench {
namespace {

using transport::Endpoint;
using transport::Request;

constexpr int kRepetitions = 30;

double SecondsOf(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// One step of the loop: a multiplication and a read of 64 KiB in random order, each of which needs
// the one before.
class CalibrationLoop {
 public:
  CalibrationLoop() : next_(kCount) {
    std::vector<uint32_t> order(kCount);
    std::iota(order.begin(), order.end(), 0);
    for (uint32_t i = kCount - 1; i > 0; --i) std::swap(order[i], order[Hash(i) % (i + 1)]);
    for (uint32_t i = 0; i < kCount; ++i) next_[order[i]] = order[(i + 1) % kCount];
  }

  double SecondsPerStep() {
    constexpr int kSteps = 100'000;
    Run(kCount);  // fills the caches
    return SecondsOf([this] { Run(kSteps); }) / kSteps;
  }

 private:
  static constexpr uint32_t kCount = (64 << 10) / sizeof(uint32_t);

  static uint64_t Hash(uint64_t value) {
    value = (value + 1) * 0x9e3779b97f4a7c15;
    return value ^ value >> 29;
  }

  void Run(int num_steps) {
    for (int i = 0; i < num_steps; ++i) {
      hash_ = Hash(hash_ ^ at_);
      // Waits for the product, and is hardly ever another element.
      at_ = next_[at_ ^ static_cast<uint32_t>(hash_ == 0)];
    }
  }

  std::vector<uint32_t> next_;
  uint32_t at_ = 0;
  uint64_t hash_ = 1;
};

class CalibrationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CountsAllocations()) GTEST_SKIP() << "sanitizers slow each of them by another factor";
#ifndef NDEBUG
    GTEST_SKIP() << "the limits are those of a release build";
#endif
  }

  // `seconds` is the time of one act, message or collective; the limit is in steps of the loop.
  void ExpectAtMost(const std::string& name, double limit, const std::function<double()>& seconds) {
    double step = 1e300;
    double measured = 1e300;
    for (int i = 0; i < kRepetitions; ++i) {
      step = std::min(step, loop_.SecondsPerStep());
      measured = std::min(measured, seconds());
    }
    const double ratio = measured / step;
    std::printf("%-24s %10.1f ns, a step %6.2f ns, ratio %8.2f, limit %g\n", name.c_str(),
                measured * 1e9, step * 1e9, ratio, limit);
    EXPECT_LE(ratio, limit) << name << " takes " << measured * 1e9 << " ns";
  }

  void ExpectActAtMost(ActsShape shape, double limit) {
    ActsBenchOptions options;
    options.shape = shape;
    options.num_actors = 2000;
    options.seconds = 0.01;
    ExpectAtMost(StrCat("act, ", Name(shape)), limit, [&] {
      const absl::StatusOr<ActsBenchResult> result = MeasureActs(options);
      EXPECT_TRUE(result.ok()) << result.status();
      return result.ok() ? result->ns_per_act * 1e-9 : 0;
    });
  }

 private:
  CalibrationLoop loop_;
};

// Two devices whose endpoints one thread drives, so that no thread has to be scheduled.
class Pair {
 public:
  static constexpr transport::TransportOptions kOptions = {
      .num_devices = 2, .generation = 0, .num_channels = 2};

  virtual ~Pair() = default;
  Endpoint& endpoint(int device) { return *endpoints_[device]; }
  void Progress() {
    for (Endpoint* endpoint : endpoints_) endpoint->Progress();
  }

  double SecondsPerMessage() {
    constexpr int kMessages = 200;
    uint64_t from = 1;
    uint64_t to = 0;
    Request send, recv;
    const double seconds = SecondsOf([&] {
      for (int i = 0; i < kMessages; ++i, ++sequence_) {
        const transport::Tag tag = {0, 0, sequence_};
        endpoint(1).Recv(0, tag, &to, sizeof(to), &recv);
        endpoint(0).Send(1, tag, &from, sizeof(from), transport::kNoFlags, &send);
        while (!send.is_done() || !recv.is_done()) Progress();
      }
    });
    EXPECT_TRUE(send.status.ok() && recv.status.ok()) << send.status << recv.status;
    EXPECT_EQ(to, from);
    return seconds / kMessages;
  }

  // 64 KiB a device.
  double SecondsPerAllReduce() {
    constexpr int kRuns = 10;
    constexpr int64_t kCount = (64 << 10) / sizeof(float);
    CollectiveSpec spec;
    const planner::CollectiveVariant choice = planner::ChooseCollective(
        CollectiveKind::kAllReduce, 2, 1, kCount * int64_t{sizeof(float)});
    spec.algorithm = choice.algorithm;
    spec.chunk_bytes = choice.chunk_bytes;
    spec.channel = 1;
    spec.devices = {0, 1};
    spec.counts = {kCount / 2, kCount / 2};
    std::vector<std::vector<float>> values(2, std::vector<float>(kCount, 1));
    std::vector<std::unique_ptr<transport::Collective>> collectives;
    for (int rank = 0; rank < 2; ++rank) {
      collectives.push_back(*transport::CreateCollective(spec, rank, endpoint(rank)));
    }
    const double seconds = SecondsOf([&] {
      for (int i = 0; i < kRuns; ++i, ++sequence_) {
        for (int rank = 0; rank < 2; ++rank) {
          float* const data = values[rank].data();
          collectives[rank]->Start(data, data, sequence_, transport::kNoFlags);
        }
        const auto is_done = [&] {  // both, so that both move
          const bool first = collectives[0]->Poll();
          return collectives[1]->Poll() && first;
        };
        while (!is_done()) Progress();
      }
    });
    EXPECT_EQ(collectives[0]->status(), absl::OkStatus());
    EXPECT_EQ(values[1].back(), 1 << kRuns);
    return seconds / kRuns;
  }

 protected:
  std::vector<Endpoint*> endpoints_;

 private:
  uint64_t sequence_ = 0;
};

class InprocPair : public Pair {
 public:
  InprocPair() : transport_(transport::CreateInprocTransport(kOptions)) {
    for (uint32_t device = 0; device < 2; ++device) {
      endpoints_.push_back(*transport_->OpenEndpoint(device));
    }
  }

 private:
  const std::unique_ptr<transport::Transport> transport_;
};

// Over shared memory, joined as two processes are.
class UcxPair : public Pair {
 public:
  UcxPair() {
    setenv("UCX_TLS", "posix", 1);
    for (uint32_t device = 0; device < 2; ++device) {
      transport::UcxOptions options;
      options.transport = kOptions;
      options.first_device = device;
      transports_.push_back(*transport::CreateUcxTransport(options));
      endpoints_.push_back(*transports_.back()->OpenEndpoint(device));
    }
    unsetenv("UCX_TLS");
    for (uint32_t i = 0; i < 2; ++i) {
      EXPECT_EQ(transports_[i]->Connect(1 - i, transports_[1 - i]->LocalAddress()),
                absl::OkStatus());
    }
  }

 private:
  std::vector<std::unique_ptr<transport::UcxTransport>> transports_;
};

// The limits are about three times the ratios that 50 runs gave on two cores (Zen 4), all of them
// beside programs that took all of both cores. The ranges are in the comments; a step of the loop
// took 5.5 to 6.7 ns.

TEST_F(CalibrationTest, Act) {
  ExpectActAtMost(ActsShape::kPhase, 9);           // 2.6 to 3.9
  ExpectActAtMost(ActsShape::kCommunication, 11);  // 3.3 to 4.9
  ExpectActAtMost(ActsShape::kChain, 23);          // 7.1 to 9.8
}

TEST_F(CalibrationTest, Message) {
  InprocPair inproc;
  ExpectAtMost("message, inproc", 50, [&] { return inproc.SecondsPerMessage(); });  // 13 to 22
  UcxPair ucx;
  ExpectAtMost("message, ucx", 150, [&] { return ucx.SecondsPerMessage(); });  // 38 to 63
}

TEST_F(CalibrationTest, AllReduce) {
  InprocPair inproc;  // 780 to 1260
  ExpectAtMost("all_reduce, inproc", 3000, [&] { return inproc.SecondsPerAllReduce(); });
  UcxPair ucx;  // 2200 to 4000
  ExpectAtMost("all_reduce, ucx", 9000, [&] { return ucx.SecondsPerAllReduce(); });
}

}  // namespace
}  // namespace penstock::bench
