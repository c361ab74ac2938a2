#include "cli/metrics.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using State = actors::DeviceSnapshot::State;

TEST(ParseMetricsAddressTest, TakesPortsAndHosts) {
  const struct {
    const char* text;
    const char* host;
    unsigned port;
  } cases[] = {{"9090", "127.0.0.1", 9090},
               {"0", "127.0.0.1", 0},
               {"0.0.0.0:80", "0.0.0.0", 80},
               {"[::1]:9100", "::1", 9100},
               {"localhost:0", "localhost", 0}};
  for (const auto& c : cases) {
    const absl::StatusOr<MetricsAddress> address = ParseMetricsAddress(c.text);
    ASSERT_TRUE(address.ok()) << c.text << ": " << address.status();
    EXPECT_EQ(address->host, c.host);
    EXPECT_EQ(address->port, c.port);
  }
}

TEST(ParseMetricsAddressTest, SaysWhatIsWrong) {
  for (const char* text : {"", "x", "70000", "-1", "9090x", "host:", "host:port", "unix:/tmp/x",
                           "1:2:3", "host:70000"}) {
    const absl::StatusOr<MetricsAddress> address = ParseMetricsAddress(text);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(address.status().message()), HasSubstr("\"")) << text;
  }
}

JobMetrics TwoMeasuredDevices() {
  JobMetrics job;
  actors::JobStatus& status = job.status;
  status.steps_done = 12;
  status.processes = {{.rank = 0, .host = "a", .resident_bytes = 4096, .num_devices = 1},
                      {.rank = 1,
                       .host = "b",
                       .answers = false,
                       .silence_ns = 2'500'000'000,
                       .first_device = 1,
                       .num_devices = 1}};
  status.devices.resize(2);
  actors::DeviceSnapshot& waiting = status.devices[0].state;
  waiting.state = State::kWaiting;
  waiting.still_ns = 500'000'000;
  waiting.channels = {.credits = 8, .credits_in_use = 3, .tokens_waiting = 2, .bytes_in_use = 640};
  status.devices[0].memory_bytes = 1000;
  status.devices[1].state.device = 1;
  status.devices[1].stage = 1;
  job.devices = {{.busy_ns = 4'000'000'000,
                  .collective_ns = 1'000'000'000,
                  .transfer_ns = 2'000'000'000,
                  .nothing_ns = 3'000'000'000,
                  .microbatches = 24}};
  return job;
}

TEST(MetricsTest, TellsOfStepsDevicesAndProcesses) {
  Metrics metrics([] { return TwoMeasuredDevices(); });
  metrics.OnStep(2.5, 0.02, 256);
  metrics.OnStep(2.25, 0.5, 256);
  actors::CheckpointResult checkpoint;
  checkpoint.step = 10;
  checkpoint.num_bytes = 77;
  checkpoint.seconds = 0.25;
  metrics.OnCheckpoint(checkpoint);
  checkpoint.step = 20;
  checkpoint.status = absl::UnavailableError("disk full");
  metrics.OnCheckpoint(checkpoint);
  const std::string text = metrics.Text();
  for (const char* line : {
           "penstock_steps_total 2\n",
           "penstock_step 12\n",
           "penstock_tokens_total 512\n",
           "penstock_loss 2.25\n",
           "penstock_step_duration_seconds_count 2\n",
           "penstock_step_duration_seconds_sum 0.52\n",
           "penstock_step_duration_seconds_bucket{le=\"0.025\"} 1\n",
           "penstock_device_busy_seconds_total{device=\"0\",stage=\"0\"} 4\n",
           "{device=\"0\",stage=\"0\",during=\"collective\"} 1\n",
           "{device=\"0\",stage=\"0\",during=\"transfer\"} 2\n",
           "{device=\"0\",stage=\"0\",during=\"nothing\"} 3\n",
           "penstock_device_waiting_seconds{device=\"0\",stage=\"0\"} 0.5\n",
           "penstock_device_planned_memory_bytes{device=\"0\",stage=\"0\"} 1000\n",
           "penstock_device_microbatches_total{device=\"0\",stage=\"0\"} 24\n",
           "penstock_device_credits{device=\"0\",stage=\"0\"} 8\n",
           "penstock_device_credits_in_use{device=\"0\",stage=\"0\"} 3\n",
           "penstock_device_tokens_waiting{device=\"0\",stage=\"0\"} 2\n",
           "penstock_device_channel_memory_bytes{device=\"0\",stage=\"0\"} 640\n",
           "penstock_node_up{rank=\"0\",host=\"a\"} 1\n",
           "penstock_node_up{rank=\"1\",host=\"b\"} 0\n",
           "penstock_node_heartbeat_age_seconds{rank=\"1\",host=\"b\"} 2.5\n",
           "penstock_node_resident_memory_bytes{rank=\"0\",host=\"a\"} 4096\n",
           "penstock_checkpoints_total{result=\"written\"} 1\n",
           "penstock_checkpoints_total{result=\"failed\"} 1\n",
           "penstock_checkpoint_size_bytes 77\n",
           "penstock_checkpoint_step 10\n",
           "penstock_checkpoint_duration_seconds_count 1\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  // Nothing is known of a device that does not answer, but what the plan says.
  EXPECT_THAT(text, Not(HasSubstr("penstock_device_busy_seconds_total{device=\"1\"")));
  EXPECT_THAT(text, Not(HasSubstr("penstock_device_credits{device=\"1\"")));
}

// As while the model is loaded for a sample: a series that ends and comes back is another one.
TEST(MetricsTest, TotalsOfDevicesStayWithoutASession) {
  Metrics metrics([] {
    JobMetrics job = TwoMeasuredDevices();
    job.status.devices.clear();
    return job;
  });
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("penstock_device_busy_seconds_total{device=\"0\",stage=\"0\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("penstock_device_microbatches_total{device=\"0\",stage=\"0\"} 24\n"));
  EXPECT_THAT(text, Not(HasSubstr("penstock_device_credits")));
}

// A loss of 0 would be a perfect model.
TEST(MetricsTest, WhatIsNotKnownYetIsLeftOut) {
  Metrics metrics([] { return TwoMeasuredDevices(); });
  std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("penstock_steps_total 0\n"));
  for (const char* name :
       {"penstock_loss", "penstock_checkpoint_step", "penstock_checkpoint_size_bytes"}) {
    EXPECT_THAT(text, Not(HasSubstr(name)));
  }
  metrics.OnStep(2.5, 0.02, 256);
  text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("penstock_loss 2.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("penstock_checkpoint_step")));
}

TEST(MetricsTest, WhatWasCountedIsThereWithoutDevices) {
  Metrics metrics(
      []() -> absl::StatusOr<JobMetrics> { return absl::UnavailableError("the job is over"); });
  metrics.OnStep(1, 1, 0);
  EXPECT_THAT(metrics.Text(), HasSubstr("penstock_steps_total 1\n"));
  EXPECT_THAT(metrics.Text(), HasSubstr("penstock_tokens_total 0\n"));
}

}  // namespace
}  // namespace penstock::cli
