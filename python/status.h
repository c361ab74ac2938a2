// Statuses as exceptions of Python.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PYTHON_STATUS_H_
#define PENSTOCK_PYTHON_STATUS_H_

#include <exception>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock::python {

// A status on its way to Python, where it becomes a penstock.Error (module.cc).
class StatusError : public std::exception {
 public:
  explicit StatusError(absl::Status status)
      : status_(std::move(status)), message_(status_.message()) {}
  const absl::Status& status() const { return status_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  absl::Status status_;
  std::string message_;
};

inline void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw StatusError(status);
}

template <typename T>
T ValueOrThrow(absl::StatusOr<T> result) {
  ThrowIfError(result.status());
  return *std::move(result);
}

}  // namespace penstock::python

#endif  // PENSTOCK_PYTHON_STATUS_H_
