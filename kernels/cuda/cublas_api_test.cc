// Loading the library of cuBLASLt, and what is said where that fails. Libraries that every system
// has stand in for it.

#include "kernels/cuda/cublas_api.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/gpu.h"
#include "tests/support/temp_folder.h"

namespace penstock::kernels::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kOtherLibrary[] = "libm.so.6";

std::string ErrorOf(const std::string& name, const std::string& folder) {
  const absl::Status status = LoadCublas(name, folder).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  return std::string(status.message());
}

// Loading takes 0.1 s, which each of the many nodes of a host would spend.
TEST(CublasApiTest, ProgramsStartWithoutTheLibrary) {
  EXPECT_FALSE(CudaKernels().Names().empty());
  EXPECT_EQ(dlopen(CublasLibraryName().c_str(), RTLD_NOW | RTLD_NOLOAD), nullptr);
}

TEST(CublasApiTest, ALibraryThatIsNotThereIsNamed) {
  EXPECT_THAT(ErrorOf("libno_such.so.13", "/nowhere"),
              AllOf(HasSubstr("cuBLASLt cannot be loaded (libno_such.so.13: cannot open"),
                    HasSubstr("neither is it in /nowhere"), HasSubstr("LD_LIBRARY_PATH")));
}

TEST(CublasApiTest, AnotherLibraryIsRefused) {
  EXPECT_THAT(
      ErrorOf(kOtherLibrary, "/nowhere"),
      HasSubstr("libm.so.6 has no function cublasLtCreate: it is not the library of CUDA "));
}

TEST(CublasApiTest, TheLibraryIsFoundInTheFolder) {
  void* const other = dlopen(kOtherLibrary, RTLD_NOW);
  ASSERT_NE(other, nullptr);
  Dl_info info = {};
  ASSERT_NE(dladdr(dlsym(other, "cos"), &info), 0);
  const testing::TempFolder folder;
  std::filesystem::create_symlink(std::filesystem::absolute(info.dli_fname),
                                  folder.path() / "liblinked_here.so.1");
  EXPECT_THAT(ErrorOf("liblinked_here.so.1", folder.path().string()),
              HasSubstr("liblinked_here.so.1 has no function cublasLtCreate"));
}

TEST(CublasApiTest, TheRealLibraryHasTheFunctions) {
  const absl::StatusOr<CublasApi> api = LoadCublas();
  if (!api.ok() &&
      std::string(api.status().message()).find("cannot be loaded") != std::string::npos) {
    GTEST_SKIP() << api.status();
  }
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_STREQ(api->get_status_name(CUBLAS_STATUS_SUCCESS), "CUBLAS_STATUS_SUCCESS");
}

}  // namespace
}  // namespace penstock::kernels::cuda
