// An application that embeds Penstock: a graph in the text format, split over two devices, with a
// scheduling policy of its own. `embed --procs` runs the same in two processes, each of which is
// this program.

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"

#include "penstock/penstock.h"

namespace {

// y = x w, its mean square, and a step of gradient descent by hand: w -= 0.1 dw.
constexpr std::string_view kGraph = R"(
mesh m = [d=2]
graph least_squares {
  %x = input : f32[8, 4] @[d, _]
  %w = parameter : f32[4, 2]
  %y = matmul(%x, %w) : f32[8, 2]
  %yy = mul(%y, %y) : f32[8, 2]
  %loss = reduce_mean(%yy) {axes=[0, 1]} : f32[]
  %dw = matmul(%x, %y) {transpose_a=true} : f32[4, 2]
  %rate = constant {value=0.0125} : f32[4, 2]
  %scaled = mul(%dw, %rate) : f32[4, 2]
  %next = sub(%w, %scaled) : f32[4, 2]
  assign(%w, %next)
  return %loss
}
)";

// All forwards, then all backwards.
class Simple : public penstock::planner::Policy {
 public:
  std::string_view name() const override { return "simple"; }
  std::vector<penstock::planner::PhaseChoice> PlannedOrder(
      const penstock::planner::StageContext& context) const override {
    std::vector<penstock::planner::PhaseChoice> order;
    for (const auto kind :
         {penstock::planner::PhaseKind::kForward, penstock::planner::PhaseKind::kBackward}) {
      if (!context.has(kind)) continue;
      for (int m = 0; m < context.num_microbatches; ++m) order.push_back({kind, m});
    }
    return order;
  }
};

absl::Status Train(const penstock::Registries& registries, penstock::actors::Cluster* cluster) {
  auto graph = penstock::graph::ParseGraph(kGraph, "least_squares", registries.ops);
  if (!graph.ok()) return graph.status();
  auto plan = penstock::CompileModel(registries, *std::move(graph), {.policy = "simple"});
  if (!plan.ok()) return plan.status();
  penstock::actors::SessionOptions options;
  if (cluster != nullptr) options.start_engine = cluster->engine_factory();
  auto session = penstock::StartSession(registries, *std::move(plan), options);
  if (!session.ok()) return session.status();

  penstock::Tensor x({penstock::DType::kF32, {8, 4}});
  for (int i = 0; i < 32; ++i) x.As<float>()[i] = static_cast<float>(i % 5) - 2;
  for (int step = 0; step < 10; ++step) {
    auto result = (*session)->Run({{"x", x}});
    if (!result.ok()) return result.status();
    std::cout << "step " << step + 1 << " loss " << result->Find("loss")->As<float>()[0] << "\n";
  }
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv) {
  penstock::Registries registries = penstock::BuiltinRegistries();
  const absl::Status added = registries.policies.Add(std::make_unique<Simple>());
  if (!added.ok()) return added;

  if (argc > 4 && std::string_view(argv[1]) == "--join") {  // started by the cluster below
    penstock::actors::NodeOptions node;
    node.coordinator = argv[2];
    if (!absl::SimpleAtoi(argv[4], &node.rank)) return absl::InvalidArgumentError("--rank");
    if (const char* key = std::getenv("PENSTOCK_KEY")) node.key = key;
    node.kernels = &registries.kernels;
    node.policies = &registries.policies;
    return penstock::actors::RunNode(node);
  }
  if (argc > 1 && std::string_view(argv[1]) == "--procs") {
    penstock::actors::ClusterOptions options;
    options.num_processes = 2;
    options.node_command = {"/proc/self/exe"};
    auto cluster = penstock::actors::Cluster::Start(options);
    if (!cluster.ok()) return cluster.status();
    return Train(registries, cluster->get());
  }
  return Train(registries, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  const absl::Status status = Run(argc, argv);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
