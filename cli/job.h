// A job: what `penstock run` and `penstock plan` are told, from a TOML file and --set overrides.
// docs and `penstock run --help` list the keys; cli/job.cc has the one table of them.
//
// Errors begin with file:line:column, or with the --set option as given, and name the nearest key
// where one is unknown.
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_CLI_JOB_H_
#define PENSTOCK_CLI_JOB_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/dtype.h"
#include "graph/models/model.h"
#include "graph/training.h"
#include "planner/cluster/cluster_model.h"
#include "planner/strategy/recompute.h"

namespace penstock::cli {

struct Job {
  struct Model {
    std::string name = "gpt";  // a model or a preset
    std::string file;          // a graph in the text format instead; no other key goes with it
    std::string weights;       // a folder with the sizes and the weights to start from
    // What the job sets itself; the rest is the model's or preset's.
    std::optional<int64_t> layers, width, heads, context, vocabulary;
    std::optional<double> dropout;
    std::optional<int64_t> experts, top_k, expert_every;
    std::optional<double> capacity_factor, balance;
    std::optional<int64_t> kv_heads, hidden;
    std::optional<double> rotary_base, norm_epsilon;
    std::optional<std::string> rotary_scaling;
    std::optional<double> rotary_factor, rotary_low_factor, rotary_high_factor;
    std::optional<int64_t> rotary_context;
    std::optional<bool> tied;
    std::optional<int64_t> image, channels, classes;
  } model;

  // Where an input that is not text has its values from.
  struct InputSource {
    bool is_random = false;
    std::string path;  // a .npy file or a folder; see input_values.h
  };

  struct Data {
    std::vector<std::string> text = {"/usr/share/common-licenses"};
    std::vector<std::string> validation;  // empty: held out of `text`
    std::string tokenizer;    // a tokenizer.json that encodes both; empty: tokens are bytes
    std::string cache;        // the folder for what it has encoded; empty: token_cache.h says
    std::string tokens;       // a token file in place of `text`; empty: none
    int64_t token_bytes = 2;  // of a token in a file without a header
    // Labelled examples (examples.h): a CSV file, or two .npy files; empty: none.
    std::string csv;
    bool label_is_last = false;  // in a row of the CSV file
    std::string images;
    std::string labels;
    double scale = 1;  // that values are multiplied by
    std::map<std::string, InputSource> inputs;
    // Of the inputs that `inputs` does not name: random, or a folder that holds NAME.npy or a
    // folder NAME for each.
    std::optional<InputSource> all_inputs;
  } data;

  struct Train {
    int64_t steps = 50;
    int64_t batch = 16;
    int64_t seed = 1;
    DType dtype = DType::kF32;
    int64_t validation_sequences = 64;
    int64_t validation_every = 0;    // steps; 0: after the last alone
    int64_t log_every = 1;           // steps
    bool stops_on_nonfinite = true;  // when a loss is NaN or infinite
    graph::TrainingOptions options;
    std::optional<double> min_learning_rate;  // default: a tenth of learning_rate
    std::optional<double> loss_scale;         // default: 65536 in f16, else 0
    std::optional<DType> sum_dtype;           // f32, or dtype, which is the default
    std::optional<DType> residual_dtype;      // likewise
  } train;

  struct Checkpoint {
    std::string path;     // the folder; empty: none are written
    int64_t every = 100;  // steps; 0: after the last alone
    int64_t keep = 2;     // the last ones
  } checkpoint;

  struct Sample {
    int64_t bytes = 240;
    double temperature = 0.8;  // 0: always the likeliest byte
  } sample;

  struct Parallel {
    std::string strategy = "auto";
    int64_t microbatches = 0;       // 0: auto
    std::string schedule = "1f1b";  // a policy, or the path of a CSV file
    int64_t chunks = 0;             // a pipeline stage; 0: as the strategy or the schedule says
    bool split_backward = false;    // also if the schedule wants it
    std::optional<planner::Recompute> recompute;  // default: as the strategy says, or is chosen
    std::optional<bool> fuse_epilogues;           // default: on GPUs
    std::vector<graph::SplitHint> hints;          // shardings that are stated for values
  } parallel;

  struct Metrics {
    std::string listen;  // "PORT" or "HOST:PORT" for Prometheus; empty: none are served
  } metrics;

  // A host by name, with devices that follow those of the host before it.
  struct Host {
    std::string name;
    int64_t devices = 0;
    int64_t processes = 0;                       // 0: as many as the others that do not say
    std::vector<std::string> device_kinds = {};  // of its devices; empty: those of the cluster
  };

  struct Cluster {
    std::string file;  // a description or a preset of one; empty: this machine
    std::vector<std::string> device_kinds = {"cpu"};  // of its devices: see device_list.h
    std::optional<int64_t> devices;                   // default: what the strategy needs, or 1
    int64_t processes = 1;
    int64_t hosts = 1;       // that devices are spread over evenly; see host_layout.h
    std::vector<Host> host;  // in their order; empty: `hosts` of them
    // Of each host that the job is launched on, where it says nothing of hosts and these have
    // different numbers of processes. Empty otherwise.
    std::vector<int64_t> host_processes;
    std::optional<int64_t> threads;  // a device; default: the host's cores over its devices
    bool captures_graphs = true;     // GPUs launch steady phases as CUDA graphs
    double node_timeout = 3.3;       // seconds; a node that does not answer for longer is lost
    // Of the links between processes, for the replayed bound; default: planner::LinkRates.
    std::optional<double> link_gbit_per_s;
    std::optional<double> link_latency_us;
    // That join the hosts, from the inside out, as they were measured; empty: one, as above.
    std::vector<planner::NetworkLevel> networks;
    // How fast each host computes, as it was measured: 1, or the part that a slow one has of the
    // others' rate. Empty: all alike.
    std::vector<double> host_speeds;
  } cluster;

  // Where each key that was set was set, "train.steps" -> "demo.toml:12:9".
  std::map<std::string, std::string, std::less<>> locations;
};

// `file` names the text in errors; relative paths in the job count from `folder`.
absl::StatusOr<Job> ParseJob(std::string_view text, std::string_view file, std::string_view folder,
                             absl::Span<const std::string> overrides);
// `cluster` is a file that holds [cluster] alone, whose keys go over the job's, or a value for
// cluster.file; empty: none.
absl::StatusOr<Job> ReadJob(const std::string& path, absl::Span<const std::string> overrides,
                            const std::string& cluster = "");

// Applies "key=value" in TOML syntax; relative paths in it count from the working folder.
absl::Status ApplyOverride(std::string_view assignment, Job& job);

// Adds the location of the first of `keys` that the job sets to an error message.
absl::Status AtKey(const Job& job, absl::Span<const std::string_view> keys, absl::Status status);

// The options of the graph, with the defaults that depend on other keys.
graph::TrainingOptions TrainingOptionsOf(const Job& job);

// Every key with its default and meaning, a line each, for --help.
std::string DescribeJobKeys();

// "train.steps", ...: in the order of the documentation.
std::vector<std::string_view> JobKeys();

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_H_
