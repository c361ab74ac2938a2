#include "transport/nccl/nccl_api.h"

#include <dlfcn.h>

#include <string>

#include "base/strings.h"

namespace penstock::transport {
namespace {

constexpr char kLibrary[] = "libnccl.so.2";  // major version 2 has kept its interface

// Fills in one function. The first that is missing is named in `missing`.
template <typename F>
void Find(void* library, const char* name, F* function, std::string* missing) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  if (*function == nullptr && missing->empty()) *missing = name;
}

}  // namespace

absl::StatusOr<NcclApi> LoadNccl() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return absl::FailedPreconditionError(
        StrCat("NCCL cannot be loaded (", why != nullptr ? why : kLibrary,
               "): install it, or put its folder into LD_LIBRARY_PATH"));
  }
  NcclApi api;
  api.library = std::shared_ptr<void>(library, [](void* loaded) { dlclose(loaded); });
  std::string missing;
  Find(library, "ncclGetVersion", &api.get_version, &missing);
  Find(library, "ncclGetErrorString", &api.get_error_string, &missing);
  Find(library, "ncclGetLastError", &api.get_last_error, &missing);
  Find(library, "ncclGetUniqueId", &api.get_unique_id, &missing);
  Find(library, "ncclCommInitRankConfig", &api.init_rank, &missing);
  Find(library, "ncclCommGetAsyncError", &api.get_async_error, &missing);
  Find(library, "ncclCommAbort", &api.abort, &missing);
  Find(library, "ncclGroupStart", &api.group_start, &missing);
  Find(library, "ncclGroupEnd", &api.group_end, &missing);
  Find(library, "ncclAllReduce", &api.all_reduce, &missing);
  Find(library, "ncclReduceScatter", &api.reduce_scatter, &missing);
  Find(library, "ncclAllGather", &api.all_gather, &missing);
  Find(library, "ncclReduce", &api.reduce, &missing);
  Find(library, "ncclBroadcast", &api.broadcast, &missing);
  Find(library, "ncclSend", &api.send, &missing);
  Find(library, "ncclRecv", &api.receive, &missing);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        StrCat(kLibrary, " has no function ", missing, ": NCCL 2.14 or later is needed"));
  }
  return api;
}

}  // namespace penstock::transport
