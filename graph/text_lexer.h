// Splits .pst text into tokens and words errors about it. Used by the parser only.
//
// Thread rule: one thread.
// Invariant: reads only inside the text; Next after the end gives kEnd for ever.

#ifndef PENSTOCK_GRAPH_TEXT_LEXER_H_
#define PENSTOCK_GRAPH_TEXT_LEXER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock::graph {

struct Token {
  enum class Kind : uint8_t {
    kEnd,
    kIdentifier,  // text
    kValueName,   // text, without the % and the quotes
    kInteger,     // integer
    kFloat,       // number
    kString,      // text, unescaped
    kPunctuation  // text: one character
  };

  Kind kind = Kind::kEnd;
  std::string text;
  int64_t integer = 0;
  double number = 0;
  size_t offset = 0;  // of the first character
  int line = 1;
  int column = 1;  // in bytes, from 1

  bool Is(char punctuation) const { return kind == Kind::kPunctuation && text[0] == punctuation; }
  bool IsWord(std::string_view word) const { return kind == Kind::kIdentifier && text == word; }
};

class Lexer {
 public:
  // Both outlive the lexer.
  Lexer(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  absl::StatusOr<Token> Next();

  // "file:line:column: message", the line of the token and a caret below its first character.
  absl::Status Error(const Token& at, std::string_view message) const;

 private:
  char Peek(size_t ahead = 0) const {
    return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0';
  }
  void SkipBlanks();
  absl::Status LexNumber(Token* token);
  absl::Status LexQuoted(Token* token);
  absl::Status LexValueName(Token* token);

  std::string_view text_;
  std::string_view file_;
  size_t position_ = 0;
  size_t line_start_ = 0;
  int line_ = 1;
};

// Whether a value's name needs no quotes.
bool IsPlainValueName(std::string_view name);

// `text` in double quotes with \", \\ and \n escaped.
std::string Quote(std::string_view text);

// What the token is, for messages: "'%x'", "end of file", "the number 3".
std::string Describe(const Token& token);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_TEXT_LEXER_H_
