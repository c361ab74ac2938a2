// Threads that the system may refuse, as an error instead of an exception.
//
// Thread rule: any thread.

#ifndef PENSTOCK_BASE_START_THREAD_H_
#define PENSTOCK_BASE_START_THREAD_H_

#include <functional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/strings.h"

namespace penstock {

// A thread that runs `body`. kResourceExhausted names `what` it was for.
inline absl::StatusOr<std::thread> StartThread(std::string_view what, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        StrCat("the system gives no more threads, for ", what, ": ", error.what()));
  }
}

}  // namespace penstock

#endif  // PENSTOCK_BASE_START_THREAD_H_
