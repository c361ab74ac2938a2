// What the node of tests/programs/faulty_node.cc can be told to do.

#ifndef PENSTOCK_TESTS_PROGRAMS_FAULTY_NODE_H_
#define PENSTOCK_TESTS_PROGRAMS_FAULTY_NODE_H_

namespace penstock::testing {

enum class Fault {
  kNone = 0,
  kExit = 1,   // with status 3
  kCrash = 2,  // SIGSEGV
  kKill = 3,   // SIGKILL
  kStop = 4,   // SIGSTOP, for good
  kHang = 5,   // a kernel that does not end
  kError = 6,  // a kernel that returns an error
  kCount = 7,  // nothing yet: from here on, FAULTY_NODE_MESSAGE and _WITHIN count
};

// Policies that a plan may name: stage 1 declines its first phase for good, or until both of its
// micro-batches are ready.
inline constexpr char kSilentPolicy[] = "silent";
// Chooses any phase that is ready, each process by its own chance.
inline constexpr char kChancePolicy[] = "chance";
inline constexpr char kPatientPolicy[] = "patient";

// A kernel without operands that takes `milliseconds` (an attribute) for micro-batch 1.
inline constexpr char kSlowKernel[] = "test.slow";

// The operand that makes `neg` do it.
inline float ToFeed(Fault fault) { return 1000.0f + static_cast<float>(fault); }

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_PROGRAMS_FAULTY_NODE_H_
