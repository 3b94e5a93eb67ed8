#pragma once
// The double's functions as C++ tests call them, and what these tests share.

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "core/device/gpu.h"

extern "C" {
int cuMemAlloc_v2(unsigned long long* address, std::size_t bytes);
int cuMemFree_v2(unsigned long long address);
int cuMemcpyHtoD_v2(unsigned long long to, const void* from, std::size_t bytes);
int cuMemcpyDtoH_v2(void* to, unsigned long long from, std::size_t bytes);
int cuStreamDestroy_v2(infinistore::CuStream stream);
int fake_cuda_enqueue_wait(infinistore::CuStream stream, std::uint64_t ticket);
void fake_cuda_release(std::uint64_t ticket);
void fake_cuda_hold(infinistore::CuStream stream, bool holds);
void fake_cuda_delay_us(std::uint64_t delay_us);
void fake_cuda_fail(const char* call, int status, int passing);
std::uint64_t fake_cuda_counter(const char* name);
void fake_cuda_reset();
}

namespace infinistore {

// Memory of a device.
class DeviceBytes {
 public:
  DeviceBytes(Gpu& gpu, const std::vector<std::byte>& bytes) : gpu_(gpu), size_(bytes.size()) {
    const CurrentContext current(gpu_);
    REQUIRE(cuMemAlloc_v2(&address_, size_) == 0);
    REQUIRE(cuMemcpyHtoD_v2(address_, bytes.data(), size_) == 0);
  }
  ~DeviceBytes() {
    const CurrentContext current(gpu_);
    cuMemFree_v2(address_);
  }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> copied(size_);
    const CurrentContext current(gpu_);
    REQUIRE(cuMemcpyDtoH_v2(copied.data(), address_, size_) == 0);
    return copied;
  }
  std::uint64_t address() const { return address_; }

 private:
  Gpu& gpu_;
  std::size_t size_;
  unsigned long long address_ = 0;
};

inline std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

inline CuStream make_stream(Gpu& gpu) {
  const CurrentContext current(gpu);
  CuStream stream = nullptr;
  REQUIRE(gpu.driver().stream_create(&stream, 1, 0) == kCuSuccess);
  return stream;
}

inline void destroy_stream(Gpu& gpu, CuStream stream) {
  const CurrentContext current(gpu);
  cuStreamDestroy_v2(stream);
}

template <class Condition>
void wait_until(Condition condition) {
  for (int i = 0; i < 20'000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  CHECK(condition());
}

}  // namespace infinistore
