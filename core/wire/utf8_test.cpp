#include "core/wire/utf8.h"

#include <doctest/doctest.h>

#include <string>

namespace infinistore {
namespace {

TEST_CASE("what is UTF-8 is taken, from one byte to four, at both ends of each range") {
  for (const char* const text :
       {"", "kv", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
        "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "a\xC3\xA4\xE5\x90\x8D/b"}) {
    CAPTURE(text);
    CHECK(is_utf8(text));
  }
  CHECK(is_utf8(std::string(3, '\0')));
}

TEST_CASE("what is none is refused: stray, cut, too long, a surrogate, beyond the last one") {
  for (const char* const text :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2g", "\xC2\xC2", "\xE0\x9F\xBF",
        "\xE2\x82", "\xE2\x82g", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF0\x90\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "kv\xFE", "\xE5\x90\x8D\x8D"}) {
    CAPTURE(text);
    CHECK_FALSE(is_utf8(text));
  }
}

}  // namespace
}  // namespace infinistore
