// What the UCX of this machine is, and which memory it can send from and receive into by itself.
//
// Penstock gives UCX host memory alone, also where UCX knows that of GPUs: what GPUs exchange is
// staged through pinned buffers (actors/engine/host_staging.h).
//
// Thread rule: any thread.

#ifndef PENSTOCK_TRANSPORT_UCX_UCX_SYSTEM_H_
#define PENSTOCK_TRANSPORT_UCX_UCX_SYSTEM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace penstock::transport {

struct UcxSystem {
  absl::Status status;              // why UCX cannot be asked; OK otherwise
  std::string version;              // "1.13.1"
  std::vector<std::string> memory;  // "host", "CUDA", ...: the kinds that it knows
  bool knows_cuda = false;
};

// Opens a context of UCX on the default interfaces to ask it.
UcxSystem FindUcx();

// "UCX 1.13.1 knows host memory; ...", in one line.
std::string DescribeUcx(const UcxSystem& system);

// The names of a set of UCX's memory types, a bit each, as ucp_context_query gives it.
std::vector<std::string> MemoryNames(uint64_t types);

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_UCX_UCX_SYSTEM_H_
