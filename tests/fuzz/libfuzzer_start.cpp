// Gives libFuzzer the seeds of its target as files, in the folder that FUZZ_SEEDS names.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerInitialize(int*, char***);

int LLVMFuzzerInitialize(int*, char***) {
  const char* const folder = std::getenv("FUZZ_SEEDS");
  if (folder == nullptr) return 0;
  int count = 0;
  for (const auto& input : infinistore::fuzz::seeds()) {
    const auto path = std::filesystem::path(folder) / ("seed-" + std::to_string(count++));
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(input.data()),
               static_cast<std::streamsize>(input.size()));
  }
  return 0;
}
