#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/comm/internal/wire.h"
#include "kerf/comm/nccl.h"
#include "kerf/comm/nccl/communicator.h"
#include "kerf/comm/nccl/pieces.h"
#include "kerf/cuda/check.h"
#include "kerf/cuda/devices.h"

namespace kerf::comm {

namespace {

using internal::Collective;
using internal::Post;
using nccl::Channel;
using nccl::Library;
using tensor::StridedBytes;

constexpr std::size_t kUnit = 256;  // pieces of a staging area begin at multiples of it

// What the host's group calls every collective of this one; its words are led back to what was awaited.
constexpr std::string_view kAny = "a collective on devices";

std::string in_words_of(std::string text, std::string_view what) {
  const std::string any = fmt::format("'{}'", kAny);
  const std::string own = fmt::format("'{}'", what);
  for (std::size_t at = text.find(any); at != std::string::npos; at = text.find(any, at + own.size()))
    text.replace(at, any.size(), own);
  return text;
}

bool on_device(const void* at) { return at != nullptr && cuda::on_device(at); }

StridedBytes packed(std::span<const std::byte> bytes) {
  const auto n = static_cast<std::int64_t>(bytes.size());
  return {bytes.data(), 1, n, 1, n, n};
}

// Two areas on the device, as large as has been needed.
class Staging {
 public:
  std::byte* send(std::size_t bytes) { return grown(send_, bytes); }
  std::byte* receive(std::size_t bytes) { return grown(receive_, bytes); }

 private:
  std::byte* grown(tensor::Tensor& area, std::size_t bytes) {
    if (area.bytes().size() < bytes) {
      area = {};
      area = tensor::Tensor(memory_, tensor::Dtype::u8, {static_cast<std::int64_t>(bytes)});
    }
    return area.bytes().data();
  }
  cuda::DeviceMemory memory_;
  tensor::Tensor send_, receive_;
};

class NcclGroup final : public Group {
 public:
  // `part`: the host's group where this one keeps it.
  NcclGroup(Group& host, std::unique_ptr<Group> part, const Library& library, const NcclOptions& options,
            const nccl::Id& id)
      : part_(std::move(part)),
        host_(host),
        library_(library),
        options_(options),
        ranks_(static_cast<std::size_t>(host.size())),
        message_(internal::wire_bytes(ranks_)),
        messages_(ranks_ * message_.size()),
        lists_(ranks_),
        posts_(ranks_),
        data_(ranks_) {
    for (int r = 0; r < host.size(); ++r) names_.push_back(host.number(r));
    // Sooner than the others give up waiting for this rank's word.
    agreed(host, "starting NCCL", [&] {
      channel_ = std::make_unique<Channel>(library_, id, host.rank(), host.size(),
                                           std::max(options.timeout * 3 / 4, std::chrono::milliseconds{1}),
                                           options.timeout);
    });
  }

  [[nodiscard]] std::string_view name() const override { return "nccl"; }
  [[nodiscard]] int rank() const override { return host_.rank(); }
  [[nodiscard]] int size() const override { return host_.size(); }
  [[nodiscard]] bool ordered() const override { return false; }
  [[nodiscard]] int number(int rank) const override { return host_.number(rank); }

  void barrier(std::string_view what) override { meet({.what = what}, {}); }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) override {
    const Post post{.collective = Collective::all_gather, .what = what, .mine = mine, .out = all};
    if (internal::data_in_message(post, ranks_)) {
      small_.resize(mine.size());
      copy(small_.data(), mine);
      meet(post, small_);
      for (std::size_t r = 0; r < ranks_; ++r) copy(all.data() + r * mine.size(), data_[r]);
      return;
    }
    meet(post, {});
    std::vector<StridedBytes> send(ranks_, packed(mine));
    std::vector<std::span<std::byte>> received;
    for (std::size_t r = 0; r < ranks_; ++r) received.push_back(all.subspan(r * mine.size(), mine.size()));
    if (mine.size() > piece() || ranks_ == 1) return exchange(send, received, what);
    working(what, [&] {
      const std::byte* from = in(mine);
      const bool direct = on_device(all.data());
      std::byte* to = direct ? all.data() : staging_.receive(all.size());
      channel_->submit(what, [&] {
        channel_->check(library_.all_gather(from, to, mine.size(), nccl::bytes, channel_->get(), stream()),
                        "ncclAllGather");
      });
      channel_->finish(what);
      if (!direct) copy(all.data(), {to, all.size()});
    });
  }

  void all_to_all(std::span<const StridedBytes> send, std::span<const std::span<std::byte>> received,
                  std::string_view what) override {
    meet({.collective = Collective::all_to_all, .what = what, .send = send, .received = received}, {});
    exchange(send, received, what);
  }

  void all_reduce_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
                      std::string_view what) override {
    meet({.collective = Collective::all_reduce,
          .what = what,
          .mine = std::as_bytes(mine),
          .out = std::as_writable_bytes(sum)},
         {});
    working(what, [&] {
      const std::size_t most = std::max<std::size_t>(options_.staging / sizeof(std::uint16_t), 1);
      for (std::size_t at = 0; at < mine.size(); at += most) {
        const std::size_t count = std::min(most, mine.size() - at);
        const auto from = std::as_bytes(mine.subspan(at, count));
        const std::byte* values = in(from);
        const auto out = std::as_writable_bytes(sum.subspan(at, count));
        const bool direct = on_device(out.data());
        std::byte* to = direct ? out.data() : staging_.receive(out.size());
        channel_->submit(what, [&] {
          channel_->check(
              library_.all_reduce(values, to, count, nccl::bf16, nccl::sum, channel_->get(), stream()),
              "ncclAllReduce");
        });
        channel_->finish(what);
        if (!direct) copy(out.data(), {to, out.size()});
      }
    });
  }

  void reduce_scatter_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> part,
                          std::string_view what) override {
    meet({.collective = Collective::reduce_scatter,
          .what = what,
          .mine = std::as_bytes(mine),
          .out = std::as_writable_bytes(part)},
         {});
    working(what, [&] {
      const std::size_t most = piece() / sizeof(std::uint16_t);
      for (std::size_t at = 0; at < part.size(); at += most) {
        const std::size_t count = std::min(most, part.size() - at);
        const auto* values = reinterpret_cast<const std::byte*>(mine.data());
        if (count < part.size() || !on_device(mine.data())) {
          std::byte* const stage = staging_.send(count * ranks_ * sizeof(std::uint16_t));
          for (std::size_t r = 0; r < ranks_; ++r) {
            const auto theirs = std::as_bytes(mine.subspan(r * part.size() + at, count));
            cuda::copy(stage + r * theirs.size(), theirs.data(), theirs.size(), stream());
          }
          values = stage;
        }
        const auto out = std::as_writable_bytes(part.subspan(at, count));
        const bool direct = on_device(out.data());
        std::byte* to = direct ? out.data() : staging_.receive(out.size());
        channel_->submit(what, [&] {
          channel_->check(
              library_.reduce_scatter(values, to, count, nccl::bf16, nccl::sum, channel_->get(), stream()),
              "ncclReduceScatter");
        });
        channel_->finish(what);
        if (!direct) copy(out.data(), {to, out.size()});
      }
    });
  }

  [[nodiscard]] std::unique_ptr<Group> split(int colour, std::string_view what) override {
    std::unique_ptr<Group> part;
    over_host(what, [&] { part = host_.split(colour, kAny); });
    Group& host = *part;
    const nccl::Id id = new_id(host, library_);
    return std::make_unique<NcclGroup>(host, std::move(part), library_, options_, id);
  }

  // Collective: of the host's rank 0.
  static nccl::Id new_id(Group& host, const Library& library) {
    nccl::Id mine{};
    agreed(host, "NCCL's id", [&] {
      if (host.rank() != 0) return;
      if (const int result = library.get_unique_id(&mine); result != nccl::success)
        fail(ErrorKind::device, "ncclGetUniqueId: {}", library.get_error_string(result));
    });
    return gathered(host, std::span<const nccl::Id>(&mine, 1), "NCCL's id").front();
  }

 private:
  [[nodiscard]] cuda::StreamHandle stream() const { return channel_->stream(); }
  // Most bytes that go between two ranks at a time.
  [[nodiscard]] std::size_t piece() const {
    return std::max(options_.staging / ranks_ / kUnit * kUnit, kUnit);
  }

  // Done when it returns.
  void copy(std::byte* to, std::span<const std::byte> from) const {
    if (from.empty() || from.data() == to) return;
    if (!on_device(to) && !on_device(from.data())) {
      std::memmove(to, from.data(), from.size());
      return;
    }
    cuda::copy(to, from.data(), from.size(), stream());
    cuda::check(cudaStreamSynchronize(stream()), "copying");
  }

  // Where NCCL finds the bytes: where they lie, or in the staging area, in stream order.
  const std::byte* in(std::span<const std::byte> from) {
    if (on_device(from.data())) return from.data();
    std::byte* const stage = staging_.send(from.size());
    cuda::copy(stage, from.data(), from.size(), stream());
    return stage;
  }

  // The first fault is final. What breaks here has broken the group, for all.
  template <typename Work>
  void working(std::string_view what, Work work) {
    try {
      work();
    } catch (const Error& e) {
      const bool ours = dynamic_cast<const GroupFailed*>(&e) != nullptr;
      fault_ = ours ? Reason{e.kind(), e.what()}
                    : because(e.kind(), "'{}' on this rank's device: {}", what, e.what());
      channel_->abandon();
      if (ours) throw GroupFailed(fault_->kind, fault_->text);
      throw Error(fault_->kind, fault_->text);
    }
  }

  template <typename Work>
  void over_host(std::string_view what, Work work) {
    if (fault_) throw GroupFailed(fault_->kind, fault_->text);
    try {
      work();
    } catch (const GroupFailed& e) {
      fault_ = Reason{e.kind(), in_words_of(e.what(), what)};
      channel_->abandon();
      throw GroupFailed(fault_->kind, fault_->text);
    }
  }

  // Every rank's post is here and all are one collective; or throws. data_: what came along.
  void meet(const Post& post, std::span<const std::byte> data) {
    over_host(post.what, [&] {
      (void)internal::write_post(post, message_, data);
      host_.all_gather(message_, messages_, kAny);
    });
    const Verdict unlike = attempt([&] {
      for (std::size_t r = 0; r < ranks_; ++r) {
        const auto read = internal::read_post(
            std::span(messages_).subspan(r * message_.size(), message_.size()), lists_[r]);
        posts_[r] = read.post;
        data_[r] = read.data;
      }
      require(internal::inconsistent(posts_, names_));
    });
    if (!unlike) return;
    fault_ = unlike;
    throw GroupFailed(fault_->kind, fault_->text);
  }

  // Bytes [first, first + count) of the block's packed form, on the device; in stream order.
  void pack(const StridedBytes& block, std::size_t first, std::size_t count, std::byte* to) const {
    nccl::for_each_piece(
        block, static_cast<std::int64_t>(first), static_cast<std::int64_t>(count), [&](const nccl::Piece& p) {
          const auto width = static_cast<std::size_t>(p.width);
          if (p.rows > 1 && p.pitch <= std::numeric_limits<int>::max())
            return cuda::check(
                cudaMemcpy2DAsync(to + p.to, width, block.base + p.from, static_cast<std::size_t>(p.pitch),
                                  width, static_cast<std::size_t>(p.rows), cudaMemcpyDefault, stream()),
                "packing a block");
          for (std::int64_t row = 0; row < p.rows; ++row)
            cuda::copy(to + p.to + row * p.width, block.base + p.from + row * p.pitch, width, stream());
        });
  }

  // What goes between each two ranks goes in pieces, as many as there must be, and all that are due together.
  // Both ends of a pair count them alike, and need not know of others.
  void exchange(std::span<const StridedBytes> send, std::span<const std::span<std::byte>> received,
                std::string_view what) {
    const auto me = static_cast<std::size_t>(rank());
    working(what, [&] {
      if (!received[me].empty() && received[me].data() != send[me].base) {
        if (!on_device(received[me].data()) && !on_device(send[me].base))
          tensor::pack(send[me], received[me].data());
        else
          pack(send[me], 0, received[me].size(), received[me].data());
      }
      std::size_t most = 0;
      for (std::size_t r = 0; r < ranks_; ++r)
        if (r != me)
          most = std::max({most, static_cast<std::size_t>(send[r].packed_bytes()), received[r].size()});
      for (std::size_t at = 0; at < most; at += piece()) one_round(send, received, at, most, what);
      cuda::check(cudaStreamSynchronize(stream()), "packing a block");
    });
  }

  void one_round(std::span<const StridedBytes> send, std::span<const std::span<std::byte>> received,
                 std::size_t at, std::size_t most, std::string_view what) {
    const auto me = static_cast<std::size_t>(rank());
    const std::size_t room = std::min(piece(), (most - at + kUnit - 1) / kUnit * kUnit);
    struct Send {
      std::size_t rank, bytes;
      const std::byte* from;
    };
    struct Receive {
      std::size_t rank, bytes;
      std::byte* to;
      std::byte* end;  // where the bytes belong
    };
    std::vector<Send> sends;
    std::vector<Receive> receives;
    const auto due = [&](std::size_t bytes) { return bytes > at ? std::min(piece(), bytes - at) : 0; };
    for (std::size_t i = 1; i < ranks_; ++i) {
      const std::size_t r = (me + i) % ranks_;
      if (const std::size_t bytes = due(static_cast<std::size_t>(send[r].packed_bytes())); bytes > 0) {
        const std::byte* from = nullptr;
        if (send[r].packed() && on_device(send[r].base)) {
          from = send[r].base + at;
        } else {
          std::byte* stage = staging_.send(room * ranks_) + r * room;
          pack(send[r], at, bytes, stage);
          from = stage;
        }
        sends.push_back({r, bytes, from});
      }
      if (const std::size_t bytes = due(received[r].size()); bytes > 0) {
        std::byte* const end = received[r].data() + at;
        receives.push_back(
            {r, bytes, on_device(end) ? end : staging_.receive(room * ranks_) + r * room, end});
      }
    }
    if (sends.empty() && receives.empty()) return;
    channel_->submit(what, [&] {
      for (const Send& s : sends)
        channel_->check(
            library_.send(s.from, s.bytes, nccl::bytes, static_cast<int>(s.rank), channel_->get(), stream()),
            "ncclSend");
      for (const Receive& r : receives)
        channel_->check(
            library_.recv(r.to, r.bytes, nccl::bytes, static_cast<int>(r.rank), channel_->get(), stream()),
            "ncclRecv");
    });
    channel_->finish(what);
    for (const Receive& r : receives)
      if (r.to != r.end) copy(r.end, {r.to, r.bytes});
  }

  std::unique_ptr<Group> part_;
  Group& host_;
  Library library_;
  NcclOptions options_;
  std::size_t ranks_;
  std::vector<int> names_;
  Staging staging_;
  std::unique_ptr<Channel> channel_;
  std::vector<std::byte> message_, messages_, small_;
  std::vector<internal::WireLists> lists_;
  std::vector<Post> posts_;
  std::vector<std::span<const std::byte>> data_;
  Verdict fault_;
};

// What ranks must know of each other before NCCL, which would wait or end without a word, is asked.
struct Seat {
  std::array<char, 64> host{};  // the kernel's own name for this start of this host
  std::array<char, 32> device{};
  std::int32_t version = 0;
};

Seat seat(int version) {
  Seat out;
  std::string host;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> host;
  std::copy_n(host.begin(), std::min(host.size(), out.host.size() - 1), out.host.begin());
  const std::string device = cuda::device_id();
  std::copy_n(device.begin(), std::min(device.size(), out.device.size() - 1), out.device.begin());
  out.version = version;
  return out;
}

// The same on every rank.
void check_seats(const Group& host, const std::vector<Seat>& seats) {
  for (std::size_t b = 0; b < seats.size(); ++b)
    for (std::size_t a = 0; a < b; ++a) {
      const int first = host.number(static_cast<int>(a));
      const int second = host.number(static_cast<int>(b));
      if (seats[a].host == seats[b].host && seats[a].device == seats[b].device)
        fail(ErrorKind::unsupported, "ranks {} and {} are both on device {}: NCCL takes one rank a device",
             first, second, seats[a].device.data());
      if (seats[a].version != seats[b].version)
        fail(ErrorKind::unsupported, "NCCL is {} on rank {} and {} on rank {}",
             nccl::version_text(seats[a].version), first, nccl::version_text(seats[b].version), second);
    }
}

}  // namespace

Verdict nccl_absent(const std::string& library) {
  if (Verdict why = cuda::library()) return why;
  Library found;
  return nccl::open(library, found);
}

std::string nccl_library(const std::string& library) {
  Library found;
  if (nccl::open(library, found)) return {};
  return fmt::format("NCCL {} ({})", nccl::version_text(found.version), found.path);
}

std::unique_ptr<Group> make_nccl_group(Group& host, const NcclOptions& options) {
  Library library;
  Seat mine;
  agreed(host, "NCCL's library", [&] {
    if (options.timeout < std::chrono::milliseconds{1})
      fail(ErrorKind::usage, "an NCCL group with a timeout of {} ms, wanted 1 or more",
           options.timeout.count());
    require(cuda::library());
    require(nccl::open(options.library, library));
    mine = seat(library.version);
  });
  check_seats(host, gathered(host, std::span<const Seat>(&mine, 1), "the ranks' devices"));
  const nccl::Id id = NcclGroup::new_id(host, library);
  return std::make_unique<NcclGroup>(host, nullptr, library, options, id);
}

}  // namespace kerf::comm
