// The release, which the build and the Python package read from here.
//
// Thread rule: a constant.

#ifndef PENSTOCK_PENSTOCK_VERSION_H_
#define PENSTOCK_PENSTOCK_VERSION_H_

namespace penstock {

// "MAJOR.MINOR.PATCH".
inline constexpr char kVersion[] = "0.1.0";

}  // namespace penstock

#endif  // PENSTOCK_PENSTOCK_VERSION_H_
