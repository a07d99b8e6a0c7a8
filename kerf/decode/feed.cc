#include "kerf/decode/feed.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"

namespace kerf::decode {

namespace {

constexpr std::int64_t kWindow = std::int64_t{64} << 20;  // of what a rank asks for at a time
constexpr std::int64_t kSent = std::int64_t{32} << 20;    // of all that is sent at a time

// Bytes [begin, end) of file `file`.
struct Range {
  std::int64_t file = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t bytes() const { return end - begin; }
};

// Ascending, without overlaps.
std::vector<Range> merged(std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& r) { return r.bytes() <= 0; });
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.file != b.file ? a.file < b.file : a.begin < b.begin;
  });
  std::vector<Range> out;
  for (const Range& r : ranges) {
    if (!out.empty() && out.back().file == r.file && r.begin <= out.back().end)
      out.back().end = std::max(out.back().end, r.end);
    else
      out.push_back(r);
  }
  return out;
}

std::int64_t bytes_of(const std::vector<Range>& ranges) {
  std::int64_t bytes = 0;
  for (const Range& r : ranges) bytes += r.bytes();
  return bytes;
}

std::string text_of(const std::vector<Range>& ranges) {
  return {reinterpret_cast<const char*>(ranges.data()), ranges.size() * sizeof(Range)};
}

std::vector<Range> ranges_of(const std::string& text) {
  std::vector<Range> out(text.size() / sizeof(Range));
  if (!out.empty()) std::memcpy(out.data(), text.data(), out.size() * sizeof(Range));
  return out;
}

// Ranges one after another, in memory.
struct Brought {
  std::vector<Range> ranges;
  std::vector<std::byte> bytes;

  // Copies the bytes, or says that they are not here.
  [[nodiscard]] bool copy(std::int64_t file, std::int64_t offset, std::span<std::byte> to) const {
    std::int64_t at = 0;
    for (const Range& r : ranges) {
      if (r.file == file && r.begin <= offset && offset + std::ssize(to) <= r.end) {
        std::copy_n(bytes.begin() + at + (offset - r.begin), to.size(), to.begin());
        return true;
      }
      at += r.bytes();
    }
    return false;
  }
};

// What a rank without files has asked for and been sent. Readers share it.
struct Store {
  std::mutex lock;  // guards wanted
  std::vector<Range> wanted;
  std::atomic<bool> rehearsing{false};
  std::vector<Brought> kept;  // changed by bring() alone, when nobody reads
  Brought recent;

  void want(const Range& range) {
    const std::lock_guard guard(lock);
    // Scans read on in pieces.
    if (!wanted.empty() && wanted.back().file == range.file && wanted.back().end == range.begin)
      wanted.back().end = range.end;
    else
      wanted.push_back(range);
  }
};

class FedReader final : public tensor::Reader {
 public:
  FedReader(std::shared_ptr<Store> store, std::int64_t file, std::string name)
      : store_(std::move(store)), file_(file), name_(std::move(name)) {}

  void read(std::int64_t offset, std::span<std::byte> to) const override {
    if (store_->rehearsing) {
      store_->want({file_, offset, offset + std::ssize(to)});
      std::fill(to.begin(), to.end(), std::byte{0});
      return;
    }
    if (store_->recent.copy(file_, offset, to)) return;
    for (const Brought& b : store_->kept)
      if (b.copy(file_, offset, to)) return;
    fail(ErrorKind::bug, "{}: bytes {} to {} are read on a rank that has no files and was not sent them",
         name_, offset, offset + std::ssize(to));
  }
  // Where there is no memory for the wish, reading says that the bytes are not here.
  void will_need(std::int64_t offset, std::int64_t bytes) const noexcept override {
    (void)attempt([&] { store_->want({file_, offset, offset + bytes}); });
  }

 private:
  std::shared_ptr<Store> store_;
  std::int64_t file_;
  std::string name_;
};

class Feed final : public checkpoint::Carrier {
 public:
  using Readers = std::vector<std::shared_ptr<const tensor::Reader>>;
  Feed(comm::Group& group, int root) : group_(group), root_(root) {}

  void set_files(Readers files) { files_ = std::move(files); }
  [[nodiscard]] const std::shared_ptr<Store>& store() const { return store_; }

  void rehearse(FunctionRef<void()> step) override {
    if (is_root()) return;
    store_->rehearsing = true;
    (void)attempt([&] { step(); });
    store_->rehearsing = false;
  }

  void bring(bool keep, std::string_view what) override {
    std::vector<Range> mine;
    if (!is_root()) mine = merged(std::exchange(store_->wanted, {}));
    const std::vector<std::string> lists = comm::gather_text(group_, text_of(mine), what);
    std::int64_t most = 0;
    std::int64_t asking = 0;
    std::vector<std::vector<Range>> wanted;
    for (const std::string& list : lists) {
      wanted.push_back(ranges_of(list));
      most = std::max(most, bytes_of(wanted.back()));
      asking += list.empty() ? 0 : 1;
    }
    Brought brought;
    std::vector<std::vector<std::byte>> sent(lists.size());
    const std::int64_t piece = std::max<std::int64_t>(kSent / std::max<std::int64_t>(asking, 1), 1 << 16);
    comm::agreed(group_, what, [&] { brought = {mine, std::vector<std::byte>(bytes_in(mine))}; });
    for (std::int64_t at = 0; at < most; at += piece) {
      comm::agreed(group_, what, [&] {
        if (is_root()) read(wanted, lists, at, piece, sent);
      });
      exchange(wanted, lists, at, piece, sent, brought, what);
    }
    if (keep)
      store_->kept.push_back(std::move(brought));
    else
      store_->recent = std::move(brought);
  }

  [[nodiscard]] std::int64_t window() const override { return kWindow; }

 private:
  [[nodiscard]] bool is_root() const { return group_.rank() == root_; }
  static std::size_t bytes_in(const std::vector<Range>& ranges) {
    return static_cast<std::size_t>(bytes_of(ranges));
  }
  static std::int64_t part(const std::vector<Range>& of, std::int64_t at, std::int64_t piece) {
    return std::clamp<std::int64_t>(bytes_of(of) - at, 0, piece);
  }
  // The lowest rank that asks for the same: what several ask for is read once.
  static std::size_t first_alike(const std::vector<std::string>& lists, std::size_t rank) {
    return static_cast<std::size_t>(std::find(lists.begin(), lists.end(), lists[rank]) - lists.begin());
  }

  void read(const std::vector<std::vector<Range>>& wanted, const std::vector<std::string>& lists,
            std::int64_t at, std::int64_t piece, std::vector<std::vector<std::byte>>& sent) const {
    for (std::size_t r = 0; r < wanted.size(); ++r) {
      if (first_alike(lists, r) != r) continue;
      std::vector<std::byte>& to = sent[r];
      to.resize(static_cast<std::size_t>(part(wanted[r], at, piece)));
      std::int64_t begin = 0;  // of a range, in all that this rank is sent
      for (const Range& range : wanted[r]) {
        const std::int64_t from = std::max(begin, at);
        const std::int64_t end = std::min(begin + range.bytes(), at + std::ssize(to));
        if (from < end)
          files_[static_cast<std::size_t>(range.file)]->read(
              range.begin + (from - begin), std::span(to).subspan(static_cast<std::size_t>(from - at),
                                                                  static_cast<std::size_t>(end - from)));
        begin += range.bytes();
      }
    }
  }

  void exchange(const std::vector<std::vector<Range>>& wanted, const std::vector<std::string>& lists,
                std::int64_t at, std::int64_t piece, const std::vector<std::vector<std::byte>>& sent,
                Brought& brought, std::string_view what) {
    std::vector<tensor::StridedBytes> send(wanted.size());
    std::vector<std::span<std::byte>> received(wanted.size());
    for (std::size_t r = 0; is_root() && r < wanted.size(); ++r) {
      const std::int64_t bytes = part(wanted[r], at, piece);
      if (bytes > 0) send[r] = {sent[first_alike(lists, r)].data(), 1, bytes, 1, bytes, bytes};
    }
    const std::int64_t mine = part(brought.ranges, at, piece);
    if (mine > 0)
      received[static_cast<std::size_t>(root_)] =
          std::span(brought.bytes).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(mine));
    group_.all_to_all(send, received, what);
  }

  comm::Group& group_;
  int root_;
  Readers files_;  // the root's
  std::shared_ptr<Store> store_ = std::make_shared<Store>();
};

}  // namespace

checkpoint::Checkpoint fed_from(comm::Group& group, int root,
                                const std::function<checkpoint::Checkpoint()>& open) {
  constexpr const char* what = "the checkpoint's headers from the rank that reads it";
  checkpoint::Checkpoint out;
  std::string name;
  std::string headers;
  comm::agreed(group, what, [&] {
    if (root < 0 || root >= group.size())
      fail(ErrorKind::usage, "a checkpoint from rank {} of {}", root, group.size());
    if (group.rank() != root) return;
    out = open().counted();
    name = out.directory().string();
    headers = out.carried().to_text();
  });
  name = comm::gather_text(group, name, what)[static_cast<std::size_t>(root)];
  headers = comm::gather_text(group, headers, what)[static_cast<std::size_t>(root)];
  comm::agreed(group, "opening what the reading rank sent", [&] {
    const auto feed = std::make_shared<Feed>(group, root);
    if (group.rank() == root) {
      feed->set_files(out.readers());
    } else {
      const checkpoint::CarriedFiles carried = checkpoint::CarriedFiles::from_text(headers);
      Feed::Readers readers;
      for (const auto& file : carried.files)
        readers.push_back(std::make_shared<FedReader>(feed->store(), std::ssize(readers),
                                                      fmt::format("{}/{}", name, file.name)));
      out = checkpoint::Checkpoint::open_carried(name, carried, readers);
    }
    out = out.carried_by(feed);
  });
  return out;
}

}  // namespace kerf::decode
