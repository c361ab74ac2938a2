#include "graph/text_lexer.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::graph {
namespace {

constexpr size_t kShownColumns = 160;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsWordStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsWordChar(char c) { return IsWordStart(c) || IsDigit(c); }
bool IsNameChar(char c) { return IsWordChar(c) || c == '.'; }
bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

void Lexer::SkipBlanks() {
  bool in_comment = false;
  for (; position_ < text_.size(); ++position_) {
    const char c = text_[position_];
    if (c == '\n') {
      ++line_;
      line_start_ = position_ + 1;
      in_comment = false;
    } else if (c == '#') {
      in_comment = true;
    }
    if (!in_comment && !IsBlank(c)) return;
  }
}

absl::StatusOr<Token> Lexer::Next() {
  SkipBlanks();
  Token token;
  token.offset = position_;
  token.line = line_;
  token.column = static_cast<int>(position_ - line_start_) + 1;
  if (position_ >= text_.size()) return token;

  const char c = Peek();
  if (IsWordStart(c)) {
    token.kind = Token::Kind::kIdentifier;
    while (IsWordChar(Peek())) token.text.push_back(text_[position_++]);
    return token;
  }
  if (c == '%') {
    RETURN_IF_ERROR(LexValueName(&token));
    return token;
  }
  if (c == '"') {
    token.kind = Token::Kind::kString;
    RETURN_IF_ERROR(LexQuoted(&token));
    return token;
  }
  if (IsDigit(c) || c == '-' || (c == '.' && IsDigit(Peek(1)))) {
    RETURN_IF_ERROR(LexNumber(&token));
    return token;
  }
  if (std::string_view("()[]{},:=@?.").find(c) != std::string_view::npos) {
    token.kind = Token::Kind::kPunctuation;
    token.text.assign(1, c);
    ++position_;
    return token;
  }
  return Error(token, "unexpected character");
}

absl::Status Lexer::LexNumber(Token* token) {
  const size_t begin = position_;
  if (Peek() == '-') ++position_;
  if (Peek() == 'i' && Peek(1) == 'n' && Peek(2) == 'f' && !IsWordChar(Peek(3))) {
    position_ += 3;
    token->kind = Token::Kind::kFloat;
    token->number = -std::numeric_limits<double>::infinity();
    return absl::OkStatus();
  }
  bool is_float = false;
  while (IsDigit(Peek())) ++position_;
  // A point without a digit after it joins axes: "a:(1)2.b".
  if (Peek() == '.' && IsDigit(Peek(1))) {
    is_float = true;
    ++position_;
    while (IsDigit(Peek())) ++position_;
  }
  if (Peek() == 'e' || Peek() == 'E') {
    const size_t sign = Peek(1) == '+' || Peek(1) == '-' ? 1 : 0;
    if (IsDigit(Peek(1 + sign))) {
      is_float = true;
      position_ += 1 + sign;
      while (IsDigit(Peek())) ++position_;
    }
  }
  if (IsWordChar(Peek())) return Error(*token, "malformed number");

  const char* first = text_.data() + begin;
  const char* last = text_.data() + position_;
  std::from_chars_result result{};
  if (is_float) {
    token->kind = Token::Kind::kFloat;
    result = std::from_chars(first, last, token->number);
  } else {
    token->kind = Token::Kind::kInteger;
    result = std::from_chars(first, last, token->integer);
  }
  if (result.ec == std::errc::result_out_of_range) {
    return Error(*token, is_float ? "the number does not fit a 64-bit float"
                                  : "the number does not fit a 64-bit integer");
  }
  if (result.ec != std::errc() || result.ptr != last) return Error(*token, "malformed number");
  return absl::OkStatus();
}

absl::Status Lexer::LexQuoted(Token* token) {
  for (++position_; position_ < text_.size(); ++position_) {
    const char c = text_[position_];
    if (c == '"') {
      ++position_;
      return absl::OkStatus();
    }
    if (c == '\n') break;
    if (c != '\\') {
      token->text.push_back(c);
      continue;
    }
    ++position_;
    switch (Peek()) {
      case '"':
      case '\\':
        token->text.push_back(Peek());
        break;
      case 'n':
        token->text.push_back('\n');
        break;
      default:
        return Error(*token, "unknown escape in a string; expected \\\", \\\\ or \\n");
    }
  }
  return Error(*token, "the string does not end on its line; expected '\"'");
}

absl::Status Lexer::LexValueName(Token* token) {
  token->kind = Token::Kind::kValueName;
  ++position_;
  if (Peek() == '"') {
    RETURN_IF_ERROR(LexQuoted(token));
  } else {
    while (IsNameChar(Peek())) token->text.push_back(text_[position_++]);
  }
  if (token->text.empty()) return Error(*token, "expected a name after '%'");
  return absl::OkStatus();
}

absl::Status Lexer::Error(const Token& at, std::string_view message) const {
  const size_t begin = at.offset - (at.column - 1);
  const size_t end = std::min(text_.find('\n', at.offset), text_.size());
  // A very long line is shown from shortly before the place.
  const size_t shown =
      at.offset - begin > kShownColumns / 2 ? at.offset - kShownColumns / 2 : begin;
  std::string line(text_.substr(shown, std::min(end - shown, kShownColumns)));
  std::string caret;
  for (size_t i = 0; i < at.offset - shown; ++i) {
    caret.push_back(i < line.size() && line[i] == '\t' ? '\t' : ' ');
  }
  return absl::InvalidArgumentError(
      StrCat(file_, ":", at.line, ":", at.column, ": ", message, "\n", line, "\n", caret, "^"));
}

bool IsPlainValueName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), IsNameChar);
}

std::string Quote(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '\n') {
      quoted += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') quoted.push_back('\\');
    quoted.push_back(c);
  }
  quoted.push_back('"');
  return quoted;
}

std::string Describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kEnd:
      return "the end of the file";
    case Token::Kind::kValueName:
      return StrCat("'%", token.text, "'");
    case Token::Kind::kInteger:
      return StrCat("the number ", token.integer);
    case Token::Kind::kFloat:
      return StrCat("the number ", token.number);
    case Token::Kind::kString:
      return "a string";
    case Token::Kind::kIdentifier:
    case Token::Kind::kPunctuation:
      return StrCat("'", token.text, "'");
  }
  return "";
}

}  // namespace penstock::graph
