#include "penstock/load_plugin.h"

#include <dlfcn.h>

#include <exception>
#include <memory>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "penstock/plugin.h"
#include "planner/policy/load_policy.h"

namespace penstock {
namespace {

constexpr char kSymbol[] = "penstock_plugin";
constexpr char kPolicySymbol[] = "penstock_policy_plugin";

absl::Status Refuse(const std::string& path, std::string_view reason) {
  return absl::InvalidArgumentError(StrCat(path, ": ", reason));
}

std::string LoaderError() {
  const char* reason = dlerror();
  return reason == nullptr ? "unknown" : reason;
}

}  // namespace

absl::Status LoadPlugin(const std::string& path, Registries& registries) {
  // Without a slash, the name would be looked up in the system's folders.
  const std::string file = path.find('/') == std::string::npos ? StrCat("./", path) : path;
  const std::shared_ptr<void> library(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL),
                                      [](void* handle) {
                                        if (handle != nullptr) dlclose(handle);
                                      });
  if (library == nullptr) {
    return Refuse(path, StrCat("the plug-in cannot be loaded: ", LoaderError()));
  }
  using Entry = const Plugin* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library.get(), kSymbol));
  if (entry == nullptr && dlsym(library.get(), kPolicySymbol) != nullptr) {
    ASSIGN_OR_RETURN(std::shared_ptr<const planner::Policy> policy, planner::LoadPolicy(path));
    return registries.policies.Add(std::move(policy));
  }
  if (entry == nullptr) {
    return Refuse(path, StrCat("the library is no plug-in; expected a function ", kSymbol,
                               " as penstock/plugin.h says, or ", kPolicySymbol,
                               " as planner/policy/policy_plugin.h does"));
  }
  try {
    const Plugin* plugin = entry();
    if (plugin == nullptr) return Refuse(path, StrCat("its ", kSymbol, " returns null"));
    if (plugin->version != kPluginVersion) {
      return Refuse(path,
                    StrCat("a plug-in for version ", plugin->version,
                           " of penstock/plugin.h, expected ", kPluginVersion, "; build it again"));
    }
    if (plugin->release == nullptr || std::string_view(plugin->release) != kVersion) {
      return Refuse(path, StrCat("a plug-in for Penstock ",
                                 plugin->release == nullptr ? "?" : plugin->release,
                                 ", and this is ", kVersion, "; build it again"));
    }
    if (plugin->add == nullptr) return Refuse(path, "the plug-in adds nothing: its `add` is null");
    // From here on the registries may hold what is in the library.
    if (dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) == nullptr) {
      return Refuse(path, StrCat("the plug-in cannot be kept loaded: ", LoaderError()));
    }
    const absl::Status added = plugin->add(registries);
    if (added.ok()) return absl::OkStatus();
    return absl::Status(added.code(), StrCat(path, ": ", ToStd(added.message())));
  } catch (const std::exception& error) {
    return Refuse(path, StrCat("the plug-in threw: ", error.what()));
  } catch (...) {
    return Refuse(path, "the plug-in threw");
  }
}

}  // namespace penstock
