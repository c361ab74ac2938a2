// The two sides of the control plane, each to be fed with the bytes of a connection whose other
// side may be anybody: random, mutated, or those of a right session, which can be recorded.
//
// Bytes are handed over in the frames that they seem to have, one at a time, and each is served
// before the next; so an answer that refers to a question finds the question asked.
//
// Thread rule: one thread, one harness a thread.

#ifndef PENSTOCK_TESTS_SUPPORT_CONTROL_HARNESS_H_
#define PENSTOCK_TESTS_SUPPORT_CONTROL_HARNESS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::testing {

inline constexpr size_t kControlHelloBytes = 24;

// The 32 bytes of the job's key that the harnesses know.
std::string ControlKey();
// The first bytes of a connection: those of a node, or a coordinator's answer to them.
std::string NodeHello();
std::string CoordinatorHello();

// What follows the hello, cut where the headers of messages say so; what is no message is one
// chunk.
std::vector<std::string> SplitFrames(std::string_view bytes);
std::string JoinFrames(const std::vector<std::string>& frames);

// Gives the plans among the bytes the hash that they claim to have, so that what was changed in
// them is looked at.
std::string RehashPlans(std::string bytes);

// What became of a connection.
struct ControlOutcome {
  bool has_ended = false;   // within the bound after its peer hung up
  bool has_joined = false;  // the peer was taken for a node, or for a coordinator
};

// The coordinator: the port that nodes join at, and a session of two devices and two steps in two
// processes, which is opened and submitted to whoever has joined; the results of the second step
// are read. In virtual time.
class CoordinatorHarness {
 public:
  CoordinatorHarness();
  ~CoordinatorHarness();

  // Serves one connection and lets it hang up.
  ControlOutcome Feed(std::string_view bytes);

  // Connections that say nothing more after `bytes` and stay, whose peer may not read either; how
  // many of them are still there.
  void Linger(std::string_view bytes, bool reads = true);
  size_t num_unauthenticated() const;
  size_t num_authenticated() const;
  void Advance(int milliseconds);
  void HangUp();

  // What was told of steps, errors and failures so far.
  size_t num_reports() const;
  size_t num_errors() const;
  size_t num_failures() const;

  // The bytes of a node that behaves, hello included.
  std::string Record();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// A node. What the coordinator calls is done by the thread that feeds.
class NodeHarness {
 public:
  NodeHarness();
  ~NodeHarness();

  ControlOutcome Feed(std::string_view bytes);

  // The bytes of a coordinator that behaves, hello included: of one whose session cannot be opened,
  // or of a whole one that opens and runs two sessions.
  std::string Record();
  std::string RecordWhole();
  // Calls of the last recorded session that had an error for an answer.
  size_t num_errors() const;
  // Sessions whose plan was taken so far.
  size_t num_opened() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_CONTROL_HARNESS_H_
