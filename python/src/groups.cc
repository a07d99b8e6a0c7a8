#include "src/groups.h"

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "src/bind.h"
#include "src/raised.h"

namespace kerf::python {

namespace {

constexpr double most_timeout = 86'400;  // seconds
constexpr int most_ranks = 4096;

std::chrono::milliseconds milliseconds_of(double seconds) {
  if (!(seconds >= 0.001 && seconds <= most_timeout))
    throw Error(ErrorKind::usage, "timeout is " + std::to_string(seconds) + " s, wanted 0.001 to " +
                                      std::to_string(most_timeout));
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

// Ranks of one process: the library has a thread a rank, which here waits until Python lets its rank go;
// whose threads call the collectives makes no difference to the group.
class LocalRanks {
 public:
  LocalRanks(int ranks, const comm::LocalOptions& options) : ends_(static_cast<std::size_t>(ranks)) {
    groups_.resize(ends_.size());
    runner_ = std::thread([this, ranks, options] {
      failed_ =
          attempt([&] { comm::run_local(ranks, options, [this](comm::Group& group) { hold(group); }); });
      const std::lock_guard lock(lock_);
      over_ = true;
      changed_.notify_all();
    });
    std::unique_lock lock(lock_);
    changed_.wait(lock, [&] { return over_ || here_ == groups_.size(); });
    if (!over_) return;
    lock.unlock();
    runner_.join();
    require(failed_);
  }
  ~LocalRanks() {
    for (std::size_t r = 0; r < ends_.size(); ++r) leave(static_cast<int>(r), {});
    if (runner_.joinable()) runner_.join();
  }
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;
  LocalRanks(LocalRanks&&) = delete;
  LocalRanks& operator=(LocalRanks&&) = delete;

  [[nodiscard]] comm::Group& group(int rank) const { return *groups_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] CallsInside& calls() { return calls_; }

  void leave(int rank, const Verdict& why) {
    const std::lock_guard lock(lock_);
    End& end = ends_[static_cast<std::size_t>(rank)];
    if (end.left) return;
    end = {true, why};
    changed_.notify_all();
  }

 private:
  struct End {
    bool left = false;
    Verdict why;
  };

  void hold(comm::Group& group) {
    std::unique_lock lock(lock_);
    const auto rank = static_cast<std::size_t>(group.rank());
    groups_[rank] = &group;
    ++here_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return ends_[rank].left; });
    // The group goes with the last. Calls that are still inside end soon: those who have left are told to
    // them.
    if (--here_ == 0)
      while (calls_ > 0) changed_.wait_for(lock, std::chrono::milliseconds(1));
    const Verdict why = ends_[rank].why;
    lock.unlock();
    require(why);
  }

  std::mutex lock_;
  std::condition_variable changed_;
  std::vector<comm::Group*> groups_;
  std::vector<End> ends_;
  std::size_t here_ = 0;
  CallsInside calls_{0};
  bool over_ = false;
  Verdict failed_;
  std::thread runner_;
};

std::vector<std::shared_ptr<RankGroup>> local_groups(int ranks, double timeout) {
  if (ranks < 1 || ranks > most_ranks)
    throw Error(ErrorKind::usage, "a local group of " + std::to_string(ranks) + " ranks, wanted 1 to " +
                                      std::to_string(most_ranks));
  comm::LocalOptions options;
  options.timeout = milliseconds_of(timeout);
  if (cuda::built()) options.copier = &cuda::copier();
  const Unlocked released;
  const auto world = std::make_shared<LocalRanks>(ranks, options);
  std::vector<std::shared_ptr<RankGroup>> out;
  for (int r = 0; r < ranks; ++r)
    out.push_back(std::make_shared<RankGroup>(
        world->group(r), world, [world = world.get(), r](const Verdict& why) { world->leave(r, why); }, ranks,
        cuda::built(), &world->calls()));
  return out;
}

// This process as a rank of the MPI program that it is part of. How it ends is told to the others by leave().
std::shared_ptr<RankGroup> mpi_group(double timeout) {
  comm::MpiOptions options;
  options.timeout = milliseconds_of(timeout);
  const Unlocked released;
  const std::shared_ptr<comm::Program> program = comm::start_mpi(options);
  const int sharers = program->host().sharers;
  return std::make_shared<RankGroup>(
      program->group(), program,
      [program = program.get()](const Verdict& why) {
        const Verdict cause = program->settle(why, false);
        program->end(cause ? static_cast<int>(cause->kind) : 0);
      },
      sharers, false);
}

// Whatever it is and says: a rank that leaves must not fail at that.
Verdict reason_of(nb::handle why) noexcept {
  if (why.is_none()) return std::nullopt;
  Reason out{ErrorKind::peer, "it raised what has no words"};
  (void)attempt([&] { out.text = utf8_of(why); });
  return out;
}

}  // namespace

RankGroup::Call::Call(const RankGroup& group) : group_(group) {
  // Counted first: whoever closes the group looks afterwards.
  if (group.calls_ != nullptr) ++*group.calls_;
  std::thread::id nobody;
  outermost_ = group.inside_.compare_exchange_strong(nobody, std::this_thread::get_id());
  const bool mine = outermost_ || nobody == std::this_thread::get_id();
  if (outermost_) forget_raised();
  if (mine && group.open_) return;
  if (outermost_) group.inside_ = std::thread::id();
  if (group.calls_ != nullptr) --*group.calls_;
  (void)group.get();
  throw Error(ErrorKind::usage,
              "another thread is inside a call of this rank's group: one at a time, of all runtimes on it");
}

RankGroup::Call::~Call() {
  // What its callbacks raised is of use to whoever raises what ends it, and to nobody else.
  if (outermost_ && std::uncaught_exceptions() == 0) forget_raised();
  if (outermost_) group_.inside_ = std::thread::id();
  if (group_.calls_ != nullptr) --*group_.calls_;
}

comm::Group& RankGroup::get() const {
  if (!open_) throw Error(ErrorKind::usage, "this rank has left its group");
  return *group_;
}

RankGroup::~RankGroup() {
  // The threads that would end it are the parent's: in a child it stays.
  if (in_forked_child())
    (void)new std::shared_ptr<void>(std::move(keep_));
  else
    close({});
}

void RankGroup::close(const Verdict& why) noexcept {
  if (in_forked_child()) return;
  if (!open_.exchange(false)) return;
  (void)attempt([&] { leave_(why); });
  forget_raised();
}

void bind_groups(nb::module_& m) {
  nb::class_<RankGroup>(
      m, "Group",
      "One rank of a group. Collectives are called by every rank in the same order; they release the "
      "interpreter's lock.")
      .def_static("local", &local_groups, nb::arg("ranks"), nb::kw_only(), nb::arg("timeout") = 60.0,
                  "The ranks of a group of threads of this process, for one Python thread each "
                  "(kerf.run_ranks starts "
                  "them). timeout: seconds that a collective waits for a rank. A rank leaves by close(), as "
                  "a context "
                  "manager, or when it is no longer referred to.")
      .def_static(
          "mpi",
          [](double timeout) {
            return nb::module_::import_("kerf.group").attr("mpi")(nb::arg("timeout") = timeout);
          },
          nb::kw_only(), nb::arg("timeout") = 60.0, nb::sig("def mpi(*, timeout: float = 60.0) -> Group"),
          "This process as a rank of the MPI program that it was started in (mpirun -np 4 python ...): the "
          "same object at "
          "every call, closed when the interpreter ends. Only the thread that calls it may use the group. "
          "UnsupportedError in builds without MPI.")
      .def_static(
          "from_torch",
          [](nb::handle group, bool rank_order, bool checked) {
            return nb::module_::import_("kerf.torch_group")
                .attr("from_torch")(group, nb::arg("rank_order") = rank_order, nb::arg("checked") = checked);
          },
          nb::arg("process_group").none() = nb::none(), nb::kw_only(), nb::arg("rank_order") = true,
          nb::arg("checked") = true,
          nb::sig("def from_torch(process_group: object = None, *, rank_order: bool = True, checked: bool = "
                  "True) -> "
                  "Group"),
          "A group on torch.distributed's collectives: see kerf.torch_group.from_torch.")
      .def_prop_ro("rank", &RankGroup::rank, "This rank's number.")
      .def_prop_ro("size", &RankGroup::size, "Ranks in all.")
      .def_prop_ro(
          "name", [](const RankGroup& g) { return std::string(g.get().name()); }, "\"local\", \"mpi\", ...")
      .def_prop_ro(
          "ordered", [](const RankGroup& g) { return g.get().ordered(); },
          "Whether sums over ranks follow kerf's order bit for bit.")
      .def_prop_ro("is_open", &RankGroup::open, "False once this rank has left.")
      .def(
          "barrier", [](const RankGroup& g, const std::string& what) { RankGroup::Call(g)->barrier(what); },
          nb::arg("what") = "a barrier", nb::call_guard<Unlocked>(),
          "Waits for all ranks. GroupFailed, which names the missing rank, where one left or is late.")
      .def(
          "close",
          [](RankGroup& g, nb::handle why) {
            const Verdict reason = reason_of(why);
            const Unlocked released;
            g.close(reason);
          },
          nb::arg("why") = nb::none(), nb::sig("def close(self, why: str | None = None) -> None"),
          "Leaves the group; ranks that wait are told why. A runtime that was built with it is of no more "
          "use.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Group"))
      .def(
          "__exit__",
          [](RankGroup& g, nb::handle type, nb::handle value, nb::handle /*trace*/) {
            const Verdict why = type.is_none() ? Verdict() : reason_of(value.is_none() ? type : value);
            const Unlocked released;
            g.close(why);
          },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, type: object, value: object, traceback: object) -> None"))
      .def("__repr__", [](const RankGroup& g) {
        if (!g.open()) return std::string("kerf.Group(closed)");
        return "kerf.Group(" + std::string(g.get().name()) + ", rank " + std::to_string(g.rank()) + " of " +
               std::to_string(g.size()) + ")";
      });
  m.def("local_groups", &local_groups, nb::arg("ranks"), nb::arg("timeout"),
        "The ranks of a group of threads of this process, one each.");
  m.def("mpi_group", &mpi_group, nb::arg("timeout"), "This process's rank of its MPI program.");
}

}  // namespace kerf::python
