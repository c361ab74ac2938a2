#include "cli/unicode.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

TEST(UnicodeTest, FormsComposeAndDecompose) {
  const std::string composed = "caf\xc3\xa9";
  const std::string decomposed = "cafe\xcc\x81";
  EXPECT_EQ(*NormalizeUnicode(UnicodeForm::kNfc, decomposed), composed);
  EXPECT_EQ(*NormalizeUnicode(UnicodeForm::kNfkc, decomposed), composed);
  EXPECT_EQ(*NormalizeUnicode(UnicodeForm::kNfd, composed), decomposed);
  EXPECT_EQ(*NormalizeUnicode(UnicodeForm::kNfkd, composed), decomposed);
  EXPECT_EQ(*NormalizeUnicode(UnicodeForm::kNfc, ""), "");
}

TEST(UnicodeTest, OnlyTheKFormsReplaceCompatibleCharacters) {
  const std::string ligature = "\xef\xac\x81";  // fi
  EXPECT_EQ(*NormalizeUnicode(UnicodeForm::kNfc, ligature), ligature);
  EXPECT_EQ(*NormalizeUnicode(UnicodeForm::kNfd, ligature), ligature);
  EXPECT_EQ(*NormalizeUnicode(UnicodeForm::kNfkc, ligature), "fi");
  EXPECT_EQ(*NormalizeUnicode(UnicodeForm::kNfkd, ligature), "fi");
}

TEST(UnicodeTest, LowercaseIsThatOfEachCharacter) {
  EXPECT_EQ(*LowercaseUnicode("ABC xyz 1_\xc3\x89"), "abc xyz 1_\xc3\xa9");
  EXPECT_EQ(*LowercaseUnicode("\xce\xa3\xce\xa3"), "\xcf\x83\xcf\x83");  // no final sigma
  EXPECT_EQ(*LowercaseUnicode("\xc4\xb0"), "i\xcc\x87");                 // two characters
  EXPECT_EQ(*LowercaseUnicode("\xf0\x90\x90\x80"), "\xf0\x90\x90\xa8");  // beyond 16 bits
  EXPECT_EQ(*LowercaseUnicode("\xe6\x97\xa5\xe1\xba\x9e"), "\xe6\x97\xa5\xc3\x9f");
}

}  // namespace
}  // namespace penstock::cli
