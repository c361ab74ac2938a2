// Whether a document is well-formed XML, as far as pictures and pages need it.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_TESTS_SUPPORT_XML_ERROR_H_
#define PENSTOCK_TESTS_SUPPORT_XML_ERROR_H_

#include <string>
#include <string_view>

namespace penstock::testing {

// An error, or nothing: elements nest, attributes are quoted and differ, entities are known, and
// there are no control codes. Knows a document type, and sections of characters (CDATA); comments
// are errors.
std::string XmlError(std::string_view text);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_XML_ERROR_H_
