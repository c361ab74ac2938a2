// Errors of UCX as statuses.

#ifndef PENSTOCK_TRANSPORT_UCX_UCX_STATUS_H_
#define PENSTOCK_TRANSPORT_UCX_UCX_STATUS_H_

#include <string_view>

#include "absl/status/status.h"
#include <ucs/type/status.h>

namespace penstock::transport::ucx {

// kUnavailable: `what`, a noun phrase, failed.
absl::Status FromUcs(ucs_status_t status, std::string_view what);

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_UCX_STATUS_H_
