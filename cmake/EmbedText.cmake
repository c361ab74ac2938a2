# penstock_embed_text(target file namespace name): adds a source to `target` that defines the text of a file
# as `extern const char name[]` in a namespace.
function(penstock_embed_text target file namespace name)
  cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" text)
  cmake_path(GET file STEM stem)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/${stem}.cc")
  file(CONFIGURE OUTPUT "${source}" @ONLY CONTENT
"namespace @namespace@ {
extern const char @name@[];
const char @name@[] = R\"embedded(@text@)embedded\";
}  // namespace @namespace@
")
  target_sources(${target} PRIVATE "${source}")
endfunction()
