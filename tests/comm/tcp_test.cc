// Ranks that meet over TCP: the contract of every group, and all the ways in which a meeting goes wrong.
// Ranks are threads here, which share nothing but the ports. (Processes: tests/cli/nccl_test.cc.)
#include "kerf/comm/tcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <tuple>

#include "kerf/base/file.h"
#include "kerf/comm/agree.h"
#include "kerf/comm/tcp/hello.h"
#include "kerf/comm/tcp/place.h"
#include "kerf/comm/tcp/socket.h"
#include "tests/comm/contract.h"
#include "tests/support/test_env.h"

namespace kerf::comm {
namespace {

using std::chrono::milliseconds;
using test::contracts;
using testing::AllOf;
using testing::HasSubstr;

// One that nobody listens on, now.
int free_port() { return tcp::port_of(tcp::listen(0)); }

// How one rank's start or work ended.
struct Outcome {
  Verdict reason;
  bool group_failed = false;
  Verdict settled;
};

// Runs a rank and keeps what it throws; those that started settle, as the program does.
Outcome run_rank(const TcpOptions& options, const std::function<void(Program&)>& body) {
  Outcome out;
  std::unique_ptr<Program> program;
  out.reason = attempt([&] {
    try {
      program = start_tcp(options);
      body(*program);
    } catch (const GroupFailed&) {
      out.group_failed = true;
      throw;
    }
  });
  if (program) {
    out.settled = program->settle(out.reason, out.group_failed);
    program->end(0);
  }
  return out;
}

std::vector<Outcome> run_ranks(const std::vector<TcpOptions>& ranks,
                               const std::function<void(Program&)>& body) {
  std::vector<Outcome> out(ranks.size());
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r] { out[r] = run_rank(ranks[r], body); });
  threads.clear();
  return out;
}

std::vector<TcpOptions> at_port(int size, int port, milliseconds timeout = milliseconds{20'000}) {
  std::vector<TcpOptions> out;
  for (int r = 0; r < size; ++r) out.push_back({r, size, "127.0.0.1", port, "", timeout});
  return out;
}

std::vector<TcpOptions> at_file(int size, const std::string& file,
                                milliseconds timeout = milliseconds{20'000}) {
  std::vector<TcpOptions> out;
  for (int r = 0; r < size; ++r) out.push_back({r, size, "", 0, file, timeout});
  return out;
}

void expect_fine(const std::vector<Outcome>& outcomes) {
  for (const Outcome& o : outcomes) {
    EXPECT_EQ(o.reason, std::nullopt) << o.reason->text;
    EXPECT_EQ(o.settled, std::nullopt) << o.settled->text;
  }
}

void hear_each_other(Program& program) {
  const std::int32_t mine = program.group().rank();
  const auto all = gathered(program.group(), std::span(&mine, 1), "who is here");
  for (int r = 0; r < program.group().size(); ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], r);
}

class TcpContract : public testing::TestWithParam<std::tuple<test::Contract, int>> {};
INSTANTIATE_TEST_SUITE_P(Group, TcpContract,
                         testing::Combine(testing::ValuesIn(contracts().begin(), contracts().end()),
                                          testing::Values(1, 2, 3, 5, 8)),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param).name) + "_" +
                                  std::to_string(std::get<1>(one.param));
                         });

TEST_P(TcpContract, Holds) {
  const auto& [contract, ranks] = GetParam();
  const auto check = contract.check;
  expect_fine(run_ranks(at_port(ranks, free_port()), [&](Program& p) { check(p.group()); }));
}

TEST(Tcp, RanksMeetInAnyOrderAtAPortAndAtAFile) {
  const test::TempDir dir;
  const std::string file = (dir.path() / "meet").string();
  for (const bool by_file : {false, true})
    for (const int late : {0, 3}) {
      const auto ranks = by_file ? at_file(4, file) : at_port(4, free_port());
      std::vector<Outcome> out(4);
      std::vector<std::jthread> threads;
      for (std::size_t r = 0; r < 4; ++r)
        threads.emplace_back([&, r] {
          if (static_cast<int>(r) == late) std::this_thread::sleep_for(milliseconds{400});
          out[r] = run_rank(ranks[r], hear_each_other);
        });
      threads.clear();
      expect_fine(out);
      EXPECT_FALSE(std::filesystem::exists(file));  // nobody of a later run reads it
    }
}

TEST(Tcp, OneRankNeedsNobody) {
  expect_fine({run_rank({0, 1, "", 0, "", milliseconds{100}}, hear_each_other)});
}

TEST(Tcp, HostsAreCounted) {
  expect_fine(run_ranks(at_port(3, free_port()), [](Program& p) {
    const ProgramHost host = p.host();
    EXPECT_EQ(host.ranks, 3);
    EXPECT_EQ(host.rank, p.group().rank());
    EXPECT_EQ(host.sharers, 3);
  }));
}

TEST(Tcp, WhoDoesNotComeIsNamedToAllWhoHave) {
  const test::TempDir dir;
  for (const bool by_file : {false, true}) {
    auto ranks = by_file ? at_file(5, (dir.path() / "meet").string(), milliseconds{700})
                         : at_port(5, free_port(), milliseconds{700});
    ranks.erase(ranks.begin() + 3);
    ranks.erase(ranks.begin() + 1);
    for (const Outcome& o : run_ranks(ranks, hear_each_other)) {
      ASSERT_TRUE(o.reason);
      EXPECT_EQ(o.reason->kind, ErrorKind::peer);
      EXPECT_TRUE(o.group_failed);
      EXPECT_THAT(o.reason->text, HasSubstr("ranks 1, 3 did not come to"));
      EXPECT_THAT(o.reason->text, HasSubstr("within 0.7 s"));
    }
  }
}

TEST(Tcp, WithoutRankZeroEachSaysSo) {
  const test::TempDir dir;
  const std::string file = (dir.path() / "meet").string();
  const int port = free_port();
  const auto at = run_rank({1, 2, "127.0.0.1", port, "", milliseconds{300}}, hear_each_other);
  ASSERT_TRUE(at.reason);
  EXPECT_THAT(at.reason->text, AllOf(HasSubstr("rank 1 did not find rank 0 within 0.3 s"),
                                     HasSubstr("127.0.0.1:" + std::to_string(port)), HasSubstr("refused")));
  const auto in = run_rank({1, 2, "", 0, file, milliseconds{300}}, hear_each_other);
  ASSERT_TRUE(in.reason);
  EXPECT_THAT(in.reason->text, HasSubstr(file + " is not there"));
  const auto name = run_rank({1, 2, "no-such-host.invalid", 1, "", milliseconds{300}}, hear_each_other);
  ASSERT_TRUE(name.reason);
  EXPECT_THAT(name.reason->text, HasSubstr("no-such-host.invalid:1"));
}

// Whoever connects and is no rank: says nothing, says nonsense, says half, or goes.
TEST(Tcp, StrangersHoldNobody) {
  const int port = free_port();
  std::atomic<bool> over{false};
  std::jthread stranger([&] {
    std::vector<tcp::Socket> silent;
    unsigned turn = 0;
    while (!over) {
      auto [socket, why] = tcp::connect({"127.0.0.1", port}, tcp::Clock::now() + milliseconds{100});
      std::this_thread::sleep_for(milliseconds{2});
      if (!socket) continue;
      const std::string words = turn % 4 == 0   ? "GET / HTTP/1.1\r\n\r\n"
                                : turn % 4 == 1 ? "kerfjoin"
                                : turn % 4 == 2 ? std::string(5000, '\xFF')
                                                : "";
      (void)tcp::send_some(socket, std::as_bytes(std::span(words)));
      if (++turn % 3 != 0 && silent.size() < 50) silent.push_back(std::move(socket));
    }
  });
  auto ranks = at_port(3, port);
  std::vector<Outcome> out(3);
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < 3; ++r)
      threads.emplace_back([&, r] {
        std::this_thread::sleep_for(milliseconds{150 * static_cast<int>(r)});
        out[r] = run_rank(ranks[r], hear_each_other);
      });
  }
  over = true;
  expect_fine(out);
}

TEST(Tcp, StrangersAreToldOfWhereARankIsMissing) {
  const int port = free_port();
  std::jthread stranger([&] {
    for (int i = 0; i < 50; ++i) {
      auto [socket, why] = tcp::connect({"127.0.0.1", port}, tcp::Clock::now() + milliseconds{100});
      if (socket) {
        const std::string words = "who is there?";
        (void)tcp::send_some(socket, std::as_bytes(std::span(words)));
        std::this_thread::sleep_for(milliseconds{200});
        return;
      }
      std::this_thread::sleep_for(milliseconds{5});
    }
  });
  const auto out = run_rank({0, 2, "127.0.0.1", port, "", milliseconds{600}}, hear_each_other);
  ASSERT_TRUE(out.reason);
  EXPECT_THAT(out.reason->text, AllOf(HasSubstr("rank 1 did not come to port " + std::to_string(port)),
                                      HasSubstr("1 connection not of this run was closed")));
}

// Something else listens where rank 0 should: it takes the words and never answers, or answers otherwise.
TEST(Tcp, AnotherProgramAtRankZerosPortIsNotTakenForIt) {
  for (const bool answers : {false, true}) {
    const tcp::Socket other = tcp::listen(0);
    std::jthread serves([&](const std::stop_token& stop) {
      std::vector<tcp::Socket> guests;
      while (!stop.stop_requested()) {
        if (tcp::Socket s = tcp::accept(other)) {
          const std::string words(100, 'x');
          if (answers) (void)tcp::send_some(s, std::as_bytes(std::span(words)));
          guests.push_back(std::move(s));
        }
        std::this_thread::sleep_for(milliseconds{5});
      }
    });
    const auto begun = tcp::Clock::now();
    const auto out =
        run_rank({1, 2, "127.0.0.1", tcp::port_of(other), "", milliseconds{500}}, hear_each_other);
    ASSERT_TRUE(out.reason);
    EXPECT_THAT(out.reason->text, HasSubstr("is not rank 0 of this run"));
    EXPECT_LT(tcp::Clock::now() - begun, milliseconds{5'000});
  }
}

TEST(Tcp, TwoOfOneNumberEndAll) {
  auto ranks = at_port(3, free_port());
  ranks[2].rank = 1;
  int named = 0;
  for (const Outcome& o : run_ranks(ranks, hear_each_other)) {
    ASSERT_TRUE(o.reason);
    EXPECT_EQ(o.reason->kind, ErrorKind::usage);
    if (o.reason->text.find("there are two of rank 1 of 3: the second came from 127.0.0.1") !=
        std::string::npos)
      ++named;
  }
  EXPECT_EQ(named, 3);
}

TEST(Tcp, AnotherNumberOfRanksEndsAll) {
  auto ranks = at_port(2, free_port());
  ranks[1].size = 5;
  for (const Outcome& o : run_ranks(ranks, hear_each_other)) {
    ASSERT_TRUE(o.reason);
    EXPECT_EQ(o.reason->kind, ErrorKind::usage);
    EXPECT_THAT(o.reason->text, HasSubstr("from 127.0.0.1 came rank 1 of 5: this run has 2 ranks"));
  }
}

TEST(Tcp, APortThatIsTakenIsNamed) {
  const tcp::Socket other = tcp::listen(0);
  const auto out = run_rank({0, 2, "127.0.0.1", tcp::port_of(other), "", milliseconds{500}}, hear_each_other);
  ASSERT_TRUE(out.reason);
  EXPECT_EQ(out.reason->kind, ErrorKind::usage);
  EXPECT_THAT(out.reason->text, HasSubstr("cannot listen on port " + std::to_string(tcp::port_of(other))));
}

// As a run left it that has been stopped; `run` empty: with words of its own.
void leave_place(const std::string& file, int port, tcp::Run run) {
  if (run == tcp::Run{}) run.token = tcp::new_token();
  tcp::write_place(file, {{{"127.0.0.1", port}}, run}, [](const tcp::Place&) { return false; });
}

// What an earlier run left: nobody is there any more; somebody else is; another run of kerf is; nonsense.
TEST(Tcp, AStaleFileIsReadAgainUntilItIsThisRuns) {
  const test::TempDir dir;
  const std::string file = (dir.path() / "meet").string();
  const tcp::Socket stranger = tcp::listen(0);
  const tcp::Socket run = tcp::listen(0);
  std::jthread other_run([&](const std::stop_token& stop) {
    std::vector<tcp::Reception::Guest> guests;
    tcp::Reception reception(run, 2, {{5, 6}, 0});  // of other words
    while (!stop.stop_requested())
      (void)reception.receive({1}, true, tcp::Clock::now() + milliseconds{50}, "", milliseconds{50}, guests);
    EXPECT_TRUE(guests.empty());
  });
  const std::vector<std::function<void()>> before = {
      [&] { leave_place(file, free_port(), {}); },
      [&] {
        leave_place(file, tcp::port_of(run), {{1, 2}, 0});
      },
      [&] {
        leave_place(file, tcp::port_of(run), {{5, 6}, 1});
      },  // of another job
      [&] { std::ofstream(file) << "kerf rendezvous 2\ntoken 1 2\nat 70000 localhost\nend\n"; },
      [&] { std::ofstream(file) << "kerf rendezvous 2\ntoken 1 2\nat 70 localhost\n"; },  // cut short
      [&] { std::ofstream(file) << "kerf rendezvous 1\ntoken 1 2\nat 70 localhost\nend\n"; },
      [&] { std::ofstream(file) << ""; },
  };
  for (std::size_t i = 0; i < before.size(); ++i) {
    before[i]();
    const auto ranks = at_file(2, file);
    std::vector<Outcome> out(2);
    {
      std::jthread one([&] { out[1] = run_rank(ranks[1], hear_each_other); });
      std::this_thread::sleep_for(milliseconds{250});
      out[0] = run_rank(ranks[0], hear_each_other);
    }
    expect_fine(out);
    EXPECT_FALSE(std::filesystem::exists(file)) << i;
  }
}

// Rank 0 does not replace it, and no rank reads it: all ranks say what is there, and at once.
TEST(Tcp, WhatIsNoFileOfARendezvousIsLeftAlone) {
  const test::TempDir dir;
  const std::string precious = (dir.path() / "precious").string();
  std::ofstream(precious) << "precious";
  const std::string pipe = (dir.path() / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string link = (dir.path() / "link").string();
  const std::string broken = (dir.path() / "broken").string();
  const std::string folder = (dir.path() / "folder").string();
  std::filesystem::create_symlink(precious, link);
  std::filesystem::create_symlink(dir.path() / "nowhere", broken);
  std::filesystem::create_directory(folder);
  for (const auto& [file, what] :
       {std::pair{precious, "holds something else"}, std::pair{pipe, "is no regular file"},
        std::pair{link, "is a link"}, std::pair{broken, "is a link"}, std::pair{folder, "is a directory"}}) {
    const auto begun = tcp::Clock::now();
    for (const Outcome& o : run_ranks(at_file(3, file), hear_each_other)) {
      ASSERT_TRUE(o.reason) << file;
      EXPECT_EQ(o.reason->kind, ErrorKind::usage);
      EXPECT_THAT(o.reason->text,
                  AllOf(HasSubstr(file), HasSubstr(what), HasSubstr("wanted a file of a rend")));
    }
    EXPECT_LT(tcp::Clock::now() - begun, milliseconds{5'000}) << file;
  }
  EXPECT_EQ(read_text(precious, 100), "precious");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 5);  // and nothing besides
}

TEST(Tcp, AFileAtWhichAnotherRunIsMeetingIsItsOwn) {
  const test::TempDir dir;
  const std::string file = (dir.path() / "meet").string();
  std::vector<Outcome> first(2);
  {
    const auto ranks = at_file(2, file);
    std::jthread zero([&] { first[0] = run_rank(ranks[0], hear_each_other); });
    while (!std::filesystem::exists(file)) std::this_thread::sleep_for(milliseconds{5});
    const Outcome second = run_rank(ranks[0], hear_each_other);
    ASSERT_TRUE(second.reason);
    EXPECT_EQ(second.reason->kind, ErrorKind::usage);
    EXPECT_EQ(second.reason->text, file + ": the ranks of another run are meeting there");
    first[1] = run_rank(ranks[1], hear_each_other);
  }
  expect_fine(first);
}

// All at once, in any order: each of them runs as if the other were not there, or finds the place taken; one
// runs at least.
TEST(Tcp, RanksOfTwoJobsAtOnePlaceAreNotMixed) {
  const test::TempDir dir;
  for (const bool by_file : {false, true})
    for (int round = 0; round < 4; ++round) {
      const milliseconds timeout{1'000};
      auto ranks =
          by_file ? at_file(3, (dir.path() / "meet").string(), timeout) : at_port(3, free_port(), timeout);
      const auto again = ranks;
      for (TcpOptions& r : ranks) r.job = "first";
      ranks.insert(ranks.end(), again.begin(), again.end());
      for (std::size_t r = 3; r < 6; ++r) ranks[r].job = "second";
      const auto out = run_ranks(ranks, hear_each_other);
      const auto fine = [&](std::ptrdiff_t first) {
        return std::count_if(out.begin() + first, out.begin() + first + 3,
                             [](const Outcome& o) { return !o.reason && !o.settled; });
      };
      EXPECT_THAT((std::array{fine(0), fine(3)}),
                  testing::AnyOf(std::array{3L, 0L}, std::array{0L, 3L}, std::array{3L, 3L}))
          << (by_file ? "file" : "port");
    }
}

// More than are heard at a time, and all silent.
TEST(Tcp, ManyIdleConnectionsHoldNobody) {
  const int port = free_port();
  const auto ranks = at_port(3, port, milliseconds{15'000});
  std::vector<Outcome> out(3);
  std::vector<tcp::Socket> idle;
  {
    std::jthread zero([&] { out[0] = run_rank(ranks[0], hear_each_other); });
    const auto until = tcp::Clock::now() + milliseconds{10'000};
    while (idle.size() < 700 && tcp::Clock::now() < until)
      if (auto [socket, why] = tcp::connect({"127.0.0.1", port}, until); socket)
        idle.push_back(std::move(socket));
    ASSERT_EQ(idle.size(), 700U);
    const auto begun = tcp::Clock::now();
    std::jthread one([&] { out[1] = run_rank(ranks[1], hear_each_other); });
    out[2] = run_rank(ranks[2], hear_each_other);
    EXPECT_LT(tcp::Clock::now() - begun,
              milliseconds{4'000});  // all of them at their leisure would take more
  }
  expect_fine(out);
}

TEST(Tcp, AFileThatCannotBeWrittenIsNamed) {
  const auto out = run_rank({0, 2, "", 0, "/no/such/folder/meet", milliseconds{500}}, hear_each_other);
  ASSERT_TRUE(out.reason);
  EXPECT_EQ(out.reason->kind, ErrorKind::usage);
  EXPECT_THAT(out.reason->text, AllOf(HasSubstr("/no/such/folder/meet"), HasSubstr("No such file")));
}

TEST(Tcp, NumbersThatMakeNoSenseAreRefused) {
  const std::vector<TcpOptions> wrong = {
      {2, 2, "h", 1, "", milliseconds{1}}, {-1, 2, "h", 1, "", milliseconds{1}},
      {0, 0, "h", 1, "", milliseconds{1}}, {0, 2, "", 1, "", milliseconds{1}},
      {0, 2, "h", 0, "", milliseconds{1}}, {0, 2, "h", 65'536, "", milliseconds{1}},
      {0, 2, "h", 1, "", milliseconds{0}}, {0, 513, "h", 1, "", milliseconds{1}}};
  for (const TcpOptions& o : wrong) {
    const Verdict v = attempt([&] { (void)start_tcp(o); });
    ASSERT_TRUE(v);
    EXPECT_EQ(v->kind, ErrorKind::usage) << v->text;
  }
}

TEST(Tcp, ALateRankIsNamedWithWhatWasAwaited) {
  const auto out = run_ranks(at_port(3, free_port(), milliseconds{500}), [](Program& p) {
    p.group().barrier("first");
    if (p.group().rank() == 1) std::this_thread::sleep_for(milliseconds{1500});
    p.group().barrier("second");
  });
  for (const std::size_t r : {0U, 2U}) {
    ASSERT_TRUE(out[r].reason);
    EXPECT_EQ(out[r].reason->text, "rank 1 did not reach 'second' within 0.5 s");
    EXPECT_TRUE(out[r].group_failed);
  }
  ASSERT_TRUE(out[1].reason);
}

TEST(Tcp, TheReasonOfARankThatLeavesReachesAll) {
  const auto out = run_ranks(at_port(4, free_port()), [](Program& p) {
    p.group().barrier("first");
    if (p.group().rank() == 2) throw Error(ErrorKind::checkpoint, "a shard is missing");
    p.group().barrier("second");
  });
  for (const std::size_t r : {0U, 1U, 3U}) {
    ASSERT_TRUE(out[r].reason);
    EXPECT_EQ(out[r].reason->text, "rank 2 left while 'second' was awaited: a shard is missing");
    EXPECT_EQ(out[r].settled, (Reason{ErrorKind::checkpoint, "rank 2: a shard is missing"}));
  }
  EXPECT_EQ(out[2].settled, (Reason{ErrorKind::checkpoint, "a shard is missing"}));
}

TEST(Tcp, ARankThatReturnsEarlyIsNamed) {
  const auto out = run_ranks(at_port(3, free_port(), milliseconds{3'000}), [](Program& p) {
    if (p.group().rank() != 0) p.group().barrier("more");
  });
  for (const std::size_t r : {1U, 2U}) {
    ASSERT_TRUE(out[r].reason);
    EXPECT_EQ(out[r].reason->text, "rank 0 returned while 'more' was awaited");
  }
}

// A process that is killed says nothing: its connections close.
TEST(Tcp, ARankThatIsKilledIsNamed) {
  const auto ranks = at_port(3, free_port());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    (void)run_rank(ranks[1], [](Program& p) {
      p.group().barrier("first");
      (void)raise(SIGKILL);
    });
    _exit(1);
  }
  const auto begun = tcp::Clock::now();
  const auto out = run_ranks({ranks[0], ranks[2]}, [](Program& p) {
    p.group().barrier("first");
    p.group().barrier("second");
  });
  for (const Outcome& o : out) {
    ASSERT_TRUE(o.reason);
    EXPECT_EQ(o.reason->kind, ErrorKind::peer);
    EXPECT_EQ(o.reason->text, "rank 1 left while 'second' was awaited: its connection closed");
    EXPECT_EQ(o.settled->text.find("rank 1 left"), 0U) << o.settled->text;
  }
  EXPECT_LT(tcp::Clock::now() - begun, milliseconds{10'000});
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
}

}  // namespace
}  // namespace kerf::comm
