// Where tokens go among places: what dispatch, combine and combine_weight_grad compute of slots
// (graph/ops/routing.h).
//
// Thread rule: immutable after construction.

#ifndef PENSTOCK_KERNELS_CPU_ROUTING_H_
#define PENSTOCK_KERNELS_CPU_ROUTING_H_

#include <cstdint>

#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {

// The tiles of slots [..., s, k] and of places [e, ..., c, d]. Groups, tokens and places of the
// tiles are numbered from 0 on; a row of places is one place.
class Routing {
 public:
  Routing(const TileDesc& slots, const TileDesc& places)
      : choices_(slots.shape.back()),
        tokens_(slots.shape[slots.shape.size() - 2]),
        places_(places),
        experts_(places.shape[0]),
        capacity_(places.shape[places.shape.size() - 2]),
        width_(places.shape.back()) {
    for (int i = 1; i < capacity_dim(); ++i) groups_ *= places.shape[i];
  }

  int64_t groups() const { return groups_; }
  int64_t choices() const { return choices_; }                    // k
  int64_t choices_a_group() const { return tokens_ * choices_; }  // s k
  int64_t num_tokens() const { return groups_ * tokens_; }
  int64_t num_rows() const { return groups_ * experts_ * capacity_; }
  int64_t width() const { return width_; }

  // The row of a slot of a group, or -1 if another tile holds it, or none.
  class Rows {
   public:
    Rows(const Routing& routing, int64_t microbatch)
        : first_expert_(TileBegin(routing.places_, 0, microbatch)),
          first_place_(TileBegin(routing.places_, routing.capacity_dim(), microbatch)),
          global_capacity_(GlobalExtent(routing.places_, routing.capacity_dim())),
          num_slots_(global_capacity_ * GlobalExtent(routing.places_, 0)),
          experts_(routing.experts_),
          groups_(routing.groups_),
          capacity_(routing.capacity_) {}

    int64_t operator()(int64_t group, int64_t slot) const {
      if (slot < 0 || slot >= num_slots_) return -1;
      const int64_t expert = slot / global_capacity_ - first_expert_;
      const int64_t place = slot % global_capacity_ - first_place_;
      if (expert < 0 || expert >= experts_ || place < 0 || place >= capacity_) return -1;
      return (expert * groups_ + group) * capacity_ + place;
    }

   private:
    int64_t first_expert_;
    int64_t first_place_;
    int64_t global_capacity_;
    int64_t num_slots_;
    int64_t experts_;
    int64_t groups_;
    int64_t capacity_;
  };

 private:
  int capacity_dim() const { return Rank(places_) - 2; }

  int64_t groups_ = 1;
  int64_t choices_;
  int64_t tokens_;
  TileDesc places_;
  int64_t experts_;
  int64_t capacity_;
  int64_t width_;
};

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_ROUTING_H_
