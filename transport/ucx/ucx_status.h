// Errors of UCX as statuses.

#ifndef PENSTOCK_TRANSPORT_UCX_UCX_STATUS_H_
#define PENSTOCK_TRANSPORT_UCX_UCX_STATUS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include <ucs/type/status.h>

#include "transport/ucx/ucx_log.h"

namespace penstock::transport::ucx {

// kUnavailable: `what`, a noun phrase, failed.
absl::Status FromUcs(ucs_status_t status, std::string_view what);

// The same for calls that set something up, which fail where the environment is at fault: with what
// to do about it, and the reason that UCX has logged.
absl::Status FromUcs(ucs_status_t status, std::string_view what, const LogScope& log);

// "interface eth0", or the variable that overrides it.
std::string DescribeInterfaces(const std::string& interfaces);

// Advice for a user whose UCX finds no way to connect: names the variables that restrict it.
// Empty: none is set.
std::string EnvironmentRemedy();

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_UCX_STATUS_H_
