// The models and tokenizers in tests/data/models, or those that PENSTOCK_TEST_MODELS names, which
// tests/data/models/make_models.py has made.

#ifndef PENSTOCK_TESTS_SUPPORT_MODEL_FILES_H_
#define PENSTOCK_TESTS_SUPPORT_MODEL_FILES_H_

#include <cstdlib>
#include <fstream>
#include <string>

#include "nlohmann/json.hpp"

#include "base/strings.h"

namespace penstock::testing {

inline std::string ModelFile(const std::string& name) {
  const char* const folder = std::getenv("PENSTOCK_TEST_MODELS");
  return StrCat(folder != nullptr ? folder : PENSTOCK_SOURCE_DIR "/tests/data/models", "/", name);
}

inline nlohmann::json ReadModelJson(const std::string& name) {
  std::ifstream stream(ModelFile(name));
  return nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
}

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_MODEL_FILES_H_
