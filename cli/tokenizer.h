// Text as tokens by byte-pair encoding (byte_pairs.h), as a file tokenizer.json describes it
// (tokenizer_json.h): added tokens are found, the text between them is normalized and cut into
// words, and the characters of each word are joined by the merges.
//
// The tokens are those of the library tokenizers, which writes such files.
//
// Thread rule: immutable; const functions from any thread.

#ifndef PENSTOCK_CLI_TOKENIZER_H_
#define PENSTOCK_CLI_TOKENIZER_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/byte_pairs.h"
#include "cli/text_pattern.h"
#include "cli/tokenizer_json.h"

namespace penstock::cli {

// What such a file is called beside a model.
inline constexpr char kTokenizerFile[] = "tokenizer.json";

class Tokenizer {
 public:
  // Reads a tokenizer.json. Errors begin with the path.
  static absl::StatusOr<Tokenizer> Load(const std::string& path);
  // kInvalidArgument: the parts do not fit together.
  static absl::StatusOr<Tokenizer> Create(TokenizerSpec spec);

  // The tokens of a text, with those that the tokenizer puts around each text if `has_frame`.
  // kInvalidArgument: the text is not UTF-8, or a character has no token. kResourceExhausted: the
  // tokenizer makes a text of it that is much longer.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool has_frame = true) const;

  // Which part of a text is encoded. Parts that are cut in front of the end of a line whose last
  // character is a letter or a digit have the tokens of the whole text, unless some token holds
  // both, as that of unknown characters may.
  struct Part {
    bool is_first = true;  // has what the tokenizer puts in front of each text
    bool is_last = true;   // has what it puts behind
  };
  absl::StatusOr<std::vector<int32_t>> EncodePart(std::string_view text, Part part) const;

  // The text of tokens; special ones are left out. It is UTF-8 if the tokens are those of a text.
  std::string Decode(absl::Span<const int32_t> tokens) const;

  // What a token adds to a text that it continues; empty for a special or an unknown one. It may be
  // a part of a character.
  std::string_view BytesOf(int32_t token) const;

  // All tokens are less.
  int32_t num_tokens() const { return static_cast<int32_t>(bytes_.size()); }

 private:
  using Word = std::string;

  explicit Tokenizer(TokenizerSpec spec) : spec_(std::move(spec)) {}
  absl::Status Prepare();
  // What replacements make of a text. They use up `room` bytes: as a file is not trusted, there is
  // a bound for what all texts of a call may become. kResourceExhausted: there is none left.
  static absl::Status Replace(const std::vector<Replacement>& replacements, size_t* room,
                              std::string* text);
  absl::StatusOr<std::string> BytesOfContent(std::string_view content, size_t* room) const;

  // A part of the text between added tokens.
  struct Segment {
    std::string text = {};
    int32_t added = -1;  // this token instead
    bool is_first = false;
    bool is_continued = false;  // what it continues was encoded before
  };
  std::vector<Segment> FindAdded(std::vector<Segment> segments, bool is_normalized) const;
  absl::Status Normalize(Segment* segment, size_t* room) const;
  absl::Status Encode(Segment text, std::vector<int32_t>* tokens) const;
  absl::StatusOr<std::vector<Word>> WordsOf(const Segment& segment, size_t room) const;
  absl::Status EncodeWord(std::string_view word, std::vector<int32_t>* tokens) const;

  TokenizerSpec spec_;
  BytePairs pairs_;
  std::vector<TextPattern> patterns_;          // of spec_.splits
  std::vector<std::string> added_;             // the content to look for
  std::array<int32_t, 256> byte_tokens_ = {};  // of has_byte_fallback
  std::vector<std::string> bytes_;             // by token
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_TOKENIZER_H_
