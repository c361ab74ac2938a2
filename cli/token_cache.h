// Texts as token files (token_file.h): the tokens of files of text, encoded once and kept in a
// folder, where later runs find them by what the texts and the tokenizer hold. Texts are read and
// encoded in chunks, so neither they nor their tokens need to fit into memory.
//
// The files of the folder are .npy files of u16 or u32 and may be removed at any time.
//
// Thread rule: const functions from any thread, and from several processes with one folder.

#ifndef PENSTOCK_CLI_TOKEN_CACHE_H_
#define PENSTOCK_CLI_TOKEN_CACHE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/token_file.h"
#include "cli/tokenizer.h"

namespace penstock::cli {

// Which part of each text. The training part ends in front of the first end of a line in the text's
// last tenth that follows a letter or a digit, if it is near; the held-out part is the rest.
enum class TextPart { kAll, kTraining, kHeldOut };

class TokenCache {
 public:
  // Loads a tokenizer.json. `folder` is created when it is needed; empty: DefaultFolder().
  static absl::StatusOr<TokenCache> Open(const std::string& tokenizer_path,
                                         const std::string& folder);

  // Where the user's other caches are: $XDG_CACHE_HOME/penstock or ~/.cache/penstock. An error if
  // neither is set.
  static absl::StatusOr<std::string> DefaultFolder();

  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }

  // The tokens of all files, one file behind the other, each with what the tokenizer puts around a
  // text. Errors begin with the path: a file that cannot be read, or is not UTF-8; a folder that
  // cannot be written; no tokens at all.
  absl::StatusOr<std::shared_ptr<const TokenFile>> Encode(absl::Span<const std::string> files,
                                                          TextPart part) const;

 private:
  TokenCache(std::shared_ptr<const Tokenizer> tokenizer, std::string json, std::string folder)
      : tokenizer_(std::move(tokenizer)), json_(std::move(json)), folder_(std::move(folder)) {}
  absl::StatusOr<std::string> KeyOf(absl::Span<const std::string> files, TextPart part) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string json_;  // that it was read from
  std::string folder_;
};

// Where a text of more than `limit` bytes is best cut: at most at `limit`, so that what lies before
// and behind have the tokens of the whole (Tokenizer::Part), or at another end of a line, or
// between two characters. REQUIRES: text.size() > limit >= 4.
size_t FindCut(std::string_view text, size_t limit);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_TOKEN_CACHE_H_
