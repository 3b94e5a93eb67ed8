#include "core/transport/boot_id.h"

#include <fcntl.h>

#include <array>

#include "core/base/fd.h"

namespace infinistore {
namespace {

int hex_value(char digit) noexcept {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  return -1;
}

}  // namespace

BootId read_boot_id() noexcept {
  const UniqueFd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 64> text{};
  const auto got = file ? ::read(file.get(), text.data(), text.size()) : 0;
  BootId id{};
  std::size_t digits = 0;
  for (std::ptrdiff_t i = 0; i < got && digits < 2 * id.size(); ++i) {
    const int value = hex_value(text[static_cast<std::size_t>(i)]);
    if (value < 0) continue;
    auto& byte = id[digits / 2];
    byte = (byte << 4) | static_cast<std::byte>(value);
    ++digits;
  }
  return digits == 2 * id.size() ? id : BootId{};
}

}  // namespace infinistore
