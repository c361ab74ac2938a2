#include "transport/ucx/ucx_status.h"

#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/strings.h"

namespace penstock::transport::ucx {
namespace {

// A UCX worker opens about a dozen.
constexpr uint64_t kFilesOfWorker = 32;

// Advice if this process has hardly any file descriptors left; empty otherwise.
std::string OpenFilesRemedy() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return "";
  std::error_code error;
  uint64_t num_open = 0;
  for (auto it = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    ++num_open;
  }
  if (!error && num_open + kFilesOfWorker <= limit.rlim_cur) return "";
  return StrCat("a process here may open only ", limit.rlim_cur,
                " files; raise the limit with `ulimit -n 1024`");
}

}  // namespace

absl::Status FromUcs(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(
      StrCat("data plane: ", what, " failed (UCX: ", ucs_status_string(status), ")"));
}

absl::Status FromUcs(ucs_status_t status, std::string_view what, const LogScope& log) {
  if (status == UCS_OK) return absl::OkStatus();
  std::string remedy = OpenFilesRemedy();
  if (remedy.empty()) remedy = EnvironmentRemedy();
  std::vector<std::string> reasons = log.warnings();
  reasons.insert(reasons.begin(), log.error().empty() ? ucs_status_string(status) : log.error());
  return absl::UnavailableError(StrCat("data plane: ", what, " failed",
                                       remedy.empty() ? "" : StrCat(": ", remedy),
                                       " (UCX: ", StrJoin(reasons, "; "), ")"));
}

std::string DescribeInterfaces(const std::string& interfaces) {
  const char* devices = std::getenv("UCX_NET_DEVICES");
  if (devices != nullptr) return StrCat("UCX_NET_DEVICES=", devices);
  return StrCat("interface ", interfaces);
}

std::string EnvironmentRemedy() {
  std::vector<std::string> settings;
  for (const char* name : {"UCX_TLS", "UCX_NET_DEVICES"}) {
    if (const char* value = std::getenv(name)) settings.push_back(StrCat(name, "=", value));
  }
  if (settings.empty()) return "";
  return StrCat("the environment sets ", StrJoin(settings, " and "), "; correct or unset ",
                settings.size() == 1 ? "it" : "them");
}

}  // namespace penstock::transport::ucx
