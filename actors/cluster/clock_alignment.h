// The clock of another process in terms of this one's. Each reading of it gives an anchor: it was
// read between two readings of this one, so it is known to half of the time between them. The
// difference between the clocks is taken to change evenly from the first anchor to the last.
//
// Clocks whose difference is within the errors of all anchors count as one clock: processes of a
// host share theirs.
//
// Example: asked at 1,000 µs, a node answers 8,000 µs, and the answer arrives at 1,040 µs. Its
// clock was 6,980 µs ahead, give or take 20 µs.
//
// Thread rule: a value.

#ifndef PENSTOCK_ACTORS_CLUSTER_CLOCK_ALIGNMENT_H_
#define PENSTOCK_ACTORS_CLUSTER_CLOCK_ALIGNMENT_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::actors {

struct ClockAnchor {
  int64_t local_ns = 0;  // half-way between the question and the answer
  int64_t ahead_ns = 0;  // of the other clock
  int64_t error_ns = 0;  // at most

  // Of a reading: when it was asked for, what came, and when it came.
  static ClockAnchor Of(int64_t asked_ns, int64_t other_ns, int64_t answered_ns);
};

class ClockAlignment {
 public:
  // In order of time. Far-fetched differences, beyond 2^61 ns, are ignored.
  void Add(const ClockAnchor& anchor);

  // When this clock showed what the other one showed at `other_ns`; the same without anchors.
  int64_t ToLocal(int64_t other_ns) const;

 private:
  std::optional<ClockAnchor> first_;
  ClockAnchor last_;
  bool is_one_clock_ = true;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLOCK_ALIGNMENT_H_
