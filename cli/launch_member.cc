#include "cli/launch_member.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "cli/launch_hosts.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// Below the ports that Linux gives to connections by itself.
constexpr int64_t kFirstStepPort = 20000;
constexpr int64_t kNumStepPorts = 10000;
// Between the ports of two steps of a job: about the golden section of the ports, so that jobs and
// steps with numbers near each other do not share one.
constexpr int64_t kStepStride = 6181;
constexpr int64_t kMaxPort = 65535;
constexpr size_t kMaxJobNameBytes = 100;
// Steps from here on are no steps of srun: the batch script and the shell of an allocation.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

struct Starter {
  const char* name;
  const char* rank;
  const char* size;        // null: it has no such variable
  const char* local_size;  // null: it has no such variable, or another form
};

constexpr Starter kStarters[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", nullptr},
    {"Kubernetes", "JOB_COMPLETION_INDEX", nullptr, nullptr},
    {"a PMIx server", "PMIX_RANK", nullptr, nullptr}};

// A number of [min, max].
absl::StatusOr<int64_t> Number(const Variables& variables, const char* name, int64_t min,
                               int64_t max) {
  const std::string text = variables(name);
  int64_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < min || number > max) {
    return absl::InvalidArgumentError(
        StrCat(name, " = '", text, "': expected a number of ", min, " to ", max));
  }
  return number;
}

// The script of a batch job has SLURM_PROCID, too, and so has a shell of `srun --pty`.
bool IsStarted(const Variables& variables, bool is_on_terminal, const Starter& starter) {
  if (variables(starter.rank).empty()) return false;
  if (starter.size != nullptr && variables(starter.size).empty()) return false;
  // As prun does. A shell of `srun --mpi=pmix --pty` has it, too.
  if (std::string_view(starter.rank) == "PMIX_RANK") {
    return !variables("PMIX_NAMESPACE").empty() && variables("SLURM_JOB_ID").empty();
  }
  if (std::string_view(starter.name) != "srun") return true;
  // Steps that such a shell starts inherit the variables, but not the terminal.
  const bool has_terminal = is_on_terminal && (!variables("SLURM_PTY_PORT").empty() ||
                                               !variables("SLURM_PTY_WIN_COL").empty());
  if (has_terminal && variables(starter.size) == "1") return false;
  int64_t step = 0;
  return absl::SimpleAtoi(variables("SLURM_STEP_ID"), &step) && step < kFirstSpecialStep;
}

// Where rank 0 of a step listens, and how many tasks it has on each of its nodes.
absl::Status FindInStep(const Variables& variables, LaunchMember* member) {
  absl::StatusOr<std::vector<int64_t>> tasks =
      ParseTasksPerNode(variables("SLURM_STEP_TASKS_PER_NODE"));
  if (tasks.ok()) member->host_sizes = *std::move(tasks);
  const absl::StatusOr<std::vector<std::string>> hosts =
      ExpandNodeList(variables("SLURM_STEP_NODELIST"));
  if (hosts.ok()) {
    // In other distributions, neighbouring ranks are on different hosts.
    const std::string distribution = variables("SLURM_DISTRIBUTION");
    if (distribution.empty() || distribution.rfind("block", 0) == 0) member->hosts = *hosts;
    if (member->host.empty()) member->host = hosts->front();
  } else if (member->host.empty()) {
    return absl::InvalidArgumentError(
        StrCat("SLURM_STEP_NODELIST: ", ToStd(hosts.status().message())));
  }
  if (member->port == 0) {
    ASSIGN_OR_RETURN(const int64_t job, Number(variables, "SLURM_JOB_ID", 0, INT64_MAX));
    ASSIGN_OR_RETURN(const int64_t step, Number(variables, "SLURM_STEP_ID", 0, kFirstSpecialStep));
    member->port = kFirstStepPort + (job % kNumStepPorts + step * kStepStride) % kNumStepPorts;
  }
  return absl::OkStatus();
}

// What the user has called to start a process. Others than torchrun set its variables, too.
std::string CommandOf(const Variables& variables, const std::string& starter) {
  const bool is_command = starter == "srun" || starter == "mpirun" ||
                          (starter == "torchrun" && !variables("TORCHELASTIC_RUN_ID").empty());
  return is_command ? starter : "";
}

// A name of the job that can be one of a file: what has started it gives it to all its processes,
// or they have the coordinator's port in common.
std::string JobOf(const Variables& variables, std::string_view starter) {
  std::string name;
  if (starter == "srun") {
    name = StrCat("slurm-", variables("SLURM_JOB_ID"), ".", variables("SLURM_STEP_ID"));
  } else if (starter == "mpirun" && !variables("PMIX_NAMESPACE").empty()) {
    name = StrCat("mpi-", variables("PMIX_NAMESPACE"));
  } else if (starter == "torchrun" && !variables("TORCHELASTIC_RUN_ID").empty()) {
    name = StrCat("torchrun-", variables("TORCHELASTIC_RUN_ID"), "-", variables("MASTER_PORT"));
  } else if (!variables("MASTER_PORT").empty()) {
    name = StrCat("port-", variables("MASTER_PORT"));
  }
  name.resize(std::min(name.size(), kMaxJobNameBytes));
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-') c = '_';
  }
  return name;
}

}  // namespace

std::string EnvironmentVariable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

absl::StatusOr<std::optional<LaunchMember>> DetectMember(const Variables& variables,
                                                         bool is_on_terminal) {
  for (const Starter& starter : kStarters) {
    if (!IsStarted(variables, is_on_terminal, starter)) continue;
    LaunchMember member;
    member.starter = starter.name;
    member.command = CommandOf(variables, member.starter);
    member.job = JobOf(variables, starter.name);
    member.host = variables("MASTER_ADDR");
    if (!variables("MASTER_PORT").empty()) {
      ASSIGN_OR_RETURN(member.port, Number(variables, "MASTER_PORT", 1, kMaxPort));
      if (variables("TORCHELASTIC_USE_AGENT_STORE") == "True") {
        member.port += member.port < kMaxPort ? 1 : -1;
      }
    }
    if (starter.size != nullptr) {
      ASSIGN_OR_RETURN(member.size, Number(variables, starter.size, 1, kMaxSlots));
    }
    if (starter.local_size != nullptr && !variables(starter.local_size).empty()) {
      ASSIGN_OR_RETURN(const int64_t local_size,
                       Number(variables, starter.local_size, 1, kMaxSlots));
      // Of this host; the variables do not say whether others have as many.
      if (member.size % local_size == 0) {
        member.host_sizes.assign(static_cast<size_t>(member.size / local_size), local_size);
      }
    }
    const int64_t max_rank = (member.size > 0 ? member.size : kMaxSlots) - 1;
    ASSIGN_OR_RETURN(member.rank, Number(variables, starter.rank, 0, max_rank));
    if (member.starter == "srun") RETURN_IF_ERROR(FindInStep(variables, &member));
    return std::make_optional(std::move(member));
  }
  return std::optional<LaunchMember>();
}

}  // namespace penstock::cli
