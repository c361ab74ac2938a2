// Questions that come to an event loop, and their answers from another thread.
//
// Thread rule: the loop's thread. Invariant: after the destructor no answer reaches the loop.

#ifndef PENSTOCK_ACTORS_CLUSTER_QUESTIONS_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_QUESTIONS_INTERNAL_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include <kj/async.h>

#include "actors/cluster/answers.h"
#include "actors/cluster/control_loop_internal.h"

namespace penstock::actors::control {

// Made for JobStatus and std::string; questions.cc has the code.
template <typename T>
class Questions {
 public:
  using Answer = std::shared_ptr<const absl::StatusOr<T>>;

  // `loop` outlives the result; with null `answers` nobody knows an answer.
  Questions(ControlLoop& loop, std::shared_ptr<Answers<T>> answers);
  ~Questions();
  Questions(const Questions&) = delete;
  Questions& operator=(const Questions&) = delete;

  kj::Promise<Answer> Ask();

 private:
  struct Box;

  void Fulfill(uint64_t number, Answer answer);

  const std::shared_ptr<Answers<T>> answers_;
  const std::shared_ptr<Box> box_;
  uint64_t num_asked_ = 0;
  std::map<uint64_t, kj::Own<kj::PromiseFulfiller<Answer>>> open_;
};

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_QUESTIONS_INTERNAL_H_
