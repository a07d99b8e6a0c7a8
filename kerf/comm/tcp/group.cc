#include "kerf/comm/tcp/group.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/comm/agree.h"
#include "kerf/comm/internal/reduce.h"
#include "kerf/comm/internal/wire.h"

namespace kerf::comm::tcp {

namespace {

using internal::Collective;
using internal::Post;

// Values of all ranks that a sum holds at a time.
constexpr std::size_t kHeld = std::size_t{1} << 20;

class TcpGroup final : public Group {
 public:
  TcpGroup(Mesh& mesh, std::vector<int> members)
      : mesh_(mesh),
        members_(std::move(members)),
        rank_(static_cast<int>(std::ranges::find(members_, mesh.rank()) - members_.begin())),
        message_(internal::wire_bytes(members_.size())),
        messages_(members_.size() * message_.size()),
        lists_(members_.size()),
        posts_(members_.size()),
        data_(members_.size()),
        packed_(members_.size()),
        terms_(members_.size()) {
    out_.reserve(members_.size());
    in_.reserve(members_.size());
  }

  [[nodiscard]] std::string_view name() const override { return "tcp"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(members_.size()); }
  [[nodiscard]] bool ordered() const override { return true; }
  [[nodiscard]] int number(int rank) const override { return members_[static_cast<std::size_t>(rank)]; }

  void barrier(std::string_view what) override { meet({.what = what}); }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) override {
    const Post post{.collective = Collective::all_gather, .what = what, .mine = mine, .out = all};
    meet(post);
    const auto part = [&](int s) { return all.subspan(at(s) * mine.size(), mine.size()); };
    internal::copy_host(mine, part(rank_).data());
    if (internal::data_in_message(post, members_.size())) {
      for_each_peer([&](int s) { internal::copy_host(data_[at(s)], part(s).data()); });
      return;
    }
    for_each_peer([&](int s) {
      in_.push_back({number(s), part(s)});
      out_.push_back({number(s), mine});
    });
    exchange(Mesh::Kind::data, what);
  }

  void all_to_all(std::span<const tensor::StridedBytes> send, std::span<const std::span<std::byte>> received,
                  std::string_view what) override {
    meet({.collective = Collective::all_to_all, .what = what, .send = send, .received = received});
    for_each_peer([&](int s) {
      if (!received[at(s)].empty()) in_.push_back({number(s), received[at(s)]});
      const tensor::StridedBytes& block = send[at(s)];
      const auto bytes = static_cast<std::size_t>(block.packed_bytes());
      if (bytes == 0) return;
      if (block.packed()) {
        out_.push_back({number(s), {block.base, bytes}});
        return;
      }
      std::vector<std::byte>& packed = packed_[at(s)];
      packed.resize(bytes);
      tensor::pack(block, packed.data());
      out_.push_back({number(s), packed});
    });
    if (!received[at(rank_)].empty()) tensor::pack(send[at(rank_)], received[at(rank_)].data());
    exchange(Mesh::Kind::data, what);
    for (std::vector<std::byte>& packed : packed_) packed = {};
  }

  void all_reduce_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
                      std::string_view what) override {
    meet({.collective = Collective::all_reduce,
          .what = what,
          .mine = std::as_bytes(mine),
          .out = std::as_writable_bytes(sum)});
    const std::size_t most = std::max<std::size_t>(kHeld / members_.size(), 1);
    for (std::size_t i = 0; i < mine.size(); i += most) {
      const std::size_t count = std::min(most, mine.size() - i);
      gather_terms(
          count, [&](int) { return mine.subspan(i, count); }, what);
      add(sum.subspan(i, count));
    }
  }

  void reduce_scatter_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> part,
                          std::string_view what) override {
    meet({.collective = Collective::reduce_scatter,
          .what = what,
          .mine = std::as_bytes(mine),
          .out = std::as_writable_bytes(part)});
    const std::size_t most = std::max<std::size_t>(kHeld / members_.size(), 1);
    for (std::size_t i = 0; i < part.size(); i += most) {
      const std::size_t count = std::min(most, part.size() - i);
      gather_terms(
          count, [&](int d) { return mine.subspan(at(d) * part.size() + i, count); }, what);
      add(part.subspan(i, count));
    }
  }

  [[nodiscard]] std::unique_ptr<Group> split(int colour, std::string_view what) override {
    const std::int32_t mine = colour;
    const auto colours = gathered(*this, std::span(&mine, 1), what);
    std::vector<int> members;
    for (std::size_t r = 0; r < colours.size(); ++r)
      if (colours[r] == colour) members.push_back(members_[r]);
    return std::make_unique<TcpGroup>(mesh_, std::move(members));
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  // The ranks after this one first: at any moment the ranks send to different peers.
  template <typename Visit>
  void for_each_peer(Visit visit) const {
    for (int i = 1; i < size(); ++i) visit((rank_ + i) % size());
  }

  // Every rank's post is here and all are one collective; or throws.
  void meet(const Post& post) {
    if (fault_) throw GroupFailed(fault_->kind, fault_->text);
    if (const Verdict& broken = mesh_.fault()) throw GroupFailed(broken->kind, broken->text);
    const std::size_t most = message_.size();
    const std::size_t own = internal::write_post(post, message_);
    for_each_peer([&](int s) {
      in_.push_back({number(s), std::span(messages_).subspan(at(s) * most, most)});
      out_.push_back({number(s), std::span<const std::byte>(message_).first(own)});
    });
    exchange(Mesh::Kind::post, post.what);
    const Verdict unlike = attempt([&] {
      for_each_peer([&](int s) {
        const auto read = internal::read_post(
            std::span(messages_).subspan(at(s) * most, mesh_.received(number(s))), lists_[at(s)]);
        posts_[at(s)] = read.post;
        data_[at(s)] = read.data;
      });
      Post& mine = posts_[at(rank_)];
      mine = post;
      mine.what = mine.what.substr(0, internal::most_wire_what);
      require(internal::inconsistent(posts_, members_));
    });
    if (!unlike) return;
    fault_ = unlike;
    throw GroupFailed(fault_->kind, fault_->text);
  }

  void exchange(Mesh::Kind kind, std::string_view what) {
    const auto result = mesh_.exchange(kind, out_, in_);
    out_.clear();
    in_.clear();
    if (result == Mesh::Result::done) return;
    const std::span<const int> missing = mesh_.missing();
    Reason fault{ErrorKind::peer, {}};
    if (result == Mesh::Result::left) {
      const internal::Ended& left = *mesh_.left(missing.front());
      if (left.group_failed && left.reason)
        fault = *left.reason;  // it has the words already
      else if (left.reason)
        fault.text =
            fmt::format("rank {} left while '{}' was awaited: {}", missing.front(), what, left.reason->text);
      else
        fault.text = fmt::format("rank {} returned while '{}' was awaited", missing.front(), what);
    } else {
      fault.text =
          fmt::format("{} {} did not {} '{}' within {:g} s", missing.size() == 1 ? "rank" : "ranks",
                      fmt::join(missing, ", "), kind == Mesh::Kind::data ? "exchange its data of" : "reach",
                      what, std::chrono::duration<double>(mesh_.timeout()).count());
    }
    mesh_.set_fault(fault);
    throw GroupFailed(fault.kind, fault.text);
  }

  // terms_[r]: the `count` values that rank r has for this one.
  template <typename For>
  void gather_terms(std::size_t count, For for_rank, std::string_view what) {
    if (held_.size() < count * members_.size()) held_.resize(count * members_.size());
    for_each_peer([&](int s) {
      const auto to = std::span(held_).subspan(at(s) * count, count);
      terms_[at(s)] = to.data();
      in_.push_back({number(s), std::as_writable_bytes(to)});
      out_.push_back({number(s), std::as_bytes(for_rank(s))});
    });
    terms_[at(rank_)] = for_rank(rank_).data();
    exchange(Mesh::Kind::data, what);
  }

  // `sum` may be where this rank's term is.
  void add(std::span<std::uint16_t> sum) {
    const FpGuard guard;
    std::array<std::uint16_t, internal::reduce_chunk> run;
    for (std::size_t i = 0; i < sum.size(); i += run.size()) {
      const auto part = std::span(run).first(std::min(run.size(), sum.size() - i));
      internal::sum_run(terms_, i, part);
      std::ranges::copy(part, sum.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  Mesh& mesh_;
  std::vector<int> members_;
  int rank_;
  std::vector<std::byte> message_;   // this rank's post
  std::vector<std::byte> messages_;  // the others'
  std::vector<internal::WireLists> lists_;
  std::vector<Post> posts_;
  std::vector<std::span<const std::byte>> data_;
  std::vector<std::vector<std::byte>> packed_;
  std::vector<std::uint16_t> held_;
  std::vector<const std::uint16_t*> terms_;
  std::vector<Mesh::Out> out_;
  std::vector<Mesh::In> in_;
  Verdict fault_;
};

}  // namespace

std::unique_ptr<Group> make_group(Mesh& mesh, std::vector<int> members) {
  return std::make_unique<TcpGroup>(mesh, std::move(members));
}

}  // namespace kerf::comm::tcp
