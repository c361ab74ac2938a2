// Plans as files. What `penstock run` executes is always a plan that was read.
//
// A file is a header of 32 bytes, little endian, and a payload:
//
//   0   8  "PSTKPLAN"
//   8   4  format version
//   12  4  zero
//   16  8  length of the payload
//   24  8  XXH64 of the payload, seeded with the XXH64 (seed 0) of the 24 bytes before
//
// The payload is a Cap'n Proto message (plan.capnp, https://capnproto.org/encoding.html), not
// packed: a table is a struct of columns, so that a million actors are a few dozen lists. A reader
// never needs more memory than a bounded multiple of the file's size, or of what may be expanded of
// a folded plan (check_folded_plan.h).
//
// A folded plan is stored with a device for each program, whatever the number of devices. ReadPlan
// expands it to all devices; ReadFoldedPlan leaves it as it is.
//
// Reading trusts nothing: the hash, the lengths of the columns, every enumerator, string, index and
// shape are checked (CheckReferences of check_references.h is the last of it).
//
// Thread rule: pure functions; two writers of one path leave one of the two plans there.

#ifndef PENSTOCK_PLANNER_PLAN_PLAN_IO_H_
#define PENSTOCK_PLANNER_PLAN_PLAN_IO_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.h"

namespace penstock::planner {

// Replaces the file at `path` as a whole, or leaves it as it was.
absl::Status WritePlan(const Plan& plan, const std::string& path);
// The same of a folded plan.
absl::Status WritePlan(const FoldedPlan& plan, const std::string& path);

// kDataLoss names the file and what is wrong with it; kFailedPrecondition: another format version;
// kResourceExhausted: its devices have too much in all to be expanded; kNotFound and others from
// the system: it cannot be opened or read.
absl::StatusOr<Plan> ReadPlan(const std::string& path);

// The same, not expanded; a plan that is stored whole becomes FoldedPlan::common. Each program is
// checked on the first device that has it.
absl::StatusOr<FoldedPlan> ReadFoldedPlan(const std::string& path);

// The contents of such a file. kInvalidArgument: the plan is malformed (CheckReferences).
// kResourceExhausted: a table is too long for the format (2^29 - 1 entries).
absl::StatusOr<std::string> PlanToBytes(const Plan& plan);
// The same of a folded plan.
absl::StatusOr<std::string> PlanToBytes(const FoldedPlan& plan);
// What ReadPlan makes of a file with these bytes.
absl::StatusOr<Plan> PlanFromBytes(std::string_view bytes);
// What ReadFoldedPlan does.
absl::StatusOr<FoldedPlan> FoldedPlanFromBytes(std::string_view bytes);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_PLAN_IO_H_
