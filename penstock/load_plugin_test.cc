#include "penstock/load_plugin.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "penstock/version.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The message of loading tests/programs/faulty_plugin.cc.
std::string MessageOf(const char* fault, absl::StatusCode code) {
  setenv("PENSTOCK_FAULT", fault, /*replace=*/1);
  Registries registries;
  const absl::Status status = LoadPlugin(PENSTOCK_FAULTY_PLUGIN, registries);
  EXPECT_EQ(status.code(), code) << fault;
  EXPECT_THAT(ToStd(status.message()), StartsWith(PENSTOCK_FAULTY_PLUGIN ": ")) << fault;
  return std::string(status.message());
}

// A library that is no plug-in, wherever this system has it.
std::string PathOfMathLibrary() {
  void* const library = dlopen("libm.so.6", RTLD_LAZY);
  void* const function = library == nullptr ? nullptr : dlsym(library, "lgamma");
  Dl_info info = {};
  if (function == nullptr || dladdr(function, &info) == 0) {
    ADD_FAILURE() << "libm.so.6 is not found";
    return "";
  }
  return info.dli_fname;
}

TEST(LoadPluginTest, LoadsALibrary) {
  setenv("PENSTOCK_FAULT", "", /*replace=*/1);
  Registries registries = BuiltinRegistries();
  EXPECT_EQ(LoadPlugin(PENSTOCK_FAULTY_PLUGIN, registries), absl::OkStatus());
}

TEST(LoadPluginTest, RefusesOtherVersionsAndReleases) {
  EXPECT_THAT(MessageOf("version", absl::StatusCode::kInvalidArgument),
              HasSubstr("version 2 of penstock/plugin.h, expected 1; build it again"));
  EXPECT_THAT(MessageOf("release", absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("Penstock 0.0.9"), HasSubstr(kVersion)));
}

TEST(LoadPluginTest, SaysWhatIsWrongWithThePlugin) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(MessageOf("null", kInvalid), HasSubstr("penstock_plugin returns null"));
  EXPECT_THAT(MessageOf("no add", kInvalid), HasSubstr("`add` is null"));
  EXPECT_THAT(MessageOf("throws", kInvalid), HasSubstr("the plug-in threw"));
  EXPECT_THAT(MessageOf("throws in add", kInvalid), HasSubstr("threw: no memory for operators"));
  EXPECT_THAT(MessageOf("fails", absl::StatusCode::kAlreadyExists),
              HasSubstr("operator 'add' is registered already"));
}

TEST(LoadPluginTest, SaysWhyALibraryCannotBeLoaded) {
  Registries registries;
  const absl::Status missing = LoadPlugin("nowhere.so", registries);
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      ToStd(missing.message()),
      AllOf(StartsWith("nowhere.so: the plug-in cannot be loaded: "), HasSubstr("No such")));
  const absl::Status other = LoadPlugin(PathOfMathLibrary(), registries);
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ToStd(other.message()), HasSubstr("expected a function penstock_plugin"));
}

}  // namespace
}  // namespace penstock
