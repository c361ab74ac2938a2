// penstock doctor: whether this machine and build can do what the other commands need.

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/data.h"
#include "cli/device_kinds.h"
#include "cli/environment.h"
#include "cli/job.h"
#include "cli/json.h"
#include "cli/processes.h"
#include "nlohmann/json.hpp"

#include "base/counted.h"
#include "base/device.h"
#include "base/format.h"
#include "base/machine.h"
#include "base/strings.h"
#include "kernels/gpu.h"
#include "transport/nccl.h"
#include "transport/ucx/ucx_system.h"

namespace penstock::cli {
namespace {

struct Check {
  std::string name;
  bool is_ok = false;
  std::string detail;
  bool is_absent = false;  // what jobs on this machine's cores do without
};

// Operators that stand for data or state, which the engine itself serves, redistributions, which
// become collectives, and names for several values side by side: they have no kernel.
bool NeedsKernel(std::string_view op) {
  for (const std::string_view name :
       {"input", "parameter", "state", "assign", "reshard", "all_gather", "all_to_all", "permute",
        "halo_exchange", "all_reduce", "reduce_scatter", "receive", "join_sub_batches"}) {
    if (op == name) return false;
  }
  return true;
}

Check CheckCores() {
  const int usable = UsableCores();
  const int all = MachineCores();
  return {"cores", true,
          usable == all ? Counted(all, "core")
                        : StrCat(usable, " usable of the machine's ", Counted(all, "core"))};
}

Check CheckMemory() {
  constexpr uint64_t kLeast = uint64_t{1} << 30;
  const uint64_t bytes = MachineMemoryBytes();
  return {"memory", bytes >= kLeast, StrCat(FormatBytes(bytes), " of main memory")};
}

Check CheckDevice() {
  constexpr size_t kBytes = 1 << 20;
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  const auto memory = device->Allocate(kBytes, MemoryKind::kDevice);
  if (!memory.ok()) return {"device cpu", false, std::string(ToStd(memory.status().message()))};
  return {"device cpu", true, "allocates"};
}

Check CheckKernels(std::string name, const Registries& registries,
                   const kernels::KernelRegistry& kernels) {
  std::vector<std::string_view> missing;
  const std::vector<std::string_view> ops = registries.ops.Names();
  for (const std::string_view op : ops) {
    if (NeedsKernel(op) && kernels.Find(op) == nullptr) missing.push_back(op);
  }
  if (missing.empty()) {
    return {std::move(name), true, StrCat("all ", ops.size(), " operators are served")};
  }
  return {std::move(name), false, StrCat("no kernel for ", penstock::StrJoin(missing, ", "))};
}

// A machine without a GPU can run all jobs but those on GPUs.
Check CheckGpus() {
  return {"device cuda", true, penstock::StrJoin(DescribeDevices("cuda"), "; "),
          !kernels::FindGpus().status.ok()};
}

Check CheckCudaKernels(const Registries& registries) {
  if (registries.cuda_kernels.Names().empty()) return {"kernels cuda", true, "not built", true};
  return CheckKernels("kernels cuda", registries, registries.cuda_kernels);
}

// Jobs run without it: the host then moves what GPUs exchange.
Check CheckNccl() { return {"nccl", true, DescribeNccl(), !transport::FindNccl().status.ok()}; }

// Between hosts.
Check CheckUcx() {
  const transport::UcxSystem system = transport::FindUcx();
  return {"ucx", system.status.ok(), transport::DescribeUcx(system)};
}

// Jobs run without it: convolutions then take longer.
Check CheckCudnn() {
  std::string detail = kernels::DescribeCudnn();
  const bool is_absent = detail.starts_with("no cuDNN");
  return {"cudnn", true, std::move(detail), is_absent};
}

Check CheckText() {
  const Job job;
  const absl::StatusOr<Corpus> corpus = LoadCorpus(job.data.text, 1);
  if (!corpus.ok()) return {"default text", false, std::string(ToStd(corpus.status().message()))};
  return {
      "default text", true,
      StrCat(job.data.text[0], ": ", corpus->train->size() + corpus->validation->size(), " bytes")};
}

Check CheckTemporaryFolder() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  const bool is_ok = !error && access(folder.c_str(), W_OK) == 0;
  return {"temporary folder", is_ok,
          is_ok ? StrCat(folder.string(), " is writable") : std::string("none is writable")};
}

// Whether this program can be a job's node: a process that joins and leaves.
Check CheckProcesses(const Environment& environment) {
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  std::ostringstream notes;  // of each that has joined
  const auto cluster = StartProcesses(WithErr(environment, notes), {.count = 2});
  if (!cluster.ok()) return {"processes", false, std::string(ToStd(cluster.status().message()))};
  if (const absl::Status ended = (*cluster)->Stop(); !ended.ok()) {
    return {"processes", false, std::string(ToStd(ended.message()))};
  }
  return {"processes", true,
          StrCat("two nodes joined and left in ",
                 FormatSeconds(1e-9 * static_cast<double>(clock.NowNs() - begin_ns)))};
}

absl::Status Doctor(const Environment& environment, bool is_json) {
  const std::vector<Check> checks = {
      CheckCores(),
      CheckMemory(),
      CheckDevice(),
      CheckKernels("kernels cpu", environment.registries, environment.registries.kernels),
      CheckGpus(),
      CheckCudaKernels(environment.registries),
      CheckNccl(),
      CheckUcx(),
      CheckCudnn(),
      CheckText(),
      CheckTemporaryFolder(),
      CheckProcesses(environment)};
  bool are_ok = true;
  nlohmann::json list = nlohmann::json::array();
  for (const Check& check : checks) {
    are_ok = are_ok && check.is_ok;
    if (is_json) {
      list.push_back({{"name", check.name}, {"ok", check.is_ok}, {"detail", check.detail}});
    } else {
      environment.out << (!check.is_ok      ? "FAILED  "
                          : check.is_absent ? "absent  "
                                            : "ok      ")
                      << check.name << ": " << check.detail << "\n";
    }
  }
  if (!is_json && are_ok) environment.out << "this machine can run jobs\n";
  if (is_json) environment.out << DumpJson({{"checks", list}}) << "\n";
  return are_ok ? absl::OkStatus() : absl::InternalError("some checks failed");
}

}  // namespace

void AddDoctorCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto is_json = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("doctor", "Check that this machine and build can run jobs.");
  command->add_flag("--json", *is_json, "Print {\"checks\": [{name, ok, detail}]}");
  command->callback([is_json, &environment, action] {
    *action = [is_json, &environment] { return Doctor(environment, *is_json); };
  });
}

}  // namespace penstock::cli
