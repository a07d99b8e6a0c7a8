#include "kerf/tools/internal/claim.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <system_error>

#include "kerf/base/format.h"
#include "kerf/base/text.h"

namespace kerf::tools::internal {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kMostMarker = std::int64_t{64} << 20;

[[noreturn]] void fail_io(const char* what, const fs::path& path, const std::error_code& why) {
  fail(ErrorKind::usage, "cannot {} {}: {}", what, path.string(), why.message());
}

// Of "config.json.tmp-12-0" the name that it is on its way to.
std::optional<std::string> becomes(const std::string& name) {
  const std::size_t at = name.rfind(checkpoint::AtomicFile::temporary_prefix(""));
  return at == std::string::npos || at == 0 ? std::nullopt : std::optional(name.substr(0, at));
}

bool is_or_becomes(const std::string& name, std::string_view whole) {
  return name == whole || becomes(name) == whole;
}

// The names that a marker lists, one a line below its first; none where it lists none.
std::set<std::string> listed(const fs::path& marker) {
  std::set<std::string> out;
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(marker, error))) return out;
  std::istringstream lines(read_text(marker, kMostMarker));
  std::string line;
  for (std::getline(lines, line); std::getline(lines, line);) out.insert(line);
  return out;
}

// Nobody else's from here on. Not all file systems have locks, and a run there is as safe as it was.
Descriptor locked(const fs::path& directory, std::string_view writer) {
  Descriptor out(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (out.get() >= 0 && ::flock(out.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    fail(ErrorKind::usage, "{}: another {} writes to it at the moment: nothing was changed",
         directory.string(), writer);
  return out;
}

}  // namespace

Claim::Claim(const fs::path& directory, OwnFiles own) : directory_(directory), own_(std::move(own)) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (!fs::exists(status)) {
    fs::create_directories(directory, error);
    if (error || !fs::is_directory(directory)) fail_io("make directory", directory, error);
  } else if (!fs::is_directory(status)) {
    fail(ErrorKind::usage, "{} is not a directory", directory.string());
  }
  lock_ = locked(directory, own_.writer);
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    there_.push_back(it->path().filename().string());
  if (error) fail_io("read directory", directory, error);
  std::sort(there_.begin(), there_.end());
  // A run that was stopped before it had marked the directory left a temporary file at most.
  const bool marked =
      own_.marker.empty() || std::any_of(there_.begin(), there_.end(),
                                         [&](const std::string& n) { return is_or_becomes(n, own_.marker); });
  const std::set<std::string> names =
      own_.marker.empty() ? std::set<std::string>() : listed(directory / own_.marker);
  const auto is_own = [&](const std::string& name) {
    if (!marked || !own_.is_own(name)) return false;
    return names.empty() || is_or_becomes(name, own_.marker) || names.contains(becomes(name).value_or(name));
  };
  for (const std::string& name : there_)
    if (!is_own(name))
      fail(ErrorKind::usage,
           "{} holds {}, which {} did not write: give a new or empty directory, nothing was changed",
           directory.string(), shown(name), own_.writer);
  for (const std::string& name : there_) {
    if (fs::is_regular_file(fs::symlink_status(directory / name, error))) continue;
    fail(ErrorKind::usage, "{} is no regular file, so {} did not write it: nothing was changed",
         (directory / shown(name)).string(), own_.writer);
  }
  // Of no use to anybody, and in the way of the new files' bytes. A marker's is all that a stopped run may
  // have.
  std::erase_if(there_, [&](const std::string& name) {
    if (!becomes(name) || is_or_becomes(name, own_.marker)) return false;
    if (!fs::remove(directory / name, error) || error) fail_io("remove", directory / shown(name), error);
    return true;
  });
  std::stable_partition(there_.begin(), there_.end(),
                        [&](const std::string& name) { return name == own_.key; });
}

Claim::~Claim() {
  std::error_code error;
  std::size_t others = 0;
  for (fs::directory_iterator it(directory_, error), end; !error && it != end; it.increment(error))
    if (it->path().filename() != own_.marker) ++others;
  if (!error && others == 0 && !own_.marker.empty()) fs::remove(directory_ / own_.marker, error);
}

void Claim::write_marker(std::vector<std::string> names) const {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  write_text(directory_ / own_.marker,
             fmt::format("This directory was written by {}, which may replace it. Its files:\n{}\n",
                         own_.writer, fmt::join(names, "\n")));
}

void Claim::mark(const std::vector<std::string>& names) const {
  std::vector<std::string> all = there_;
  all.insert(all.end(), names.begin(), names.end());
  write_marker(std::move(all));
}

void Claim::clear(const std::vector<std::string>& names) {
  std::error_code error;
  for (const std::string& name : there_)
    if (name != own_.marker)
      if (!fs::remove(directory_ / name, error) || error) fail_io("remove", directory_ / shown(name), error);
  there_.clear();
  if (!names.empty()) write_marker(names);
}

std::string shard_name(std::size_t shard, std::size_t of) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, of);
}

std::vector<std::string> checkpoint_files(std::size_t shards, bool quantisation) {
  std::vector<std::string> out = {index_name, "config.json"};
  if (quantisation) out.emplace_back(quant_name);
  for (std::size_t s = 0; s < shards; ++s) out.push_back(shard_name(s, shards));
  return out;
}

bool is_checkpoint_file(const std::string& name, std::string_view marker) {
  if (name.starts_with("model-") && name.find(".safetensors") != std::string::npos) return true;
  constexpr std::array<std::string_view, 3> texts = {"config.json", quant_name, index_name};
  return is_or_becomes(name, marker) || std::any_of(texts.begin(), texts.end(), [&](std::string_view text) {
           return is_or_becomes(name, text);
         });
}

checkpoint::AtomicFile text_to_come(const fs::path& path, const std::string& text) {
  checkpoint::AtomicFile file(path);
  file.append(std::as_bytes(std::span(text)));
  file.close();
  return file;
}

void write_text(const fs::path& path, const std::string& text) { text_to_come(path, text).finish(); }

}  // namespace kerf::tools::internal
