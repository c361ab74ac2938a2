# Installs the pages of docs/ and README.md beside each other. Their links to examples and headers
# lead to where those are installed.
#
# Runs when the build is installed, with source (of Penstock), work (a folder to write to), and
# doc_dir, examples_dir and headers_dir, which are relative to the prefix.
file(RELATIVE_PATH examples "/${doc_dir}" "/${examples_dir}")
file(RELATIVE_PATH headers "/${doc_dir}" "/${headers_dir}")
file(REMOVE_RECURSE "${work}")
file(GLOB pages "${source}/docs/*.md")
foreach(page IN LISTS pages ITEMS "${source}/README.md")
  file(READ "${page}" text)
  string(REPLACE "](../README.md" "](README.md" text "${text}")
  string(REPLACE "](docs/" "](" text "${text}")
  string(REGEX REPLACE "\\]\\((\\.\\./)?examples/" "](${examples}/" text "${text}")
  string(REGEX REPLACE "\\]\\(\\.\\./([a-z/_]+\\.h\\))" "](${headers}/\\1" text "${text}")
  # Scripts are part of a clone alone.
  string(REGEX REPLACE "\\[(scripts/[a-z-]+)\\]\\(scripts/[a-z-]+\\)" "`\\1`" text "${text}")
  cmake_path(GET page FILENAME name)
  file(WRITE "${work}/${name}" "${text}")
endforeach()
file(GLOB pages "${work}/*.md")
file(GLOB pictures "${source}/docs/*.png")
file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/${doc_dir}" TYPE FILE
  FILES "${source}/LICENSE" ${pages} ${pictures})
