#include "actors/cluster/compute_probe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/device.h"

namespace penstock::actors {
namespace {

// The best window counts: a moment's disturbance does not make a host slow. Each is as long as the
// period of a limit of processor time.
constexpr int kNumWindows = 3;
constexpr int64_t kWindowNs = 100'000'000;
constexpr int kRepetitions = 200;

// Some kilobytes, which stay in the first cache.
using Numbers = std::array<float, 2048>;

double Multiply(Numbers& numbers) {
  for (int i = 0; i < kRepetitions; ++i) {
    for (float& number : numbers) number = number * 0.9999F + 0.0001F;
  }
  return 2.0 * kRepetitions * static_cast<double>(numbers.size());
}

// Floating-point operations of a window.
double MeasureWindow(int num_threads) {
  const SteadyClock clock;
  std::vector<double> flops(static_cast<size_t>(num_threads), 0);
  const int64_t end_ns = clock.NowNs() + kWindowNs;
  std::atomic<float> result{0};  // which keeps the work from being left out
  const auto work = [&](size_t thread) {
    Numbers numbers;
    numbers.fill(static_cast<float>(thread));
    while (clock.NowNs() < end_ns) flops[thread] += Multiply(numbers);
    result.store(numbers[thread % numbers.size()], std::memory_order_relaxed);
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < flops.size(); ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (const double of_thread : flops) sum += of_thread;
  return sum * 1e9 / static_cast<double>(clock.NowNs() - end_ns + kWindowNs);
}

}  // namespace

double MeasureComputeRate(int num_threads) {
  // A limit of processor time lets a process that was idle have more for a moment.
  (void)MeasureWindow(num_threads);
  double best = 0;
  for (int i = 0; i < kNumWindows; ++i) best = std::max(best, MeasureWindow(num_threads));
  return best;
}

}  // namespace penstock::actors
