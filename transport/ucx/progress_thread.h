// The thread that looks after the workers which their executors leave alone: it takes such a worker
// over, arms it, and sleeps on the descriptors of all; see ucx_transport.h.
//
// Thread rule: made and destroyed by one thread.
// Invariant: all endpoints armed and nothing coming in, it wakes ten times a second; it never
// spins.

#ifndef PENSTOCK_TRANSPORT_UCX_PROGRESS_THREAD_H_
#define PENSTOCK_TRANSPORT_UCX_PROGRESS_THREAD_H_

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

#include "transport/ucx/ucx_endpoint.h"

namespace penstock::transport::ucx {

class ProgressThread {
 public:
  // The endpoints outlive the result.
  static absl::StatusOr<std::unique_ptr<ProgressThread>> Start(std::vector<UcxEndpoint*> endpoints);
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

 private:
  explicit ProgressThread(std::vector<UcxEndpoint*> endpoints) : endpoints_(std::move(endpoints)) {}
  absl::Status Open();
  void Run();

  const std::vector<UcxEndpoint*> endpoints_;
  int watch_fd_ = -1;  // epoll
  int stop_fd_ = -1;   // eventfd
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_PROGRESS_THREAD_H_
