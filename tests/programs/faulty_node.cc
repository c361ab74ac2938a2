// A node that an application's own main makes, and that comes to grief when told: its `neg` kernel
// does what the first element of its operand says, and the environment says what happens before it
// joins.
//
//   faulty_node --join ADDRESS --rank N
//   FAULTY_NODE_START=N:FAULT   rank N does FAULT instead of joining
//   FAULTY_NODE_STOP=N:FAULT    rank N does FAULT where the session is closed
//   FAULTY_NODE_MESSAGE=N:FAULT:M   rank N does FAULT as it posts message M, a send or a receive,
//                                   counted from 1 since its operand was Fault::kCount
//   FAULTY_NODE_WITHIN=N:FAULT:M    rank N does FAULT in the M-th Progress, counted likewise, of an
//                                   endpoint whose messages are under way
//   FAULTY_NODE_WAIT=N:FAULT    rank N does FAULT where its communication executor waits next, once
//                               its operand was Fault::kCount; Fault::kError ends that executor
//   FAULTY_NODE_SLOW=M:MS       one in M messages takes up to MS milliseconds longer
//   FAULTY_NODE_MARK=PATH       a file that is made just before
//   --devices KIND              emulated, or mixed: some are CPUs
//   PENSTOCK_TEST_PLUGIN=PATH   a plug-in whose kernels it has too (tests/support/tested_plugin.h)
//
// It knows the policies and the kernel of faulty_node.h too.

#include "tests/programs/faulty_node.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "actors/cluster/node.h"
#include "base/emulated_device.h"
#include "base/strings.h"
#include "kernels/emulated/emulated_kernels.h"
#include "kernels/kernel.h"
#include "penstock/load_plugin.h"
#include "penstock/registries.h"
#include "planner/policy/policy.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/test_policies.h"
#include "transport/transport.h"

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

// The numbers that a variable gives, separated by colons; empty where it is not set.
std::vector<int> NumbersIn(const char* variable) {
  const char* text = std::getenv(variable);
  std::vector<int> numbers;
  if (text == nullptr) return numbers;
  for (const absl::string_view part : absl::StrSplit(text, ':')) {
    if (!absl::SimpleAtoi(part, &numbers.emplace_back())) return {};
  }
  return numbers;
}

// What the variable says for this rank.
Fault FaultAt(const char* variable, int rank) {
  const std::vector<int> numbers = NumbersIn(variable);
  return numbers.size() >= 2 && numbers[0] == rank ? static_cast<Fault>(numbers[1]) : Fault::kNone;
}

// The messages of this process since an operand asked for them to be counted.
struct MessageCount {
  std::atomic<bool> is_counting = false;
  std::atomic<int> count = 0;
};

// One that does `fault` in Wait, and throws if that is kError, once messages are counted.
class FaultyWaitTransport final : public transport::Transport {
 public:
  FaultyWaitTransport(std::unique_ptr<transport::Transport> inner, Fault fault,
                      const MessageCount* messages)
      : inner_(std::move(inner)), fault_(fault), messages_(messages) {}

  std::string name() const override { return inner_->name(); }
  uint32_t num_devices() const override { return inner_->num_devices(); }
  absl::StatusOr<transport::Endpoint*> OpenEndpoint(uint32_t device) override {
    return inner_->OpenEndpoint(device);
  }
  absl::Status RegisterMemory(void* data, size_t num_bytes) override {
    return inner_->RegisterMemory(data, num_bytes);
  }
  void Hold(std::shared_ptr<const void> owner, uint64_t num_bytes) override {
    inner_->Hold(std::move(owner), num_bytes);
  }
  void Wait(int wakeup_fd, int timeout_ms) override {
    if (messages_->is_counting) {
      if (fault_ == Fault::kError) throw std::runtime_error("the network is down");
      Do(fault_);
    }
    inner_->Wait(wakeup_fd, timeout_ms);
  }
  transport::TransportStats stats() const override { return inner_->stats(); }

 private:
  const std::unique_ptr<transport::Transport> inner_;
  const Fault fault_;
  const MessageCount* const messages_;
};

class FaultyKernel : public kernels::Kernel {
 public:
  FaultyKernel(std::unique_ptr<kernels::Kernel> inner, int64_t num_elements, Fault at_end,
               MessageCount* messages)
      : inner_(std::move(inner)),
        num_elements_(num_elements),
        at_end_(at_end),
        messages_(messages) {}
  ~FaultyKernel() override { Do(at_end_); }

  absl::Status Run(const kernels::KernelArgs& args) override {
    if (num_elements_ > 0) {
      const float first = *static_cast<const float*>(args.inputs[0]);
      if (first == ToFeed(Fault::kError)) return absl::InternalError("told to fail");
      if (first == ToFeed(Fault::kCount)) messages_->is_counting = true;
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
  MessageCount* const messages_;
};

class SlowKernel : public kernels::Kernel {
 public:
  explicit SlowKernel(int64_t milliseconds) : milliseconds_(milliseconds) {}

  absl::Status Run(const kernels::KernelArgs& args) override {
    if (args.microbatch == 1) std::this_thread::sleep_for(milliseconds_);
    return absl::OkStatus();
  }

 private:
  const std::chrono::milliseconds milliseconds_;
};

// Runs the forwards of a stage in their order. Stage 1 begins once `num_awaited` are ready.
std::unique_ptr<planner::Policy> WaitingPolicy(std::string_view name, int num_awaited) {
  return std::make_unique<DynamicPolicy>(
      name,
      [num_awaited](const planner::StageContext& context,
                    const planner::StageView& view) -> std::optional<planner::PhaseChoice> {
        if (context.stage == 1 && view.chunks[0].issued[0] == 0 &&
            view.chunks[0].ready[0] < num_awaited) {
          return std::nullopt;
        }
        return planner::PhaseChoice{planner::PhaseKind::kForward, view.chunks[0].issued[0]};
      });
}

std::unique_ptr<planner::Policy> ChancePolicy() {
  const auto random = std::make_shared<std::mt19937>(getpid());
  return std::make_unique<DynamicPolicy>(
      kChancePolicy,
      [random](const planner::StageContext&,
               const planner::StageView& view) -> std::optional<planner::PhaseChoice> {
        const auto& ready = view.chunks[0].ready;
        if (ready[0] == 0 && ready[1] == 0) return std::nullopt;
        const int kind = ready[0] == 0 || (ready[1] > 0 && (*random)() % 2 == 0) ? 1 : 0;
        return planner::PhaseChoice{static_cast<planner::PhaseKind>(kind),
                                    view.chunks[0].issued[kind]};
      });
}

kernels::KernelRegistry FaultyKernels(const kernels::KernelRegistry& cpu, Fault at_end,
                                      MessageCount* messages) {
  kernels::KernelRegistry faulty;
  for (const std::string_view name : cpu.Names()) {
    kernels::KernelDef def = *cpu.Find(name);
    if (name == "neg") {
      def.create = [create = def.create, at_end, messages](
                       const graph::KernelSpec& spec, Device& device,
                       Stream& stream) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
        absl::StatusOr<std::unique_ptr<kernels::Kernel>> inner = create(spec, device, stream);
        if (!inner.ok()) return inner.status();
        return std::make_unique<FaultyKernel>(*std::move(inner), spec.inputs[0].num_elements(),
                                              at_end, messages);
      };
    }
    (void)faulty.Add(std::string(name), std::move(def));
  }
  kernels::KernelDef slow;
  slow.create = [](const graph::KernelSpec& spec, Device&,
                   Stream&) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
    return std::make_unique<SlowKernel>(spec.attributes.GetInt("milliseconds", 0));
  };
  (void)faulty.Add(kSlowKernel, std::move(slow));
  return faulty;
}

int Main(int argc, char** argv) {
  actors::NodeOptions options;
  std::string rank;
  std::string_view devices;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--join") options.coordinator = argv[i + 1];
    if (name == "--rank") rank = argv[i + 1];
    if (name == "--devices") devices = argv[i + 1];
  }
  (void)absl::SimpleAtoi(rank, &options.rank);
  MessageCount messages;
  if (const char* key = std::getenv("PENSTOCK_KEY")) options.key = key;
  Do(FaultAt("FAULTY_NODE_START", options.rank));
  Registries registries = BuiltinRegistries();
  if (const char* path = std::getenv("PENSTOCK_TEST_PLUGIN")) {
    if (const absl::Status loaded = LoadPlugin(path, registries); !loaded.ok()) {
      std::cerr << loaded.message() << std::endl;
      return 2;
    }
  }
  kernels::KernelRegistry kernels =
      FaultyKernels(registries.kernels, FaultAt("FAULTY_NODE_STOP", options.rank), &messages);
  FaultOptions faults;
  faults.max_delay = 0;
  faults.checks_sent_bytes = false;
  if (const std::vector<int> slow = NumbersIn("FAULTY_NODE_SLOW"); slow.size() == 2) {
    faults.slow_one_in = slow[0];
    faults.max_slow_time = std::chrono::milliseconds(slow[1]);
  }
  if (const Fault fault = FaultAt("FAULTY_NODE_MESSAGE", options.rank); fault != Fault::kNone) {
    faults.fail = [&messages, fault,
                   last = NumbersIn("FAULTY_NODE_MESSAGE").at(2)](const FaultOptions::Post&) {
      if (messages.is_counting && ++messages.count == last) Do(fault);
      return absl::OkStatus();
    };
  }
  if (const Fault fault = FaultAt("FAULTY_NODE_WITHIN", options.rank); fault != Fault::kNone) {
    faults.while_pending = [&messages, fault, last = NumbersIn("FAULTY_NODE_WITHIN").at(2)] {
      if (messages.is_counting && ++messages.count == last) Do(fault);
    };
  }
  if (faults.fail || faults.while_pending || faults.max_slow_time.count() > 0) {
    options.wrap_transport = [&faults](std::unique_ptr<transport::Transport> inner) {
      return CreateFaultyTransport(std::move(inner), faults);
    };
  }
  if (const Fault fault = FaultAt("FAULTY_NODE_WAIT", options.rank); fault != Fault::kNone) {
    options.wrap_transport = [&messages, fault](std::unique_ptr<transport::Transport> inner) {
      return std::make_unique<FaultyWaitTransport>(std::move(inner), fault, &messages);
    };
  }
  if (devices == "emulated" || devices == "mixed") {
    options.kernels_by_kind["emulated"] =
        std::make_shared<const kernels::KernelRegistry>(kernels::EmulatedKernels(kernels));
    // Mixed kinds have a pattern without a period.
    options.create_device =
        [is_mixed = devices == "mixed"](uint32_t index) -> absl::StatusOr<std::unique_ptr<Device>> {
      if (is_mixed && std::popcount(index) % 2 == 0) return nullptr;
      return EmulatedDevice::Create({.seed = index});
    };
  }
  planner::PolicyRegistry policies = planner::BuiltinPolicies();
  (void)policies.Add(WaitingPolicy(kSilentPolicy, 3));
  (void)policies.Add(WaitingPolicy(kPatientPolicy, 2));
  (void)policies.Add(ChancePolicy());
  options.kernels = &kernels;
  options.policies = &policies;
  return actors::RunNode(options).ok() ? 0 : 1;
}

}  // namespace
}  // namespace penstock::testing

int main(int argc, char** argv) { return penstock::testing::Main(argc, argv); }
