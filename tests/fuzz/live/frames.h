#pragma once
// FrameMaker: frames as no client of ours would send them, though most of them are well-formed.

#include <random>
#include <string>
#include <vector>

#include "core/wire/codec.h"
#include "core/wire/frame.h"

namespace infinistore::fuzz {

class FrameMaker {
 public:
  explicit FrameMaker(std::uint64_t seed) : random_(seed) {}

  std::uint64_t number(std::uint64_t below) { return random_() % below; }
  bool one_in(std::uint64_t many) { return number(many) == 0; }
  std::uint64_t odd_number();  // small, or at a bound of something

  std::vector<std::string> keys(std::size_t count);
  std::size_t key_count();
  Body put(std::vector<std::string>& keys, WireRanges& ranges);
  Body get(std::size_t& key_count);
  Body match();
  Body keys_request(std::size_t& key_count);
  Body lease(const std::vector<std::uint64_t>& known, std::size_t& count);
  Body hello(const Nonce& nonce);
  Body noise(std::size_t bytes);

  // A header that must end the connection, whatever the state.
  std::array<std::byte, kHeaderBytes> bad_header();
  // A body that is not one of this opcode, from one that is.
  Body spoiled(Opcode opcode);
  // Changes some bytes anywhere: nobody knows what comes of it.
  void scramble(Body& frame);

  std::mt19937_64& random() { return random_; }

 private:
  WireRanges ranges(const std::vector<std::string>& keys, bool is_put);

  std::mt19937_64 random_;
};

void append_frame(Body& to, const FrameHeader& header, Bytes body);

}  // namespace infinistore::fuzz
