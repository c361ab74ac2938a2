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

TEST_F(CoordinatorHostTest, AddressesComeInTheOrderOfTheHosts) {
  const std::string ssh = Program("ssh",
                                  "case \"$*\" in *slow*) sleep 0.2 ;; esac\n"
                                  "case \"$*\" in *known*) echo hostname 127.0.0.1 ;; esac");
  std::vector<std::string> hosts;
  std::vector<std::string> expected;
  for (int i = 0; i < 40; ++i) {
    hosts.push_back(StrCat(i % 7 == 0 ? "slow" : "fast", i % 3 == 0 ? "..known" : "..other", i));
    expected.push_back(i % 3 == 0 ? "127.0.0.1" : actors::ReachableAddress());
  }
  EXPECT_EQ(CoordinatorHosts(err_, {ssh}, hosts, absl::Minutes(1)), expected);
  EXPECT_LT(err_.str().find("other1'"), err_.str().find("other38'")) << err_.str();
  EXPECT_EQ(CoordinatorHosts(err_, {ssh}, {}, absl::Minutes(1)), std::vector<std::string>());
}

TEST_F(CoordinatorHostTest, AHostThatIsNotFoundInTimeHoldsUpNobody) {
  const std::string ssh = Program("ssh", "exec sleep 12");
  EXPECT_EQ(CoordinatorHosts(err_, {ssh}, {"127.0.0.1", kUnknown}, absl::Seconds(2)),
            (std::vector<std::string>{"127.0.0.1", actors::ReachableAddress()}));
  EXPECT_THAT(err_.str(),
              HasSubstr(StrCat("note: looking up the addresses of hosts, for 2s at most; not "
                               "found yet: ",
                               kUnknown, "\n")));
  EXPECT_THAT(err_.str(), HasSubstr(StrCat("note: the address of ", kUnknown,
                                           " was not found in 2s; its nodes connect to ")));
}

}  // namespace
}  // namespace penstock::cli
