// Answers the same question for all who ask, from one thread.
//
// Many questions cost what one costs: those that come while one is being answered wait for the
// next answer together.
//
// Thread rule: Ask may be called by any thread; replies and the source are called by a thread of
// the object. Invariant: each question is replied to once, those that are left by Stop. Where the
// system gives no thread, all are refused.

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

#include "base/start_thread.h"

namespace penstock::actors {

// A source of answers, and those who wait for one. See the top of this file.
template <typename T>
class Answers {
 public:
  // Questions that wait; more are refused.
  static constexpr size_t kMaxWaiting = 64;

  // What answers; it may take a while, but not for ever.
  using Source = std::function<absl::StatusOr<T>()>;
  // Takes the answer to a question.
  using Reply = std::function<void(const absl::StatusOr<T>& answer)>;

  // Starts the thread that calls the source. If the system gives none, questions are refused.
  explicit Answers(Source source) : source_(std::move(source)) {
    absl::StatusOr<std::thread> thread = StartThread("answers", [this] { Main(); });
    if (thread.ok()) {
      thread_ = *std::move(thread);
    } else {
      const absl::MutexLock lock(&mutex_);
      refusal_ = thread.status();
    }
  }
  ~Answers() { Stop(); }
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  // `reply` may be called before this returns.
  void Ask(Reply reply) {
    absl::Status refusal;
    {
      const absl::MutexLock lock(&mutex_);
      if (!refusal_.ok()) {
        refusal = refusal_;
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
      if (refusal_.ok()) refusal_ = absl::UnavailableError("the job is ending");
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Main() {
    const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !refusal_.ok() || !waiting_.empty();
    };
    while (true) {
      std::vector<Reply> replies;
      absl::Status refusal;
      {
        const absl::MutexLock lock(&mutex_, absl::Condition(&has_work));
        replies = std::exchange(waiting_, {});
        refusal = refusal_;
      }
      const absl::StatusOr<T> answer = refusal.ok() ? source_() : refusal;
      for (const Reply& reply : replies) reply(answer);
      if (!refusal.ok()) return;
    }
  }

  const Source source_;
  absl::Mutex mutex_;
  std::vector<Reply> waiting_ ABSL_GUARDED_BY(mutex_);
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);  // OK: questions are answered
  std::thread thread_;                            // last: it uses all of the above
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_ANSWERS_H_
