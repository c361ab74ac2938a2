// What a library exports to add operators, kernels, models and policies to a program:
// `penstock run JOB.toml --plugin ./my.so`, or LoadPlugin (load_plugin.h).
//
//   absl::Status Add(penstock::Registries& registries) {
//     RETURN_IF_ERROR(registries.ops.Add(std::make_unique<MyOp>()));
//     return registries.kernels.Add("my_op", MyKernel());
//   }
//   const penstock::Plugin kPlugin = {.add = Add};
//   extern "C" const penstock::Plugin* penstock_plugin() { return &kPlugin; }
//
// The library is built by the compiler that built its host, with the headers of the same release,
// and links the CMake target penstock::plugin, which has no code of Penstock: the library finds it
// in the host. The `penstock` command exports all of it. An application does so if it links the
// whole archives and exports its symbols (-Wl,--whole-archive, -rdynamic).
//
// Thread rule: the host calls `add` once, before other threads read the registries.

#ifndef PENSTOCK_PENSTOCK_PLUGIN_H_
#define PENSTOCK_PENSTOCK_PLUGIN_H_

#include <cstdint>

#include "absl/status/status.h"

#include "penstock/registries.h"
#include "penstock/version.h"

namespace penstock {

// A library with another version is refused. Changes with this header.
inline constexpr uint32_t kPluginVersion = 1;

// Constant as long as the library is loaded. The first two members stay as they are in all versions
// of this header.
struct Plugin {
  uint32_t version = kPluginVersion;  // of this header
  // Another release of Penstock may lay out its classes in another way, so it is refused, too.
  const char* release = kVersion;
  // Adds what the library has. An error ends the program's start, with what is wrong.
  absl::Status (*add)(Registries& registries) = nullptr;
};

}  // namespace penstock

// What the library has. REQUIRES: not null.
extern "C" const penstock::Plugin* penstock_plugin();

#endif  // PENSTOCK_PENSTOCK_PLUGIN_H_
