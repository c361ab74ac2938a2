// What a device or a stage of a plan waits for, as reports tell it.
//
// Thread rule: a value.

#ifndef PENSTOCK_ACTORS_ENGINE_WAIT_DESCRIPTION_H_
#define PENSTOCK_ACTORS_ENGINE_WAIT_DESCRIPTION_H_

#include <string>

namespace penstock::actors {

// One line of a report.
struct WaitDescription {
  std::string text;  // a line
  // It waits for no other device or stage: the others may wait for it.
  bool may_be_cause = false;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_WAIT_DESCRIPTION_H_
