#pragma once
// What a fuzz target is to its drivers: one function that takes any bytes, and inputs to begin
// with.
//
// Under clang libFuzzer is the driver; the other one is mutation_driver.cpp.

#include <cstddef>
#include <cstdint>
#include <vector>

// Ends the process if anything is wrong; always 0.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace infinistore::fuzz {

using Input = std::vector<std::byte>;

std::vector<Input> seeds();

}  // namespace infinistore::fuzz
