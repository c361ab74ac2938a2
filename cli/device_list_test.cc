#include "cli/device_list.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"

namespace penstock::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::StatusOr<DeviceList> Of(const std::string& cluster, int64_t num_devices) {
  const absl::StatusOr<Job> job = ParseJob("[cluster]\n" + cluster, "job.toml", "", {});
  if (!job.ok()) return job.status();
  return DeviceListOf(*job, num_devices);
}

std::string DeviceListText(const std::string& cluster, int64_t num_devices) {
  const absl::StatusOr<DeviceList> list = Of(cluster, num_devices);
  return list.ok() ? list->ToString() : list.status().ToString();
}

std::string DeviceListError(const std::string& cluster, int64_t num_devices) {
  return std::string(Of(cluster, num_devices).status().message());
}

TEST(DeviceListTest, TextsAreReadBack) {
  for (const std::string text : {"cpu", "cuda", "cpu:2,cuda:6", "cuda:1,emulated:1,cuda:1"}) {
    const absl::StatusOr<DeviceList> list = DeviceList::Parse(text);
    ASSERT_TRUE(list.ok()) << list.status();
    EXPECT_EQ(list->ToString(), text);
  }
  EXPECT_EQ(DeviceList::Parse("cpu,cuda,cuda")->ToString(), "cpu:1,cuda:2");
  for (const auto& [text, error] : std::vector<std::pair<std::string, std::string>>{
           {"tpu", "unknown kind of device \"tpu\"; expected \"cpu\", \"cuda\", \"emulated\""},
           {"", "unknown kind of device \"\""},
           {"cpu,", "unknown kind of device \"\""},
           {"cpu:0", "expected a number of devices of a kind, such as cpu:2, not cpu:0"},
           {"cpu:1,cuda:x", "not cuda:x"}}) {
    EXPECT_THAT(std::string(DeviceList::Parse(text).status().message()), HasSubstr(error)) << text;
  }
}

TEST(DeviceListTest, SaysWhatEachDeviceIs) {
  const DeviceList list = *DeviceList::Parse("cpu:2,cuda:3,cpu:1");
  std::vector<std::string> kinds;
  std::vector<int64_t> indices;
  for (int64_t device = 0; device < 7; ++device) {
    kinds.push_back(list.KindOf(device));
    indices.push_back(list.IndexInKind(device));
  }
  EXPECT_THAT(kinds, ElementsAre("cpu", "cpu", "cuda", "cuda", "cuda", "cpu", "cpu"));
  EXPECT_THAT(indices, ElementsAre(0, 1, 0, 1, 2, 2, 3));
  EXPECT_EQ(list.Count("cpu", 1, 5), 2);
  EXPECT_EQ(list.Count("cuda", 3, 1), 1);
  EXPECT_EQ(list.Count("emulated", 0, 6), 0);
  EXPECT_THAT(list.KindsOf(0, 6), ElementsAre("cpu", "cuda"));
  EXPECT_THAT(list.KindsOf(2, 2), ElementsAre("cuda"));
  EXPECT_THAT(list.KindsOf(4, 2), ElementsAre("cuda", "cpu"));
  EXPECT_THAT(list.Blocks(3),
              ElementsAre(DeviceList::Block{"cpu", 2}, DeviceList::Block{"cuda", 1}));
  EXPECT_FALSE(list.IsAll("cpu"));
  EXPECT_TRUE(DeviceList().IsAll("cpu"));
  EXPECT_EQ(DeviceList("cuda").IndexInKind(5), 5);
  EXPECT_THAT(DeviceList("cuda").Blocks(4), ElementsAre(DeviceList::Block{"cuda", 4}));
}

TEST(DeviceListTest, AListDividesTheDevicesIntoBlocks) {
  EXPECT_EQ(DeviceListText("", 4), "cpu");
  EXPECT_EQ(DeviceListText("device_kind = \"cuda\"\n", 4), "cuda");
  EXPECT_EQ(DeviceListText("device_kind = [\"cpu\", \"cuda\"]\n", 4), "cpu:2,cuda:2");
  EXPECT_EQ(DeviceListText("device_kind = [\"cpu\", \"cuda\", \"cuda\", \"cpu\"]\n", 4),
            "cpu:1,cuda:2,cpu:1");
  EXPECT_THAT(DeviceListError("device_kind = [\"cpu\", \"cuda\"]\n", 3),
              AllOf(StartsWith("job.toml:2:"), HasSubstr("2 kinds for 3 devices: give a kind for "
                                                         "each device, or for each of ")));
}

TEST(DeviceListTest, HostsSayWhatTheirDevicesAre) {
  constexpr char kHosts[] =
      "host = [{name = \"a\", devices = 1}, {name = \"b\", devices = 4, device_kind = \"cuda\"},\n"
      "  {name = \"c\", devices = 2, device_kind = [\"cpu\", \"cuda\"]}]\n";
  EXPECT_EQ(DeviceListText(kHosts, 7), "cpu:1,cuda:4,cpu:1,cuda:1");
  EXPECT_EQ(DeviceListText(std::string("device_kind = \"cuda\"\n") + kHosts, 7),
            "cuda:5,cpu:1,cuda:1");
  EXPECT_THAT(DeviceListError(std::string("device_kind = [\"cpu\", \"cuda\"]\n") + kHosts, 7),
              AllOf(StartsWith("job.toml:2:"), HasSubstr("give one kind here")));
  EXPECT_THAT(
      DeviceListError("host = [{name = \"a\", devices = 3, device_kind = [\"cpu\", \"cuda\"]}]\n",
                      3),
      AllOf(StartsWith("job.toml:2:"), HasSubstr("device_kind of a: 2 kinds for 3 devices")));
  EXPECT_THAT(DeviceListError(kHosts, 8), HasSubstr("the hosts have 7 devices"));
}

TEST(DeviceListTest, WrongKindsAreErrors) {
  EXPECT_THAT(DeviceListError("device_kind = \"tpu\"\n", 1),
              AllOf(StartsWith("job.toml:2:"), HasSubstr("unknown kind of device \"tpu\"")));
  EXPECT_THAT(DeviceListError("device_kind = [\"cpu\", \"tpu\"]\n", 2), HasSubstr("\"tpu\""));
  EXPECT_THAT(DeviceListError("device_kind = []\n", 2),
              HasSubstr("the list is empty: expected a kind"));
  EXPECT_THAT(DeviceListError("device_kind = 1\n", 2),
              HasSubstr("expected a kind of device, or a list of kinds, not an integer"));
  EXPECT_THAT(DeviceListError("host = [{devices = 1, device_kind = \"tpu\"}]\n", 1),
              HasSubstr("device_kind of host 1: unknown kind of device \"tpu\""));
}

}  // namespace
}  // namespace penstock::cli
