# INFINISTORE_SANITIZE=address,undefined or =thread: for the whole build, since mixing breaks them.
if(INFINISTORE_SANITIZE)
  if(INFINISTORE_SANITIZE MATCHES "thread" AND INFINISTORE_SANITIZE MATCHES "address")
    message(FATAL_ERROR "INFINISTORE_SANITIZE: thread and address exclude each other")
  endif()
  add_compile_options(-fsanitize=${INFINISTORE_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${INFINISTORE_SANITIZE})
endif()
# infinistore_sanitized(TARGET [TESTS | LIKE OTHER]): half of such a build's time goes to reading the
# standard library again for every file, so it is read once; a test, run once, is not worth
# optimising, and unoptimised it hides nothing from a sanitizer. LIKE: as OTHER's tests, from its
# precompiled header. Without INFINISTORE_PRECOMPILE each file has its own includes only.
function(infinistore_sanitized target)
  if(NOT INFINISTORE_SANITIZE OR NOT INFINISTORE_PRECOMPILE)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 is "TESTS" "LIKE" "")
  # -fpch-preprocess: without it ccache cannot tell one precompiled header from another.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  if(is_TESTS OR is_LIKE)
    target_compile_options(${target} PRIVATE -O0)
  endif()
  if(is_LIKE)
    target_precompile_headers(${target} REUSE_FROM ${is_LIKE})
    return()
  endif()
  set(headers <algorithm> <array> <atomic> <chrono> <condition_variable> <cstring> <deque>
      <functional> <map> <memory> <mutex> <optional> <set> <span> <string> <string_view> <thread>
      <unordered_map> <utility> <vector>)
  if(is_TESTS)
    list(APPEND headers <random> <doctest/doctest.h>)
  endif()
  target_precompile_headers(${target} PRIVATE ${headers})
endfunction()
# Counters on every edge, which libFuzzer steers by.
if(INFINISTORE_LIBFUZZER)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
