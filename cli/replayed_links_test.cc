#include "cli/replayed_links.h"

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/cluster_text.h"
#include "tests/support/temp_folder.h"

namespace penstock::cli {
namespace {

using planner::LinkRates;

constexpr double kShown = 7e-6;  // seconds of latency that a run shows

// The links of four processes of a device each.
ReplayedLinks LinksOf(const Job& job) {
  return LinksOfProcesses(job, {0, 1, 2, 3}, [](double) { return std::optional<double>(kShown); });
}

void ExpectRates(const LinkRates& rates, double latency_s, double bytes_per_s) {
  EXPECT_DOUBLE_EQ(rates.latency_s, latency_s);
  EXPECT_DOUBLE_EQ(rates.bytes_per_s, bytes_per_s);
}

// Hosts 0 and 1 are in one rack, 2 and 3 in another.
Job MeasuredJob() {
  Job job;
  job.cluster.processes = 4;
  job.cluster.hosts = 4;
  planner::NetworkLevel rack;
  rack.name = "rack";
  rack.fan_out = {2};
  rack.bytes_per_s = 1e9;
  rack.latency_s = 30e-6;
  planner::NetworkLevel trunk = rack;
  trunk.name = "network";
  trunk.bytes_per_s = 1e7;
  trunk.latency_s = 200e-6;
  job.cluster.networks = {rack, trunk};
  return job;
}

TEST(ReplayedLinksTest, AreTheDefaultsWithTheLatencyThatTheRunShows) {
  const ReplayedLinks links = LinksOf(Job());
  ExpectRates(links(0, 3), kShown, LinkRates().bytes_per_s);
  ExpectRates(links(1, 1), LinkRates().latency_s, LinkRates().bytes_per_s);
  const ReplayedLinks unknown =
      LinksOfProcesses(Job(), {0, 1}, [](double) { return std::optional<double>(); });
  ExpectRates(unknown(0, 1), LinkRates().latency_s, LinkRates().bytes_per_s);
}

TEST(ReplayedLinksTest, AreThoseThatTheJobSets) {
  Job job;
  job.cluster.link_gbit_per_s = 8;
  ExpectRates(LinksOf(job)(0, 3), kShown, 1e9);
  job.cluster.link_latency_us = 50;
  ExpectRates(LinksOf(job)(0, 3), 50e-6, 1e9);
  // Also where they were measured.
  job = MeasuredJob();
  job.cluster.link_gbit_per_s = 16;
  ExpectRates(LinksOf(job)(0, 1), 30e-6, 2e9);
  ExpectRates(LinksOf(job)(0, 2), 200e-6, 2e9);
}

TEST(ReplayedLinksTest, AreThoseThatWereMeasured) {
  const ReplayedLinks links = LinksOf(MeasuredJob());
  ExpectRates(links(0, 1), 30e-6, 1e9);
  ExpectRates(links(3, 2), 30e-6, 1e9);
  ExpectRates(links(0, 2), 200e-6, 1e7);
  ExpectRates(links(3, 1), 200e-6, 1e7);
  ExpectRates(links(2, 2), LinkRates().latency_s, LinkRates().bytes_per_s);
}

// Two processes of two devices each, on a host each.
TEST(ReplayedLinksTest, AreThoseOfTheClustersFile) {
  const testing::TempFolder folder;
  Job job;
  job.cluster.processes = 2;
  job.cluster.file = folder.Path("cluster.toml");
  std::ofstream(job.cluster.file) << testing::ClusterText(
      {.levels = {{"host", 2, 5e9, 1e-6}, {"network", 2, 2e8, 9e-6}}});
  const ReplayedLinks links =
      LinksOfProcesses(job, {0, 0, 1, 1}, [](double) { return std::optional<double>(kShown); });
  ExpectRates(links(0, 1), 9e-6, 2e8);
  ExpectRates(links(1, 0), 9e-6, 2e8);
  // A plan for more devices than the cluster has is not replayed on it.
  const ReplayedLinks others =
      LinksOfProcesses(job, {0, 1, 2, 3, 4}, [](double) { return std::optional<double>(kShown); });
  ExpectRates(others(0, 1), kShown, LinkRates().bytes_per_s);
}

}  // namespace
}  // namespace penstock::cli
