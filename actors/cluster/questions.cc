#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "actors/cluster/job_status.h"
#include "actors/cluster/questions_internal.h"

namespace penstock::actors::control {

// The part of the object that the other thread uses.
template <typename T>
struct Questions<T>::Box {
  absl::Mutex mutex;
  ControlLoop* loop ABSL_GUARDED_BY(mutex) = nullptr;  // null: closed
  Questions* questions = nullptr;                      // the loop's thread's; null: closed
};

template <typename T>
Questions<T>::Questions(ControlLoop& loop, std::shared_ptr<Answers<T>> answers)
    : answers_(std::move(answers)), box_(std::make_shared<Box>()) {
  const absl::MutexLock lock(&box_->mutex);
  box_->loop = &loop;
  box_->questions = this;
}

template <typename T>
Questions<T>::~Questions() {
  box_->questions = nullptr;
  const absl::MutexLock lock(&box_->mutex);
  box_->loop = nullptr;
}

template <typename T>
kj::Promise<typename Questions<T>::Answer> Questions<T>::Ask() {
  if (answers_ == nullptr) {
    return std::make_shared<const absl::StatusOr<T>>(
        absl::UnimplementedError("this job does not tell what it does"));
  }
  auto pair = kj::newPromiseAndFulfiller<Answer>();
  const uint64_t number = ++num_asked_;
  open_[number] = kj::mv(pair.fulfiller);
  answers_->Ask([box = box_, number](const absl::StatusOr<T>& result) {
    const absl::MutexLock lock(&box->mutex);
    if (box->loop == nullptr) return;
    box->loop->Post([box, number, answer = std::make_shared<const absl::StatusOr<T>>(result)] {
      if (box->questions != nullptr) box->questions->Fulfill(number, answer);
    });
  });
  return kj::mv(pair.promise);
}

template <typename T>
void Questions<T>::Fulfill(uint64_t number, Answer answer) {
  const auto it = open_.find(number);
  if (it == open_.end()) return;
  it->second->fulfill(std::move(answer));
  open_.erase(it);
}

template class Questions<actors::JobStatus>;
template class Questions<std::string>;

}  // namespace penstock::actors::control
