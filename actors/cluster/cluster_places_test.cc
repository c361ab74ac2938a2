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

// Options for a node on each of three hosts.
ClusterOptions OnHosts(uint32_t fanout) {
  ClusterOptions options;
  options.node_command = {"/opt/a node"};
  options.num_processes = 3;
  options.fanout = fanout;
  for (const std::string host : {"a", "b", "c"}) {
    NodePlace place;
    place.host = host;
    place.through = kTeller;
    place.through.push_back(host);
    place.joins_arguments = true;
    options.places.push_back(place);
  }
  return options;
}

TEST_F(ClusterPlacesTest, InATreeAHostIsToldOfThoseThatItStarts) {
  EXPECT_THAT(Tell(OnHosts(1)),
              AllOf(HasSubstr("input=" + kKey), HasSubstr("arguments=a exec sh -c"),
                    HasSubstr(" --rank 0 --slots 1 --pin neighbours --below b/1,c/1 --fanout 1 "
                              "--through=/bin/sh --through=-c "),
                    Not(HasSubstr("arguments=b "))));
}

TEST_F(ClusterPlacesTest, ATreeHasPlacesThatDifferInTheirHostsAlone) {
  const auto error_of = [](const ClusterOptions& options) {
    const absl::Status status = Cluster::Start(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  ClusterOptions options = OnHosts(2);
  options.places[1].coordinator_host = "10.0.0.1";
  EXPECT_THAT(error_of(options), HasSubstr("b at 10.0.0.1: say which to listen at"));
  options = OnHosts(2);
  options.places[2].is_awaited = true;
  EXPECT_THAT(error_of(options), HasSubstr("the node on c cannot be started by that of another"));
  options = OnHosts(2);
  options.places[1].through[0] = "/bin/bash";
  EXPECT_THAT(error_of(options), HasSubstr("the node on b cannot be started"));
  options = OnHosts(2);
  options.on_loss = [](const absl::Status&) { return AfterLoss::kContinue; };
  EXPECT_THAT(error_of(options), HasSubstr("ends with the first loss"));
  options = OnHosts(2);
  options.places.clear();
  EXPECT_THAT(error_of(options), HasSubstr("nodes of other hosts alone"));
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
