#include "tests/support/interpreter.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"

namespace penstock::testing {
namespace {

// On one device these are the identity, and no device has kernels for them.
bool MovesDataOnly(std::string_view op) {
  return op == "reshard" || op == "all_gather" || op == "all_to_all" || op == "permute" ||
         op == "halo_exchange" || op == "all_reduce" || op == "reduce_scatter";
}

}  // namespace

kernels::TileDesc WholeTile(const TensorType& type) {
  kernels::TileDesc tile;
  tile.dtype = type.dtype;
  tile.shape = type.shape;
  tile.global = type.shape;
  tile.offset.assign(type.shape.size(), 0);
  tile.microbatch_stride.assign(type.shape.size(), 0);
  return tile;
}

absl::StatusOr<std::vector<Tensor>> RunKernel(const kernels::KernelRegistry& kernels,
                                              Device& device, const kernels::KernelSpec& spec,
                                              absl::Span<const Tensor> inputs,
                                              const InterpretOptions& options) {
  const kernels::KernelDef* def = kernels.Find(spec.op);
  if (def == nullptr) return absl::NotFoundError(StrCat("there is no kernel for ", spec.op));
  const std::unique_ptr<Stream> stream = device.CreateStream();
  ASSIGN_OR_RETURN(std::unique_ptr<kernels::Kernel> kernel, def->create(spec, device, *stream));
  size_t workspace_bytes = 0;
  if (def->workspace_bytes != nullptr) {
    workspace_bytes = def->workspace_bytes(spec, device.thread_pool()->size());
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Memory> workspace,
                   device.Allocate(workspace_bytes, MemoryKind::kDevice));
  std::vector<Tensor> outputs;
  std::vector<void*> input_data;
  std::vector<void*> output_data;
  for (const Tensor& input : inputs) input_data.push_back(const_cast<void*>(input.data()));
  for (const kernels::TileDesc& tile : spec.outputs) {
    outputs.emplace_back(TensorType{tile.dtype, tile.shape});
    output_data.push_back(outputs.back().data());
  }
  RETURN_IF_ERROR(kernel->Run({.inputs = input_data,
                               .outputs = output_data,
                               .workspace = workspace->data(),
                               .seed = options.seed,
                               .step = options.step}));
  return outputs;
}

absl::StatusOr<Interpretation> InterpretStep(const graph::Graph& graph,
                                             const kernels::KernelRegistry& kernels,
                                             const std::map<std::string, Tensor>& feeds,
                                             const InterpretOptions& options) {
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  std::vector<Tensor> values(graph.num_values());
  Interpretation result;
  for (const graph::Node& node : graph.nodes()) {
    if (node.op->has_declared_type()) {
      const graph::Value& value = graph.value(node.results[0]);
      const auto feed = feeds.find(value.name);
      if (feed == feeds.end()) {
        return absl::NotFoundError(StrCat("nothing is fed to %", value.name));
      }
      if (feed->second.type() != value.type) {
        return absl::InvalidArgumentError(StrCat("%", value.name, " is ", ToString(value.type),
                                                 ", fed with ", ToString(feed->second.type())));
      }
      values[node.results[0]] = feed->second;
      continue;
    }
    if (node.op->name() == "assign") {
      result.assigned[graph.value(node.operands[0]).name] = values[node.operands[1]];
      continue;
    }
    // A permute that rolls is what its roll was.
    const bool rolls = node.op->name() == "permute" && node.attributes.Find("shift") != nullptr;
    if (MovesDataOnly(node.op->name()) && !rolls) {
      values[node.results[0]] = values[node.operands[0]];
      continue;
    }
    kernels::KernelSpec spec;
    spec.op = rolls ? "roll" : std::string(node.op->name());
    spec.attributes = node.attributes;
    std::vector<Tensor> inputs;
    for (graph::ValueId operand : node.operands) {
      inputs.push_back(values[operand]);
      spec.inputs.push_back(WholeTile(graph.value(operand).type));
    }
    for (graph::ValueId value : node.results) {
      spec.outputs.push_back(WholeTile(graph.value(value).type));
    }
    ASSIGN_OR_RETURN(std::vector<Tensor> outputs,
                     RunKernel(kernels, *device, spec, inputs, options));
    for (size_t i = 0; i < outputs.size(); ++i) values[node.results[i]] = std::move(outputs[i]);
  }
  for (const graph::Return& returned : graph.returns()) {
    result.returns.push_back(values[returned.value]);
  }
  return result;
}

absl::StatusOr<std::vector<Tensor>> Interpret(const graph::Graph& graph,
                                              const kernels::KernelRegistry& kernels,
                                              const std::map<std::string, Tensor>& feeds,
                                              const InterpretOptions& options) {
  ASSIGN_OR_RETURN(Interpretation result, InterpretStep(graph, kernels, feeds, options));
  return std::move(result.returns);
}

}  // namespace penstock::testing
