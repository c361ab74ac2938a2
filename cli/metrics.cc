#include "cli/metrics.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"

#include "actors/cluster/socket_address.h"
#include "actors/cluster/text_server.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/metric_family.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace penstock::cli {
namespace {

using actors::JobStatus;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using State = actors::DeviceSnapshot::State;

// From a millisecond to minutes, each about twice the one before.
const prometheus::Histogram::BucketBoundaries kStepBuckets = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250};
const prometheus::Histogram::BucketBoundaries kCheckpointBuckets = {0.01, 0.05, 0.1, 0.5, 1,  5,
                                                                    10,   30,   60,  300, 600};

using Labels = std::vector<ClientMetric::Label>;

// A metric family that is made for one answer.
class Family {
 public:
  Family(MetricType type, std::string name, std::string help) {
    family_.type = type;
    family_.name = std::move(name);
    family_.help = std::move(help);
  }

  void Add(double value, Labels labels = {}) {
    ClientMetric& metric = family_.metric.emplace_back();
    metric.label = std::move(labels);
    metric.gauge.value = value;
    metric.counter.value = value;
  }

  void AddTo(std::vector<MetricFamily>* families) {
    if (!family_.metric.empty()) families->push_back(std::move(family_));
  }

 private:
  MetricFamily family_;
};

double SecondsOfNs(int64_t ns) { return 1e-9 * static_cast<double>(ns); }

// What devices have done since the job began. Such numbers never fall, and stay where no devices
// work for a while: a server takes a counter that falls for one of a job that was started again.
void AddTotals(const std::vector<DeviceTotals::Device>& devices,
               std::vector<MetricFamily>* families) {
  Family busy(MetricType::Counter, "penstock_device_busy_seconds_total",
              "Time in which a device ran actors.");
  Family idle(MetricType::Counter, "penstock_device_idle_seconds_total",
              "Time in which a device had nothing to run, by what it had under way: a collective "
              "(exposed communication, and waiting for members that come late), only sends and "
              "receives (the bubble of a pipeline, and exposed transfers), or nothing.");
  Family microbatches(MetricType::Counter, "penstock_device_microbatches_total",
                      "Micro-batches that have passed through all phases of a device.");
  for (const DeviceTotals::Device& device : devices) {
    const Labels labels = {{"device", StrCat(device.device)}, {"stage", StrCat(device.stage)}};
    busy.Add(SecondsOfNs(device.busy_ns), labels);
    for (const auto& [during, ns] :
         {std::pair("collective", device.collective_ns), std::pair("transfer", device.transfer_ns),
          std::pair("nothing", device.nothing_ns)}) {
      Labels with_kind = labels;
      with_kind.push_back({"during", during});
      idle.Add(SecondsOfNs(ns), std::move(with_kind));
    }
    microbatches.Add(static_cast<double>(device.microbatches), labels);
  }
  for (Family* family : {&busy, &idle, &microbatches}) family->AddTo(families);
}

void AddDevices(const JobStatus& status, std::vector<MetricFamily>* families) {
  Family pending(MetricType::Gauge, "penstock_device_pending_communications",
                 "Sends, receives and collectives of a device that are under way.");
  Family memory(MetricType::Gauge, "penstock_device_planned_memory_bytes",
                "Memory that the plan gives a device.");
  Family credits(MetricType::Gauge, "penstock_device_credits",
                 "Credits of the channels between the phases of a device, used or not.");
  Family credits_in_use(MetricType::Gauge, "penstock_device_credits_in_use",
                        "Credits that producers have taken and consumers have not returned.");
  Family tokens(MetricType::Gauge, "penstock_device_tokens_waiting",
                "Tokens that wait in the channels between the phases of a device.");
  Family channel_bytes(MetricType::Gauge, "penstock_device_channel_memory_bytes",
                       "Memory of the values in these channels, of what the plan gives a device.");
  Family waiting(MetricType::Gauge, "penstock_device_waiting_seconds",
                 "Since when a device has had nothing to run in the step under way; 0 where it "
                 "runs.");
  for (const JobStatus::Device& device : status.devices) {
    const actors::DeviceSnapshot& state = device.state;
    const Labels labels = {{"device", StrCat(state.device)}, {"stage", StrCat(device.stage)}};
    memory.Add(static_cast<double>(device.memory_bytes), labels);
    if (state.state == State::kSilent) continue;
    pending.Add(device.num_pending, labels);
    credits.Add(static_cast<double>(state.channels.credits), labels);
    credits_in_use.Add(static_cast<double>(state.channels.credits_in_use), labels);
    tokens.Add(static_cast<double>(state.channels.tokens_waiting), labels);
    channel_bytes.Add(static_cast<double>(state.channels.bytes_in_use), labels);
    waiting.Add(state.state == State::kWaiting ? SecondsOfNs(state.still_ns) : 0, labels);
  }
  for (Family* family :
       {&pending, &credits, &credits_in_use, &tokens, &memory, &channel_bytes, &waiting}) {
    family->AddTo(families);
  }
}

void AddProcesses(const JobStatus& status, std::vector<MetricFamily>* families) {
  Family up(MetricType::Gauge, "penstock_node_up", "Whether a process of the job answers.");
  Family age(MetricType::Gauge, "penstock_node_heartbeat_age_seconds",
             "Since the last sign of life of a process of the job.");
  Family memory(MetricType::Gauge, "penstock_node_resident_memory_bytes",
                "Resident memory of a process of the job.");
  for (const actors::ProcessSnapshot& process : status.processes) {
    const Labels labels = {{"rank", StrCat(process.rank)}, {"host", process.host}};
    up.Add(process.answers ? 1 : 0, labels);
    age.Add(SecondsOfNs(process.silence_ns), labels);
    if (process.resident_bytes > 0) {
      memory.Add(static_cast<double>(process.resident_bytes), labels);
    }
  }
  for (Family* family : {&up, &age, &memory}) family->AddTo(families);
}

}  // namespace

absl::StatusOr<MetricsAddress> ParseMetricsAddress(const std::string& text) {
  MetricsAddress address;
  std::string port = text;
  if (text.find(':') != std::string::npos) {
    RETURN_IF_ERROR(actors::CheckListenAddress(text));
    if (actors::IsUnixAddress(text)) {
      return absl::InvalidArgumentError(
          StrCat("\"", text, "\": metrics are served at HOST:PORT or PORT"));
    }
    const actors::SocketAddress split = actors::SplitAddress(text);
    address.host = split.host;
    port = split.port;
  }
  uint32_t number = 0;
  if (!absl::SimpleAtoi(port, &number) || number > 65535) {
    return absl::InvalidArgumentError(
        StrCat("\"", text, "\": expected PORT or HOST:PORT, with a port from 0 (any) to 65535"));
  }
  address.port = number;
  return address;
}

class Metrics::Impl {
 public:
  explicit Impl(std::function<absl::StatusOr<JobMetrics>()> look) : look_(std::move(look)) {}

  absl::StatusOr<std::string> Serve(const MetricsAddress& address) {
    actors::TextServerOptions options;
    options.host = address.host;
    options.port = address.port;
    ASSIGN_OR_RETURN(server_, actors::TextServer::Start(options, [this] { return Text(); }));
    return server_->url();
  }

  void OnStep(double loss, double step_s, int64_t tokens) {
    step_duration_.Observe(step_s);
    if (tokens > 0) tokens_.Increment(static_cast<double>(tokens));
    steps_.Increment();
    loss_.Add({}).Set(loss);
  }

  void OnCheckpoint(const actors::CheckpointResult& result) {
    (result.status.ok() ? checkpoints_written_ : checkpoints_failed_).Increment();
    if (!result.status.ok()) return;
    checkpoint_duration_.Observe(result.seconds);
    checkpoint_bytes_.Add({}).Set(static_cast<double>(result.num_bytes));
    checkpoint_step_.Add({}).Set(static_cast<double>(result.step));
  }

  std::string Text() const {
    std::vector<MetricFamily> families = registry_.Collect();
    families.erase(std::remove_if(families.begin(), families.end(),
                                  [](const MetricFamily& family) { return family.metric.empty(); }),
                   families.end());
    const absl::StatusOr<JobMetrics> job = look_();
    if (job.ok()) {
      Family step(MetricType::Gauge, "penstock_step", "Steps done, with those of earlier runs.");
      step.Add(static_cast<double>(job->status.steps_done));
      step.AddTo(&families);
      AddTotals(job->devices, &families);
      AddDevices(job->status, &families);
      AddProcesses(job->status, &families);
    }
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, families);
    return text.str();
  }

 private:
  prometheus::Counter& AddCounter(const std::string& name, const std::string& help,
                                  const std::map<std::string, std::string>& labels = {}) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(labels);
  }
  // Without a value until one is known: its metric is added then.
  using UnknownGauge = prometheus::Family<prometheus::Gauge>;
  UnknownGauge& AddGauge(const std::string& name, const std::string& help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
  }
  prometheus::Histogram& AddHistogram(const std::string& name, const std::string& help,
                                      const prometheus::Histogram::BucketBoundaries& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add({}, buckets);
  }

  const std::function<absl::StatusOr<JobMetrics>()> look_;
  prometheus::Registry registry_{prometheus::Registry::InsertBehavior::Merge};
  prometheus::Histogram& step_duration_ =
      AddHistogram("penstock_step_duration_seconds", "Time of a training step.", kStepBuckets);
  prometheus::Counter& steps_ = AddCounter("penstock_steps_total", "Steps of this run.");
  prometheus::Counter& tokens_ =
      AddCounter("penstock_tokens_total", "Tokens that this run has trained on.");
  UnknownGauge& loss_ = AddGauge("penstock_loss", "Loss of the last step, before its update.");
  prometheus::Histogram& checkpoint_duration_ = AddHistogram(
      "penstock_checkpoint_duration_seconds",
      "Time from the copy of the states to the checkpoint on the disk.", kCheckpointBuckets);
  prometheus::Counter& checkpoints_written_ = AddCounter(
      "penstock_checkpoints_total", "Checkpoints, by how they ended.", {{"result", "written"}});
  prometheus::Counter& checkpoints_failed_ = AddCounter(
      "penstock_checkpoints_total", "Checkpoints, by how they ended.", {{"result", "failed"}});
  UnknownGauge& checkpoint_bytes_ =
      AddGauge("penstock_checkpoint_size_bytes", "Size of the last checkpoint.");
  UnknownGauge& checkpoint_step_ =
      AddGauge("penstock_checkpoint_step", "Steps that the last checkpoint holds.");
  std::unique_ptr<actors::TextServer> server_;  // last: it uses all of the above
};

Metrics::Metrics(std::function<absl::StatusOr<JobMetrics>()> look)
    : impl_(std::make_unique<Impl>(std::move(look))) {}
Metrics::~Metrics() = default;

absl::StatusOr<std::string> Metrics::Serve(const MetricsAddress& address) {
  return impl_->Serve(address);
}
void Metrics::OnStep(double loss, double step_s, int64_t tokens) {
  impl_->OnStep(loss, step_s, tokens);
}
void Metrics::OnCheckpoint(const actors::CheckpointResult& result) { impl_->OnCheckpoint(result); }
std::string Metrics::Text() const { return impl_->Text(); }

}  // namespace penstock::cli
