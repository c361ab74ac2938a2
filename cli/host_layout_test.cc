#include "cli/host_layout.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Job Parse(const std::string& cluster) {
  absl::StatusOr<Job> job = ParseJob("[cluster]\n" + cluster, "job.toml", "", {});
  EXPECT_TRUE(job.ok()) << job.status();
  return job.value_or(Job());
}

std::string HostLayoutError(const std::string& cluster) {
  return ParseJob("[cluster]\n" + cluster, "job.toml", "", {}).status().ToString();
}

constexpr char kUneven[] =
    "[[cluster.host]]\nname = \"a\"\ndevices = 3\n[[cluster.host]]\nname = \"b\"\ndevices = 1\n";

TEST(HostLayoutTest, ANumberOfHostsSpreadsDevicesEvenly) {
  EXPECT_THAT(*HostDevicesOf(Parse(""), 4), ElementsAre(4));
  EXPECT_THAT(*HostDevicesOf(Parse("hosts = 2\n"), 5), ElementsAre(2, 3));
  EXPECT_THAT(*ProcessDevicesOf(Parse("hosts = 2\n"), 2, 5), IsEmpty());
  EXPECT_THAT(HostDevicesOf(Parse("hosts = 3\n"), 2).status().ToString(),
              HasSubstr("job.toml:2:9: cluster.hosts = 3 for 2 devices"));
}

TEST(HostLayoutTest, NamedHostsHaveTheirDevices) {
  const Job job = Parse(kUneven);
  EXPECT_THAT(*HostDevicesOf(job, 4), ElementsAre(3, 1));
  EXPECT_THAT(*ProcessDevicesOf(job, 1, 7), IsEmpty());
  EXPECT_THAT(*ProcessDevicesOf(job, 2, 7), ElementsAre(3, 1));
  EXPECT_THAT(*HostDevicesOf(Parse(std::string("hosts = 2\n") + kUneven), 4), ElementsAre(3, 1));
}

TEST(HostLayoutTest, AHostMaySayHowManyProcessesItHas) {
  const Job job =
      Parse("host = [{name = \"a\", devices = 5, processes = 2}, {name = \"b\", devices = 2}]\n");
  EXPECT_THAT(*ProcessDevicesOf(job, 3, 7), ElementsAre(2, 3, 2));
  EXPECT_THAT(*ProcessDevicesOf(job, 4, 7), ElementsAre(2, 3, 1, 1));
}

TEST(HostLayoutTest, TheFirstHostHasTheDeviceOfTheOptimiserBesideItsShare) {
  Job job = Parse("hosts = 2\n");
  job.parallel.strategy = "dp=8,optimizer=host";
  EXPECT_THAT(*HostDevicesOf(job, 9), ElementsAre(5, 4));
  EXPECT_THAT(*ProcessDevicesOf(job, 4, 9), ElementsAre(3, 2, 2, 2));
  EXPECT_THAT(*ProcessDevicesOf(job, 9, 9), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(*ProcessDevicesOf(job, 1, 9), IsEmpty());
  job.cluster.host_processes = {4, 4};
  EXPECT_THAT(*HostDevicesOf(job, 9), ElementsAre(5, 4));
  EXPECT_THAT(*ProcessDevicesOf(job, 8, 9), ElementsAre(2, 1, 1, 1, 1, 1, 1, 1));
}

TEST(HostLayoutTest, HostsOfALaunchHaveTheDevicesOfTheirProcesses) {
  Job job = Parse("");
  job.cluster.host_processes = {2, 1};
  EXPECT_THAT(*HostDevicesOf(job, 3), ElementsAre(2, 1));
  EXPECT_THAT(*HostDevicesOf(job, 7), ElementsAre(4, 3));  // of processes: 2, 2 and 3
  EXPECT_THAT(*ProcessDevicesOf(job, 3, 7), IsEmpty());
  EXPECT_THAT(std::string(HostDevicesOf(job, 2).status().message()),
              HasSubstr("the hosts have 3 slots, a process each, and the job has 2 devices: "));
}

TEST(HostLayoutTest, WhatDoesNotFitIsNamed) {
  const Job job = Parse(kUneven);
  EXPECT_THAT(HostDevicesOf(job, 8).status().ToString(),
              ::testing::AllOf(HasSubstr("job.toml:"), HasSubstr("the hosts have 4 devices (a has "
                                                                 "3, b 1) and the job has 8; ")));
  EXPECT_THAT(ProcessDevicesOf(job, 3, 7).status().ToString(),
              HasSubstr("3 processes cannot be spread over 2 hosts (a has 3, b 1)"));
  EXPECT_THAT(ProcessDevicesOf(job, 4, 7).status().ToString(),
              HasSubstr("host b has 2 processes for 1 device"));
  EXPECT_THAT(HostDevicesOf(Parse(std::string("hosts = 3\n") + kUneven), 4).status().ToString(),
              HasSubstr("cluster.hosts = 3, but cluster.host names 2"));
}

TEST(HostLayoutTest, FewerProcessesThanHostsAreNoted) {
  EXPECT_EQ(ProcessNote(Parse(kUneven), 2), "");
  EXPECT_EQ(ProcessNote(Parse(""), 1), "");
  EXPECT_THAT(ProcessNote(Parse(kUneven), 1),
              HasSubstr("; --procs 2 (or cluster.processes) gives each host its own\n"));
  EXPECT_THAT(ProcessNote(Parse("hosts = 3\n"), 2),
              HasSubstr("note: 2 processes for 3 hosts (job.toml:2:9): the collectives are "));
}

TEST(HostLayoutTest, WrongDescriptionsAreErrors) {
  EXPECT_THAT(HostLayoutError("host = 3\n"), HasSubstr("expected a list of hosts"));
  EXPECT_THAT(HostLayoutError("host = []\n"), HasSubstr("the list is empty"));
  EXPECT_THAT(HostLayoutError("host = [{name = \"a\"}]\n"), HasSubstr("host a has no devices"));
  EXPECT_THAT(HostLayoutError("host = [{devices = 0}]\n"),
              HasSubstr("devices of host 1: 0 is out of range: expected 1 to 65536"));
  EXPECT_THAT(HostLayoutError("host = [{devices = \"two\"}]\n"),
              HasSubstr("devices of host 1: expected an integer"));
  EXPECT_THAT(
      HostLayoutError("host = [{devices = 1, device = 2}]\n"),
      HasSubstr(
          "unknown key 'device' of host 1; expected name, devices, processes or device_kind"));
  EXPECT_THAT(
      HostLayoutError("host = [{name = \"a\", devices = 1}, {name = \"a\", devices = 1}]\n"),
      HasSubstr("two hosts are named a"));
}

}  // namespace
}  // namespace penstock::cli
