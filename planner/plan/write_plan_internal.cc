#include "planner/plan/write_plan_internal.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "planner/plan/folding_columns_internal.h"
#include "planner/plan/plan_columns_internal.h"

namespace penstock::planner::internal {
namespace {

class KernelWriter {
 public:
  absl::Status Add(const KernelPlan& kernel, StringWriter* strings, TileWriter* tiles) {
    ops_.push_back(strings->Add(kernel.op));
    accumulate_.push_back(kernel.accumulate ? 1 : 0);
    num_inputs_.push_back(RowCount(kernel.inputs.size()));
    num_outputs_.push_back(RowCount(kernel.outputs.size()));
    num_attributes_.push_back(RowCount(kernel.attributes.entries().size()));
    for (const TilePlan& tile : kernel.inputs) tiles->Add(tile);
    for (const TilePlan& tile : kernel.outputs) tiles->Add(tile);
    for (const auto& [name, value] : kernel.attributes.entries()) {
      names_.push_back(strings->Add(name));
      if (!AddValue(value, strings, 0)) {
        return absl::InvalidArgumentError(StrCat("attribute '", name, "' of a kernel '", kernel.op,
                                                 "' has lists in lists more than ",
                                                 kMaxAttributeDepth, " deep"));
      }
    }
    return absl::OkStatus();
  }

  void Write(schema::Kernels::Builder out) const {
    out.setOps(Pointer(ops_));
    out.setAccumulate(Pointer(accumulate_));
    out.setNumInputs(Pointer(num_inputs_));
    out.setNumOutputs(Pointer(num_outputs_));
    out.setNumAttributes(Pointer(num_attributes_));
    out.setAttributeNames(Pointer(names_));
    out.setAttributeKinds(Pointer(kinds_));
    out.setAttributeValues(Pointer(values_));
  }

 private:
  // False when the value is nested too deep.
  bool AddValue(const graph::AttrValue& value, StringWriter* strings, int depth) {
    if (const int64_t* integer = value.AsInt()) {
      Push(kInt, static_cast<uint64_t>(*integer));
    } else if (const double* real = value.AsDouble()) {
      Push(kDouble, std::bit_cast<uint64_t>(*real));
    } else if (const bool* boolean = value.AsBool()) {
      Push(kBool, *boolean ? 1 : 0);
    } else if (const std::string* text = value.AsString()) {
      Push(kString, strings->Add(*text));
    } else if (const DType* dtype = value.AsDType()) {
      Push(kDType, Code(*dtype));
    } else if (const graph::AttrValue::List* list = value.AsList()) {
      if (depth == kMaxAttributeDepth) return false;
      Push(kList, list->size());
      for (const graph::AttrValue& element : *list) {
        if (!AddValue(element, strings, depth + 1)) return false;
      }
    }
    return true;
  }
  void Push(AttributeKind kind, uint64_t value) {
    kinds_.push_back(kind);
    values_.push_back(value);
  }

  std::vector<uint32_t> ops_, num_inputs_, num_outputs_, num_attributes_, names_;
  std::vector<uint8_t> accumulate_, kinds_;
  std::vector<uint64_t> values_;
};

void WriteRegisters(const std::vector<RegisterPlan>& registers, schema::Registers::Builder out) {
  const uint32_t size = RowCount(registers.size());
  auto classes = out.initClasses(size);
  auto per_microbatch = out.initPerMicrobatch(size);
  auto slots = out.initSlots(size);
  auto offsets = out.initOffsets(size);
  auto slot_bytes = out.initSlotBytes(size);
  for (uint32_t i = 0; i < size; ++i) {
    const RegisterPlan& reg = registers[i];
    classes.set(i, Code(reg.register_class));
    per_microbatch.set(i, reg.per_microbatch ? 1 : 0);
    slots.set(i, reg.slots);
    offsets.set(i, reg.offset);
    slot_bytes.set(i, reg.slot_bytes);
  }
}

void WriteActors(const std::vector<ActorPlan>& actors, StringWriter* strings,
                 schema::Actors::Builder out) {
  const uint32_t size = RowCount(actors.size());
  size_t num_operands = 0;
  for (const ActorPlan& actor : actors) num_operands += actor.inputs.size() + actor.outputs.size();
  auto names = out.initNames(size);
  auto kinds = out.initKinds(size);
  auto kernels = out.initKernels(size);
  auto targets = out.initTargets(size);
  auto num_inputs = out.initNumInputs(size);
  auto num_outputs = out.initNumOutputs(size);
  auto workspace_offsets = out.initWorkspaceOffsets(size);
  auto workspace_bytes = out.initWorkspaceBytes(size);
  auto registers = out.initOperandRegisters(RowCount(num_operands));
  auto offsets = out.initOperandOffsets(RowCount(num_operands));
  uint32_t next = 0;
  for (uint32_t i = 0; i < size; ++i) {
    const ActorPlan& actor = actors[i];
    names.set(i, strings->Add(actor.name));
    kinds.set(i, Code(actor.kind));
    kernels.set(i, actor.kernel);
    targets.set(i, actor.target);
    num_inputs.set(i, RowCount(actor.inputs.size()));
    num_outputs.set(i, RowCount(actor.outputs.size()));
    workspace_offsets.set(i, actor.workspace_offset);
    workspace_bytes.set(i, actor.workspace_bytes);
    for (const auto* operands : {&actor.inputs, &actor.outputs}) {
      for (const OperandPlan& operand : *operands) {
        registers.set(next, operand.reg);
        offsets.set(next++, operand.offset);
      }
    }
  }
}

void WriteChannels(const std::vector<ChannelPlan>& channels, schema::Channels::Builder out) {
  const uint32_t size = RowCount(channels.size());
  auto producers = out.initProducers(size);
  auto consumers = out.initConsumers(size);
  auto registers = out.initRegisters(size);
  auto produce = out.initProduce(size);
  auto consume = out.initConsume(size);
  auto capacities = out.initCapacities(size);
  auto initial = out.initInitial(size);
  for (uint32_t i = 0; i < size; ++i) {
    const ChannelPlan& channel = channels[i];
    producers.set(i, channel.producer);
    consumers.set(i, channel.consumer);
    registers.set(i, channel.reg);
    produce.set(i, channel.produce);
    consume.set(i, channel.consume);
    capacities.set(i, channel.capacity);
    initial.set(i, channel.initial);
  }
}

void WritePhases(const std::vector<PhasePlan>& phases, StringWriter* strings,
                 schema::Phases::Builder out) {
  const uint32_t size = RowCount(phases.size());
  auto names = out.initNames(size);
  auto kinds = out.initKinds(size);
  auto lanes = out.initLanes(size);
  auto per_microbatch = out.initPerMicrobatch(size);
  auto first_actors = out.initFirstActors(size);
  auto num_actors = out.initNumActors(size);
  auto predicted = out.initPredictedSeconds(size);
  auto chunks = out.initChunks(size);
  for (uint32_t i = 0; i < size; ++i) {
    const PhasePlan& phase = phases[i];
    names.set(i, strings->Add(phase.name));
    kinds.set(i, Code(phase.kind));
    lanes.set(i, Code(phase.lane));
    per_microbatch.set(i, phase.per_microbatch ? 1 : 0);
    first_actors.set(i, phase.first_actor);
    num_actors.set(i, phase.num_actors);
    predicted.set(i, phase.predicted_s);
    chunks.set(i, phase.chunk);
  }
}

void WriteDevice(const DevicePlan& device, StringWriter* strings, schema::Device::Builder out) {
  out.setStage(device.stage);
  out.setArenaBytes(device.arena_bytes);
  out.setHostBytes(device.host_bytes);
  out.setStateBytes(device.state_bytes);
  out.setChannelBytes(device.channel_bytes);
  out.setWorkspaceBytes(device.workspace_bytes);
  WriteRegisters(device.registers, out.initRegisters());
  WriteActors(device.actors, strings, out.initActors());
  WriteChannels(device.channels, out.initChannels());
  WritePhases(device.phases, strings, out.initPhases());
}

void WriteStages(const std::vector<StagePlan>& stages, schema::Stages::Builder out) {
  std::vector<uint32_t> num_devices, devices, num_choices, microbatches, chunks;
  std::vector<uint8_t> kinds;
  for (const StagePlan& stage : stages) {
    num_devices.push_back(RowCount(stage.devices.size()));
    devices.insert(devices.end(), stage.devices.begin(), stage.devices.end());
    num_choices.push_back(RowCount(stage.order.size()));
    for (const PhaseChoice& choice : stage.order) {
      kinds.push_back(static_cast<uint8_t>(choice.kind));
      microbatches.push_back(static_cast<uint32_t>(choice.microbatch));
      chunks.push_back(static_cast<uint32_t>(choice.chunk));
    }
  }
  out.setNumDevices(Pointer(num_devices));
  out.setDevices(Pointer(devices));
  out.setNumChoices(Pointer(num_choices));
  out.setKinds(Pointer(kinds));
  out.setMicrobatches(Pointer(microbatches));
  out.setChunks(Pointer(chunks));
}

void WriteCollectives(const Plan& plan, schema::Collectives::Builder out) {
  const uint32_t size = RowCount(plan.collectives.size());
  auto kinds = out.initKinds(size);
  auto algorithms = out.initAlgorithms(size);
  auto reduces = out.initReduces(size);
  auto dtypes = out.initDtypes(size);
  auto channels = out.initChannels(size);
  auto roots = out.initRoots(size);
  auto chunk_bytes = out.initChunkBytes(size);
  auto per_microbatch = out.initPerMicrobatch(size);
  auto num_devices = out.initNumDevices(size);
  auto num_counts = out.initNumCounts(size);
  auto num_peers = out.initNumPeers(size);
  auto num_hosts = out.initNumHosts(size);
  auto num_tensors = out.initNumTensors(size);
  std::vector<uint32_t> devices, peers, hosts;
  std::vector<int64_t> counts, tensor_counts;
  for (uint32_t i = 0; i < size; ++i) {
    const CollectiveSpec& spec = plan.collectives[i];
    kinds.set(i, Code(spec.kind));
    algorithms.set(i, Code(spec.algorithm));
    reduces.set(i, Code(spec.reduce));
    dtypes.set(i, Code(spec.dtype));
    channels.set(i, spec.channel);
    roots.set(i, spec.root);
    chunk_bytes.set(i, spec.chunk_bytes);
    per_microbatch.set(i, plan.collective_per_microbatch[i] ? 1 : 0);
    num_devices.set(i, RowCount(spec.devices.size()));
    num_counts.set(i, RowCount(spec.counts.size()));
    num_peers.set(i, RowCount(spec.peers.size()));
    num_hosts.set(i, RowCount(spec.hosts.size()));
    num_tensors.set(i, RowCount(spec.tensors.size()));
    devices.insert(devices.end(), spec.devices.begin(), spec.devices.end());
    counts.insert(counts.end(), spec.counts.begin(), spec.counts.end());
    peers.insert(peers.end(), spec.peers.begin(), spec.peers.end());
    hosts.insert(hosts.end(), spec.hosts.begin(), spec.hosts.end());
    for (const std::vector<int64_t>& tensor : spec.tensors) {
      tensor_counts.insert(tensor_counts.end(), tensor.begin(), tensor.end());
    }
  }
  out.setDevices(Pointer(devices));
  out.setCounts(Pointer(counts));
  out.setPeers(Pointer(peers));
  out.setHosts(Pointer(hosts));
  out.setTensorCounts(Pointer(tensor_counts));
}

void WriteTransfers(const std::vector<TransferPlan>& transfers, schema::Transfers::Builder out) {
  const uint32_t size = RowCount(transfers.size());
  auto channels = out.initChannels(size);
  auto sources = out.initSources(size);
  auto destinations = out.initDestinations(size);
  auto num_bytes = out.initNumBytes(size);
  auto per_microbatch = out.initPerMicrobatch(size);
  for (uint32_t i = 0; i < size; ++i) {
    const TransferPlan& transfer = transfers[i];
    channels.set(i, transfer.channel);
    sources.set(i, transfer.source);
    destinations.set(i, transfer.destination);
    num_bytes.set(i, transfer.num_bytes);
    per_microbatch.set(i, transfer.per_microbatch ? 1 : 0);
  }
}

void WriteStates(const std::vector<StatePlan>& states, StringWriter* strings, TileWriter* tiles,
                 schema::States::Builder out) {
  const uint32_t size = RowCount(states.size());
  auto names = out.initNames(size);
  auto inits = out.initInits(size);
  auto stds = out.initStds(size);
  auto streams = out.initStreams(size);
  auto are_parameters = out.initAreParameters(size);
  auto num_placements = out.initNumPlacements(size);
  std::vector<uint32_t> devices, registers;
  for (uint32_t i = 0; i < size; ++i) {
    const StatePlan& state = states[i];
    names.set(i, strings->Add(state.name));
    inits.set(i, strings->Add(state.init));
    stds.set(i, state.std);
    streams.set(i, state.stream);
    are_parameters.set(i, state.is_parameter ? 1 : 0);
    num_placements.set(i, RowCount(state.placements.size()));
    for (const StatePlacement& placement : state.placements) {
      devices.push_back(placement.device);
      registers.push_back(placement.reg);
      tiles->Add(placement.tile);
    }
  }
  out.setPlacementDevices(Pointer(devices));
  out.setPlacementRegisters(Pointer(registers));
}

void WriteSettings(const std::vector<ProgramSetting>& settings, StringWriter* strings,
                   schema::Settings::Builder out) {
  const uint32_t size = RowCount(settings.size());
  auto names = out.initNames(size);
  auto values = out.initValues(size);
  for (uint32_t i = 0; i < size; ++i) {
    names.set(i, strings->Add(settings[i].name));
    values.set(i, strings->Add(settings[i].value));
  }
}

}  // namespace

absl::Status WriteMessage(const Plan& plan, const FoldedPlan* folded, schema::Plan::Builder out) {
  StringWriter strings;
  out.setName(strings.Add(plan.name));
  out.setStrategy(strings.Add(plan.strategy));
  out.setPolicy(strings.Add(plan.policy));
  out.setGraphFingerprint(plan.graph_fingerprint);
  WriteSettings(plan.settings, &strings, out.initSettings());
  out.setNumMicrobatches(plan.num_microbatches);
  out.setThreadsPerDevice(plan.threads_per_device);
  out.setNumChannels(plan.num_channels);
  out.setPredictedStepSeconds(plan.predicted_step_s);
  out.setPredictedPeakBytes(Pointer(plan.predicted_peak_bytes));

  auto devices = out.initDevices(RowCount(plan.devices.size()));
  for (uint32_t i = 0; i < devices.size(); ++i) WriteDevice(plan.devices[i], &strings, devices[i]);
  WriteStages(plan.stages, out.initStages());
  WriteCollectives(plan, out.initCollectives());
  WriteTransfers(plan.transfers, out.initTransfers());

  TileWriter tiles;
  KernelWriter kernels;
  for (const KernelPlan& kernel : plan.kernels) {
    RETURN_IF_ERROR(kernels.Add(kernel, &strings, &tiles));
  }
  kernels.Write(out.initKernels());
  WriteStates(plan.states, &strings, &tiles, out.initStates());
  tiles.Write(out.initTiles());

  TypeWriter types;
  auto feed_names = out.initFeedNames(RowCount(plan.feeds.size()));
  for (uint32_t i = 0; i < feed_names.size(); ++i) {
    feed_names.set(i, strings.Add(plan.feeds[i].name));
    types.Add(plan.feeds[i].type);
  }
  auto fetch_names = out.initFetches().initNames(RowCount(plan.fetches.size()));
  auto fetch_actors = out.getFetches().initNumActors(RowCount(plan.fetches.size()));
  for (uint32_t i = 0; i < fetch_names.size(); ++i) {
    fetch_names.set(i, strings.Add(plan.fetches[i].name));
    fetch_actors.set(i, plan.fetches[i].num_actors);
    types.Add(plan.fetches[i].type);
  }
  for (const StatePlan& state : plan.states) types.Add(state.type);
  types.Write(out.initTypes());
  if (folded != nullptr) WriteFolding(*folded, &strings, out.initFolding());
  return strings.Write(out.initStrings());
}

}  // namespace penstock::planner::internal
