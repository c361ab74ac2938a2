// A plug-in library that is wrong in the way that the environment variable PENSTOCK_FAULT names.

#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "absl/status/status.h"

#include "penstock/plugin.h"

namespace {

std::string_view Fault() {
  const char* fault = std::getenv("PENSTOCK_FAULT");
  return fault == nullptr ? "" : fault;
}

absl::Status Add(penstock::Registries&) {
  if (Fault() == "throws in add") throw std::runtime_error("no memory for operators");
  if (Fault() == "fails") return absl::AlreadyExistsError("operator 'add' is registered already");
  return absl::OkStatus();
}

}  // namespace

extern "C" const penstock::Plugin* penstock_plugin() {
  static penstock::Plugin plugin;
  plugin = {.add = Add};
  if (Fault() == "null") return nullptr;
  if (Fault() == "throws") throw 1;
  if (Fault() == "version") plugin.version = penstock::kPluginVersion + 1;
  if (Fault() == "release") plugin.release = "0.0.9";
  if (Fault() == "no add") plugin.add = nullptr;
  return &plugin;
}
