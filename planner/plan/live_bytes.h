// How little memory a device could run a plan with: the time-resolved lower bound.
//
// A step is fired in the planned order: heads of the per-step lane, the compute lane in the order
// of its stage, tails (lifetimes.h), and within a phase its actors one after another. A register's
// slot is live from the actor that writes it first to the last that reads it in that micro-batch,
// or of a value made once a step, in that step; communication is under way as lifetimes.h says.
// Kernel scratch is live while its kernel runs, and state always. The slots of what passes between
// stages are live at all times: while the lane computes, the next value may arrive, and the last
// one still be on its way.
//
// A slot has one place for all the micro-batches that have it, so two slots that are live at once
// in any of them lie apart. The bound is the bytes of slots that pairwise do; found greedily, from
// those that are live at one position on. It holds for registers as they are: the bytes of a bucket
// of gradients count as one.
//
// What the bound does not count, although an arena needs it: steps and lanes that overlap; gaps
// between registers of different sizes; slots that lie next to each other.
//
// Worked example: lifetimes.h's F, B and update with one micro-batch have w and h live in F, w, h
// and g in B, and w and g in update: three registers at most.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_LIVE_BYTES_H_
#define PENSTOCK_PLANNER_PLAN_LIVE_BYTES_H_

#include <cstdint>

#include "planner/plan/plan.h"

namespace penstock::planner {

// REQUIRES: VerifyPlan accepts the plan, which has an order for the device's stage, or the device
// has at most one phase in the compute lane.
uint64_t LeastArenaBytes(const Plan& plan, uint32_t device);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_LIVE_BYTES_H_
