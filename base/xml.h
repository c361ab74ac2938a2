// Text inside XML, which the pictures (SVG) are.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_BASE_XML_H_
#define PENSTOCK_BASE_XML_H_

#include <string>
#include <string_view>

namespace penstock {

// For content and quoted attributes. Control characters that XML does not have are left out.
std::string EscapeXml(std::string_view text);

}  // namespace penstock

#endif  // PENSTOCK_BASE_XML_H_
