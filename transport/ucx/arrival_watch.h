// Sleeps until a worker of this process has something to progress; see Transport::Wait.
//
// Thread rule: Wait on one thread at a time; the endpoints arm themselves from their owners'
// threads.
// Invariant: an armed worker causes one event, and then none until it is armed again.

#ifndef PENSTOCK_TRANSPORT_UCX_ARRIVAL_WATCH_H_
#define PENSTOCK_TRANSPORT_UCX_ARRIVAL_WATCH_H_

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "transport/ucx/ucx_endpoint.h"

namespace penstock::transport::ucx {

class ArrivalWatch {
 public:
  // The endpoints and `options`, whose callbacks it calls, outlive the result.
  static absl::StatusOr<std::unique_ptr<ArrivalWatch>> Create(std::vector<UcxEndpoint*> endpoints,
                                                              const UcxOptions& options);
  ~ArrivalWatch();
  ArrivalWatch(const ArrivalWatch&) = delete;
  ArrivalWatch& operator=(const ArrivalWatch&) = delete;

  // Transport::Wait.
  void Wait(int fd, int timeout_ms);

 private:
  ArrivalWatch(std::vector<UcxEndpoint*> endpoints, const UcxOptions& options)
      : endpoints_(std::move(endpoints)), options_(options) {}
  absl::Status Open();
  void OnSecondPassed();
  void LookAtLinks(std::chrono::milliseconds elapsed);

  const std::vector<UcxEndpoint*> endpoints_;
  const UcxOptions& options_;
  int watch_fd_ = -1;  // epoll
  int other_fd_ = -1;  // of the last Wait
  std::chrono::steady_clock::time_point next_second_;
  std::chrono::steady_clock::time_point last_look_;
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_ARRIVAL_WATCH_H_
