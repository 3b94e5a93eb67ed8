#pragma once
// A certificate for tests, in files that go with it.

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace infinistore {

// A certificate of 127.0.0.1, which signed itself, and its key; made by the command `openssl`.
class TestCertificate {
 public:
  TestCertificate() {
    char name[] = "/tmp/infinistore-tls-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    folder_ = name;
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=x "
        "-addext subjectAltName=IP:127.0.0.1 -out " +
        chain() + " -keyout " + key() + " 2>/dev/null";
    are_made_ = std::system(command.c_str()) == 0;  // NOLINT(concurrency-mt-unsafe)
  }
  ~TestCertificate() { std::filesystem::remove_all(folder_); }
  TestCertificate(const TestCertificate&) = delete;
  TestCertificate& operator=(const TestCertificate&) = delete;

  std::string chain() const { return folder_ + "/chain.pem"; }
  std::string key() const { return folder_ + "/key.pem"; }
  bool are_made() const { return are_made_; }

 private:
  std::string folder_;
  bool are_made_ = false;
};

}  // namespace infinistore
