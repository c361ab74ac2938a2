#include <exception>
#include <filesystem>
#include <utility>

#include "actors/checkpoint/state_file.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/state_write_internal.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// Far more than any checkpoint has.
constexpr unsigned kMaxTiles = 1 << 20;
constexpr unsigned kMaxMetadata = 1 << 12;

}  // namespace

absl::StatusOr<StateWrite> ReadStateWrite(control::Node::WriteStatesParams::Reader params) {
  // A list's elements may take no bytes in the message that counts them.
  const auto metadata = params.getMetadata();
  if (params.getTiles().size() > kMaxTiles || metadata.size() > kMaxMetadata ||
      metadata.size() % 2 != 0) {
    return absl::InvalidArgumentError("too many tiles or metadata");
  }
  StateWrite write;
  write.path = params.getPath();
  for (const auto tile : params.getTiles()) {
    const KeptTileId id = {tile.getState(), tile.getTile()};
    if (!write.tiles.empty() && id <= write.tiles.back()) {
      return absl::InvalidArgumentError("the tiles to write are not in order");
    }
    write.tiles.push_back(id);
  }
  for (unsigned i = 0; i < metadata.size(); i += 2) write.metadata[metadata[i]] = metadata[i + 1];
  return write;
}

absl::StatusOr<uint64_t> WriteStates(const StateWrite& write,
                                     const std::function<bool()>& is_over) {
  std::vector<StateToWrite> states;
  uint32_t last_state = 0;
  for (const auto& [state, tile] : write.tiles) {
    const KeptTiles::Tile* const kept =
        write.kept == nullptr ? nullptr : write.kept->Find(state, tile);
    if (kept == nullptr) {
      return absl::NotFoundError(StrCat("tile ", tile, " of state ", state, " is not kept here"));
    }
    if (states.empty() || state != last_state) {
      const KeptTiles::State& from = write.kept->states()[state];
      states.push_back({from.name, from.type, {}, from.is_parameter});
    }
    last_state = state;
    states.back().tiles.push_back({kept->desc, kept->bytes.get()});
  }
  const std::filesystem::path path(write.path);
  const std::string name = path.filename().string();
  if (!path.is_absolute() || name.rfind("model", 0) != 0 || path.extension() != ".safetensors") {
    return absl::InvalidArgumentError(StrCat(write.path, ": is no file of a checkpoint"));
  }
  const std::filesystem::path folder = path.parent_path();
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return absl::NotFoundError(StrCat(folder.string(), ": is not there"));
  }
  try {
    return WriteStateFile(write.path, states, write.metadata, is_over);
  } catch (const std::exception& error) {  // such as a lack of memory
    return absl::InternalError(StrCat(write.path, ": ", error.what()));
  }
}

}  // namespace penstock::actors
