# infinistore_warnings(target): the warnings that every target of ours is compiled with.
function(infinistore_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wshadow)
  if(INFINISTORE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  # gcc 12 sees overlaps in std::string's operator+ that are not there (its bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  # Its own -Wthread-safety checks GUARDED_BY; gcc has no such thing.
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${target} PRIVATE -Wthread-safety)
  endif()
endfunction()
