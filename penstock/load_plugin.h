// Operators, kernels, models and policies from plug-in libraries (plugin.h), and policies from
// those of planner/policy/policy_plugin.h.
//
// Thread rule: one thread, before others read the registries.

#ifndef PENSTOCK_PENSTOCK_LOAD_PLUGIN_H_
#define PENSTOCK_PENSTOCK_LOAD_PLUGIN_H_

#include <string>

#include "absl/status/status.h"

#include "penstock/registries.h"

namespace penstock {

// Adds what the library at `path` has. The library stays loaded until the process ends, because
// graphs, kernels and sessions hold objects whose code is in it. Loading it a second time is an
// error: its names are taken.
//
// A library of policy_plugin.h adds one policy, whose name is `path`.
//
// kInvalidArgument: there is no such library, it cannot be loaded, exports neither penstock_plugin
// nor penstock_policy_plugin, was built for another version of plugin.h or another release, or
// throws. An error of the plug-in keeps its code. All begin with the path. After an error the
// registries may have a part of it.
//
// The code of the library is trusted as the process itself is.
absl::Status LoadPlugin(const std::string& path, Registries& registries);

}  // namespace penstock

#endif  // PENSTOCK_PENSTOCK_LOAD_PLUGIN_H_
