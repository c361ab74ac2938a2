// Random draws for tests: the same on every platform.
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_TESTS_SUPPORT_RANDOM_H_
#define PENSTOCK_TESTS_SUPPORT_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>

namespace penstock::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  // 0 where there is nothing below: in tensors without elements.
  int64_t Below(int64_t n) {
    return n <= 0 ? 0 : static_cast<int64_t>(engine_() % static_cast<uint64_t>(n));
  }
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }  // inclusive
  bool Chance(double probability) { return Unit() < probability; }
  double Unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }  // [0, 1)
  template <typename List>
  const auto& Pick(const List& list) {
    return list[Below(static_cast<int64_t>(list.size()))];
  }
  template <typename List>
  void Shuffle(List& list) {
    for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[Below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_RANDOM_H_
