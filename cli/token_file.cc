#include "cli/token_file.h"

#include <charconv>
#include <string_view>

#include "absl/memory/memory.h"
#include "cli/files.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";

absl::Status Refuse(const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(StrCat(path, ": ", what));
}

// What stands behind "'key': " in the header of a .npy file.
std::string_view After(std::string_view header, std::string_view key) {
  const std::string quoted = StrCat("'", key, "':");
  const size_t at = header.find(quoted);
  if (at == std::string_view::npos) return "";
  header.remove_prefix(at + quoted.size());
  while (!header.empty() && header[0] == ' ') header.remove_prefix(1);
  return header;
}

// The bytes of a token of a .npy type; 0: not one for tokens.
int WidthOf(std::string_view descr) {
  for (const auto& [name, width] :
       {std::pair("'|u1'", 1), std::pair("'<u2'", 2), std::pair("'<u4'", 4), std::pair("'<i4'", 4),
        std::pair("'<i8'", 8), std::pair("'<u8'", 8)}) {
    if (descr.substr(0, 5) == name) return width;
  }
  return 0;
}

absl::StatusOr<TokenSpan> TokensOfNpy(const std::string& path, std::string_view bytes) {
  const auto truncated = [&path] { return Refuse(path, "ends within its header"); };
  if (bytes.size() < 12) return truncated();
  const bool is_short = bytes[6] == 1;
  size_t length = 0;
  for (size_t i = 0; i < (is_short ? 2 : 4); ++i) {
    length |= size_t{static_cast<unsigned char>(bytes[8 + i])} << (8 * i);
  }
  const size_t begin = is_short ? 10 : 12;
  if (length > bytes.size() - begin) return truncated();
  const std::string_view header = bytes.substr(begin, length);
  const int width = WidthOf(After(header, "descr"));
  if (width == 0) {
    return Refuse(path,
                  "holds no tokens; expected the element type |u1, <u2, <u4, <i4, <u8 or <i8");
  }
  const std::string_view shape = After(header, "shape");
  int64_t count = 0;
  if (shape.empty() || shape[0] != '(') return Refuse(path, "has no shape in its header");
  const auto [end, error] = std::from_chars(shape.data() + 1, shape.data() + shape.size(), count);
  const std::string_view rest = shape.substr(static_cast<size_t>(end - shape.data()));
  if (error != std::errc() || count < 0 || rest.substr(0, 2) != ",)") {
    return Refuse(path, "holds a tensor; expected tokens in one dimension");
  }
  const size_t available = bytes.size() - begin - length;
  if (static_cast<uint64_t>(count) > available / static_cast<size_t>(width)) {
    return Refuse(path, StrCat("is cut off: its header promises ", count, " tokens"));
  }
  return TokenSpan(bytes.data() + begin + length, width, count);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenFile>> TokenFile::Open(const std::string& path,
                                                                 int width) {
  auto opened = absl::WrapUnique(new TokenFile());
  ASSIGN_OR_RETURN(opened->file_, MappedFile::Open(path));
  const std::string_view bytes = opened->file_->text();
  if (bytes.empty()) return Refuse(path, "is empty");
  const size_t size = bytes.size();
  if (bytes.substr(0, kNpyMagic.size()) == kNpyMagic) {
    ASSIGN_OR_RETURN(opened->tokens_, TokensOfNpy(path, bytes));
  } else if (HasSuffix(path, ".npy")) {
    return Refuse(path, "is no .npy file");
  } else {
    if (size % static_cast<size_t>(width) != 0) {
      return Refuse(
          path, StrCat("has ", size, " bytes, no multiple of the ", width, " bytes of a token"));
    }
    opened->tokens_ =
        TokenSpan(bytes.data(), width, static_cast<int64_t>(size / static_cast<size_t>(width)));
  }
  return std::shared_ptr<const TokenFile>(std::move(opened));
}

}  // namespace penstock::cli
