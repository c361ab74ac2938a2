#include "tests/support/xml_error.h"

#include <cctype>
#include <set>
#include <vector>

#include "base/strings.h"

namespace penstock::testing {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::string Run() {
    Skip("<!DOCTYPE html>");
    while (error_.empty() && at_ < text_.size()) {
      if (Skip("<![CDATA[")) {
        const size_t end = text_.find("]]>", at_);
        if (end == std::string_view::npos) return StrCat("a CDATA section at ", at_);
        at_ = end + 3;
      } else if (text_[at_] == '<') {
        Tag();
      } else {
        Character();
      }
    }
    if (error_.empty() && !open_.empty()) Fail(StrCat("<", open_.back(), "> is open"));
    return error_;
  }

 private:
  void Fail(std::string what) {
    if (error_.empty()) error_ = StrCat(what, " at ", at_);
  }

  bool Skip(std::string_view token) {
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  std::string_view Name() {
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  text_[at_] == '-' || text_[at_] == '_' || text_[at_] == ':')) {
      ++at_;
    }
    if (at_ == begin) Fail("no name");
    return text_.substr(begin, at_ - begin);
  }

  bool Space() {
    const size_t begin = at_;
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ > begin;
  }

  void Character() {
    if (text_[at_] == '&') {
      for (const std::string_view entity : {"&amp;", "&lt;", "&gt;", "&quot;"}) {
        if (Skip(entity)) return;
      }
      Fail("an entity");
    } else if (static_cast<unsigned char>(text_[at_]) < 0x20 && text_[at_] != '\n' &&
               text_[at_] != '\t') {
      Fail("a control code");
    } else {
      ++at_;
    }
  }

  void Attribute(std::set<std::string_view>* names) {
    const std::string_view name = Name();
    if (!names->insert(name).second) Fail(StrCat("a second ", name));
    if (!Skip("=\"")) Fail(StrCat(name, " without a quoted value"));
    while (error_.empty() && at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '<') Fail("'<' in an attribute");
      Character();
    }
    if (!Skip("\"")) Fail("an attribute that does not end");
  }

  void Tag() {
    ++at_;
    if (Skip("/")) {
      const std::string_view name = Name();
      if (open_.empty() || open_.back() != name) {
        Fail(StrCat("</", name, ">"));
        return;
      }
      open_.pop_back();
      if (!Skip(">")) Fail("an end tag");
      return;
    }
    const std::string_view name = Name();
    std::set<std::string_view> attributes;
    while (error_.empty()) {
      const bool has_space = Space();
      if (Skip("/>")) return;
      if (Skip(">")) {
        open_.push_back(name);
        return;
      }
      if (!has_space) Fail(StrCat("the tag <", name, ">"));
      Attribute(&attributes);
    }
  }

  const std::string_view text_;
  size_t at_ = 0;
  std::vector<std::string_view> open_;
  std::string error_;
};

}  // namespace

std::string XmlError(std::string_view text) { return Parser(text).Run(); }

}  // namespace penstock::testing
