// How a value is split on its way from one pipeline stage to others.
//
// Where the sending stage holds a value on several devices, each of them may send a part of it
// only: every byte leaves the stage once, and the receiving stage gathers the parts, over links
// that are faster than those between stages. The choice weighs what is sent against what sender and
// receivers redistribute.
//
// Worked example. On [tp=4], f32[64, 32] is whole on every device of stage 0 and read whole in
// stage 1. Sent as @[_, _], each device sends 8 KiB. As @[tp, _] it sends 2 KiB, and an all_gather
// brings it 6 KiB over the links of its stage; with @[_, tp] the parts of rows would have to be put
// in order after that. If stage 1 reads it as @[_, tp], it is sent so, and nothing is gathered. A
// sum over tp that is still open is scattered before it is sent: half of what all_reduce moves.
//
// Tensors so small that the latency of the all_gather costs more than is saved stay whole.
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_PLANNER_SHARDING_SEND_SHARDING_H_
#define PENSTOCK_PLANNER_SHARDING_SEND_SHARDING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

#include "base/tensor.h"
#include "graph/sharding.h"
#include "planner/sharding/reshard_cache.h"

namespace penstock::planner {

// In bytes that a device receives from others of its stage.
struct SendCosts {
  // Of a byte from another stage. Stages are the outermost part of a layout, so the links between
  // them are the slowest: several devices of a host share its network, and reach each other ten
  // times as fast.
  double byte_between_stages = 4;
  // The latency of a collective. With the factor above, a tensor that two devices hold is split
  // from 21 KiB on, one that eight hold from 12 KiB on.
  double collective = 32 << 10;
  // A byte that is copied on the device, to put the parts of a collective in order.
  double copied_byte = 0.25;
  // Parts of different sizes are taken where they cost less than this part of what equal ones do:
  // devices with other sizes need programs of their own.
  double uneven = 0.5;
  friend bool operator==(const SendCosts&, const SendCosts&) = default;
};

// Chooses the shardings of what is sent between stages of one mesh, and remembers its choices.
class SendChooser {
 public:
  // `mesh` outlives the result.
  SendChooser(const graph::Mesh& mesh, const SendCosts& costs);

  // The sharding in which a value held as `held` is sent. `needed` has an entry for each receiving
  // stage: the shardings in which its nodes read the value. `held` where nothing is cheaper, where
  // a reader takes terms of a sum, and where `held` has sums over micro-batches.
  // All shardings are closed, as they are after insert-reshards.
  graph::Sharding Choose(const TensorType& type, const graph::Sharding& held,
                         absl::Span<const std::vector<graph::Sharding>> needed);

  // What it costs a device that a value of this sharding is sent, each time.
  double SendingCost(const TensorType& type, const graph::Sharding& sent) const;
  // What a redistribution costs a device, each time.
  double RedistributionCost(const TensorType& type, const graph::Sharding& from,
                            const graph::Sharding& to);
  // As PlanReshard. Valid until the next call.
  const std::vector<ReshardStep>& Steps(const graph::Sharding& from, const graph::Sharding& to) {
    return chains_.Steps(from, to);
  }

 private:
  double Cost(const TensorType& type, const graph::Sharding& held, const graph::Sharding& sent,
              absl::Span<const std::vector<graph::Sharding>> needed);
  std::vector<graph::Sharding> Candidates(const TensorType& type,
                                          const graph::Sharding& held) const;

  const graph::Mesh& mesh_;
  const SendCosts costs_;
  ReshardCache chains_;
  absl::flat_hash_map<std::string, graph::Sharding> chosen_;
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_SEND_SHARDING_H_
