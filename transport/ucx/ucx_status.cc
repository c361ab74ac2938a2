#include "transport/ucx/ucx_status.h"

#include "base/strings.h"

namespace penstock::transport::ucx {

absl::Status FromUcs(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(
      StrCat("data plane: ", what, " failed (UCX: ", ucs_status_string(status), ")"));
}

}  // namespace penstock::transport::ucx
