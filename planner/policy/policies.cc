// The policies that come with the planner.

#include <utility>

#include "planner/policy/policies_internal.h"

namespace penstock::planner {

PolicyRegistry BuiltinPolicies() {
  PolicyRegistry registry;
  // Names are distinct, so adding cannot fail.
  for (auto* make :
       {internal::MakeGPipe, internal::MakeOneForwardOneBackward,
        internal::MakeEagerOneForwardOneBackward, internal::MakeInterleaved,
        internal::MakeLoopedBreadthFirst, internal::MakeZeroBubbleH1, internal::MakeZeroBubbleH2,
        internal::MakeZeroBubble1p, internal::MakeZeroBubble2p, internal::MakeZeroBubbleV,
        internal::MakeVHalf, internal::MakeVMin, internal::MakeDualPipeV, internal::MakeChimera,
        internal::MakeDualPipe, internal::MakeBestOrder}) {
    registry.Add(make()).IgnoreError();
  }
  return registry;
}

}  // namespace penstock::planner
