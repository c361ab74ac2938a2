#include <algorithm>
#include <map>
#include <utility>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/node_exchange_internal.h"
#include "actors/engine/error_origin.h"
#include "actors/engine/tile_copy.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

constexpr size_t kCopyBytes = size_t{1} << 20;
// Far more than any exchange has.
constexpr unsigned kMaxPeers = 4096;
constexpr unsigned kMaxParts = 1 << 20;

// `kept` outlives the source.
absl::Status AddPart(const NodeExchange::Part& part, const KeptTiles* kept, ByteSource* source) {
  const KeptTiles::Tile* tile = kept == nullptr ? nullptr : kept->Find(part.state, part.tile);
  if (tile == nullptr) {
    return absl::NotFoundError(
        StrCat("tile ", part.tile, " of state ", part.state, " is not kept here"));
  }
  ASSIGN_OR_RETURN(const graph::TileDesc box, BoxInTile(part.box, tile->desc));
  source->Add(box.num_bytes(), [copy = TileCopy(box), from = tile->bytes.get()](
                                   uint64_t offset, size_t size, std::byte* bytes) {
    copy.RangeFromGlobal(from, 0, static_cast<int64_t>(offset), static_cast<int64_t>(size), bytes);
  });
  return absl::OkStatus();
}

absl::StatusOr<std::vector<NodeExchange::Part>> ReadParts(
    capnp::List<control::StatePart>::Reader list) {
  if (list.size() > kMaxParts) return absl::InvalidArgumentError("too many parts of states");
  std::vector<NodeExchange::Part> parts;
  for (const auto from : list) {
    // Compared with a tile before their use.
    if (from.getOffset().size() > unsigned{penstock::kMaxRank} ||
        from.getShape().size() > unsigned{penstock::kMaxRank}) {
      return absl::InvalidArgumentError("a part of a state has too many dimensions");
    }
    NodeExchange::Part& part = parts.emplace_back();
    part.state = from.getState();
    part.tile = from.getTile();
    for (const int64_t offset : from.getOffset()) part.box.offset.push_back(offset);
    for (const int64_t extent : from.getShape()) part.box.shape.push_back(extent);
  }
  return parts;
}

}  // namespace

absl::StatusOr<std::vector<NodeExchange::Peer>> ReadExchangePeers(
    capnp::List<control::ExchangePeer>::Reader list) {
  if (list.size() > kMaxPeers) return absl::InvalidArgumentError("too many processes");
  std::vector<NodeExchange::Peer> peers;
  for (const auto from : list) {
    NodeExchange::Peer& peer = peers.emplace_back();
    peer.rank = from.getRank();
    peer.address = control::AsText(from.getAddress());
    ASSIGN_OR_RETURN(peer.sends, ReadParts(from.getSends()));
    ASSIGN_OR_RETURN(peer.receives, ReadParts(from.getReceives()));
  }
  return peers;
}

absl::StatusOr<std::string> NodeExchange::Open(
    transport::UcxOptions options, const NodeSession::TransportFactory& create_transport) {
  rank_ = options.first_device;
  if (options.peers[0].empty()) return std::string();
  ASSIGN_OR_RETURN(opened_, create_transport(options));
  return opened_->LocalAddress();
}

absl::Status NodeExchange::Run(const std::vector<Peer>& peers, const KeptTiles* kept,
                               NodeSession* session, const ByteExchange::Options& options) {
  if (has_run_) return absl::FailedPreconditionError("the exchange has run before");
  has_run_ = true;
  const auto written = std::make_shared<absl::Status>();
  std::map<uint32_t, ByteSource> sends;
  std::map<uint32_t, ByteTarget> receives;
  for (const Peer& peer : peers) {
    if (sends.contains(peer.rank)) return absl::InvalidArgumentError("a node was named twice");
    sends[peer.rank] = {};
    receives[peer.rank] = {};
    for (const Part& part : peer.sends) RETURN_IF_ERROR(AddPart(part, kept, &sends[peer.rank]));
    for (const Part& part : peer.receives) {
      if (session == nullptr) return absl::FailedPreconditionError("there is no such session");
      RETURN_IF_ERROR(session->AddBox(part.state, part.box, written, &receives[peer.rank]));
    }
    if (peer.rank == rank_) {
      RETURN_IF_ERROR(CopyHere(sends[rank_], receives[rank_]));
      sends[rank_] = {};
      receives[rank_] = {};
    } else if (opened_ == nullptr) {
      return absl::FailedPreconditionError("the exchange was opened without peers");
    } else {
      RETURN_IF_ERROR(Connect(peer.rank, peer.address));
    }
  }
  RETURN_IF_ERROR(*written);
  if (opened_ == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(Begin().status());
  RETURN_IF_ERROR(exchange_->Run(sends, receives, options));
  return *written;
}

absl::StatusOr<std::vector<LinkFigures>> NodeExchange::Probe(
    const std::vector<std::string>& addresses, const LinkProbeOptions& options) {
  if (has_run_) return absl::FailedPreconditionError("the exchange has run before");
  has_run_ = true;
  const auto num_ranks = static_cast<uint32_t>(addresses.size());
  if (opened_ == nullptr || rank_ >= num_ranks) {
    return absl::FailedPreconditionError("the exchange was opened without peers");
  }
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    if (rank != rank_) RETURN_IF_ERROR(Connect(rank, addresses[rank]));
  }
  ASSIGN_OR_RETURN(transport::Endpoint * endpoint, Begin());
  return LinkProbe(*exchange_, *transport_, *endpoint, stopper_, options).Run(rank_, num_ranks);
}

absl::Status NodeExchange::Connect(uint32_t rank, const std::string& address) {
  absl::Status status = opened_->Connect(rank, address);
  SetOrigin({.peer = static_cast<int32_t>(rank)}, &status);
  return status;
}

absl::StatusOr<transport::Endpoint*> NodeExchange::Begin() {
  transport_ = std::move(opened_);
  if (wrap_) transport_ = wrap_(std::move(transport_));
  ASSIGN_OR_RETURN(transport::Endpoint * endpoint, transport_->OpenEndpoint(rank_));
  exchange_.emplace(*transport_, *endpoint, stopper_);
  return endpoint;
}

absl::Status NodeExchange::CopyHere(const ByteSource& source, const ByteTarget& target) const {
  if (source.num_bytes() != target.num_bytes()) {
    return absl::InvalidArgumentError(
        StrCat(source.num_bytes(), " bytes are to be copied to ", target.num_bytes()));
  }
  std::vector<std::byte> buffer(std::min<uint64_t>(kCopyBytes, source.num_bytes()));
  for (uint64_t offset = 0; offset < source.num_bytes(); offset += buffer.size()) {
    if (stopper_.is_stopped()) return absl::CancelledError("the copying of states was stopped");
    const size_t size = std::min<uint64_t>(buffer.size(), source.num_bytes() - offset);
    source.Copy(offset, size, buffer.data());
    target.Copy(offset, size, buffer.data());
  }
  return absl::OkStatus();
}

void NodeExchange::Linger(absl::Duration timeout) {
  if (exchange_.has_value()) exchange_->Linger(timeout);
}

void NodeExchange::Close() {
  // The transport goes before the requests that it may still know.
  transport_ = nullptr;
  opened_ = nullptr;
  exchange_.reset();
}

}  // namespace penstock::actors
