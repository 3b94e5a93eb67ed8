#include "core/base/log.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <string>

#include "core/base/fd.h"

namespace infinistore {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> fds{};
    REQUIRE(::pipe(fds.data()) == 0);
    out = UniqueFd(fds[0]);
    in = UniqueFd(fds[1]);
  }
  std::string written() {
    in.reset();
    std::string text(8192, '\0');
    const auto got = ::read(out.get(), text.data(), text.size());
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }
  UniqueFd in, out;
};

}  // namespace

TEST_CASE("the newest warnings are kept, cut and printable") {
  Log log(LogLevel::kInfo, -1);
  log.write(LogLevel::kInfo, "no problem");
  for (int i = 0; i < 100; ++i) log.write(LogLevel::kWarning, "line " + std::to_string(i));
  log.write(LogLevel::kError, "a\nb" + std::string(1000, 'x'));
  const auto lines = log.recent();
  CHECK(lines.size() == 64);
  CHECK(lines.front().text == "line 37");
  CHECK(lines.back().level == LogLevel::kError);
  CHECK(lines.back().text.starts_with("a?bx"));
  CHECK(lines.back().text.size() == 240);
}

TEST_CASE("a log line has a level, one end, and nothing that a terminal would obey") {
  Pipe pipe;
  Log log(LogLevel::kInfo, pipe.in.get());
  log.write(LogLevel::kDebug, "too fine");
  log.write(LogLevel::kWarning, "bad\x1B[31m\nname");
  const auto text = pipe.written();
  CHECK(text.find("too fine") == std::string::npos);
  CHECK(text.find(" WARNING infinistore.core: bad?[31m?name\n") != std::string::npos);
  CHECK(text.find('\n') == text.size() - 1);
}

TEST_CASE("a long line is cut") {
  Pipe pipe;
  Log log(LogLevel::kInfo, pipe.in.get());
  log.write(LogLevel::kError, std::string(10'000, 'x'));
  const auto text = pipe.written();
  CHECK(text.size() < 4096);
  CHECK(text.back() == '\n');
}

TEST_CASE("a line of JSON is whole, whatever is in it") {
  for (const std::string& text :
       {std::string("a \"quoted\" \\ name\n\xff"), std::string(5000, '"')}) {
    Pipe pipe;
    Log log(LogLevel::kInfo, pipe.in.get(), LogFormat::kJson);
    log.write(LogLevel::kWarning, text);
    const auto line = pipe.written();
    CHECK(line.starts_with(R"({"time": "2)"));
    CHECK(line.ends_with("\"}\n"));
    CHECK(line.size() <= 2048);
    CHECK(line.find(R"(+00:00", "level": "WARNING", "logger": "infinistore.core", "message": ")") ==
          33);
    CHECK(line[29] == '.');
    CHECK(line.substr(30, 3).find_first_not_of("0123456789") == std::string::npos);
    // No quote ends the string before its time.
    const auto end = line.size() - 3;
    for (auto at = line.rfind("message\": \"") + 11; at < end; ++at) {
      if (line[at] == '\\') ++at;
      CHECK((line[at] != '"' || line[at - 1] == '\\'));
    }
  }
  Pipe pipe;
  Log log(LogLevel::kInfo, pipe.in.get(), LogFormat::kJson);
  log.write(LogLevel::kInfo, "a \"b\" \\ \n\xff");
  CHECK(pipe.written().find(R"("message": "a \"b\" \\ ?\\xff"})") != std::string::npos);
}

TEST_CASE("levels have the names of the settings") {
  CHECK(level_of("debug") == LogLevel::kDebug);
  CHECK(level_of("info") == LogLevel::kInfo);
  CHECK(level_of("warning") == LogLevel::kWarning);
  CHECK(level_of("error") == LogLevel::kError);
}

TEST_CASE("a limited line is written once a second") {
  Pipe pipe;
  Log log(LogLevel::kInfo, pipe.in.get());
  ManualClock clock;
  std::atomic<Nanos> last{0};
  log.write_limited(LogLevel::kError, "one", clock, last);
  log.write_limited(LogLevel::kError, "two", clock, last);
  clock.advance(2 * kSecond);
  log.write_limited(LogLevel::kError, "three", clock, last);
  const auto text = pipe.written();
  CHECK(text.find("one") != std::string::npos);
  CHECK(text.find("two") == std::string::npos);
  CHECK(text.find("three") != std::string::npos);
}

}  // namespace infinistore
