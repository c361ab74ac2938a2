// Colours of drawings.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_BASE_TEXT_COLOUR_H_
#define PENSTOCK_BASE_TEXT_COLOUR_H_

#include <string_view>

namespace penstock {

// Black or white, whichever is easier to read on "#rrggbb": by the contrast ratio of WCAG 2.
// White where `colour` is something else.
std::string_view TextColourOn(std::string_view colour);

}  // namespace penstock

#endif  // PENSTOCK_BASE_TEXT_COLOUR_H_
