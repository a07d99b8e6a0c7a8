#include "cli/output.h"

#include <system_error>

#include "cli/context.h"

namespace kerf::cli {

namespace fs = std::filesystem;

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code missing;
  return fs::equivalent(a, b, missing);
}

void refuse_output(const OutputFile& file, const std::string& why) {
  throw Error(ErrorKind::usage,
              fmt::format("{} {}: {}; wanted a file of its own", file.option, file.given, why));
}

void check_outside(const OutputFile& file, const fs::path& checkpoint) {
  std::error_code ignored;
  const fs::path directory = file.resolved.has_parent_path() ? file.resolved.parent_path() : ".";
  for (fs::path at = fs::canonical(directory, ignored); !at.empty(); at = at.parent_path()) {
    if (same_file(at, checkpoint))
      refuse_output(file, fmt::format("it lies inside the checkpoint {}", checkpoint.string()));
    if (at == at.root_path()) break;
  }
  // Shards may be links to files elsewhere.
  for (fs::directory_iterator it(checkpoint, ignored), end; !ignored && it != end; it.increment(ignored))
    if (same_file(file.resolved, it->path()))
      refuse_output(file, fmt::format("it is the checkpoint's file {}", it->path().string()));
}

}  // namespace kerf::cli
