/** \file
 *
 * What a library exports to be loaded as a scheduling policy: `penstock run --policy ./my.so`.
 *
 * Plain C, so that the library may be built by another compiler than Penstock. It exports one
 * function,
 *
 *   const penstock_policy* penstock_policy_plugin(void);
 *
 * whose result stays valid as long as the library is loaded. A policy implements one of
 *   before  which of two phases that can start runs first
 *   plan    gives whole orders
 *   next    decides while the plan runs, from what a group of devices has done
 * Phases, groups, chunks and stages are those of pipeline.h, which has their meaning.
 *
 * Thread rule: calls come from one thread at a time, but those of `next` for different groups,
 * which may be in different processes.
 */

#ifndef PENSTOCK_PLANNER_POLICY_POLICY_PLUGIN_H_
#define PENSTOCK_PLANNER_POLICY_POLICY_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A library with another version is refused. */
enum { PENSTOCK_POLICY_VERSION = 2 /**< of this header */ };

/** Kinds of phases. */
enum {
  PENSTOCK_FORWARD = 0,  /**< F: activations */
  PENSTOCK_BACKWARD = 1, /**< B: gradients, those of weights too where there is no W */
  PENSTOCK_WEIGHT = 2    /**< W: gradients of weights */
};
/** Which stages a group has, where it has several chunks of the model. */
enum {
  PENSTOCK_PLACEMENT_LOOP = 0, /**< group g of G has the stages g, g + G, g + 2 G, ... */
  PENSTOCK_PLACEMENT_VEE = 1   /**< g, 2 G - 1 - g, 2 G + g, ...: down and back up */
};

/** A phase of one micro-batch. */
typedef struct penstock_phase {
  int32_t kind;       /**< PENSTOCK_FORWARD, ... */
  int32_t microbatch; /**< from 0 */
  int32_t chunk;      /**< which of the group's stages, from 0 */
} penstock_phase;

/** A stage of the pipeline. */
typedef struct penstock_stage {
  int32_t group;       /**< of devices, that runs it */
  int32_t chunk;       /**< which of the group's stages it is, from 0 */
  int32_t has_kind[3]; /**< 1 for each kind of phase that it has, 0 for the others */
  /** Time of a phase of each kind; of a backward with its weight gradients if those are no W. */
  double seconds[3];
  double activation; /**< what a micro-batch keeps from its F to its last B or W, in any unit */
} penstock_stage;

/** What passes from the phases of one stage to those of the same kind of another. */
typedef struct penstock_edge {
  int32_t from;       /**< stage that sends */
  int32_t to;         /**< stage that receives */
  int32_t is_forward; /**< 1: activations, between F phases; 0: gradients, between B phases */
  double seconds;     /**< time of a transfer, for one micro-batch */
} penstock_edge;

/** What `plan` is asked about. */
typedef struct penstock_pipeline {
  int32_t num_groups;           /**< of devices, each of which runs one phase at a time */
  int32_t num_chunks;           /**< stages of a group */
  int32_t num_microbatches;     /**< of a step, which pass through each stage */
  const penstock_stage* stages; /**< by number */
  size_t num_stages;            /**< elements of `stages` */
  const penstock_edge* edges;   /**< in no order */
  size_t num_edges;             /**< elements of `edges` */
  double memory_limit;          /**< of a group, in the unit of `activation`; 0: none */
} penstock_pipeline;

/** A phase that can start, as `before` sees it. */
typedef struct penstock_ready_phase {
  penstock_phase phase; /**< which */
  int32_t group;        /**< that would run it */
  int32_t stage;        /**< that it is of */
  double ready_s;       /**< when what it reads had arrived, from the start of the step */
  double duration_s;    /**< that it takes */
} penstock_ready_phase;

/** Takes what `plan` decides: phases of a group in their order, or why there are none. */
typedef struct penstock_orders {
  void* state; /**< to be handed to the functions as it is */
  /** Adds a phase behind those that the group has. */
  void (*append)(void* state, int32_t group, penstock_phase phase);
  /** Refuses the pipeline, with a message for the user, which is copied. */
  void (*fail)(void* state, const char* message);
} penstock_orders;

/** What a group has done of one chunk in this step, by kind of phase. */
typedef struct penstock_chunk_view {
  int32_t has_kind[3];  /**< 1 for each kind of phase that the chunk has, 0 for the others */
  int32_t issued[3];    /**< phases that were chosen */
  int32_t completed[3]; /**< of these, those that have finished on every device of the group */
  int32_t ready[3];     /**< beyond those issued, phases that could start now */
  int64_t mean_ns[3];   /**< measured time of a phase; 0: not yet known */
} penstock_chunk_view;

/** What `next` is asked about. */
typedef struct penstock_group_view {
  int32_t group;                     /**< which group of devices, from 0 */
  int32_t num_groups;                /**< of the pipeline */
  int32_t num_microbatches;          /**< of a step */
  const penstock_chunk_view* chunks; /**< by number */
  int32_t num_chunks;                /**< elements of `chunks` */
} penstock_group_view;

/** A policy. One of `before`, `plan` and `next` has to be there; the last of them decides. */
typedef struct penstock_policy {
  uint32_t version;        /**< PENSTOCK_POLICY_VERSION */
  int32_t placement;       /**< PENSTOCK_PLACEMENT_LOOP or PENSTOCK_PLACEMENT_VEE */
  int32_t splits_backward; /**< 1: it wants W phases; 0: they are a part of B */
  int32_t min_chunks;      /**< fewest stages of a group that it can schedule */
  int32_t max_chunks;      /**< likewise the most */
  /** Whether `a` runs before `b`: 1 or 0. Null: `plan` decides. */
  int32_t (*before)(const penstock_ready_phase* a, const penstock_ready_phase* b);
  /** Hands the whole order of each group to `orders`. Null: `before` decides. */
  void (*plan)(const penstock_pipeline* pipeline, const penstock_orders* orders);
  /** Beside `before`, or null: the most that a group may keep, in the unit of `activation`, which
   * is a micro-batch in `penstock schedule` and bytes in a job. 0: no limit. */
  double (*most_held)(const penstock_pipeline* pipeline, int32_t group);
  /** Writes the phase that the group runs next, and returns 1; 0: asks again when the view has
   * changed. Every phase of the step is chosen once, those of one chunk and kind in the order of
   * micro-batches. Null: the order is fixed before the plan runs. */
  int32_t (*next)(const penstock_group_view* view, penstock_phase* phase);
  /** Beside `next`, or null: the most micro-batches of which a group may keep activations, at least
   * 1. Of the view, what the group has done is 0. Null: all. */
  int32_t (*most_microbatches)(const penstock_group_view* view);
} penstock_policy;

/** What the library defines: its policy, which stays in memory. */
const penstock_policy* penstock_policy_plugin(void);

#ifdef __cplusplus
}
#endif

#endif /* PENSTOCK_PLANNER_POLICY_POLICY_PLUGIN_H_ */
