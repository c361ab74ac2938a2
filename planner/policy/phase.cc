#include "planner/policy/phase.h"

#include "base/strings.h"

namespace penstock::planner {

std::string_view Name(PhaseKind kind) {
  switch (kind) {
    case PhaseKind::kForward:
      return "F";
    case PhaseKind::kBackward:
      return "B";
    case PhaseKind::kWeight:
      return "W";
    case PhaseKind::kBeforeStep:
      return "before";
    case PhaseKind::kAfterStep:
      return "after";
    case PhaseKind::kTransfer:
      return "transfer";
  }
  return "unknown";
}

std::string ToString(const PhaseChoice& choice) {
  std::string text = StrCat(Name(choice.kind), choice.microbatch);
  if (choice.chunk != 0) StrAppend(&text, " of chunk ", choice.chunk);
  return text;
}

}  // namespace penstock::planner
