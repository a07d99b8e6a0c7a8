#include "kerf/tools/internal/claim.h"

#include <algorithm>
#include <array>
#include <span>
#include <system_error>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/base/text.h"
#include "kerf/checkpoint/atomic_file.h"

namespace kerf::tools::internal {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail_io(const char* what, const fs::path& path, const std::error_code& why) {
  fail(ErrorKind::usage, "cannot {} {}: {}", what, path.string(), why.message());
}

// A name, or that of a temporary on its way to it.
bool is_or_becomes(const std::string& name, std::string_view whole) {
  return name == whole || name.starts_with(checkpoint::AtomicFile::temporary_prefix(std::string(whole)));
}

}  // namespace

void claim(const fs::path& directory, const OwnFiles& own) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (!fs::exists(status)) {
    fs::create_directories(directory, error);
    if (error || !fs::is_directory(directory)) fail_io("make directory", directory, error);
    return;
  }
  if (!fs::is_directory(status)) fail(ErrorKind::usage, "{} is not a directory", directory.string());
  std::vector<std::string> names;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  if (error) fail_io("read directory", directory, error);
  std::sort(names.begin(), names.end());
  // A run that was stopped before it had marked the directory left a temporary file at most.
  const bool marked =
      own.marker.empty() || std::any_of(names.begin(), names.end(),
                                        [&](const std::string& n) { return is_or_becomes(n, own.marker); });
  for (const std::string& name : names)
    if (!marked || !own.is_own(name))
      fail(ErrorKind::usage,
           "{} holds {}, which {} did not write: give a new or empty directory, nothing was changed",
           directory.string(), shown(name), own.writer);
  for (const std::string& name : names) {
    if (fs::is_regular_file(fs::symlink_status(directory / name, error))) continue;
    fail(ErrorKind::usage, "{} is no regular file, so {} did not write it: nothing was changed",
         (directory / shown(name)).string(), own.writer);
  }
  // The key first: without it the others are no checkpoint. The marker last: until then a run that is stopped
  // here can be repeated.
  const auto rank = [&](const std::string& name) {
    return name == own.key ? 0 : is_or_becomes(name, own.marker) ? 2 : 1;
  };
  std::stable_sort(names.begin(), names.end(),
                   [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
  for (const std::string& name : names)
    if (!fs::remove(directory / name, error) || error) fail_io("remove", directory / shown(name), error);
}

bool is_checkpoint_file(const std::string& name, std::string_view marker) {
  if (name.starts_with("model-") && name.find(".safetensors") != std::string::npos) return true;
  constexpr std::array<std::string_view, 3> texts = {"config.json", "hf_quant_config.json",
                                                     "model.safetensors.index.json"};
  return is_or_becomes(name, marker) || std::any_of(texts.begin(), texts.end(), [&](std::string_view text) {
           return is_or_becomes(name, text);
         });
}

void write_text(const fs::path& path, const std::string& text) {
  checkpoint::AtomicFile file(path);
  file.append(std::as_bytes(std::span(text)));
  file.finish();
}

}  // namespace kerf::tools::internal
