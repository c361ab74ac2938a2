#include "actors/checkpoint/state_file.h"

#include <numeric>
#include <utility>

#include "actors/checkpoint/json_internal.h"
#include "actors/engine/tile_copy.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/checked/checked_kernels.h"

namespace penstock::actors {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kTilePrefix = "tile/";

// "w[0:64,128:256]".
std::string NameOfTile(const std::string& state, const graph::TileDesc& tile) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < tile.shape.size(); ++i) {
    const int64_t begin = tile.offset.empty() ? 0 : tile.offset[i];
    ranges.push_back(StrCat(begin, ":", begin + tile.shape[i]));
  }
  return StrCat(state, "[", penstock::StrJoin(ranges, ","), "]");
}

bool IsWhole(const StateToWrite& state) {
  const int64_t count = std::accumulate(
      state.tiles.begin(), state.tiles.end(), int64_t{0},
      [](int64_t sum, const StateTileBytes& tile) { return sum + tile.tile.num_elements(); });
  return count == state.type.num_elements();
}

std::vector<int64_t> ToList(const Shape& shape) { return {shape.begin(), shape.end()}; }

std::optional<Shape> ParseShape(const Json& json) {
  if (!json.is_array() || json.size() > kMaxRank) return std::nullopt;
  Shape shape;
  for (const Json& size : json) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX) return std::nullopt;
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

}  // namespace

SafetensorsSource FiniteSource(SafetensorsSource source) {
  SafetensorsSource checked = {source.name, source.type, nullptr};
  checked.bytes = [source = std::move(source)]() -> absl::StatusOr<const std::byte*> {
    ASSIGN_OR_RETURN(const std::byte* const bytes, source.bytes());
    const kernels::NotFinite found =
        kernels::FindNotFinite(source.type.dtype, bytes, source.type.num_elements());
    if (found.nan < 0 && found.infinity < 0) return bytes;
    return absl::OutOfRangeError(StrCat("the parameter ", source.name, " (", ToString(source.type),
                                        ") is ", found.nan >= 0 ? "nan" : "infinite",
                                        " at element ", found.nan >= 0 ? found.nan : found.infinity,
                                        "; a run cannot go on from such states"));
  };
  return checked;
}

absl::StatusOr<uint64_t> WriteStateFile(const std::string& path,
                                        absl::Span<const StateToWrite> states, Metadata metadata,
                                        const std::function<bool()>& is_over) {
  std::vector<std::byte> whole;  // a state that is put together
  std::vector<SafetensorsSource> sources;
  const auto add = [&](const StateToWrite& state, SafetensorsSource source) {
    if (state.is_parameter) source = FiniteSource(std::move(source));
    if (is_over) {
      source.bytes = [&is_over,
                      bytes = std::move(source.bytes)]() -> absl::StatusOr<const std::byte*> {
        if (is_over()) return absl::CancelledError("the writing of a checkpoint was ended");
        return bytes();
      };
    }
    sources.push_back(std::move(source));
  };
  for (const StateToWrite& state : states) {
    if (!IsWhole(state)) {
      for (const StateTileBytes& tile : state.tiles) {
        const std::string name = NameOfTile(state.name, tile.tile);
        add(state, {name, {state.type.dtype, tile.tile.shape}, [&tile] { return tile.bytes; }});
        Shape offset = tile.tile.offset;
        offset.resize(state.type.shape.size());
        ASSIGN_OR_RETURN(metadata[StrCat(kTilePrefix, name)],
                         DumpJson({{"tensor", state.name},
                                   {"shape", ToList(state.type.shape)},
                                   {"offset", ToList(offset)}}));
      }
    } else if (state.tiles.size() == 1) {
      add(state, {state.name, state.type, [&state] { return state.tiles[0].bytes; }});
    } else {
      add(state, {state.name, state.type, [&state, &whole] {
                    whole.resize(state.type.num_bytes());
                    for (const StateTileBytes& tile : state.tiles) {
                      TileCopy(tile.tile).ToGlobal(tile.bytes, whole.data(), 0);
                    }
                    return whole.data();
                  }});
    }
  }
  return WriteSafetensors(path, sources, metadata);
}

absl::StatusOr<std::optional<TilePlace>> PlaceOfTensor(const SafetensorsTensor& tensor,
                                                       const Metadata& metadata) {
  const auto found = metadata.find(StrCat(kTilePrefix, tensor.name));
  if (found == metadata.end()) return std::nullopt;
  const Json json = Json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  const auto wrong = [&] {
    return absl::DataLossError(
        StrCat("tensor ", tensor.name, ": its metadata do not say of which state it is a part"));
  };
  if (!json.is_object() || !json.contains("tensor") || !json["tensor"].is_string() ||
      !json.contains("shape") || !json.contains("offset")) {
    return wrong();
  }
  auto state = json["tensor"].get<std::string>();
  if (HasControlCharacters(state)) return wrong();  // it is printed on terminals
  const std::optional<Shape> shape = ParseShape(json["shape"]);
  const std::optional<Shape> offset = ParseShape(json["offset"]);
  const Shape& tile = tensor.type.shape;
  if (!shape.has_value() || !offset.has_value() || shape->size() != tile.size() ||
      offset->size() != tile.size() || !CheckShape(*shape).ok()) {
    return wrong();
  }
  for (size_t i = 0; i < tile.size(); ++i) {
    if ((*offset)[i] > (*shape)[i] || tile[i] > (*shape)[i] - (*offset)[i]) return wrong();
  }
  return TilePlace{std::move(state), {tensor.type.dtype, *shape}, *offset};
}

bool IsTileKey(std::string_view key) { return key.substr(0, kTilePrefix.size()) == kTilePrefix; }

}  // namespace penstock::actors
