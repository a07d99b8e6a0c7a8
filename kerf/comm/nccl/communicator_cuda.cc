#include "kerf/comm/nccl/communicator.h"

#include <cuda_runtime_api.h>

#include <thread>

#include "kerf/base/format.h"
#include "kerf/comm/group.h"
#include "kerf/cuda/check.h"

namespace kerf::comm::nccl {

namespace {

using Clock = std::chrono::steady_clock;

// At first again and again, letting others run; then with pauses.
void pause(unsigned looks) {
  constexpr unsigned at_once = 5000;
  constexpr std::chrono::microseconds longest{50};
  if (looks < at_once)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(longest);
}

std::string not_exchanged(std::string_view what) {
  return fmt::format("the ranks did not exchange their data of '{}'", what);
}

// An event that takes no time stamps.
class Mark {
 public:
  explicit Mark(cuda::StreamHandle stream) {
    cuda::check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event");
    cuda::check(cudaEventRecord(event_, stream), "recording an event");
  }
  ~Mark() { (void)cudaEventDestroy(event_); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  Mark(Mark&&) = delete;
  Mark& operator=(Mark&&) = delete;
  [[nodiscard]] bool passed() const {
    const cudaError_t result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) return false;
    cuda::check(result, "waiting for NCCL");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::string Channel::words(int result) const {
  std::string text = library_.get_error_string(result);
  if (library_.get_last_error != nullptr)
    if (const char* last = library_.get_last_error(comm_); last != nullptr && *last != '\0')
      text += fmt::format(" ({})", last);
  return text;
}

void Channel::check(int result, std::string_view call) const {
  if (result == success || result == in_progress) return;
  fail(ErrorKind::device, "{}: {}", call, words(result));
}

void Channel::abandon() noexcept {
  if (comm_ != nullptr) (void)library_.comm_abort(comm_);
  comm_ = nullptr;
}

void Channel::give_up(const std::string& text, bool late) {
  abandon();
  throw GroupFailed(late ? ErrorKind::peer : ErrorKind::device, text);
}

// Until NCCL has taken what it was asked for: it connects to peers when they are first needed.
void Channel::settle(std::chrono::milliseconds longest, std::string_view failed) {
  const auto deadline = Clock::now() + longest;
  for (unsigned looks = 0;; ++looks) {
    int state = success;
    if (const int result = library_.comm_get_async_error(comm_, &state); result != success) state = result;
    if (state == success) return;
    if (state != in_progress) give_up(fmt::format("{}: NCCL: {}", failed, words(state)), false);
    if (Clock::now() > deadline)
      give_up(
          fmt::format("{} within {:g} s, by NCCL", failed, std::chrono::duration<double>(longest).count()),
          true);
    pause(looks);
  }
}

Channel::Channel(const Library& library, const Id& id, int rank, int ranks,
                 std::chrono::milliseconds starting, std::chrono::milliseconds timeout)
    : library_(library), timeout_(timeout) {
  const std::string_view failed = "the ranks' devices did not find each other";
  Config config;
  const int result = library_.comm_init_rank_config(&comm_, ranks, id, rank, &config);
  if (result != success && result != in_progress) {
    const std::string text = fmt::format("{}: NCCL: {}", failed, words(result));
    give_up(text, false);
  }
  settle(starting, failed);
}

Channel::~Channel() {
  if (comm_ == nullptr) return;
  constexpr std::chrono::seconds longest{5};
  const auto deadline = Clock::now() + longest;
  int state = library_.comm_finalize(comm_);
  for (unsigned looks = 0; (state == success || state == in_progress) && Clock::now() < deadline; ++looks) {
    if (library_.comm_get_async_error(comm_, &state) != success) break;
    if (state == success) {
      (void)library_.comm_destroy(comm_);
      return;
    }
    pause(looks);
  }
  (void)library_.comm_abort(comm_);
}

void Channel::submit(std::string_view what, const std::function<void()>& calls) {
  const std::string failed = not_exchanged(what);
  const Verdict refused = attempt([&] {
    check(library_.group_start(), "ncclGroupStart");
    const Verdict inside = attempt(calls);
    const int end = library_.group_end();
    require(inside);
    check(end, "ncclGroupEnd");
  });
  if (refused) give_up(fmt::format("{}: {}", failed, refused->text), false);
  settle(timeout_, failed);
}

void Channel::finish(std::string_view what) {
  const Mark end(stream());
  const auto deadline = Clock::now() + timeout_;
  for (unsigned looks = 0; !end.passed(); ++looks) {
    constexpr unsigned seldom = 64;
    if (looks % seldom == seldom - 1) {
      int state = success;
      if (const int result = library_.comm_get_async_error(comm_, &state); result != success) state = result;
      if (state != success && state != in_progress)
        give_up(fmt::format("{}: NCCL: {}", not_exchanged(what), words(state)), false);
      if (Clock::now() > deadline)
        give_up(fmt::format("{} within {:g} s, by NCCL", not_exchanged(what),
                            std::chrono::duration<double>(timeout_).count()),
                true);
    }
    pause(looks);
  }
}

}  // namespace kerf::comm::nccl
