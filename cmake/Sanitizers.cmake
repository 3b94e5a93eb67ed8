# INFINISTORE_SANITIZE=address,undefined or =thread: for the whole build, since mixing breaks them.
if(INFINISTORE_SANITIZE)
  if(INFINISTORE_SANITIZE MATCHES "thread" AND INFINISTORE_SANITIZE MATCHES "address")
    message(FATAL_ERROR "INFINISTORE_SANITIZE: thread and address exclude each other")
  endif()
  add_compile_options(-fsanitize=${INFINISTORE_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${INFINISTORE_SANITIZE})
endif()
# Counters on every edge, which libFuzzer steers by.
if(INFINISTORE_LIBFUZZER)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
