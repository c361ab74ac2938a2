// What the command of a node is, and how it gets the job's key, here and elsewhere.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/cluster.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Tells its input, its arguments and the key in its environment, and ends.
constexpr char kScript[] =
    "echo \"input=$(cat)\"; echo \"arguments=$*\"; echo \"key=$PENSTOCK_KEY\"; exit 3";
const std::vector<std::string> kTeller = {"/bin/sh", "-c", kScript, "sh"};
const std::string kKey(64, 'a');

class ClusterPlacesTest : public ::testing::Test {
 protected:
  // What a node tells that is started so.
  std::string Tell(ClusterOptions options) {
    options.key = kKey;
    options.on_output = [this](uint32_t, std::string_view, std::string_view line) {
      const absl::MutexLock lock(&mutex_);
      StrAppend(&lines_, line, "\n");
    };
    const auto cluster = Cluster::Start(options);
    EXPECT_THAT(cluster.status().ToString(), HasSubstr("exited with status 3"));
    const absl::MutexLock lock(&mutex_);
    return std::exchange(lines_, "");
  }

 private:
  absl::Mutex mutex_;
  std::string lines_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(ClusterPlacesTest, ANodeOfThisHostReadsTheKeyWhereTheOptionsSay) {
  ClusterOptions options;
  options.node_command = kTeller;
  EXPECT_THAT(Tell(options), AllOf(HasSubstr("input=\n"), HasSubstr("key=" + kKey)));
  options.hands_key_on_input = true;
  EXPECT_THAT(Tell(options), AllOf(HasSubstr("input=" + kKey), HasSubstr("key=\n"),
                                   HasSubstr("--rank 0 --key-file -\n")));
}

TEST_F(ClusterPlacesTest, ANodeElsewhereReadsTheKeyFromItsInputOrAFile) {
  ClusterOptions options;
  options.node_command = {"/opt/a node"};
  NodePlace place;
  place.host = "elsewhere";
  place.through = kTeller;
  for (const bool joins_arguments : {false, true}) {
    place.joins_arguments = joins_arguments;
    place.key_file = "";
    options.places = {place};
    // Where no shell tells how a node has ended, an agent does.
    const std::string agent = joins_arguments ? "" : " --slots 1 --pin neighbours";
    EXPECT_THAT(Tell(options),
                AllOf(HasSubstr("input=" + kKey), HasSubstr("key=\n"), HasSubstr("/opt/a node"),
                      HasSubstr(" --rank 0" + agent + " --key-file -"),
                      HasSubstr("out-of-memory killer has acted")));
    place.key_file = "/keys/job";
    options.places = {place};
    EXPECT_THAT(Tell(options), AllOf(HasSubstr("input=\n"), Not(HasSubstr(kKey)),
                                     HasSubstr("--key-file /keys/job")));
  }
}

TEST_F(ClusterPlacesTest, WithoutTlsTheAddressHasToBeOfThisHost) {
  ClusterOptions options;
  options.node_command = kTeller;
  options.insecure = true;
  options.listen = "127.0.0.1:0";
  EXPECT_THAT(Tell(options), HasSubstr(" --insecure"));
  options.listen = "0.0.0.0:0";
  EXPECT_EQ(Cluster::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace penstock::actors
