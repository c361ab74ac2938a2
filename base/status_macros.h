// The two usual shorthands for code that returns absl::Status; the only function-like macros here.

#ifndef PENSTOCK_BASE_STATUS_MACROS_H_
#define PENSTOCK_BASE_STATUS_MACROS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Joins two tokens as they are written.
#define PENSTOCK_CONCAT_INNER(a, b) a##b
// Joins two tokens after expanding them, such as __LINE__.
#define PENSTOCK_CONCAT(a, b) PENSTOCK_CONCAT_INNER(a, b)

// Returns the status of `expression` from the enclosing function unless it is OK.
#define RETURN_IF_ERROR(expression)                                         \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

// Assigns the value of a StatusOr expression to `target`, or returns its error.
#define ASSIGN_OR_RETURN(target, expression) \
  ASSIGN_OR_RETURN_IMPL(PENSTOCK_CONCAT(status_or_, __LINE__), target, expression)
// ASSIGN_OR_RETURN with the name of the variable that holds the StatusOr.
#define ASSIGN_OR_RETURN_IMPL(temporary, target, expression) \
  auto temporary = (expression);                             \
  if (!temporary.ok()) return temporary.status();            \
  target = *std::move(temporary)

#endif  // PENSTOCK_BASE_STATUS_MACROS_H_
