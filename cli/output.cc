#include "cli/output.h"

#include <system_error>
#include <utility>

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

OutputFile output_file(const std::string& option, const std::string& given) {
  OutputFile file{option, given, checkpoint::check_writable(given)};
  for (const auto& [stream, what] :
       {std::pair{"/dev/stdout", "standard output"}, {"/dev/stderr", "standard error"}})
    if (same_file(file.resolved, stream)) refuse_output(file, fmt::format("it is where {} goes", what));
  return file;
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
