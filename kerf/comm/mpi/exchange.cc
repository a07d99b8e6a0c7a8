#include "kerf/comm/mpi/exchange.h"

#include <algorithm>

#include "kerf/base/format.h"
#include "kerf/comm/group.h"

namespace kerf::comm::mpi {

Exchange::Exchange(Process& process, std::span<const int> members)
    : process_(process), members_(members), bytes_(members.size(), 0) {
  const std::size_t most = 2 * members.size();
  requests_.reserve(most);
  about_.reserve(most);
  done_.resize(most);
  statuses_.resize(most);
  missing_.reserve(members.size());
}

MPI_Request* Exchange::open(int peer, bool receives) {
  requests_.push_back(MPI_REQUEST_NULL);
  about_.push_back({peer, receives});
  return &requests_.back();
}

void Exchange::send(int to, const void* from, const Datatype& type, int tag) {
  const int rank = members_[static_cast<std::size_t>(to)];
  check(MPI_Isend(from, type.count(), type.get(), rank, tag, process_.data(), open(to, false)), "MPI_Isend");
  process_.count_sent(rank);
}

void Exchange::receive(int from, void* to, const Datatype& type, int tag) {
  const int rank = members_[static_cast<std::size_t>(from)];
  check(MPI_Irecv(to, type.count(), type.get(), rank, tag, process_.data(), open(from, true)), "MPI_Irecv");
}

// Sizes are asked for where messages are counted in bytes: derived types can be more than an int counts.
void Exchange::note(std::span<const int> done) {
  for (std::size_t i = 0; i < done.size(); ++i) {
    const About& about = about_[static_cast<std::size_t>(done[i])];
    if (!about.receives) continue;
    process_.count_received(members_[static_cast<std::size_t>(about.peer)]);
    MPI_Count bytes = 0;
    check(MPI_Get_elements_x(&statuses_[i], MPI_BYTE, &bytes), "MPI_Get_elements_x");
    bytes_[static_cast<std::size_t>(about.peer)] = static_cast<std::size_t>(bytes);
  }
}

// A peer that is gone takes and sends nothing more. What it has to take of a rank that is through with it is
// known to MPI alone, soon.
bool Exchange::somebody_left() {
  process_.listen();
  missing_.clear();
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    const int rank = members_[static_cast<std::size_t>(about_[i].peer)];
    if (process_.left(rank) == nullptr) continue;
    constexpr std::chrono::seconds longest{1};
    const bool gone =
        about_[i].receives ? !process_.more_from(rank) : Clock::now() > process_.left(rank)->seen + longest;
    if (gone) missing_.push_back(about_[i].peer);
  }
  return !missing_.empty();
}

void Exchange::fail_message(std::span<const int> done) {
  process_.stray();
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (statuses_[i].MPI_ERROR == MPI_SUCCESS) continue;
    const About& about = about_[static_cast<std::size_t>(done[i])];
    const Verdict why = attempt([&] { check(statuses_[i].MPI_ERROR, "MPI"); });
    throw GroupFailed(ErrorKind::peer,
                      fmt::format("a message {} rank {} failed: {}", about.receives ? "from" : "to",
                                  members_[static_cast<std::size_t>(about.peer)], why ? why->text : ""));
  }
}

// What can't be called back is through soon, or never: peers give up too. `moving`: what is sent is the
// caller's, who may free it; what else is sent is the group's, which keeps it.
void Exchange::give_up(bool moving) {
  process_.stray();
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (about_[i].receives && requests_[i] != MPI_REQUEST_NULL) (void)MPI_Cancel(&requests_[i]);
  constexpr std::chrono::seconds longest{1};
  const auto deadline = Clock::now() + longest;
  Pause pause;
  for (bool open = true; open && Clock::now() < deadline; pause.once()) {
    open = false;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL || (!moving && !about_[i].receives)) continue;
      int done = 0;
      (void)MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
      open = open || done == 0;
    }
  }
  for (MPI_Request& request : requests_)
    if (request != MPI_REQUEST_NULL) (void)MPI_Request_free(&request);
  requests_.clear();
  about_.clear();
}

Exchange::Ended Exchange::finish(bool moving) {
  auto deadline = Clock::now() + process_.timeout();
  Pause pause;
  for (;;) {
    int done = 0;
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done, done_.data(),
                                  statuses_.data());
    if (code == MPI_ERR_IN_STATUS) fail_message(std::span(done_).first(static_cast<std::size_t>(done)));
    check(code, "MPI_Testsome");
    if (done == MPI_UNDEFINED) break;  // none is open
    if (done > 0) {
      note(std::span(done_).first(static_cast<std::size_t>(done)));
      if (moving) deadline = Clock::now() + process_.timeout();
      pause.reset();
      continue;
    }
    if (pause.seldom()) {
      if (somebody_left()) {
        give_up(moving);
        return Ended::left;
      }
      if (Clock::now() > deadline) {
        for (std::size_t i = 0; i < requests_.size(); ++i)
          if (requests_[i] != MPI_REQUEST_NULL && std::ranges::count(missing_, about_[i].peer) == 0)
            missing_.push_back(about_[i].peer);
        std::ranges::sort(missing_);
        give_up(moving);
        return Ended::late;
      }
    }
    pause.once();
  }
  requests_.clear();
  about_.clear();
  return Ended::done;
}

}  // namespace kerf::comm::mpi
