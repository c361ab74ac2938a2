#include "planner/plan/folding_columns_internal.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "planner/plan/check_folded_plan.h"

namespace penstock::planner::internal {
namespace {

using graph::AxisRef;

constexpr std::string_view kTable = "folding";

struct PieceWriter {
  std::vector<uint32_t> axes;
  std::vector<int64_t> pres, sizes;

  uint32_t Add(const std::vector<AxisRef>& pieces) {
    for (const AxisRef& piece : pieces) {
      axes.push_back(static_cast<uint32_t>(piece.axis));
      pres.push_back(piece.pre);
      sizes.push_back(piece.size);
    }
    return RowCount(pieces.size());
  }
};

class PieceReader {
 public:
  explicit PieceReader(schema::Folding::Reader in)
      : axes_(in.getPieceAxes()), pres_(in.getPiecePres()), sizes_(in.getPieceSizes()) {}

  absl::Status Next(uint32_t count, std::vector<AxisRef>* pieces) {
    if (!axes_.Has(count) || !pres_.Has(count) || !sizes_.Has(count)) {
      return Malformed(kTable, "too few pieces of axes");
    }
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t axis = axes_.Next();
      if (axis >= kMaxMeshAxes) return Malformed(kTable, StrCat("a piece of axis ", axis));
      pieces->push_back({static_cast<int>(axis), pres_.Next(), sizes_.Next()});
    }
    return absl::OkStatus();
  }
  bool is_done() const { return axes_.is_done() && pres_.is_done() && sizes_.is_done(); }

 private:
  Run<uint32_t> axes_;
  Run<int64_t> pres_, sizes_;
};

absl::Status ReadMesh(schema::Folding::Reader in, const StringReader& strings, graph::Mesh* mesh) {
  const auto names = in.getAxisNames();
  const auto sizes = in.getAxisSizes();
  const auto are_temporal = in.getAxesAreTemporal();
  ASSIGN_OR_RETURN(const uint32_t count,
                   NumRows(kTable, {names.size(), sizes.size(), are_temporal.size()}));
  if (count > kMaxMeshAxes) return Malformed(kTable, StrCat("a mesh of ", count, " axes"));
  RETURN_IF_ERROR(strings.Get(kTable, in.getMeshName(), &mesh->name));
  for (uint32_t i = 0; i < count; ++i) {
    graph::MeshAxis& axis = mesh->axes.emplace_back();
    RETURN_IF_ERROR(strings.Get(kTable, names[i], &axis.name));
    RETURN_IF_ERROR(ReadBool(kTable, are_temporal[i], &axis.is_temporal));
    axis.size = sizes[i];
  }
  return absl::OkStatus();
}

absl::Status ReadCollectives(schema::Folding::Reader in, PieceReader* pieces, Plan* stored,
                             FoldedPlan* folded) {
  const auto stages = in.getCollectiveStages();
  const auto rows = in.getCollectiveRows();
  const auto num_pieces = in.getCollectivePieces();
  ASSIGN_OR_RETURN(const uint32_t size,
                   NumRows(kTable, {stages.size(), rows.size(), num_pieces.size()}));
  size_t next = 0;
  for (uint32_t i = 0; i < size; ++i) {
    if (rows[i] == 0 || rows[i] > stored->collectives.size() - next) {
      return Malformed(kTable, StrCat("collective ", i, " has ", rows[i], " rows"));
    }
    FoldedCollective& collective = folded->collectives.emplace_back();
    collective.stage = stages[i];
    collective.per_microbatch = stored->collective_per_microbatch[next];
    collective.first_channel = stored->collectives[next].channel;
    for (uint32_t r = 0; r < rows[i]; ++r) {
      CollectiveSpec& spec = collective.specs.emplace_back(std::move(stored->collectives[next++]));
      if (!spec.devices.empty()) return Malformed(kTable, "a collective lists devices");
      spec.channel = 0;
    }
    RETURN_IF_ERROR(pieces->Next(num_pieces[i], &collective.axes));
  }
  if (next != stored->collectives.size()) return Malformed(kTable, "too many collectives");
  return absl::OkStatus();
}

absl::Status ReadTransfers(schema::Folding::Reader in, const Plan& stored, FoldedPlan* folded) {
  const auto shardings = in.getTransferShardings();
  TypeReader types(in.getTransferTypes());
  if (shardings.size() != stored.transfers.size()) {
    return Malformed(kTable, "transfers and their shardings differ in number");
  }
  for (uint32_t i = 0; i < shardings.size(); ++i) {
    const TransferPlan& row = stored.transfers[i];
    FoldedTransfer& transfer = folded->transfers.emplace_back();
    transfer.source_stage = row.source;
    transfer.destination_stage = row.destination;
    transfer.per_microbatch = row.per_microbatch;
    transfer.first_channel = row.channel;
    transfer.sharding = shardings[i];
    RETURN_IF_ERROR(types.Next(&transfer.type));
  }
  return types.Finish();
}

absl::Status ReadStates(schema::Folding::Reader in, FoldedPlan* folded) {
  const auto stages = in.getStateStages();
  const auto shardings = in.getStateShardings();
  Run<uint32_t> registers(in.getStateRegisters());
  ASSIGN_OR_RETURN(const uint32_t size, NumRows(kTable, {stages.size(), shardings.size()}));
  const uint32_t num_classes = folded->num_classes();
  for (uint32_t i = 0; i < size; ++i) {
    FoldedState& state = folded->states.emplace_back();
    state.stage = stages[i];
    state.sharding = shardings[i];
    if (!registers.Has(num_classes)) return Malformed(kTable, "too few registers of states");
    for (uint32_t c = 0; c < num_classes; ++c) state.registers.push_back(registers.Next());
  }
  if (registers.is_done()) return absl::OkStatus();
  return Malformed(kTable, "too many registers of states");
}

absl::Status ReadViews(schema::Folding::Reader in, size_t num_programs, FoldedPlan* folded) {
  const auto wholes = in.getViewWholes();
  const auto parts = in.getViewParts();
  TypeReader types(in.getViewTypes());
  ASSIGN_OR_RETURN(const uint32_t size, NumRows(kTable, {wholes.size(), parts.size()}));
  for (uint32_t i = 0; i < size; ++i) {
    FoldedView& view = folded->views.emplace_back();
    RETURN_IF_ERROR(types.Next(&view.type));
    view.whole = wholes[i];
    view.part = parts[i];
  }
  RETURN_IF_ERROR(types.Finish());

  const auto counts = in.getNumViewOperands();
  Run<uint32_t> actors(in.getViewActors());
  Run<uint8_t> are_outputs(in.getViewsAreOutputs());
  Run<uint32_t> indices(in.getViewIndices());
  Run<uint32_t> views(in.getViews());
  if (counts.size() != num_programs) return Malformed(kTable, "views of other programs");
  for (const uint32_t count : counts) {
    std::vector<ViewOperand>& operands = folded->view_operands.emplace_back();
    if (!actors.Has(count) || !are_outputs.Has(count) || !indices.Has(count) || !views.Has(count)) {
      return Malformed(kTable, "too few views");
    }
    for (uint32_t i = 0; i < count; ++i) {
      ViewOperand& operand = operands.emplace_back();
      operand.actor = actors.Next();
      RETURN_IF_ERROR(ReadBool(kTable, are_outputs.Next(), &operand.is_output));
      operand.index = indices.Next();
      operand.view = views.Next();
    }
  }
  if (actors.is_done() && are_outputs.is_done() && indices.is_done() && views.is_done()) {
    return absl::OkStatus();
  }
  return Malformed(kTable, "too many views");
}

// REQUIRES: the shardings are read.
absl::Status ReadWindows(schema::Folding::Reader in, FoldedPlan* folded) {
  std::vector<graph::DimSharding*> dims;
  for (graph::Sharding& sharding : folded->shardings) {
    for (graph::DimSharding& dim : sharding.dims) dims.push_back(&dim);
  }
  Run<int64_t> numbers(in.getWindows());
  for (const uint32_t d : in.getWindowDims()) {
    if (d >= dims.size() || !numbers.Has(5)) return Malformed(kTable, "a window of no dimension");
    graph::Window& window = dims[d]->window.emplace();
    for (int64_t* number :
         {&window.extent, &window.stride, &window.divisor, &window.low, &window.size}) {
      *number = numbers.Next();
    }
  }
  return numbers.is_done() ? absl::OkStatus() : Malformed(kTable, "too many windows");
}

// REQUIRES: the shardings are read.
absl::Status ReadSubBatches(schema::Folding::Reader in, FoldedPlan* folded) {
  std::vector<graph::DimSharding*> dims;
  for (graph::Sharding& sharding : folded->shardings) {
    for (graph::DimSharding& dim : sharding.dims) dims.push_back(&dim);
  }
  Run<int64_t> numbers(in.getSubBatches());
  for (const uint32_t d : in.getSubBatchDims()) {
    if (d >= dims.size() || !numbers.Has(2)) {
      return Malformed(kTable, "a sub-batch of no dimension");
    }
    graph::SubBatch& sub_batch = dims[d]->sub_batch.emplace();
    sub_batch.count = numbers.Next();
    sub_batch.index = numbers.Next();
  }
  return numbers.is_done() ? absl::OkStatus() : Malformed(kTable, "too many sub-batches");
}

void WriteViews(const FoldedPlan& folded, schema::Folding::Builder out) {
  TypeWriter types;
  std::vector<uint32_t> wholes, parts, counts, actors, indices, views;
  std::vector<uint8_t> are_outputs;
  for (const FoldedView& view : folded.views) {
    types.Add(view.type);
    wholes.push_back(view.whole);
    parts.push_back(view.part);
  }
  for (const std::vector<ViewOperand>& operands : folded.view_operands) {
    counts.push_back(RowCount(operands.size()));
    for (const ViewOperand& operand : operands) {
      actors.push_back(operand.actor);
      are_outputs.push_back(operand.is_output ? 1 : 0);
      indices.push_back(operand.index);
      views.push_back(operand.view);
    }
  }
  types.Write(out.initViewTypes());
  out.setViewWholes(Pointer(wholes));
  out.setViewParts(Pointer(parts));
  out.setNumViewOperands(Pointer(counts));
  out.setViewActors(Pointer(actors));
  out.setViewsAreOutputs(Pointer(are_outputs));
  out.setViewIndices(Pointer(indices));
  out.setViews(Pointer(views));
}

}  // namespace

Plan StoredForm(const FoldedPlan& folded) {
  Plan plan = folded.common;
  plan.devices = folded.programs;
  plan.kernels = folded.kernels;
  for (const FoldedCollective& collective : folded.collectives) {
    for (const CollectiveSpec& spec : collective.specs) {
      plan.collectives.push_back(spec);
      plan.collectives.back().channel = collective.first_channel;
      plan.collective_per_microbatch.push_back(collective.per_microbatch);
    }
  }
  for (const FoldedTransfer& transfer : folded.transfers) {
    plan.transfers.push_back({transfer.first_channel, transfer.source_stage,
                              transfer.destination_stage, 0, transfer.per_microbatch});
  }
  return plan;
}

void WriteFolding(const FoldedPlan& folded, StringWriter* strings, schema::Folding::Builder out) {
  out.setMeshName(strings->Add(folded.mesh.name));
  const uint32_t num_axes = RowCount(folded.mesh.axes.size());
  auto names = out.initAxisNames(num_axes);
  auto sizes = out.initAxisSizes(num_axes);
  auto are_temporal = out.initAxesAreTemporal(num_axes);
  for (uint32_t i = 0; i < num_axes; ++i) {
    const graph::MeshAxis& axis = folded.mesh.axes[i];
    names.set(i, strings->Add(axis.name));
    sizes.set(i, axis.size);
    are_temporal.set(i, axis.is_temporal ? 1 : 0);
  }
  out.setClasses(Pointer(folded.class_of));

  PieceWriter pieces;
  std::vector<uint8_t> ranks;
  std::vector<uint32_t> dim_pieces, window_dims, sub_batch_dims;
  std::vector<int64_t> windows, sub_batches;
  for (const graph::Sharding& sharding : folded.shardings) {
    ranks.push_back(static_cast<uint8_t>(sharding.dims.size()));
    for (const graph::DimSharding& dim : sharding.dims) {
      if (dim.window.has_value()) {
        window_dims.push_back(RowCount(dim_pieces.size()));
        for (const int64_t number : {dim.window->extent, dim.window->stride, dim.window->divisor,
                                     dim.window->low, dim.window->size}) {
          windows.push_back(number);
        }
      }
      if (dim.sub_batch.has_value()) {
        sub_batch_dims.push_back(RowCount(dim_pieces.size()));
        sub_batches.push_back(dim.sub_batch->count);
        sub_batches.push_back(dim.sub_batch->index);
      }
      dim_pieces.push_back(pieces.Add(dim.axes));
    }
  }
  std::vector<uint32_t> kernel_shardings;
  for (const std::vector<uint32_t>& shardings : folded.kernel_shardings) {
    kernel_shardings.insert(kernel_shardings.end(), shardings.begin(), shardings.end());
  }
  std::vector<uint32_t> stages, rows, collective_pieces;
  for (const FoldedCollective& collective : folded.collectives) {
    stages.push_back(collective.stage);
    rows.push_back(RowCount(collective.specs.size()));
    collective_pieces.push_back(pieces.Add(collective.axes));
  }
  std::vector<uint32_t> transfer_shardings;
  TypeWriter types;
  for (const FoldedTransfer& transfer : folded.transfers) {
    transfer_shardings.push_back(transfer.sharding);
    types.Add(transfer.type);
  }
  std::vector<uint32_t> state_stages, state_shardings, state_registers;
  for (const FoldedState& state : folded.states) {
    state_stages.push_back(state.stage);
    state_shardings.push_back(state.sharding);
    state_registers.insert(state_registers.end(), state.registers.begin(), state.registers.end());
  }
  out.setShardingRanks(Pointer(ranks));
  out.setDimPieces(Pointer(dim_pieces));
  out.setWindowDims(Pointer(window_dims));
  out.setWindows(Pointer(windows));
  out.setSubBatchDims(Pointer(sub_batch_dims));
  out.setSubBatches(Pointer(sub_batches));
  out.setPieceAxes(Pointer(pieces.axes));
  out.setPiecePres(Pointer(pieces.pres));
  out.setPieceSizes(Pointer(pieces.sizes));
  out.setKernelShardings(Pointer(kernel_shardings));
  out.setCollectiveStages(Pointer(stages));
  out.setCollectiveRows(Pointer(rows));
  out.setCollectivePieces(Pointer(collective_pieces));
  out.setTransferShardings(Pointer(transfer_shardings));
  types.Write(out.initTransferTypes());
  out.setStateStages(Pointer(state_stages));
  out.setStateShardings(Pointer(state_shardings));
  out.setStateRegisters(Pointer(state_registers));
  WriteViews(folded, out);
}

absl::StatusOr<FoldedPlan> ReadFolding(schema::Folding::Reader in, const StringReader& strings,
                                       Plan stored) {
  FoldedPlan folded;
  RETURN_IF_ERROR(ReadMesh(in, strings, &folded.mesh));
  for (const uint32_t c : in.getClasses()) folded.class_of.push_back(c);
  if (folded.class_of.empty()) return Malformed(kTable, "no devices");
  // As many registers of each state are read.
  if (folded.num_classes() > folded.class_of.size()) {
    return Malformed(
        kTable, StrCat(folded.num_classes(), " classes of ", folded.class_of.size(), " devices"));
  }

  PieceReader pieces(in);
  Run<uint32_t> dim_pieces(in.getDimPieces());
  for (const uint8_t rank : in.getShardingRanks()) {
    if (rank > kMaxRank || !dim_pieces.Has(rank)) return Malformed(kTable, "too few dimensions");
    graph::Sharding& sharding = folded.shardings.emplace_back(graph::Sharding::Replicated(rank));
    for (graph::DimSharding& dim : sharding.dims) {
      RETURN_IF_ERROR(pieces.Next(dim_pieces.Next(), &dim.axes));
    }
  }
  if (!dim_pieces.is_done()) return Malformed(kTable, "too many dimensions");
  RETURN_IF_ERROR(ReadWindows(in, &folded));
  RETURN_IF_ERROR(ReadSubBatches(in, &folded));

  Run<uint32_t> kernel_shardings(in.getKernelShardings());
  for (const KernelPlan& kernel : stored.kernels) {
    const size_t num_tiles = kernel.inputs.size() + kernel.outputs.size();
    if (!kernel_shardings.Has(num_tiles)) return Malformed(kTable, "too few shardings of kernels");
    std::vector<uint32_t>& shardings = folded.kernel_shardings.emplace_back();
    for (size_t i = 0; i < num_tiles; ++i) shardings.push_back(kernel_shardings.Next());
  }
  if (!kernel_shardings.is_done()) return Malformed(kTable, "too many shardings of kernels");

  RETURN_IF_ERROR(ReadCollectives(in, &pieces, &stored, &folded));
  RETURN_IF_ERROR(ReadTransfers(in, stored, &folded));
  RETURN_IF_ERROR(ReadStates(in, &folded));
  RETURN_IF_ERROR(ReadViews(in, stored.devices.size(), &folded));
  if (!pieces.is_done()) return Malformed(kTable, "too many pieces of axes");
  folded.programs = std::move(stored.devices);
  folded.kernels = std::move(stored.kernels);
  folded.common = std::move(stored);
  folded.common.devices.clear();
  folded.common.kernels.clear();
  folded.common.collectives.clear();
  folded.common.collective_per_microbatch.clear();
  folded.common.transfers.clear();
  return folded;
}

}  // namespace penstock::planner::internal
