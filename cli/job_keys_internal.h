// The keys of a job: what each is called, what it is for, and what it sets.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_JOB_KEYS_INTERNAL_H_
#define PENSTOCK_CLI_JOB_KEYS_INTERNAL_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "cli/job.h"
#include <toml.hpp>

namespace penstock::cli {

// One key of a job. `set` gives the value to the job; its error says what was expected, the caller
// adds the place. `folder` is what relative paths count from.
struct Key {
  std::string_view name;
  std::string_view help;  // default last, in parentheses
  std::function<absl::Status(const toml::value&, const std::string& folder, Job&)> set;
};

// In the order of the documentation.
const std::vector<Key>& Keys();

// Null if there is none of the name.
const Key* FindKey(std::string_view name);

// That there is no key of the name, with the nearest one.
std::string UnknownKey(std::string_view name);

// "expected WHAT, not a KIND".
absl::Status Expected(std::string_view what, const toml::value& value);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_KEYS_INTERNAL_H_
