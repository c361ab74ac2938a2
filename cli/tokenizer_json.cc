#include "cli/tokenizer_json.h"

#include <functional>
#include <limits>
#include <utility>

#include "nlohmann/json.hpp"

#include "actors/checkpoint/json_internal.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

using Json = nlohmann::json;

constexpr int kMaxTokenizerDepth = 12;
constexpr int64_t kMaxTokens = 1 << 22;
constexpr int kMaxParts = 64;  // of a Sequence, with those inside of it
constexpr int64_t kMaxStrip = 1 << 10;

// The words of GPT-2 (Radford et al. 2019), which ByteLevel cuts a text into.
constexpr char kGpt2Words[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(StrCat(parts...));
}

template <typename... Parts>
absl::Status Unsupported(const Parts&... parts) {
  return absl::UnimplementedError(StrCat(parts..., " is not supported"));
}

// A null counts as missing.
bool HasValue(const Json& json, const char* key) {
  return json.contains(key) && !json[key].is_null();
}

absl::StatusOr<std::string> StringOf(const Json& json, const char* key, std::string_view where) {
  if (HasValue(json, key) && json[key].is_string()) return json[key].get<std::string>();
  return Wrong(where, ": \"", key, "\" is no string");
}

absl::StatusOr<bool> BoolOf(const Json& json, const char* key, bool fallback,
                            std::string_view where) {
  if (!HasValue(json, key)) return fallback;
  if (json[key].is_boolean()) return json[key].get<bool>();
  return Wrong(where, ": \"", key, "\" is neither true nor false");
}

absl::StatusOr<int32_t> TokenOf(const Json& value, std::string_view where) {
  if (value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(kMaxTokens)) {
    return value.get<int32_t>();
  }
  return Wrong(where, ": the id of a token is no number below ", kMaxTokens);
}

absl::Status RequireFalse(const Json& json, const char* key, std::string_view where) {
  ASSIGN_OR_RETURN(const bool is_set, BoolOf(json, key, false, where));
  return is_set ? Unsupported(where, ": \"", key, "\"") : absl::OkStatus();
}

absl::Status ParseModel(const Json& model, TokenizerSpec* spec) {
  if (!model.is_object()) return Wrong("\"model\" is no object");
  if (HasValue(model, "type") && model["type"] != "BPE") {
    ASSIGN_OR_RETURN(const std::string type, StringOf(model, "type", "model"));
    return Unsupported("the model ", type, " (only BPE is)");
  }
  if (HasValue(model, "dropout") && model["dropout"] != 0.0)
    return Unsupported("model: \"dropout\"");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (HasValue(model, key) && model[key] != "") return Unsupported("model: \"", key, "\"");
  }
  if (!HasValue(model, "vocab") || !model["vocab"].is_object()) {
    return Wrong("model: \"vocab\" is no object");
  }
  for (const auto& [token, id] : model["vocab"].items()) {
    ASSIGN_OR_RETURN(spec->vocabulary[token], TokenOf(id, "model: vocab"));
  }
  if (!HasValue(model, "merges") || !model["merges"].is_array()) {
    return Wrong("model: \"merges\" is no list");
  }
  for (const Json& merge : model["merges"]) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      spec->merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : std::string();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      return Wrong("model: merge ", spec->merges.size(), " is no two tokens");
    }
    spec->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  if (HasValue(model, "unk_token")) {
    ASSIGN_OR_RETURN(spec->unknown, StringOf(model, "unk_token", "model"));
  }
  ASSIGN_OR_RETURN(spec->fuses_unknown, BoolOf(model, "fuse_unk", false, "model"));
  ASSIGN_OR_RETURN(spec->has_byte_fallback, BoolOf(model, "byte_fallback", false, "model"));
  ASSIGN_OR_RETURN(spec->ignores_merges, BoolOf(model, "ignore_merges", false, "model"));
  return absl::OkStatus();
}

absl::Status ParseAdded(const Json& list, TokenizerSpec* spec) {
  constexpr std::string_view kWhere = "added_tokens";
  if (!list.is_array()) return Wrong("\"added_tokens\" is no list");
  for (const Json& json : list) {
    if (!json.is_object()) return Wrong("an entry of added_tokens is no object");
    AddedToken& token = spec->added.emplace_back();
    ASSIGN_OR_RETURN(token.id, TokenOf(json.value("id", Json()), kWhere));
    ASSIGN_OR_RETURN(token.content, StringOf(json, "content", kWhere));
    if (token.content.empty()) return Wrong("added_tokens: the token ", token.id, " is empty");
    ASSIGN_OR_RETURN(token.is_special, BoolOf(json, "special", false, kWhere));
    ASSIGN_OR_RETURN(token.is_normalized, BoolOf(json, "normalized", !token.is_special, kWhere));
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      RETURN_IF_ERROR(RequireFalse(json, key, StrCat(kWhere, ": ", token.content)));
    }
  }
  return absl::OkStatus();
}

// Calls `parse` with the type of the part, or of each part of a Sequence that lists them under
// `list`.
using ParsePart = std::function<absl::Status(std::string_view type, const Json& part)>;
absl::Status ForEachPart(const Json& part, const char* what, const char* list,
                         const ParsePart& parse) {
  if (!part.is_object()) return Wrong("\"", what, "\" is no object");
  ASSIGN_OR_RETURN(const std::string type, StringOf(part, "type", what));
  if (type != "Sequence") return parse(type, part);
  if (!HasValue(part, list) || !part[list].is_array())
    return Wrong(what, ": Sequence has no parts");
  for (const Json& inner : part[list]) RETURN_IF_ERROR(ForEachPart(inner, what, list, parse));
  return absl::OkStatus();
}

// {"String": ...} or {"Regex": ...}, and what the one key is.
absl::StatusOr<std::pair<std::string, std::string>> PatternOf(const Json& part,
                                                              std::string_view where) {
  if (HasValue(part, "pattern") && part["pattern"].is_object() && part["pattern"].size() == 1) {
    const auto item = part["pattern"].items().begin();
    if (item.value().is_string()) return std::pair(item.key(), item.value().get<std::string>());
  }
  return Wrong(where, ": \"pattern\" is neither String nor Regex");
}

absl::StatusOr<Replacement> ReplacementOf(const Json& part, std::string_view where) {
  ASSIGN_OR_RETURN(const auto pattern, PatternOf(part, where));
  if (pattern.first != "String") return Unsupported(where, ": a pattern ", pattern.first);
  if (pattern.second.empty()) return Wrong(where, ": the pattern is empty");
  Replacement replacement = {.from = pattern.second, .to = ""};
  ASSIGN_OR_RETURN(replacement.to, StringOf(part, "content", where));
  return replacement;
}

absl::Status ParseNormalizer(std::string_view type, const Json& part, TokenizerSpec* spec) {
  if (type == "Prepend") {
    NormalizerStep& step = spec->normalizers.emplace_back();
    ASSIGN_OR_RETURN(step.replacement.to, StringOf(part, "prepend", "normalizer: Prepend"));
    return absl::OkStatus();
  }
  if (type == "Replace") {
    ASSIGN_OR_RETURN(Replacement replacement, ReplacementOf(part, "normalizer: Replace"));
    spec->normalizers.push_back({.replacement = std::move(replacement)});
    return absl::OkStatus();
  }
  if (type == "Lowercase") {
    spec->normalizers.push_back({.kind = NormalizerStep::Kind::kLowercase});
    return absl::OkStatus();
  }
  for (const auto& [name, form] :
       {std::pair("NFC", UnicodeForm::kNfc), std::pair("NFD", UnicodeForm::kNfd),
        std::pair("NFKC", UnicodeForm::kNfkc), std::pair("NFKD", UnicodeForm::kNfkd)}) {
    if (type != name) continue;
    spec->normalizers.push_back({.kind = NormalizerStep::Kind::kForm, .form = form});
    return absl::OkStatus();
  }
  return Unsupported("the normalizer ", type);
}

// A pattern that matches a text and nothing else.
std::string Quoted(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                          (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
    if (!is_plain) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

// Metaspace, which is a pre-tokenizer and a decoder.
absl::StatusOr<SplitStep> MetaspaceOf(const Json& part) {
  constexpr std::string_view kWhere = "Metaspace";
  SplitStep step = {.kind = SplitStep::Kind::kMetaspace};
  ASSIGN_OR_RETURN(step.space, StringOf(part, "replacement", kWhere));
  if (step.space.empty()) return Wrong("Metaspace: the replacement is empty");
  ASSIGN_OR_RETURN(step.splits, BoolOf(part, "split", true, kWhere));
  ASSIGN_OR_RETURN(const bool adds, BoolOf(part, "add_prefix_space", true, kWhere));
  const std::string scheme = HasValue(part, "prepend_scheme") && part["prepend_scheme"].is_string()
                                 ? part["prepend_scheme"].get<std::string>()
                                 : std::string(adds ? "always" : "never");
  if (scheme == "always") {
    step.prefix = SplitStep::Prefix::kAlways;
  } else if (scheme == "first") {
    step.prefix = SplitStep::Prefix::kFirst;
  } else if (scheme != "never") {
    return Wrong("Metaspace: \"prepend_scheme\" is \"", scheme, "\"");
  }
  return step;
}

absl::Status ParsePreTokenizer(std::string_view type, const Json& part, TokenizerSpec* spec) {
  const std::string where = StrCat("pre_tokenizer: ", type);
  if (type == "ByteLevel") {
    ASSIGN_OR_RETURN(const bool has_words, BoolOf(part, "use_regex", true, where));
    ASSIGN_OR_RETURN(const bool adds_space, BoolOf(part, "add_prefix_space", true, where));
    SplitStep step = {.kind = SplitStep::Kind::kByteLevel};
    if (has_words) step.pattern = kGpt2Words;
    if (adds_space) step.prefix = SplitStep::Prefix::kAlways;
    spec->splits.push_back(std::move(step));
    return absl::OkStatus();
  }
  if (type == "Metaspace") {
    ASSIGN_OR_RETURN(SplitStep step, MetaspaceOf(part));
    spec->splits.push_back(std::move(step));
    return absl::OkStatus();
  }
  SplitStep step;
  if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool is_each, BoolOf(part, "individual_digits", false, where));
    step.pattern = is_each ? R"(\p{N})" : R"(\p{N}+)";
  } else if (type == "Split") {
    ASSIGN_OR_RETURN(const auto pattern, PatternOf(part, where));
    ASSIGN_OR_RETURN(const std::string behavior, StringOf(part, "behavior", where));
    if (behavior != "Isolated") return Unsupported(where, ": the behavior ", behavior);
    RETURN_IF_ERROR(RequireFalse(part, "invert", where));
    if (pattern.first != "String" && pattern.first != "Regex") {
      return Wrong(where, ": \"pattern\" is neither String nor Regex");
    }
    step.pattern = pattern.first == "Regex" ? pattern.second : Quoted(pattern.second);
  } else {
    return Unsupported("the pre-tokenizer ", type);
  }
  if (step.pattern.empty()) return Wrong(where, ": the pattern is empty");
  spec->splits.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status ParsePostProcessor(std::string_view type, const Json& part, TokenizerSpec* spec) {
  if (type == "ByteLevel") return absl::OkStatus();  // it moves offsets
  if (type != "TemplateProcessing") return Unsupported("the post-processor ", type);
  constexpr std::string_view kWhere = "post_processor: TemplateProcessing";
  if (!HasValue(part, "single") || !part["single"].is_array()) {
    return Wrong(kWhere, ": \"single\" is no list");
  }
  int num_texts = 0;
  for (const Json& piece : part["single"]) {
    if (piece.is_object() && piece.contains("Sequence")) {
      ++num_texts;
      continue;
    }
    if (!piece.is_object() || !HasValue(piece, "SpecialToken") ||
        !piece["SpecialToken"].is_object()) {
      return Wrong(kWhere, ": a piece is neither Sequence nor SpecialToken");
    }
    ASSIGN_OR_RETURN(const std::string name, StringOf(piece["SpecialToken"], "id", kWhere));
    const Json tokens = part.value("special_tokens", Json::object());
    const Json ids = tokens.is_object() && tokens.contains(name) && tokens[name].is_object()
                         ? tokens[name].value("ids", Json())
                         : Json();
    if (!ids.is_array()) return Wrong(kWhere, ": ", name, " has no list of ids");
    for (const Json& id : ids) {
      ASSIGN_OR_RETURN(const int32_t token, TokenOf(id, kWhere));
      (num_texts == 0 ? spec->before : spec->after).push_back(token);
    }
  }
  if (num_texts != 1) return Unsupported(kWhere, ": ", num_texts, " texts in \"single\"");
  return absl::OkStatus();
}

absl::Status ParseDecoder(std::string_view type, const Json& part, TokenizerSpec* spec) {
  const std::string where = StrCat("decoder: ", type);
  if (type == "ByteLevel") {
    spec->decodes_bytes = true;
  } else if (type == "Metaspace") {
    ASSIGN_OR_RETURN(const SplitStep step, MetaspaceOf(part));
    spec->replacements.push_back({step.space, " "});
    if (step.prefix != SplitStep::Prefix::kNever) spec->strips_spaces = 1;
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(Replacement replacement, ReplacementOf(part, where));
    spec->replacements.push_back(std::move(replacement));
  } else if (type == "ByteFallback") {
    spec->decodes_byte_fallback = true;
  } else if (type == "Strip") {
    const Json start = part.value("start", Json(0));
    if (part.value("content", Json()) != " " || part.value("stop", Json(0)) != 0) {
      return Unsupported(where, " of more than spaces at the beginning");
    }
    if (!start.is_number_unsigned() || start.get<uint64_t>() > kMaxStrip) {
      return Wrong(where, ": \"start\" is no number up to ", kMaxStrip);
    }
    spec->strips_spaces = start.get<int64_t>();
  } else if (type != "Fuse") {
    return Unsupported("the decoder ", type);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizer(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, actors::ParseJsonObject(text, "the text", kMaxTokenizerDepth));
  TokenizerSpec spec;
  if (!HasValue(json, "model")) return Wrong("has no \"model\"");
  RETURN_IF_ERROR(ParseModel(json["model"], &spec));
  if (HasValue(json, "added_tokens")) RETURN_IF_ERROR(ParseAdded(json["added_tokens"], &spec));
  struct Part {
    const char* key;
    const char* list;  // of its Sequence
    absl::Status (*parse)(std::string_view, const Json&, TokenizerSpec*);
  };
  for (const Part& part : {Part{"normalizer", "normalizers", ParseNormalizer},
                           Part{"pre_tokenizer", "pretokenizers", ParsePreTokenizer},
                           Part{"post_processor", "processors", ParsePostProcessor},
                           Part{"decoder", "decoders", ParseDecoder}}) {
    if (!HasValue(json, part.key)) continue;
    int num_parts = 0;
    RETURN_IF_ERROR(ForEachPart(json[part.key], part.key, part.list,
                                [&](std::string_view type, const Json& inner) -> absl::Status {
                                  if (++num_parts > kMaxParts) {
                                    return Unsupported(part.key, " of more than ", kMaxParts,
                                                       " parts");
                                  }
                                  return part.parse(type, inner, &spec);
                                }));
  }
  if (!HasValue(json, "decoder"))
    return Wrong("has no \"decoder\": what its tokens mean is not said");
  return spec;
}

}  // namespace penstock::cli
