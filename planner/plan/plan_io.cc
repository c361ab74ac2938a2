#include "planner/plan/plan_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "capnp/message.h"
#include "capnp/serialize.h"
#include "kj/exception.h"
#include "kj/io.h"
#include <xxhash.h>

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/check_plan.h"
#include "planner/plan/plan.capnp.h"

namespace penstock::planner {
namespace {

constexpr uint32_t kFormatVersion = 3;
constexpr size_t kMaxStringBytes = 4096;  // a file cannot make a reader repeat long strings
constexpr int kMaxAttributeDepth = 8;

static_assert(std::endian::native == std::endian::little, "the header is written as it lies");

struct Header {
  std::array<char, 8> magic = {'P', 'S', 'T', 'K', 'P', 'L', 'A', 'N'};
  uint32_t version = kFormatVersion;
  uint32_t zero = 0;
  uint64_t payload_bytes = 0;
  uint64_t hash = 0;
};
static_assert(sizeof(Header) == 32 && std::is_trivially_copyable_v<Header>);

uint64_t HashOf(const Header& header, std::string_view payload) {
  return XXH64(payload.data(), payload.size(), XXH64(&header, offsetof(Header, hash), 0));
}

enum AttributeKind : uint8_t { kInt, kDouble, kBool, kString, kDType, kList };

// ---- Writing ------------------------------------------------------------------------------------

template <typename T>
kj::ArrayPtr<const T> Pointer(const std::vector<T>& values) {
  return kj::ArrayPtr<const T>(values.data(), values.size());
}

template <typename Enum>
uint8_t Code(Enum value) {
  return static_cast<uint8_t>(value);
}

uint32_t Count(size_t count) { return static_cast<uint32_t>(count); }

class StringWriter {
 public:
  uint32_t Add(std::string_view text) {
    if (text.size() > kMaxStringBytes && too_long_.empty()) too_long_ = text.substr(0, 64);
    const auto [it, is_new] = ids_.try_emplace(text, Count(ends_.size()));
    if (is_new) {
      text_.append(text);
      ends_.push_back(Count(text_.size()));
    }
    return it->second;
  }

  absl::Status Write(schema::Strings::Builder out) const {
    if (!too_long_.empty()) {
      return absl::InvalidArgumentError(
          StrCat("the string '", too_long_, "...' is longer than ", kMaxStringBytes, " bytes"));
    }
    out.setText(kj::ArrayPtr<const capnp::byte>(reinterpret_cast<const capnp::byte*>(text_.data()),
                                                text_.size()));
    out.setEnds(Pointer(ends_));
    return absl::OkStatus();
  }

 private:
  absl::flat_hash_map<std::string_view, uint32_t> ids_;  // the keys are the plan's own strings
  std::string text_;
  std::vector<uint32_t> ends_;
  std::string too_long_;
};

struct TypeWriter {
  std::vector<uint8_t> dtypes, ranks;
  std::vector<int64_t> extents;

  void Add(const TensorType& type) {
    dtypes.push_back(Code(type.dtype));
    ranks.push_back(static_cast<uint8_t>(type.shape.size()));
    extents.insert(extents.end(), type.shape.begin(), type.shape.end());
  }
  void Write(schema::Types::Builder out) const {
    out.setDtypes(Pointer(dtypes));
    out.setRanks(Pointer(ranks));
    out.setExtents(Pointer(extents));
  }
};

struct TileWriter {
  std::vector<uint8_t> dtypes, are_bound, ranks;
  std::vector<int64_t> extents;

  void Add(const TilePlan& tile) {
    dtypes.push_back(Code(tile.dtype));
    are_bound.push_back(tile.is_bound ? 1 : 0);
    for (const Shape* shape : {&tile.shape, &tile.global, &tile.offset, &tile.microbatch_stride}) {
      ranks.push_back(static_cast<uint8_t>(shape->size()));
      extents.insert(extents.end(), shape->begin(), shape->end());
    }
  }
  void Write(schema::Tiles::Builder out) const {
    out.setDtypes(Pointer(dtypes));
    out.setAreBound(Pointer(are_bound));
    out.setRanks(Pointer(ranks));
    out.setExtents(Pointer(extents));
  }
};

class KernelWriter {
 public:
  absl::Status Add(const KernelPlan& kernel, StringWriter* strings, TileWriter* tiles) {
    ops_.push_back(strings->Add(kernel.op));
    accumulate_.push_back(kernel.accumulate ? 1 : 0);
    num_inputs_.push_back(Count(kernel.inputs.size()));
    num_outputs_.push_back(Count(kernel.outputs.size()));
    num_attributes_.push_back(Count(kernel.attributes.entries().size()));
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
  const uint32_t size = Count(registers.size());
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
  const uint32_t size = Count(actors.size());
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
  auto registers = out.initOperandRegisters(Count(num_operands));
  auto offsets = out.initOperandOffsets(Count(num_operands));
  uint32_t next = 0;
  for (uint32_t i = 0; i < size; ++i) {
    const ActorPlan& actor = actors[i];
    names.set(i, strings->Add(actor.name));
    kinds.set(i, Code(actor.kind));
    kernels.set(i, actor.kernel);
    targets.set(i, actor.target);
    num_inputs.set(i, Count(actor.inputs.size()));
    num_outputs.set(i, Count(actor.outputs.size()));
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
  const uint32_t size = Count(channels.size());
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
  const uint32_t size = Count(phases.size());
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
    num_devices.push_back(Count(stage.devices.size()));
    devices.insert(devices.end(), stage.devices.begin(), stage.devices.end());
    num_choices.push_back(Count(stage.order.size()));
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
  const uint32_t size = Count(plan.collectives.size());
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
  std::vector<uint32_t> devices, peers, hosts;
  std::vector<int64_t> counts;
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
    num_devices.set(i, Count(spec.devices.size()));
    num_counts.set(i, Count(spec.counts.size()));
    num_peers.set(i, Count(spec.peers.size()));
    num_hosts.set(i, Count(spec.hosts.size()));
    devices.insert(devices.end(), spec.devices.begin(), spec.devices.end());
    counts.insert(counts.end(), spec.counts.begin(), spec.counts.end());
    peers.insert(peers.end(), spec.peers.begin(), spec.peers.end());
    hosts.insert(hosts.end(), spec.hosts.begin(), spec.hosts.end());
  }
  out.setDevices(Pointer(devices));
  out.setCounts(Pointer(counts));
  out.setPeers(Pointer(peers));
  out.setHosts(Pointer(hosts));
}

void WriteTransfers(const std::vector<TransferPlan>& transfers, schema::Transfers::Builder out) {
  const uint32_t size = Count(transfers.size());
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
  const uint32_t size = Count(states.size());
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
    num_placements.set(i, Count(state.placements.size()));
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
  const uint32_t size = Count(settings.size());
  auto names = out.initNames(size);
  auto values = out.initValues(size);
  for (uint32_t i = 0; i < size; ++i) {
    names.set(i, strings->Add(settings[i].name));
    values.set(i, strings->Add(settings[i].value));
  }
}

absl::Status WriteMessage(const Plan& plan, schema::Plan::Builder out) {
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

  auto devices = out.initDevices(Count(plan.devices.size()));
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
  auto feed_names = out.initFeedNames(Count(plan.feeds.size()));
  for (uint32_t i = 0; i < feed_names.size(); ++i) {
    feed_names.set(i, strings.Add(plan.feeds[i].name));
    types.Add(plan.feeds[i].type);
  }
  auto fetch_names = out.initFetches().initNames(Count(plan.fetches.size()));
  auto fetch_actors = out.getFetches().initNumActors(Count(plan.fetches.size()));
  for (uint32_t i = 0; i < fetch_names.size(); ++i) {
    fetch_names.set(i, strings.Add(plan.fetches[i].name));
    fetch_actors.set(i, plan.fetches[i].num_actors);
    types.Add(plan.fetches[i].type);
  }
  for (const StatePlan& state : plan.states) types.Add(state.type);
  types.Write(out.initTypes());
  return strings.Write(out.initStrings());
}

// ---- Reading ------------------------------------------------------------------------------------

// A column that is read from its beginning to its end.
template <typename T>
class Run {
 public:
  explicit Run(typename capnp::List<T>::Reader values) : values_(values) {}
  bool Has(uint64_t count) const { return count <= values_.size() - next_; }
  bool is_done() const { return next_ == values_.size(); }
  T Next() { return values_[next_++]; }  // REQUIRES: Has(1).

 private:
  typename capnp::List<T>::Reader values_;
  uint32_t next_ = 0;
};

absl::Status Malformed(std::string_view table, std::string_view what) {
  return absl::DataLossError(StrCat("table ", table, ": ", what));
}

// One length for all columns of a table.
absl::StatusOr<uint32_t> NumRows(std::string_view table, std::initializer_list<uint32_t> sizes) {
  for (const uint32_t size : sizes) {
    if (size != *sizes.begin()) {
      return Malformed(table,
                       StrCat("a column has ", size, " rows, the first has ", *sizes.begin()));
    }
  }
  return *sizes.begin();
}

template <typename Enum>
absl::Status ReadEnum(std::string_view table, uint8_t code, Enum last, Enum* value) {
  if (code > Code(last)) {
    return Malformed(table, StrCat("unknown code ", code, " where the last is ", Code(last)));
  }
  *value = static_cast<Enum>(code);
  return absl::OkStatus();
}

absl::Status ReadBool(std::string_view table, uint8_t code, bool* value) {
  if (code > 1) return Malformed(table, StrCat("a yes-or-no column holds ", code));
  *value = code == 1;
  return absl::OkStatus();
}

constexpr DType kLastDType = static_cast<DType>(kNumDTypes - 1);

class StringReader {
 public:
  absl::Status Read(schema::Strings::Reader in) {
    const auto text = in.getText();
    const auto ends = in.getEnds();
    uint32_t begin = 0;
    strings_.reserve(ends.size());
    for (const uint32_t end : ends) {
      if (end < begin || end > text.size() || end - begin > kMaxStringBytes) {
        return Malformed("strings", StrCat("string ", strings_.size(), " is from ", begin, " to ",
                                           end, " of ", text.size(), " bytes"));
      }
      strings_.emplace_back(reinterpret_cast<const char*>(text.begin()) + begin, end - begin);
      begin = end;
    }
    return absl::OkStatus();
  }

  absl::Status Get(std::string_view table, uint64_t index, std::string* text) const {
    if (index >= strings_.size()) {
      return Malformed(table, StrCat("names string ", index, " of ", strings_.size()));
    }
    text->assign(strings_[index]);
    return absl::OkStatus();
  }

 private:
  std::vector<std::string_view> strings_;
};

absl::Status ReadShape(std::string_view table, Run<uint8_t>* ranks, Run<int64_t>* extents,
                       Shape* shape) {
  if (!ranks->Has(1)) return Malformed(table, "too few ranks");
  const int rank = ranks->Next();
  if (rank > kMaxRank) {
    return Malformed(table, StrCat("rank ", rank, " is above the limit of ", kMaxRank));
  }
  if (!extents->Has(rank)) return Malformed(table, "too few extents");
  shape->reserve(rank);
  for (int i = 0; i < rank; ++i) shape->push_back(extents->Next());
  return absl::OkStatus();
}

class TypeReader {
 public:
  explicit TypeReader(schema::Types::Reader in)
      : dtypes_(in.getDtypes()), ranks_(in.getRanks()), extents_(in.getExtents()) {}

  absl::Status Next(TensorType* type) {
    if (!dtypes_.Has(1)) return Malformed("types", "too few rows");
    RETURN_IF_ERROR(ReadEnum("types", dtypes_.Next(), kLastDType, &type->dtype));
    return ReadShape("types", &ranks_, &extents_, &type->shape);
  }
  absl::Status Finish() const {
    if (dtypes_.is_done() && ranks_.is_done() && extents_.is_done()) return absl::OkStatus();
    return Malformed("types", "more entries than feeds, fetches and states use");
  }

 private:
  Run<uint8_t> dtypes_, ranks_;
  Run<int64_t> extents_;
};

class TileReader {
 public:
  explicit TileReader(schema::Tiles::Reader in)
      : dtypes_(in.getDtypes()),
        are_bound_(in.getAreBound()),
        ranks_(in.getRanks()),
        extents_(in.getExtents()) {}

  bool Has(uint64_t count) const { return dtypes_.Has(count) && are_bound_.Has(count); }
  absl::Status Next(TilePlan* tile) {
    if (!Has(1)) return Malformed("tiles", "too few rows");
    RETURN_IF_ERROR(ReadEnum("tiles", dtypes_.Next(), kLastDType, &tile->dtype));
    RETURN_IF_ERROR(ReadBool("tiles", are_bound_.Next(), &tile->is_bound));
    RETURN_IF_ERROR(ReadShape("tiles", &ranks_, &extents_, &tile->shape));
    RETURN_IF_ERROR(ReadShape("tiles", &ranks_, &extents_, &tile->global));
    RETURN_IF_ERROR(ReadShape("tiles", &ranks_, &extents_, &tile->offset));
    return ReadShape("tiles", &ranks_, &extents_, &tile->microbatch_stride);
  }
  absl::Status Finish() const {
    if (dtypes_.is_done() && are_bound_.is_done() && ranks_.is_done() && extents_.is_done()) {
      return absl::OkStatus();
    }
    return Malformed("tiles", "more entries than kernels and states use");
  }

 private:
  Run<uint8_t> dtypes_, are_bound_, ranks_;
  Run<int64_t> extents_;
};

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
    RETURN_IF_ERROR(ReadEnum("actors", kinds[i], ActorKind::kRecv, &actor.kind));
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
  Run<uint32_t> devices(in.getDevices());
  Run<int64_t> counts(in.getCounts());
  Run<uint32_t> peers(in.getPeers());
  Run<uint32_t> hosts(in.getHosts());
  ASSIGN_OR_RETURN(
      const uint32_t size,
      NumRows("collectives",
              {kinds.size(), algorithms.size(), reduces.size(), dtypes.size(), channels.size(),
               roots.size(), chunk_bytes.size(), per_microbatch.size(), num_devices.size(),
               num_counts.size(), num_peers.size(), num_hosts.size()}));
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
  }
  if (devices.is_done() && counts.is_done() && peers.is_done() && hosts.is_done()) {
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

absl::Status ReadMessage(schema::Plan::Reader in, Plan* plan) {
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
  return types.Finish();
}

std::string Text(const kj::Exception& exception) { return exception.getDescription().cStr(); }

// REQUIRES: `words` lies at an address that is a multiple of 8.
absl::StatusOr<Plan> PlanFromPayload(kj::ArrayPtr<const capnp::word> words) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = words.size() + 1024;  // nothing is reached twice
  options.nestingLimit = 8;
  Plan plan;
  try {
    capnp::FlatArrayMessageReader reader(words, options);
    if (reader.getEnd() != words.end()) {
      return absl::DataLossError(
          StrCat(words.end() - reader.getEnd(), " words follow the message"));
    }
    RETURN_IF_ERROR(ReadMessage(reader.getRoot<schema::Plan>(), &plan));
  } catch (const kj::Exception& exception) {
    return absl::DataLossError(StrCat("malformed message: ", Text(exception)));
  }
  if (absl::Status status = CheckReferences(plan); !status.ok()) {
    return absl::DataLossError(StrCat("malformed plan: ", ToStd(status.message())));
  }
  return plan;
}

// ---- Files --------------------------------------------------------------------------------------

absl::Status SystemError(int error, std::string_view action, const std::string& path) {
  return absl::ErrnoToStatus(error, StrCat("cannot ", action, " ", path));
}

// A file descriptor, closed with the object.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }
  // Closes now; errno says why it failed.
  bool Close() { return close(std::exchange(descriptor_, -1)) == 0; }

 private:
  int descriptor_;
};

bool WriteAll(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(written);
  }
  return true;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.descriptor() < 0) return SystemError(errno, "open", path);
  struct stat info = {};
  if (fstat(file.descriptor(), &info) != 0) return SystemError(errno, "read", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(StrCat("cannot read ", path, ": not a regular file"));
  }
  std::string bytes(info.st_size, '\0');
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t count = read(file.descriptor(), bytes.data() + size, bytes.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError(errno, "read", path);
    if (count == 0) break;
    size += count;
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace

absl::StatusOr<std::string> PlanToBytes(const Plan& plan) {
  RETURN_IF_ERROR(CheckReferences(plan));
  try {
    capnp::MallocMessageBuilder message;
    RETURN_IF_ERROR(WriteMessage(plan, message.initRoot<schema::Plan>()));
    Header header;
    header.payload_bytes = capnp::computeSerializedSizeInWords(message) * sizeof(capnp::word);
    std::string bytes(sizeof(Header) + header.payload_bytes, '\0');
    kj::ArrayOutputStream stream(kj::ArrayPtr<kj::byte>(
        reinterpret_cast<kj::byte*>(bytes.data()) + sizeof(Header), header.payload_bytes));
    capnp::writeMessage(stream, message);
    header.hash = HashOf(header, std::string_view(bytes).substr(sizeof(Header)));
    std::memcpy(bytes.data(), &header, sizeof(Header));
    return bytes;
  } catch (const kj::Exception& exception) {
    return absl::ResourceExhaustedError(
        StrCat("the plan is too big for the format: ", Text(exception)));
  }
}

absl::StatusOr<Plan> PlanFromBytes(std::string_view bytes) {
  if (bytes.size() < sizeof(Header)) {
    return absl::DataLossError(
        StrCat("truncated: ", bytes.size(), " bytes, the header has ", sizeof(Header)));
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.magic != Header().magic)
    return absl::DataLossError(
        "not a compiled plan, as `penstock plan` writes: wrong magic number");
  const std::string_view payload = bytes.substr(sizeof(Header));
  if (payload.size() < header.payload_bytes) {
    return absl::DataLossError(StrCat("truncated: ", payload.size(), " bytes of payload, expected ",
                                      header.payload_bytes));
  }
  if (payload.size() > header.payload_bytes) {
    return absl::DataLossError(StrCat(payload.size() - header.payload_bytes,
                                      " bytes too many: the header speaks of ",
                                      header.payload_bytes, " bytes of payload"));
  }
  if (HashOf(header, payload) != header.hash) {
    return absl::DataLossError("the contents do not match their hash: the file was damaged");
  }
  if (header.version != kFormatVersion) {
    return absl::FailedPreconditionError(StrCat("written in format version ", header.version,
                                                "; this program reads version ", kFormatVersion));
  }
  if (header.zero != 0 || payload.size() % sizeof(capnp::word) != 0) {
    return absl::DataLossError("malformed header");
  }
  const size_t num_words = payload.size() / sizeof(capnp::word);
  if (reinterpret_cast<uintptr_t>(payload.data()) % sizeof(capnp::word) == 0) {
    return PlanFromPayload({reinterpret_cast<const capnp::word*>(payload.data()), num_words});
  }
  auto words = std::make_unique<capnp::word[]>(num_words);
  std::memcpy(words.get(), payload.data(), payload.size());
  return PlanFromPayload({words.get(), num_words});
}

absl::Status WritePlan(const Plan& plan, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, PlanToBytes(plan));
  std::string temporary = path + ".XXXXXX";
  File file(mkostemp(temporary.data(), O_CLOEXEC));
  if (file.descriptor() < 0) return SystemError(errno, "create a file beside", path);
  // mkostemp makes files that only their owner can read; a plan is as readable as other results.
  if (WriteAll(file.descriptor(), bytes) && fchmod(file.descriptor(), 0644) == 0 &&
      fsync(file.descriptor()) == 0 && file.Close() &&
      rename(temporary.c_str(), path.c_str()) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  unlink(temporary.c_str());
  return SystemError(error, "write", path);
}

absl::StatusOr<Plan> ReadPlan(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  absl::StatusOr<Plan> plan = PlanFromBytes(bytes);
  if (plan.ok()) return plan;
  return absl::Status(plan.status().code(), StrCat(path, ": ", ToStd(plan.status().message())));
}

}  // namespace penstock::planner
