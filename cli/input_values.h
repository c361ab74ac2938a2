// The values of one input of a plan, step by step, from a .npy file, a folder of them, or drawn.
//
// For an input f32[8, 4], a file holds
//   [8, 4]     the same value in every step
//   [80, 4]    rows: 8 of them a step, in order, from the start again after 10 steps; a number of
//              rows that is not a multiple of 8 is an error
//   [5, 8, 4]  a value for each of 5 steps, then from the start again
// and a folder holds a file [8, 4] a step, in the order of their names, then from the start again.
// Numbers are converted to the input's type: floats are rounded, integers must fit.
//
// A file of several steps is read where it lies in a mapped file, so it may be larger than the
// memory; where its numbers are converted, all of them are looked at once, when it is opened.
//
// Thread rule: immutable; Get may be called from any thread.

#ifndef PENSTOCK_CLI_INPUT_VALUES_H_
#define PENSTOCK_CLI_INPUT_VALUES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/job.h"
#include "cli/npy.h"

#include "base/shape.h"
#include "base/tensor.h"

namespace penstock::cli {

// Standard normal floats; integers 0 to 3; bools. A function of the input's name, the seed, the
// step and the element's index, whatever command draws it.
absl::StatusOr<Tensor> DrawInput(std::string_view name, const TensorType& type, uint64_t seed,
                                 int64_t step);

class InputValues {
 public:
  // Errors begin with the path: nothing there, another shape, a number that does not fit, fewer
  // rows than a step takes, rows that do not fill a last step.
  static absl::StatusOr<InputValues> Open(std::string_view name, const TensorType& type,
                                          const Job::InputSource& source, uint64_t seed);

  // Of step 0, 1, ...
  absl::StatusOr<Tensor> Get(int64_t step) const;

  // Tells one source of values from another by its number of steps and its first MiB.
  std::string Fingerprint() const;

  const std::string& name() const { return name_; }
  // Steps after which the values start again; 0: drawn anew each step.
  int64_t period() const { return period_; }
  // Whether the source is a file of exactly the input's shape, which is fed in every step. One that
  // holds the values of a single step in another form ([1, 8, 4], or a folder of one file) is not.
  bool is_constant() const { return is_constant_; }

 private:
  InputValues() = default;

  // Elements [first, first + count) of the file, where count is that of `shape`, in the input's
  // type.
  absl::StatusOr<Tensor> FromFile(int64_t first, const Shape& shape) const;

  std::string name_;
  TensorType type_;
  uint64_t seed_ = 0;
  int64_t period_ = 0;
  bool is_constant_ = false;
  std::string path_;
  std::optional<NpyFile> file_;     // the values of all steps, one after another
  Tensor constant_;                 // if is_constant_
  std::vector<std::string> files_;  // of a folder, sorted
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_INPUT_VALUES_H_
