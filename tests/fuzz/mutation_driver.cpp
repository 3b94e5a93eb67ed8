// The driver of a fuzz target without libFuzzer: replays a corpus, then mutates it and the seeds
// for some seconds.  `--write-seeds` writes the seeds to a folder, for a driver that wants files.
//
//   x_fuzz [--seconds=N] [--seed=N] [--write-seeds=FOLDER] [CORPUS...]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>

#include "tests/fuzz/target.h"

namespace infinistore::fuzz {
namespace {

namespace files = std::filesystem;

Input read(const files::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Input input(text.size());
  std::transform(text.begin(), text.end(), input.begin(),
                 [](char each) { return static_cast<std::byte>(each); });
  return input;
}

// In one order everywhere, so that a seed means the same.
std::vector<Input> read_folder(const files::path& folder) {
  std::vector<files::path> paths;
  for (const auto& entry : files::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Input> all;
  for (const auto& path : paths) all.push_back(read(path));
  return all;
}

void run(const Input& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

void mutate(Input& input, std::mt19937_64& random) {
  const auto at = input.empty() ? 0 : random() % input.size();
  const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
  switch (random() % 5) {
    case 0:
      if (!input.empty()) *place = static_cast<std::byte>(random());
      break;
    case 1:
      if (!input.empty()) *place ^= std::byte{1} << static_cast<int>(random() % 8);
      break;
    case 2:
      input.resize(at);
      break;
    case 3:
      input.insert(place, static_cast<std::byte>(random()));
      break;
    default:
      if (!input.empty()) input.erase(place);
  }
}

unsigned long long mutate_for(double seconds, std::uint64_t seed,
                              const std::vector<Input>& corpus) {
  std::mt19937_64 random(seed);
  unsigned long long count = 0;
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::duration<double>(seconds)) {
    for (int i = 0; i < 100; ++i, ++count) {
      auto input = corpus[random() % corpus.size()];
      for (auto changes = 1 + random() % 5; changes > 0; --changes) mutate(input, random);
      run(input);
    }
  }
  return count;
}

// What follows `name` in an argument that begins with it; nullptr if it does not.
const char* value_of(std::string_view argument, std::string_view name) {
  return argument.starts_with(name) ? argument.data() + name.size() : nullptr;
}

int main(int argc, char** argv) {
  double seconds = 0;
  std::uint64_t seed = std::random_device{}();
  auto corpus = seeds();
  for (int i = 1; i < argc; ++i) {
    if (const char* given = value_of(argv[i], "--seconds=")) {
      seconds = std::atof(given);
    } else if (const char* number = value_of(argv[i], "--seed=")) {
      seed = std::strtoull(number, nullptr, 10);
    } else {
      for (auto& input : read_folder(argv[i])) corpus.push_back(std::move(input));
    }
  }
  for (const auto& input : corpus) run(input);
  std::printf("replayed %zu inputs; seed %llu\n", corpus.size(),
              static_cast<unsigned long long>(seed));
  std::fflush(stdout);  // it must be read also if what follows ends the process
  std::printf("%llu mutations\n", mutate_for(seconds, seed, corpus));
  return 0;
}

}  // namespace
}  // namespace infinistore::fuzz

int main(int argc, char** argv) { return infinistore::fuzz::main(argc, argv); }
