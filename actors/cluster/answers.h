// Answers the same question for all who ask, from one thread.
//
// Many questions cost what one costs: those that come while one is being answered wait for the
// next answer together.
//
// Thread rule: Ask may be called by any thread; replies and the source are called by a thread of
// the object. Invariant: each question is replied to once, those that are left by Stop.

#ifndef PENSTOCK_ACTORS_CLUSTER_ANSWERS_H_
#define PENSTOCK_ACTORS_CLUSTER_ANSWERS_H_

#include <cstddef>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace penstock::actors {

template <typename T>
class Answers {
 public:
  // Questions that wait; more are refused.
  static constexpr size_t kMaxWaiting = 64;

  // What answers; it may take a while, but not for ever.
  using Source = std::function<absl::StatusOr<T>()>;
  using Reply = std::function<void(const absl::StatusOr<T>& answer)>;

  explicit Answers(Source source) : source_(std::move(source)), thread_([this] { Main(); }) {}
  ~Answers() { Stop(); }
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  // `reply` may be called before this returns.
  void Ask(Reply reply) {
    absl::Status refusal;
    {
      const absl::MutexLock lock(&mutex_);
      if (is_stopping_) {
        refusal = absl::UnavailableError("the job is ending");
      } else if (waiting_.size() >= kMaxWaiting) {
        refusal = absl::ResourceExhaustedError("too many questions wait for an answer");
      } else {
        waiting_.push_back(std::move(reply));
        return;
      }
    }
    reply(refusal);
  }

  // The source is not called any more; further questions are refused. One thread.
  void Stop() {
    {
      const absl::MutexLock lock(&mutex_);
      is_stopping_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Main() {
    const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return is_stopping_ || !waiting_.empty();
    };
    while (true) {
      std::vector<Reply> replies;
      bool is_last = false;
      {
        const absl::MutexLock lock(&mutex_, absl::Condition(&has_work));
        replies = std::exchange(waiting_, {});
        is_last = is_stopping_;
      }
      const absl::StatusOr<T> answer =
          is_last ? absl::UnavailableError("the job is ending") : source_();
      for (const Reply& reply : replies) reply(answer);
      if (is_last) return;
    }
  }

  const Source source_;
  absl::Mutex mutex_;
  std::vector<Reply> waiting_ ABSL_GUARDED_BY(mutex_);
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_ANSWERS_H_
