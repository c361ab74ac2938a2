#include "planner/plan/read_plan_internal.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "planner/plan/folding_columns_internal.h"
#include "planner/plan/plan_columns_internal.h"

namespace penstock::planner::internal {
namespace {

class KernelReader {
 public:
  KernelReader(schema::Kernels::Reader in, const StringReader& strings)
      : in_(in),
        names_(in.getAttributeNames()),
        kinds_(in.getAttributeKinds()),
        values_(in.getAttributeValues()),
        strings_(strings) {}

  absl::Status Read(TileReader* tiles, std::vector<KernelPlan>* kernels) {
    const auto ops = in_.getOps();
    const auto accumulate = in_.getAccumulate();
    const auto num_inputs = in_.getNumInputs();
    const auto num_outputs = in_.getNumOutputs();
    const auto num_attributes = in_.getNumAttributes();
    ASSIGN_OR_RETURN(const uint32_t size,
                     NumRows("kernels", {ops.size(), accumulate.size(), num_inputs.size(),
                                         num_outputs.size(), num_attributes.size()}));
    kernels->resize(size);
    for (uint32_t i = 0; i < size; ++i) {
      KernelPlan& kernel = (*kernels)[i];
      RETURN_IF_ERROR(strings_.Get("kernels", ops[i], &kernel.op));
      RETURN_IF_ERROR(ReadBool("kernels", accumulate[i], &kernel.accumulate));
      RETURN_IF_ERROR(ReadTiles(num_inputs[i], tiles, &kernel.inputs));
      RETURN_IF_ERROR(ReadTiles(num_outputs[i], tiles, &kernel.outputs));
      RETURN_IF_ERROR(ReadAttributes(num_attributes[i], &kernel.attributes));
    }
    if (names_.is_done() && kinds_.is_done() && values_.is_done()) return absl::OkStatus();
    return Malformed("kernels", "more attributes than kernels use");
  }

 private:
  static absl::Status ReadTiles(uint32_t count, TileReader* tiles, std::vector<TilePlan>* out) {
    if (!tiles->Has(count)) return Malformed("kernels", "more operands than there are tiles");
    out->resize(count);
    for (TilePlan& tile : *out) RETURN_IF_ERROR(tiles->Next(&tile));
    return absl::OkStatus();
  }

  absl::Status ReadAttributes(uint32_t count, graph::Attributes* attributes) {
    if (!names_.Has(count)) return Malformed("kernels", "too few attribute names");
    std::string previous;
    for (uint32_t i = 0; i < count; ++i) {
      std::string name;
      RETURN_IF_ERROR(strings_.Get("kernels", names_.Next(), &name));
      if (i > 0 && name <= previous) {
        return Malformed("kernels", StrCat("attribute '", name, "' is out of order"));
      }
      previous = name;
      graph::AttrValue value = false;
      RETURN_IF_ERROR(ReadValue(0, &value));
      attributes->Set(std::move(name), std::move(value));
    }
    return absl::OkStatus();
  }

  absl::Status ReadValue(int depth, graph::AttrValue* out) {
    if (!kinds_.Has(1) || !values_.Has(1)) return Malformed("kernels", "too few attribute values");
    const uint8_t kind = kinds_.Next();
    const uint64_t value = values_.Next();
    switch (kind) {
      case kInt:
        *out = static_cast<int64_t>(value);
        return absl::OkStatus();
      case kDouble:
        *out = std::bit_cast<double>(value);
        return absl::OkStatus();
      case kBool:
        if (value > 1) return Malformed("kernels", StrCat("a boolean attribute holds ", value));
        *out = value == 1;
        return absl::OkStatus();
      case kString: {
        std::string text;
        RETURN_IF_ERROR(strings_.Get("kernels", value, &text));
        *out = std::move(text);
        return absl::OkStatus();
      }
      case kDType:
        if (value >= kNumDTypes) return Malformed("kernels", StrCat("unknown dtype ", value));
        *out = static_cast<DType>(value);
        return absl::OkStatus();
      case kList: {
        if (depth == kMaxAttributeDepth) return Malformed("kernels", "an attribute is too deep");
        if (!kinds_.Has(value)) return Malformed("kernels", "too few attribute values");
        graph::AttrValue::List list(value, graph::AttrValue(false));
        for (graph::AttrValue& element : list) RETURN_IF_ERROR(ReadValue(depth + 1, &element));
        *out = std::move(list);
        return absl::OkStatus();
      }
    }
    return Malformed("kernels", StrCat("unknown kind of attribute ", kind));
  }

  schema::Kernels::Reader in_;
  Run<uint32_t> names_;
  Run<uint8_t> kinds_;
  Run<uint64_t> values_;
  const StringReader& strings_;
};

absl::Status ReadRegisters(schema::Registers::Reader in, std::vector<RegisterPlan>* registers) {
  const auto classes = in.getClasses();
  const auto per_microbatch = in.getPerMicrobatch();
  const auto slots = in.getSlots();
  const auto offsets = in.getOffsets();
  const auto slot_bytes = in.getSlotBytes();
  ASSIGN_OR_RETURN(const uint32_t size,
                   NumRows("registers", {classes.size(), per_microbatch.size(), slots.size(),
                                         offsets.size(), slot_bytes.size()}));
  registers->resize(size);
  for (uint32_t i = 0; i < size; ++i) {
    RegisterPlan& reg = (*registers)[i];
    RETURN_IF_ERROR(
        ReadEnum("registers", classes[i], RegisterClass::kWorkspace, &reg.register_class));
    RETURN_IF_ERROR(ReadBool("registers", per_microbatch[i], &reg.per_microbatch));
    reg.slots = slots[i];
    reg.offset = offsets[i];
    reg.slot_bytes = slot_bytes[i];
  }
  return absl::OkStatus();
}

absl::Status ReadActors(schema::Actors::Reader in, const StringReader& strings,
                        std::vector<ActorPlan>* actors) {
  const auto names = in.getNames();
  const auto kinds = in.getKinds();
  const auto kernels = in.getKernels();
  const auto targets = in.getTargets();
  const auto num_inputs = in.getNumInputs();
  const auto num_outputs = in.getNumOutputs();
  const auto workspace_offsets = in.getWorkspaceOffsets();
  const auto workspace_bytes = in.getWorkspaceBytes();
  Run<uint32_t> registers(in.getOperandRegisters());
  Run<uint64_t> offsets(in.getOperandOffsets());
  ASSIGN_OR_RETURN(const uint32_t size,
                   NumRows("actors", {names.size(), kinds.size(), kernels.size(), targets.size(),
                                      num_inputs.size(), num_outputs.size(),
                                      workspace_offsets.size(), workspace_bytes.size()}));
  const auto read_operands = [&](uint32_t count, std::vector<OperandPlan>* operands) {
    if (!registers.Has(count) || !offsets.Has(count)) return false;
    operands->resize(count);
    for (OperandPlan& operand : *operands) operand = {registers.Next(), offsets.Next()};
    return true;
  };
  actors->resize(size);
  for (uint32_t i = 0; i < size; ++i) {
    ActorPlan& actor = (*actors)[i];
    RETURN_IF_ERROR(strings.Get("actors", names[i], &actor.name));
    RETURN_IF_ERROR(ReadEnum("actors", kinds[i], ActorKind::kCopy, &actor.kind));
    actor.kernel = kernels[i];
    actor.target = targets[i];
    actor.workspace_offset = workspace_offsets[i];
    actor.workspace_bytes = workspace_bytes[i];
    if (!read_operands(num_inputs[i], &actor.inputs) ||
        !read_operands(num_outputs[i], &actor.outputs)) {
      return Malformed("actors", "too few operands");
    }
  }
  if (registers.is_done() && offsets.is_done()) return absl::OkStatus();
  return Malformed("actors", "more operands than actors use");
}

absl::Status ReadChannels(schema::Channels::Reader in, std::vector<ChannelPlan>* channels) {
  const auto producers = in.getProducers();
  const auto consumers = in.getConsumers();
  const auto registers = in.getRegisters();
  const auto produce = in.getProduce();
  const auto consume = in.getConsume();
  const auto capacities = in.getCapacities();
  const auto initial = in.getInitial();
  ASSIGN_OR_RETURN(
      const uint32_t size,
      NumRows("channels", {producers.size(), consumers.size(), registers.size(), produce.size(),
                           consume.size(), capacities.size(), initial.size()}));
  channels->resize(size);
  for (uint32_t i = 0; i < size; ++i) {
    (*channels)[i] = {.producer = producers[i],
                      .consumer = consumers[i],
                      .reg = registers[i],
                      .produce = produce[i],
                      .consume = consume[i],
                      .capacity = capacities[i],
                      .initial = initial[i]};
  }
  return absl::OkStatus();
}

absl::Status ReadPhases(schema::Phases::Reader in, const StringReader& strings,
                        std::vector<PhasePlan>* phases) {
  const auto names = in.getNames();
  const auto kinds = in.getKinds();
  const auto lanes = in.getLanes();
  const auto per_microbatch = in.getPerMicrobatch();
  const auto first_actors = in.getFirstActors();
  const auto num_actors = in.getNumActors();
  const auto predicted = in.getPredictedSeconds();
  const auto chunks = in.getChunks();
  ASSIGN_OR_RETURN(
      const uint32_t size,
      NumRows("phases", {names.size(), kinds.size(), lanes.size(), per_microbatch.size(),
                         first_actors.size(), num_actors.size(), predicted.size(), chunks.size()}));
  phases->resize(size);
  for (uint32_t i = 0; i < size; ++i) {
    PhasePlan& phase = (*phases)[i];
    RETURN_IF_ERROR(strings.Get("phases", names[i], &phase.name));
    RETURN_IF_ERROR(ReadEnum("phases", kinds[i], PhaseKind::kTransfer, &phase.kind));
    RETURN_IF_ERROR(ReadEnum("phases", lanes[i], Lane::kFloating, &phase.lane));
    RETURN_IF_ERROR(ReadBool("phases", per_microbatch[i], &phase.per_microbatch));
    phase.first_actor = first_actors[i];
    phase.num_actors = num_actors[i];
    phase.predicted_s = predicted[i];
    phase.chunk = chunks[i];
    if (phase.chunk >= kMaxChunks) return Malformed("phases", "a chunk out of range");
  }
  return absl::OkStatus();
}

absl::Status ReadDevice(schema::Device::Reader in, const StringReader& strings,
                        DevicePlan* device) {
  device->stage = in.getStage();
  device->arena_bytes = in.getArenaBytes();
  device->host_bytes = in.getHostBytes();
  device->state_bytes = in.getStateBytes();
  device->channel_bytes = in.getChannelBytes();
  device->workspace_bytes = in.getWorkspaceBytes();
  RETURN_IF_ERROR(ReadRegisters(in.getRegisters(), &device->registers));
  RETURN_IF_ERROR(ReadActors(in.getActors(), strings, &device->actors));
  RETURN_IF_ERROR(ReadChannels(in.getChannels(), &device->channels));
  return ReadPhases(in.getPhases(), strings, &device->phases);
}

absl::Status ReadStages(schema::Stages::Reader in, std::vector<StagePlan>* stages) {
  const auto num_devices = in.getNumDevices();
  Run<uint32_t> devices(in.getDevices());
  stages->resize(num_devices.size());
  for (uint32_t i = 0; i < num_devices.size(); ++i) {
    const uint32_t count = num_devices[i];
    if (!devices.Has(count)) return Malformed("stages", "too few devices");
    (*stages)[i].devices.resize(count);
    for (uint32_t& device : (*stages)[i].devices) device = devices.Next();
  }
  if (!devices.is_done()) return Malformed("stages", "too many devices");
  const auto num_choices = in.getNumChoices();
  Run<uint8_t> kinds(in.getKinds());
  Run<uint32_t> microbatches(in.getMicrobatches());
  Run<uint32_t> chunks(in.getChunks());
  RETURN_IF_ERROR(NumRows("stages", {num_devices.size(), num_choices.size()}).status());
  for (uint32_t i = 0; i < num_choices.size(); ++i) {
    const uint32_t count = num_choices[i];
    if (!kinds.Has(count) || !microbatches.Has(count) || !chunks.Has(count)) {
      return Malformed("stages", "too few phases");
    }
    (*stages)[i].order.resize(count);
    for (PhaseChoice& choice : (*stages)[i].order) {
      RETURN_IF_ERROR(ReadEnum("stages", kinds.Next(), PhaseKind::kWeight, &choice.kind));
      const uint32_t microbatch = microbatches.Next();
      if (microbatch >= kMaxMicrobatches) return Malformed("stages", "a micro-batch out of range");
      choice.microbatch = static_cast<int>(microbatch);
      const uint32_t chunk = chunks.Next();
      if (chunk >= kMaxChunks) return Malformed("stages", "a chunk out of range");
      choice.chunk = static_cast<int>(chunk);
    }
  }
  return kinds.is_done() && microbatches.is_done() && chunks.is_done()
             ? absl::OkStatus()
             : Malformed("stages", "too many phases");
}

absl::Status ReadCollectives(schema::Collectives::Reader in, Plan* plan) {
  const auto kinds = in.getKinds();
  const auto algorithms = in.getAlgorithms();
  const auto reduces = in.getReduces();
  const auto dtypes = in.getDtypes();
  const auto channels = in.getChannels();
  const auto roots = in.getRoots();
  const auto chunk_bytes = in.getChunkBytes();
  const auto per_microbatch = in.getPerMicrobatch();
  const auto num_devices = in.getNumDevices();
  const auto num_counts = in.getNumCounts();
  const auto num_peers = in.getNumPeers();
  const auto num_hosts = in.getNumHosts();
  const auto num_tensors = in.getNumTensors();
  Run<uint32_t> devices(in.getDevices());
  Run<int64_t> counts(in.getCounts());
  Run<uint32_t> peers(in.getPeers());
  Run<uint32_t> hosts(in.getHosts());
  Run<int64_t> tensor_counts(in.getTensorCounts());
  ASSIGN_OR_RETURN(
      const uint32_t size,
      NumRows("collectives",
              {kinds.size(), algorithms.size(), reduces.size(), dtypes.size(), channels.size(),
               roots.size(), chunk_bytes.size(), per_microbatch.size(), num_devices.size(),
               num_counts.size(), num_peers.size(), num_hosts.size(), num_tensors.size()}));
  const auto read_run = [](uint32_t count, auto* run, auto* values) {
    if (!run->Has(count)) return Malformed("collectives", "a run ends too soon");
    values->resize(count);
    for (auto& value : *values) value = run->Next();
    return absl::OkStatus();
  };
  plan->collectives.resize(size);
  plan->collective_per_microbatch.resize(size);
  for (uint32_t i = 0; i < size; ++i) {
    CollectiveSpec& spec = plan->collectives[i];
    RETURN_IF_ERROR(ReadEnum("collectives", kinds[i], CollectiveKind::kPermute, &spec.kind));
    RETURN_IF_ERROR(ReadEnum("collectives", algorithms[i], CollectiveAlgorithm::kHierarchical,
                             &spec.algorithm));
    RETURN_IF_ERROR(ReadEnum("collectives", reduces[i], ReduceOp::kProd, &spec.reduce));
    RETURN_IF_ERROR(ReadEnum("collectives", dtypes[i], kLastDType, &spec.dtype));
    bool is_per_microbatch = false;
    RETURN_IF_ERROR(ReadBool("collectives", per_microbatch[i], &is_per_microbatch));
    plan->collective_per_microbatch[i] = is_per_microbatch;
    spec.channel = channels[i];
    spec.root = roots[i];
    spec.chunk_bytes = chunk_bytes[i];
    RETURN_IF_ERROR(read_run(num_devices[i], &devices, &spec.devices));
    RETURN_IF_ERROR(read_run(num_counts[i], &counts, &spec.counts));
    RETURN_IF_ERROR(read_run(num_peers[i], &peers, &spec.peers));
    RETURN_IF_ERROR(read_run(num_hosts[i], &hosts, &spec.hosts));
    if (num_tensors[i] > 0 && num_counts[i] == 0) {
      return Malformed("collectives", "a collective has tensors, but no counts");
    }
    for (uint32_t t = 0; t < num_tensors[i]; ++t) {
      RETURN_IF_ERROR(read_run(num_counts[i], &tensor_counts, &spec.tensors.emplace_back()));
    }
  }
  if (devices.is_done() && counts.is_done() && peers.is_done() && hosts.is_done() &&
      tensor_counts.is_done()) {
    return absl::OkStatus();
  }
  return Malformed("collectives", "a run is longer than its counts say");
}

absl::Status ReadTransfers(schema::Transfers::Reader in, std::vector<TransferPlan>* transfers) {
  const auto channels = in.getChannels();
  const auto sources = in.getSources();
  const auto destinations = in.getDestinations();
  const auto num_bytes = in.getNumBytes();
  const auto per_microbatch = in.getPerMicrobatch();
  ASSIGN_OR_RETURN(const uint32_t size,
                   NumRows("transfers", {channels.size(), sources.size(), destinations.size(),
                                         num_bytes.size(), per_microbatch.size()}));
  transfers->resize(size);
  for (uint32_t i = 0; i < size; ++i) {
    TransferPlan& transfer = (*transfers)[i];
    transfer.channel = channels[i];
    transfer.source = sources[i];
    transfer.destination = destinations[i];
    transfer.num_bytes = num_bytes[i];
    RETURN_IF_ERROR(ReadBool("transfers", per_microbatch[i], &transfer.per_microbatch));
  }
  return absl::OkStatus();
}

absl::Status ReadStates(schema::States::Reader in, const StringReader& strings, TileReader* tiles,
                        TypeReader* types, std::vector<StatePlan>* states) {
  const auto names = in.getNames();
  const auto inits = in.getInits();
  const auto stds = in.getStds();
  const auto streams = in.getStreams();
  const auto are_parameters = in.getAreParameters();
  const auto num_placements = in.getNumPlacements();
  Run<uint32_t> devices(in.getPlacementDevices());
  Run<uint32_t> registers(in.getPlacementRegisters());
  ASSIGN_OR_RETURN(const uint32_t size,
                   NumRows("states", {names.size(), inits.size(), stds.size(), streams.size(),
                                      are_parameters.size(), num_placements.size()}));
  states->resize(size);
  for (uint32_t i = 0; i < size; ++i) {
    StatePlan& state = (*states)[i];
    RETURN_IF_ERROR(strings.Get("states", names[i], &state.name));
    RETURN_IF_ERROR(strings.Get("states", inits[i], &state.init));
    RETURN_IF_ERROR(ReadBool("states", are_parameters[i], &state.is_parameter));
    RETURN_IF_ERROR(types->Next(&state.type));
    state.std = stds[i];
    state.stream = streams[i];
    const uint32_t count = num_placements[i];
    if (!devices.Has(count) || !registers.Has(count)) {
      return Malformed("states", "too few placements");
    }
    state.placements.resize(count);
    for (StatePlacement& placement : state.placements) {
      placement.device = devices.Next();
      placement.reg = registers.Next();
      RETURN_IF_ERROR(tiles->Next(&placement.tile));
    }
  }
  if (devices.is_done() && registers.is_done()) return absl::OkStatus();
  return Malformed("states", "more placements than states use");
}

absl::Status ReadSettings(schema::Settings::Reader in, const StringReader& strings,
                          std::vector<ProgramSetting>* settings) {
  const auto names = in.getNames();
  const auto values = in.getValues();
  ASSIGN_OR_RETURN(const uint32_t size, NumRows("settings", {names.size(), values.size()}));
  settings->resize(size);
  for (uint32_t i = 0; i < size; ++i) {
    RETURN_IF_ERROR(strings.Get("settings", names[i], &(*settings)[i].name));
    RETURN_IF_ERROR(strings.Get("settings", values[i], &(*settings)[i].value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadMessage(schema::Plan::Reader in, Plan* plan, std::optional<FoldedPlan>* folded) {
  StringReader strings;
  RETURN_IF_ERROR(strings.Read(in.getStrings()));
  RETURN_IF_ERROR(strings.Get("plan", in.getName(), &plan->name));
  RETURN_IF_ERROR(strings.Get("plan", in.getStrategy(), &plan->strategy));
  RETURN_IF_ERROR(strings.Get("plan", in.getPolicy(), &plan->policy));
  plan->graph_fingerprint = in.getGraphFingerprint();
  RETURN_IF_ERROR(ReadSettings(in.getSettings(), strings, &plan->settings));
  plan->num_microbatches = in.getNumMicrobatches();
  plan->threads_per_device = in.getThreadsPerDevice();
  plan->num_channels = in.getNumChannels();
  plan->predicted_step_s = in.getPredictedStepSeconds();
  for (const uint64_t bytes : in.getPredictedPeakBytes()) {
    plan->predicted_peak_bytes.push_back(bytes);
  }

  const auto devices = in.getDevices();
  plan->devices.reserve(std::min<uint32_t>(devices.size(), 1 << 16));
  for (const auto device : devices) {
    RETURN_IF_ERROR(ReadDevice(device, strings, &plan->devices.emplace_back()));
  }
  RETURN_IF_ERROR(ReadStages(in.getStages(), &plan->stages));
  RETURN_IF_ERROR(ReadCollectives(in.getCollectives(), plan));
  RETURN_IF_ERROR(ReadTransfers(in.getTransfers(), &plan->transfers));

  TileReader tiles(in.getTiles());
  TypeReader types(in.getTypes());
  RETURN_IF_ERROR(KernelReader(in.getKernels(), strings).Read(&tiles, &plan->kernels));
  const auto feed_names = in.getFeedNames();
  for (uint32_t i = 0; i < feed_names.size(); ++i) {
    FeedPlan& feed = plan->feeds.emplace_back();
    RETURN_IF_ERROR(strings.Get("feeds", feed_names[i], &feed.name));
    RETURN_IF_ERROR(types.Next(&feed.type));
  }
  const auto fetch_names = in.getFetches().getNames();
  const auto fetch_actors = in.getFetches().getNumActors();
  RETURN_IF_ERROR(NumRows("fetches", {fetch_names.size(), fetch_actors.size()}).status());
  for (uint32_t i = 0; i < fetch_names.size(); ++i) {
    FetchPlan& fetch = plan->fetches.emplace_back();
    RETURN_IF_ERROR(strings.Get("fetches", fetch_names[i], &fetch.name));
    RETURN_IF_ERROR(types.Next(&fetch.type));
    fetch.num_actors = fetch_actors[i];
  }
  RETURN_IF_ERROR(ReadStates(in.getStates(), strings, &tiles, &types, &plan->states));
  RETURN_IF_ERROR(tiles.Finish());
  RETURN_IF_ERROR(types.Finish());
  // Not their number: a list counts as often as it is reached (ParsePayload in plan_io.cc).
  if (!in.getFolding().hasClasses()) return absl::OkStatus();
  ASSIGN_OR_RETURN(*folded, ReadFolding(in.getFolding(), strings, std::move(*plan)));
  return absl::OkStatus();
}

}  // namespace penstock::planner::internal
