// The file tokenizer.json of the library tokenizers, for byte-pair encoding: what its parts are, as
// data. cli/tokenizer.h runs them.
//
// Known are the model BPE; the normalizers Prepend, Replace, Lowercase, NFC, NFD, NFKC and NFKD;
// the pre-tokenizers ByteLevel, Split, Digits and Metaspace; the post-processors ByteLevel and
// TemplateProcessing; the decoders ByteLevel, Metaspace, Replace, ByteFallback, Fuse and Strip; and
// Sequence of each. So are the tokenizers of GPT-2, Llama 2 and Llama 3. Any other part, and an
// option that is not followed, is refused by its name. "truncation" and "padding", which are for
// batches, have no effect.
//
// Nothing in the file is trusted.
//
// Thread rule: values; pure functions.

#ifndef PENSTOCK_CLI_TOKENIZER_JSON_H_
#define PENSTOCK_CLI_TOKENIZER_JSON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "cli/unicode.h"

namespace penstock::cli {

// A token that is found in the text before anything else is done with it.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool is_special = false;     // no part of the text when it is decoded
  bool is_normalized = false;  // looked for in the normalized text
};

// Every `from` becomes `to`; without `from`, `to` is put in front of a text that is not empty.
struct Replacement {
  std::string from = {};
  std::string to = {};
};

// A step of what is done to a text before it is cut.
struct NormalizerStep {
  enum class Kind : uint8_t { kReplace, kForm, kLowercase };
  Kind kind = Kind::kReplace;
  Replacement replacement = {};          // kReplace
  UnicodeForm form = UnicodeForm::kNfc;  // kForm
};

// Cuts a text into words.
struct SplitStep {
  enum class Kind : uint8_t {
    kPattern,    // at the matches of `pattern`, each a word, as what lies between them is
    kByteLevel,  // each byte becomes a character
    kMetaspace,  // spaces become `space`, in front of words
  };
  Kind kind = Kind::kPattern;
  std::string pattern = {};
  std::string space = {};
  // Whether a space is put in front of a text that has none: kByteLevel, kMetaspace.
  enum class Prefix : uint8_t { kNever, kFirst, kAlways };
  Prefix prefix = Prefix::kNever;
  bool splits = true;  // kMetaspace: in front of each space
};

struct TokenizerSpec {
  absl::flat_hash_map<std::string, int32_t> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
  std::optional<std::string> unknown;  // the token for what has none
  bool fuses_unknown = false;          // one for several in a row
  bool has_byte_fallback = false;      // what has no token becomes bytes, such as <0x0A>
  bool ignores_merges = false;         // a word that is a token is that token

  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizers;
  std::vector<SplitStep> splits;
  std::vector<int32_t> before, after;  // tokens around those of a text

  // How the bytes of a text come from its tokens.
  bool decodes_bytes = false;             // of kByteLevel
  bool decodes_byte_fallback = false;     // of has_byte_fallback
  std::vector<Replacement> replacements;  // in each token
  int64_t strips_spaces = 0;              // this many, at most, from the beginning of the text
};

// Errors do not name the file.
absl::StatusOr<TokenizerSpec> ParseTokenizer(std::string_view text);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_TOKENIZER_JSON_H_
