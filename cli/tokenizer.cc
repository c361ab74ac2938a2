#include "cli/tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cli/files.h"
#include "cli/unicode.h"
#include "cli/utf8.h"
#include "fmt/format.h"

#include "actors/engine/error_origin.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 28;

// The character that stands for a byte, so that every text of bytes is a text of letters (Radford
// et al. 2019): those that can be seen are themselves, the others follow U+0100 in their order.
bool IsSeen(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct ByteCharacters {
  std::array<std::string, 256> characters;
  std::array<int, 0x200> bytes = {};  // by character; -1 for none
};

ByteCharacters MakeByteCharacters() {
  ByteCharacters table;
  table.bytes.fill(-1);
  uint32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const uint32_t code = IsSeen(byte) ? static_cast<uint32_t>(byte) : next++;
    table.characters[static_cast<size_t>(byte)] = ToUtf8(code);
    table.bytes[code] = byte;
  }
  return table;
}

const ByteCharacters& TheByteCharacters() {
  // A function-local constant: immutable, built on first use, shared by all readers.
  static const auto* const table = new ByteCharacters(MakeByteCharacters());
  return *table;
}

// The byte that "<0x0A>" stands for.
std::optional<int> FallbackByte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return std::nullopt;
    byte = byte * 16 + digit;
  }
  return byte;
}

// What replacements may make of a text of this many bytes: many times what those of real files do.
size_t RoomFor(size_t num_bytes) { return 64 * num_bytes + (size_t{1} << 20); }

absl::Status NoRoom() {
  return absl::ResourceExhaustedError(
      "the tokenizer makes more than 64 times as many bytes of a text");
}

// kResourceExhausted: the text would become longer than `room`.
absl::Status ReplaceAll(const Replacement& replacement, size_t room, std::string* text) {
  const auto& [from, to] = replacement;
  std::string replaced;
  size_t at = 0;
  if (from.empty() && !text->empty()) replaced = to;
  for (size_t found = from.empty() ? std::string::npos : text->find(from);
       found != std::string::npos; found = text->find(from, at)) {
    replaced.append(*text, at, found - at);
    replaced += to;
    at = found + from.size();
    if (replaced.size() > room) return NoRoom();
  }
  replaced.append(*text, at);
  if (replaced.size() > room) return NoRoom();
  *text = std::move(replaced);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tokenizer> Tokenizer::Load(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxFileBytes));
  absl::StatusOr<TokenizerSpec> spec = ParseTokenizer(text);
  if (!spec.ok()) return actors::WithPrefix(StrCat(path, ": "), spec.status());
  absl::StatusOr<Tokenizer> tokenizer = Create(*std::move(spec));
  if (!tokenizer.ok()) return actors::WithPrefix(StrCat(path, ": "), tokenizer.status());
  return tokenizer;
}

absl::StatusOr<Tokenizer> Tokenizer::Create(TokenizerSpec spec) {
  Tokenizer tokenizer(std::move(spec));
  RETURN_IF_ERROR(tokenizer.Prepare());
  return tokenizer;
}

absl::Status Tokenizer::Prepare() {
  const auto& vocabulary = spec_.vocabulary;
  const auto find = [&vocabulary](const std::string& token) -> absl::StatusOr<int32_t> {
    const auto found = vocabulary.find(token);
    if (found != vocabulary.end()) return found->second;
    return absl::InvalidArgumentError(StrCat("the vocabulary has no token \"", token, "\""));
  };
  for (size_t i = 0; i < spec_.merges.size(); ++i) {
    const auto& [left, right] = spec_.merges[i];
    const auto add = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(const int32_t left_id, find(left));
      ASSIGN_OR_RETURN(const int32_t right_id, find(right));
      ASSIGN_OR_RETURN(const int32_t joined, find(left + right));
      pairs_.Add(left_id, right_id, joined);
      return absl::OkStatus();
    };
    if (const absl::Status status = add(); !status.ok()) {
      return actors::WithPrefix(StrCat("merge ", i, ": "), status);
    }
  }
  if (spec_.unknown.has_value()) RETURN_IF_ERROR(find(*spec_.unknown).status());
  for (int byte = 0; byte < 256 && spec_.has_byte_fallback; ++byte) {
    ASSIGN_OR_RETURN(byte_tokens_[static_cast<size_t>(byte)],
                     find(fmt::format("<0x{:02X}>", byte)));
  }
  for (const SplitStep& step : spec_.splits) {
    // What does not cut by a pattern has one that is not used.
    ASSIGN_OR_RETURN(TextPattern pattern,
                     TextPattern::Compile(step.pattern.empty() ? "." : step.pattern));
    patterns_.push_back(std::move(pattern));
  }
  size_t num_bytes = 0;
  for (const AddedToken& token : spec_.added) num_bytes += token.content.size();
  size_t room = RoomFor(num_bytes);
  for (const AddedToken& token : spec_.added) {
    Segment content = {.text = token.content};
    if (token.is_normalized) RETURN_IF_ERROR(Normalize(&content, &room));
    added_.push_back(std::move(content.text));
  }
  const auto set_bytes = [this](int32_t token, std::string bytes) {
    const auto index = static_cast<size_t>(token);
    if (index >= bytes_.size()) bytes_.resize(index + 1);
    bytes_[index] = std::move(bytes);
  };
  num_bytes = 0;
  for (const auto& [content, token] : vocabulary) num_bytes += content.size();
  room = RoomFor(num_bytes);
  for (const auto& [content, token] : vocabulary) {
    ASSIGN_OR_RETURN(std::string bytes, BytesOfContent(content, &room));
    set_bytes(token, std::move(bytes));
  }
  for (const AddedToken& token : spec_.added) {
    set_bytes(token.id, token.is_special ? std::string() : token.content);
  }
  for (const std::vector<int32_t>* frame : {&spec_.before, &spec_.after}) {
    for (const int32_t token : *frame) {
      if (token >= num_tokens()) {
        return absl::InvalidArgumentError(
            StrCat("post_processor: there is no token with the id ", token));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Replace(const std::vector<Replacement>& replacements, size_t* room,
                                std::string* text) {
  size_t most = 0;
  for (const Replacement& replacement : replacements) {
    RETURN_IF_ERROR(ReplaceAll(replacement, *room, text));
    most = std::max(most, text->size());
  }
  *room -= most;
  return absl::OkStatus();
}

absl::StatusOr<std::string> Tokenizer::BytesOfContent(std::string_view content,
                                                      size_t* room) const {
  if (spec_.decodes_byte_fallback) {
    if (const std::optional<int> byte = FallbackByte(content)) {
      return std::string(1, static_cast<char>(*byte));
    }
  }
  std::string text(content);
  RETURN_IF_ERROR(Replace(spec_.replacements, room, &text));
  if (!spec_.decodes_bytes) return text;
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = FirstChar(std::string_view(text).substr(at));
    const std::array<int, 0x200>& table = TheByteCharacters().bytes;
    const int byte = c.code < table.size() ? table[c.code] : -1;
    if (!c.is_valid || byte < 0) return text;  // not made of bytes
    bytes.push_back(static_cast<char>(byte));
    at += c.length;
  }
  return bytes;
}

std::string_view Tokenizer::BytesOf(int32_t token) const {
  if (token < 0 || token >= num_tokens()) return {};
  return bytes_[static_cast<size_t>(token)];
}

std::string Tokenizer::Decode(absl::Span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) text += BytesOf(token);
  size_t num_spaces = 0;
  while (num_spaces < static_cast<size_t>(spec_.strips_spaces) && num_spaces < text.size() &&
         text[num_spaces] == ' ') {
    ++num_spaces;
  }
  text.erase(0, num_spaces);
  return text;
}

// Cuts segments at the added tokens that are looked for in normalized text or in others. Of several
// at one place the longest is taken.
std::vector<Tokenizer::Segment> Tokenizer::FindAdded(std::vector<Segment> segments,
                                                     bool is_normalized) const {
  // Where each token comes next; a text has few of them.
  std::vector<Segment> cut;
  for (Segment& segment : segments) {
    if (segment.added >= 0) {
      cut.push_back(std::move(segment));
      continue;
    }
    const std::string_view text = segment.text;
    std::vector<size_t> next(added_.size(), 0);
    for (size_t i = 0; i < added_.size(); ++i) {
      // What normalizes to nothing is found nowhere.
      const bool is_looked_for =
          spec_.added[i].is_normalized == is_normalized && !added_[i].empty();
      next[i] = is_looked_for ? text.find(added_[i]) : std::string_view::npos;
    }
    size_t at = 0;
    while (true) {
      size_t best = 0;
      size_t begin = std::string_view::npos;
      for (size_t i = 0; i < added_.size(); ++i) {
        if (next[i] < at) next[i] = text.find(added_[i], at);
        if (next[i] == std::string_view::npos) continue;
        if (next[i] < begin || (next[i] == begin && added_[i].size() > added_[best].size())) {
          begin = next[i];
          best = i;
        }
      }
      const std::string_view plain = text.substr(at, std::min(begin, text.size()) - at);
      if (!plain.empty()) {
        cut.push_back({.text = std::string(plain),
                       .is_first = segment.is_first && at == 0,
                       .is_continued = segment.is_continued && at == 0});
      }
      if (begin == std::string_view::npos) break;
      cut.push_back({.added = spec_.added[best].id});
      at = begin + added_[best].size();
    }
  }
  return cut;
}

absl::Status Tokenizer::Normalize(Segment* segment, size_t* room) const {
  size_t most = 0;
  std::string& text = segment->text;
  for (const NormalizerStep& step : spec_.normalizers) {
    switch (step.kind) {
      case NormalizerStep::Kind::kReplace: {
        const bool is_prefix = step.replacement.from.empty();
        if (is_prefix && segment->is_continued) break;
        RETURN_IF_ERROR(ReplaceAll(step.replacement, *room, &text));
        break;
      }
      case NormalizerStep::Kind::kForm: {
        ASSIGN_OR_RETURN(text, NormalizeUnicode(step.form, text));
        break;
      }
      case NormalizerStep::Kind::kLowercase: {
        ASSIGN_OR_RETURN(text, LowercaseUnicode(text));
        break;
      }
    }
    if (text.size() > *room) return NoRoom();
    most = std::max(most, text.size());
  }
  *room -= most;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Tokenizer::Word>> Tokenizer::WordsOf(const Segment& segment,
                                                                size_t room) const {
  std::vector<Word> words = {segment.text};
  for (size_t i = 0; i < spec_.splits.size(); ++i) {
    const SplitStep& step = spec_.splits[i];
    std::vector<Word> cut;
    size_t left = room;
    for (size_t w = 0; w < words.size(); ++w) {
      Word& word = words[w];
      const bool is_first = segment.is_first && w == 0;
      const bool is_continued = segment.is_continued && w == 0;
      const bool has_prefix = (step.prefix == SplitStep::Prefix::kAlways && !is_continued) ||
                              (step.prefix == SplitStep::Prefix::kFirst && is_first);
      if (step.kind == SplitStep::Kind::kMetaspace) {
        RETURN_IF_ERROR(ReplaceAll({" ", step.space}, left, &word));
        if (has_prefix && !word.starts_with(step.space)) word = StrCat(step.space, word);
        if (word.size() > left) return NoRoom();
        left -= word.size();
        // In front of each space.
        size_t begin = 0;
        for (size_t at = word.find(step.space, 1); step.splits && at != std::string::npos;
             at = word.find(step.space, at + step.space.size())) {
          cut.push_back(word.substr(begin, at - begin));
          begin = at;
        }
        cut.push_back(word.substr(begin));
        continue;
      }
      if (has_prefix && !word.starts_with(' ')) word = StrCat(" ", word);
      if (word.size() > left) return NoRoom();
      left -= word.size();
      if (step.pattern.empty()) {
        cut.push_back(std::move(word));
        continue;
      }
      size_t at = 0;
      RETURN_IF_ERROR(patterns_[i].ForEachMatch(word, [&](size_t begin, size_t end) {
        if (begin > at) cut.push_back(word.substr(at, begin - at));
        cut.push_back(word.substr(begin, end - begin));
        at = end;
      }));
      if (at < word.size()) cut.push_back(word.substr(at));
    }
    if (step.kind == SplitStep::Kind::kByteLevel) {
      for (Word& word : cut) {
        Word characters;
        for (const char byte : word) {
          characters += TheByteCharacters().characters[static_cast<unsigned char>(byte)];
        }
        word = std::move(characters);
      }
    }
    words = std::move(cut);
  }
  return words;
}

absl::Status Tokenizer::EncodeWord(std::string_view word, std::vector<int32_t>* tokens) const {
  const auto& vocabulary = spec_.vocabulary;
  if (spec_.ignores_merges) {
    if (const auto found = vocabulary.find(ToAbsl(word)); found != vocabulary.end()) {
      tokens->push_back(found->second);
      return absl::OkStatus();
    }
  }
  std::vector<int32_t> symbols;
  bool is_unknown = false;  // the last symbol
  for (size_t at = 0; at < word.size();) {
    const std::string_view character = word.substr(at, FirstChar(word.substr(at)).length);
    at += character.size();
    const auto found = vocabulary.find(ToAbsl(character));
    if (found != vocabulary.end()) {
      symbols.push_back(found->second);
      is_unknown = false;
    } else if (spec_.has_byte_fallback) {
      for (const char byte : character) {
        symbols.push_back(byte_tokens_[static_cast<unsigned char>(byte)]);
      }
      is_unknown = false;
    } else if (spec_.unknown.has_value()) {
      const int32_t unknown = vocabulary.find(*spec_.unknown)->second;
      if (!is_unknown || !spec_.fuses_unknown) symbols.push_back(unknown);
      is_unknown = true;
    } else {
      return absl::InvalidArgumentError(
          StrCat("the tokenizer has no token for \"", character, "\""));
    }
  }
  pairs_.Join(&symbols);
  tokens->insert(tokens->end(), symbols.begin(), symbols.end());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       bool has_frame) const {
  std::vector<int32_t> tokens;
  if (has_frame) tokens = spec_.before;
  RETURN_IF_ERROR(Encode({.text = std::string(text), .is_first = true}, &tokens));
  if (has_frame) tokens.insert(tokens.end(), spec_.after.begin(), spec_.after.end());
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodePart(std::string_view text, Part part) const {
  std::vector<int32_t> tokens;
  if (part.is_first) tokens = spec_.before;
  RETURN_IF_ERROR(
      Encode({.text = std::string(text), .is_first = part.is_first, .is_continued = !part.is_first},
             &tokens));
  if (part.is_last) tokens.insert(tokens.end(), spec_.after.begin(), spec_.after.end());
  return tokens;
}

absl::Status Tokenizer::Encode(Segment text, std::vector<int32_t>* tokens) const {
  if (const size_t at = FindInvalidUtf8(text.text); at != std::string_view::npos) {
    return absl::InvalidArgumentError(StrCat("the text is not UTF-8 at byte ", at));
  }
  std::vector<Segment> segments;
  const size_t all_room = RoomFor(text.text.size());
  segments.push_back(std::move(text));
  segments = FindAdded(std::move(segments), /*is_normalized=*/false);
  size_t room = all_room;
  for (Segment& segment : segments) {
    if (segment.added < 0) RETURN_IF_ERROR(Normalize(&segment, &room));
  }
  segments = FindAdded(std::move(segments), /*is_normalized=*/true);
  for (const Segment& segment : segments) {
    if (segment.added >= 0) {
      tokens->push_back(segment.added);
      continue;
    }
    ASSIGN_OR_RETURN(const std::vector<Word> words, WordsOf(segment, all_room));
    for (const Word& word : words) RETURN_IF_ERROR(EncodeWord(word, tokens));
  }
  return absl::OkStatus();
}

}  // namespace penstock::cli
