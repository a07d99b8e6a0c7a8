#include "kerf/comm/mpi/process.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "kerf/base/format.h"
#include "kerf/comm/group.h"
#include "kerf/comm/mpi/datatype.h"

namespace kerf::comm::mpi {

namespace {

constexpr std::size_t kMostReason = 32'768;  // bytes of a reason's text that are told
constexpr int kLeft = 1;                     // the tag of these messages
constexpr int kSpoken = 2;                   // of those that say that a rank has written all it has to say

struct News {
  std::uint64_t sent = 0;
  std::int32_t kind = 0;  // 0: it returned
  std::int32_t group_failed = 0;
};

MPI_Comm duplicate(Clock::time_point deadline) {
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(MPI_COMM_WORLD, &copy, &request), "MPI_Comm_idup");
  Pause pause;
  for (int done = 0;;) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) break;
    if (Clock::now() > deadline)
      throw GroupFailed(ErrorKind::peer, "not all processes of the MPI program reached its start in time");
    pause.once();
  }
  check(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

}  // namespace

void Pause::once() {
  constexpr unsigned looks_without_pause = 2000;
  ++looks_;
  if (looks_ < looks_without_pause) return std::this_thread::yield();
  const unsigned doublings = std::min((looks_ - looks_without_pause) / 64, 6U);
  std::this_thread::sleep_for(std::chrono::microseconds{20U << doublings});  // up to 1.3 ms
}

Process::Process(std::chrono::milliseconds timeout) : timeout_(timeout) {
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  const auto deadline = Clock::now() + timeout_;
  data_ = duplicate(deadline);
  control_ = duplicate(deadline);
  int* tag = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(data_, MPI_TAG_UB, static_cast<void*>(&tag), &found), "MPI_Comm_get_attr");
  if (found != 0) most_tag_ = *tag;
  const auto ranks = static_cast<std::size_t>(size_);
  sent_.assign(ranks, 0);
  received_.assign(ranks, 0);
  left_.resize(ranks);
  has_left_.assign(ranks, 0);
  telling_.resize(ranks);
  tellings_.assign(ranks, MPI_REQUEST_NULL);
  news_.resize(sizeof(News) + kMostReason);
  expect_news();
}

void Process::expect_news() {
  check(MPI_Irecv(news_.data(), static_cast<int>(news_.size()), MPI_BYTE, MPI_ANY_SOURCE, kLeft, control_,
                  &listening_),
        "MPI_Irecv");
}

void Process::listen() {
  for (;;) {
    int done = 0;
    MPI_Status status{};
    check(MPI_Test(&listening_, &done, &status), "MPI_Test");
    if (done == 0) return;
    int bytes = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    News news;
    std::memcpy(&news, news_.data(), sizeof(news));
    const auto from = static_cast<std::size_t>(status.MPI_SOURCE);
    Left& left = left_[from];
    left.sent = news.sent;
    left.group_failed = news.group_failed != 0;
    left.seen = Clock::now();
    if (news.kind != 0)
      left.reason =
          Reason{static_cast<ErrorKind>(news.kind),
                 std::string(news_.data() + sizeof(news), static_cast<std::size_t>(bytes) - sizeof(news))};
    has_left_[from] = 1;
    expect_news();
  }
}

const Left* Process::left(int rank) const {
  const auto at = static_cast<std::size_t>(rank);
  return has_left_[at] != 0 ? &left_[at] : nullptr;
}

// What was sent and isn't here is under way; but a rank that failed may have left in the middle of it.
bool Process::more_from(int rank) const {
  constexpr std::chrono::seconds longest{1};
  const Left* gone = left(rank);
  if (gone == nullptr) return true;
  return gone->sent > received_[static_cast<std::size_t>(rank)] && Clock::now() < gone->seen + longest;
}

void Process::leave(const Verdict& reason, bool group_failed) {
  for (int r = 0; r < size_; ++r) {
    const auto at = static_cast<std::size_t>(r);
    if (r == rank_) continue;
    const News news{sent_[at], reason ? static_cast<std::int32_t>(reason->kind) : 0, group_failed ? 1 : 0};
    const std::size_t text = reason ? std::min(reason->text.size(), kMostReason) : 0;
    telling_[at].resize(sizeof(news) + text);
    std::memcpy(telling_[at].data(), &news, sizeof(news));
    if (text > 0) std::memcpy(telling_[at].data() + sizeof(news), reason->text.data(), text);
    check(MPI_Isend(telling_[at].data(), static_cast<int>(telling_[at].size()), MPI_BYTE, r, kLeft, control_,
                    &tellings_[at]),
          "MPI_Isend");
  }
}

bool Process::told() const {
  return std::all_of(tellings_.begin(), tellings_.end(), [](MPI_Request r) { return r == MPI_REQUEST_NULL; });
}

bool Process::all_left(Clock::time_point deadline) {
  Pause pause;
  for (;;) {
    listen();
    int done = 0;
    check(MPI_Testall(size_, tellings_.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    const auto others = std::count(has_left_.begin(), has_left_.end(), char{1});
    if (others == size_ - 1 && told()) return true;
    if (Clock::now() > deadline) return false;
    pause.once();
  }
}

// Launchers end all processes once one has failed: those that have settled let each other write why first.
void Process::let_others_speak() {
  constexpr std::chrono::seconds longest{3};
  const auto deadline = Clock::now() + longest;
  const auto ranks = static_cast<std::size_t>(size_);
  std::vector<MPI_Request> saying(ranks, MPI_REQUEST_NULL);
  std::vector<MPI_Request> hearing(ranks, MPI_REQUEST_NULL);
  for (int r = 0; r < size_; ++r) {
    const auto at = static_cast<std::size_t>(r);
    if (r == rank_) continue;
    (void)MPI_Isend(nullptr, 0, MPI_BYTE, r, kSpoken, control_, &saying[at]);
    if (has_left_[at] != 0) (void)MPI_Irecv(nullptr, 0, MPI_BYTE, r, kSpoken, control_, &hearing[at]);
  }
  Pause pause;
  for (int heard = 0; heard == 0 && Clock::now() < deadline; pause.once()) {
    int said = 0;
    if (MPI_Testall(size_, saying.data(), &said, MPI_STATUSES_IGNORE) != MPI_SUCCESS ||
        MPI_Testall(size_, hearing.data(), &heard, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
      return;
  }
}

// The meeting: whoever is here has written what it had to say, and may be stopped.
void Process::end(int code) {
  (void)std::fflush(nullptr);
  const auto others = std::count(has_left_.begin(), has_left_.end(), char{1});
  bool ordered = others == size_ - 1 && told();
  if (ordered) {
    constexpr std::chrono::seconds longest{3};
    const auto deadline = Clock::now() + longest;
    MPI_Request request = MPI_REQUEST_NULL;
    int done = 0;
    ordered = MPI_Ibarrier(control_, &request) == MPI_SUCCESS;
    Pause pause;
    while (ordered && done == 0) {
      ordered = MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && Clock::now() < deadline;
      if (done == 0) pause.once();
    }
    ordered = done != 0;
  }
  if (ordered && code == 0 && !stray_) {
    (void)MPI_Cancel(&listening_);
    (void)MPI_Wait(&listening_, MPI_STATUS_IGNORE);
    (void)MPI_Comm_free(&control_);
    (void)MPI_Comm_free(&data_);
    (void)MPI_Finalize();
    return;
  }
  if (code == 0) code = static_cast<int>(ErrorKind::peer);
  // All are here, and each leaves by itself: messages that nobody takes would hold MPI_Finalize, and of
  // several MPI_Abort at a time Open MPI's mpirun (4.1) may itself crash. To any launcher a code other than 0
  // is a rank that failed.
  if (ordered) std::_Exit(code);
  let_others_speak();
  // Somebody does not answer and has to be ended: most launchers do that now, for the others the first asks.
  const bool first = std::all_of(has_left_.begin(), has_left_.begin() + rank_, [](char c) { return c == 0; });
  if (first) {
    constexpr std::chrono::seconds time_for_launcher{1};
    std::this_thread::sleep_for(time_for_launcher);
    (void)MPI_Abort(MPI_COMM_WORLD, code);
  }
  std::_Exit(code);
}

}  // namespace kerf::comm::mpi
