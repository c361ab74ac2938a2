#include "cli/coordinator_host.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/network_interface.h"
#include "base/strings.h"
#include "tests/support/temp_folder.h"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;

// A name that no resolver takes for one, so nobody on the network is asked.
constexpr char kUnknown[] = "alias..of-a-host";

class CoordinatorHostTest : public ::testing::Test {
 protected:
  // A program of this name that does as `script` says.
  std::string Program(const std::string& name, const std::string& script) {
    const std::string path = folder_.Path(name);
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

  testing::TempFolder folder_;
  std::ostringstream err_;
};

TEST_F(CoordinatorHostTest, IsTheAddressInTheNetworkOfTheHost) {
  EXPECT_EQ(CoordinatorHost(err_, {"ssh"}, "127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(CoordinatorHost(err_, {"srun"}, "me@127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(err_.str(), "");
}

TEST_F(CoordinatorHostTest, SshMayKnowTheHostByAnotherName) {
  const std::string ssh =
      Program("ssh", StrCat("[ \"$*\" = '-p 22 -G -- me@", kUnknown, "' ] || exit 1\n",
                            "echo user me\necho hostname 127.0.0.1\necho hostnamealias x"));
  EXPECT_EQ(CoordinatorHost(err_, {ssh, "-p", "22"}, StrCat("me@", kUnknown)), "127.0.0.1");
  EXPECT_EQ(err_.str(), "");
}

TEST_F(CoordinatorHostTest, ANoteSaysThatTheHostIsNotKnown) {
  const std::string other = actors::ReachableAddress();
  // Nothing but ssh is asked.
  const std::string srun = Program("srun", "echo hostname 127.0.0.1");
  EXPECT_EQ(CoordinatorHost(err_, {srun}, kUnknown), other);
  EXPECT_THAT(err_.str(), ::testing::StartsWith("note: "));
  EXPECT_THAT(err_.str(), HasSubstr(kUnknown));
  EXPECT_THAT(err_.str(), HasSubstr(StrCat("; its nodes connect to ", other,
                                           " (--listen sets another address)\n")));
  for (const char* script : {"exit 1", "echo port 22", "echo hostname alias..of-a-host"}) {
    err_.str("");
    EXPECT_EQ(CoordinatorHost(err_, {Program("ssh", script)}, kUnknown), other) << script;
    EXPECT_THAT(err_.str(), HasSubstr(kUnknown)) << script;
  }
}

}  // namespace
}  // namespace penstock::cli
