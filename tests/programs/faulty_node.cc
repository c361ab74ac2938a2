// A node that an application's own main makes, and that comes to grief when told: its `neg` kernel
// does what the first element of its operand says, and the environment says what happens before it
// joins.
//
//   faulty_node --join ADDRESS --rank N
//   FAULTY_NODE_START=N:FAULT   rank N does FAULT instead of joining
//   FAULTY_NODE_STOP=N:FAULT    rank N does FAULT where the session is closed
//   FAULTY_NODE_MARK=PATH       a file that is made just before

#include "tests/programs/faulty_node.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"

#include "actors/cluster/node.h"
#include "base/strings.h"
#include "kernels/kernel.h"
#include "planner/policy.h"

namespace penstock::testing {
namespace {

void Do(Fault fault) {
  if (fault == Fault::kNone) return;
  // So that a test knows that it came to this.
  if (const char* path = std::getenv("FAULTY_NODE_MARK")) std::ofstream(path) << "done";
  switch (fault) {
    case Fault::kExit:
      _exit(3);
    case Fault::kCrash:
      signal(SIGSEGV, SIG_DFL);
      raise(SIGSEGV);
      break;
    case Fault::kKill:
      raise(SIGKILL);
      break;
    case Fault::kStop:
      raise(SIGSTOP);
      break;
    case Fault::kHang:
      while (true) pause();
    default:
      break;
  }
}

// What the variable says for this rank.
Fault FaultAt(const char* variable, const std::string& rank) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return Fault::kNone;
  const std::string value = text;
  int fault = 0;
  const size_t colon = value.find(':');
  if (colon == std::string::npos || value.substr(0, colon) != rank) return Fault::kNone;
  return absl::SimpleAtoi(value.substr(colon + 1), &fault) ? static_cast<Fault>(fault)
                                                           : Fault::kNone;
}

class FaultyKernel : public kernels::Kernel {
 public:
  FaultyKernel(std::unique_ptr<kernels::Kernel> inner, int64_t num_elements, Fault at_end)
      : inner_(std::move(inner)), num_elements_(num_elements), at_end_(at_end) {}
  ~FaultyKernel() override { Do(at_end_); }

  absl::Status Run(const kernels::KernelArgs& args) override {
    if (num_elements_ > 0) {
      const float first = *static_cast<const float*>(args.inputs[0]);
      if (first == ToFeed(Fault::kError)) return absl::InternalError("told to fail");
      for (int fault = 1; fault < static_cast<int>(Fault::kError); ++fault) {
        if (first == ToFeed(static_cast<Fault>(fault))) Do(static_cast<Fault>(fault));
      }
    }
    return inner_->Run(args);
  }

 private:
  const std::unique_ptr<kernels::Kernel> inner_;
  const int64_t num_elements_;
  const Fault at_end_;
};

kernels::KernelRegistry FaultyKernels(Fault at_end) {
  const kernels::KernelRegistry cpu = kernels::CpuKernels();
  kernels::KernelRegistry faulty;
  for (const std::string_view name : cpu.Names()) {
    kernels::KernelDef def = *cpu.Find(name);
    if (name == "neg") {
      def.create = [create = def.create, at_end](
                       const graph::KernelSpec& spec,
                       Device& device) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
        absl::StatusOr<std::unique_ptr<kernels::Kernel>> inner = create(spec, device);
        if (!inner.ok()) return inner.status();
        return std::make_unique<FaultyKernel>(*std::move(inner), spec.inputs[0].num_elements(),
                                              at_end);
      };
    }
    (void)faulty.Add(std::string(name), std::move(def));
  }
  return faulty;
}

int Main(int argc, char** argv) {
  actors::NodeOptions options;
  std::string rank;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--join") options.coordinator = argv[i + 1];
    if (name == "--rank") rank = argv[i + 1];
  }
  (void)absl::SimpleAtoi(rank, &options.rank);
  if (const char* key = std::getenv("PENSTOCK_KEY")) options.key = key;
  Do(FaultAt("FAULTY_NODE_START", rank));
  const kernels::KernelRegistry kernels = FaultyKernels(FaultAt("FAULTY_NODE_STOP", rank));
  const planner::PolicyRegistry policies = planner::BuiltinPolicies();
  options.kernels = &kernels;
  options.policies = &policies;
  return actors::RunNode(options).ok() ? 0 : 1;
}

}  // namespace
}  // namespace penstock::testing

int main(int argc, char** argv) { return penstock::testing::Main(argc, argv); }
