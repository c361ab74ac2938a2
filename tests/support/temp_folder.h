// A folder for the files of one test, which goes with the object. What a killed test has left is
// removed by the next one that makes a folder.
//
// Thread rule: one thread.

#ifndef PENSTOCK_TESTS_SUPPORT_TEMP_FOLDER_H_
#define PENSTOCK_TESTS_SUPPORT_TEMP_FOLDER_H_

#include <filesystem>
#include <string>
#include <string_view>

namespace penstock::testing {

class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Of a file in the folder.
  std::string Path(std::string_view name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_TEMP_FOLDER_H_
