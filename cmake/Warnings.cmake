# infinistore_warnings(target): the warnings that every target of ours is compiled with.
function(infinistore_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wshadow)
  if(INFINISTORE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  # At -O3 gcc 12 sees overlaps (its bug 105651) and overruns in the standard library's own inlined
  # copies that are not there; the sanitizers look for the true ones.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow
                                           -Wno-stringop-overread)
  endif()
  # Its own -Wthread-safety checks GUARDED_BY; gcc has no such thing.
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${target} PRIVATE -Wthread-safety)
  endif()
endfunction()
