/* What a library exports to be loaded as a scheduling policy: `penstock run --policy ./my.so`.
 *
 * Plain C, so that the library may be built by another compiler than Penstock. It exports one
 * function,
 *
 *   const penstock_policy* penstock_policy_plugin(void);
 *
 * whose result stays valid as long as the library is loaded. A policy implements `before`, which is
 * asked which of two phases that can start runs first, or `plan`, which gives whole orders. Phases,
 * groups, chunks and stages are those of pipeline.h, which has their meaning.
 *
 * Thread rule: calls come from one thread at a time.
 */

#ifndef PENSTOCK_PLANNER_POLICY_POLICY_PLUGIN_H_
#define PENSTOCK_PLANNER_POLICY_POLICY_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A library with another version is refused. */
enum { PENSTOCK_POLICY_VERSION = 1 };

enum { PENSTOCK_FORWARD = 0, PENSTOCK_BACKWARD = 1, PENSTOCK_WEIGHT = 2 };
enum { PENSTOCK_PLACEMENT_LOOP = 0, PENSTOCK_PLACEMENT_VEE = 1 };

typedef struct penstock_phase {
  int32_t kind;
  int32_t microbatch;
  int32_t chunk;
} penstock_phase;

typedef struct penstock_stage {
  int32_t group;
  int32_t chunk;
  int32_t has_kind[3];
  double seconds[3]; /* of each kind; of a backward with its weight gradients if those are no W */
  double activation; /* what a micro-batch keeps from its F to its last B or W */
} penstock_stage;

typedef struct penstock_edge {
  int32_t from; /* stages */
  int32_t to;
  int32_t is_forward;
  double seconds;
} penstock_edge;

typedef struct penstock_pipeline {
  int32_t num_groups;
  int32_t num_chunks;
  int32_t num_microbatches;
  const penstock_stage* stages; /* by number */
  size_t num_stages;
  const penstock_edge* edges;
  size_t num_edges;
  double memory_limit; /* of a group, in the unit of `activation`; 0: none */
} penstock_pipeline;

typedef struct penstock_ready_phase {
  penstock_phase phase;
  int32_t group;
  int32_t stage;
  double ready_s; /* when what it reads had arrived */
  double duration_s;
} penstock_ready_phase;

/* Takes what `plan` decides: phases of a group in their order, or why there are none. */
typedef struct penstock_orders {
  void* state;
  void (*append)(void* state, int32_t group, penstock_phase phase);
  void (*fail)(void* state, const char* message);
} penstock_orders;

typedef struct penstock_policy {
  uint32_t version; /* PENSTOCK_POLICY_VERSION */
  int32_t placement;
  int32_t splits_backward; /* whether it wants W phases */
  int32_t min_chunks;      /* of a group */
  int32_t max_chunks;
  /* Either of them; `plan` wins. */
  int32_t (*before)(const penstock_ready_phase* a, const penstock_ready_phase* b);
  void (*plan)(const penstock_pipeline* pipeline, const penstock_orders* orders);
  /* Beside `before`, or null: the most that a group may keep, in the unit of `activation`, which
   * is a micro-batch in `penstock schedule` and bytes in a job. 0: no limit. */
  double (*most_held)(const penstock_pipeline* pipeline, int32_t group);
} penstock_policy;

#ifdef __cplusplus
}
#endif

#endif /* PENSTOCK_PLANNER_POLICY_POLICY_PLUGIN_H_ */
