// Attacks a live server over TCP and, if it has one, its unix socket, until it has taken so many
// frames.  Exit status 1: the server did what it must not, and FOLDER has what it was sent.
//
//   live_fuzz HOST:PORT --frames=N [--seed=N] [--jobs=N] [--out=FOLDER]
//
// The attackers live in processes that end after a round, so that the server sees clients die.

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "tests/fuzz/live/attacker.h"

namespace infinistore::fuzz {
namespace {

constexpr std::uint64_t kRoundFrames = 20'000;
constexpr std::size_t kConnections = 24;  // of one process

struct Plan {
  Target target;
  std::uint64_t frames = 0;
  std::uint64_t seed = std::random_device{}();
  std::size_t jobs = 2;
  std::string out = "build/fuzz";
};

void keep(const Plan& plan, std::uint64_t seed,
          const std::vector<std::unique_ptr<Attacker>>& attackers) {
  const auto folder = std::filesystem::path(plan.out) / ("live-" + std::to_string(seed));
  std::filesystem::create_directories(folder);
  for (std::size_t i = 0; i < attackers.size(); ++i) {
    if (!attackers[i]) continue;
    const auto* kind = attackers[i]->has_shared_memory() ? "-unix" : "-tcp";
    std::ofstream file(folder / (std::to_string(i) + kind), std::ios::binary);
    const auto& sent = attackers[i]->sent();
    file.write(reinterpret_cast<const char*>(sent.data()),
               static_cast<std::streamsize>(sent.size()));
  }
  std::fprintf(stderr, "what its connections sent is in %s\n", folder.c_str());
}

// A process of its own: its exit status.
int run_round(const Plan& plan, std::uint64_t seed, Figures& figures) {
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<Attacker>> attackers(kConnections);
  const auto enough = std::min(figures.frames_taken.load() + plan.jobs * kRoundFrames, plan.frames);
  std::size_t at = 0;
  try {
    while (figures.frames_taken < enough) {
      at = random() % attackers.size();
      auto& attacker = attackers[at];
      if (!attacker) {
        const bool shared_memory = !plan.target.unix_path.empty() && random() % 2 == 0;
        attacker = std::make_unique<Attacker>(plan.target, shared_memory, random(), figures);
      } else {
        attacker->turn();
      }
      if (attacker->is_over()) attacker.reset();
    }
  } catch (const Finding& finding) {
    std::fprintf(stderr, "FOUND: %s (connection %zu of the round with seed %llu)\n", finding.what(),
                 at, static_cast<unsigned long long>(seed));
    keep(plan, seed, attackers);
    return 1;
  }
  return 0;
}

// Where the unix socket is, and the nonce that opens it: what WELCOME says.
void explore(Target& target) {
  Figures unused;
  const auto socket = dial(target, false);
  Answers answers(socket.get(), false, unused);
  answers.ask(1, {.opcode = Opcode::kHello});
  Body hello;
  append_frame(
      hello,
      {.opcode = Opcode::kHello, .flags = 0, .request_id = 1, .body_bytes = 0, .payload_bytes = 0},
      encode(Hello{}));
  if (::write(socket.get(), hello.data(), hello.size()) < 0) throw Finding("cannot say HELLO");
  while (!answers.is_answered(1)) {
    if (!answers.read(10'000)) throw Finding("the server does not answer HELLO");
  }
  target.nonce = answers.nonce.value();
  target.unix_path = answers.unix_path;
}

void print(const char* what, const Figures& figures, double seconds) {
  const auto of = [](const Figures::Count& count) {
    return static_cast<unsigned long long>(count.load());
  };
  std::printf(
      "%s: %llu frames taken by the server, %.0f a second; %llu answers; %llu connections, %llu on "
      "the unix socket with %llu descriptors; %llu fills; %llu broke the protocol, %llu vanished\n",
      what, of(figures.frames_taken), static_cast<double>(figures.frames_taken) / seconds,
      of(figures.answers), of(figures.connections), of(figures.shared_memory_connections),
      of(figures.descriptors), of(figures.fills), of(figures.broken), of(figures.vanished));
  std::fflush(stdout);
}

int attack(const Plan& plan) {
  auto* memory =
      ::mmap(nullptr, sizeof(Figures), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& figures = *std::construct_at(static_cast<Figures*>(memory));
  std::mt19937_64 random(plan.seed);
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::size_t running = 0;
  double printed_at = 0;
  bool is_bad = false;
  while (running > 0 || (!is_bad && figures.frames_taken < plan.frames)) {
    while (!is_bad && running < plan.jobs && figures.frames_taken < plan.frames) {
      const auto seed = random();
      const auto child = ::fork();
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // who ends this process ends its attackers
        ::_exit(run_round(plan, seed, figures));
      }
      ++running;
    }
    int status = 0;
    ::wait(&status);
    --running;
    is_bad = is_bad || status != 0;
    if (seconds() - printed_at > 10) {
      printed_at = seconds();
      print("live", figures, printed_at);
    }
  }
  print(is_bad ? "live, ended by what was found" : "live, all", figures, seconds());
  return is_bad ? 1 : 0;
}

int main(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto equals = argument.find('=');
    const auto value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    const auto number = std::strtoull(value.c_str(), nullptr, 10);
    if (argument.starts_with("--frames=")) plan.frames = number;
    if (argument.starts_with("--seed=")) plan.seed = number;
    if (argument.starts_with("--jobs=")) plan.jobs = std::max<std::size_t>(number, 1);
    if (argument.starts_with("--out=")) plan.out = value;
    if (!argument.starts_with("--")) {
      const auto colon = argument.rfind(':');
      plan.target.host = argument.substr(0, colon);
      plan.target.port = static_cast<std::uint16_t>(std::atoi(argument.c_str() + colon + 1));
    }
  }
  std::printf("seed %llu\n", static_cast<unsigned long long>(plan.seed));
  std::fflush(stdout);
  try {
    explore(plan.target);
  } catch (const Finding& finding) {
    std::fprintf(stderr, "FOUND: %s\n", finding.what());
    return 1;
  }
  return attack(plan);
}

}  // namespace
}  // namespace infinistore::fuzz

int main(int argc, char** argv) { return infinistore::fuzz::main(argc, argv); }
