// What somebody else's program does with kerf: one header. It says, as JSON, which kerf it was compiled with
// and which it runs on.
#include <kerf/kerf.h>

#include <cstdio>
#include <string>

int main() {
  // An error of the library's own, caught by its type and by its base.
  int caught = 0;
  try {
    (void)kerf::op::backend("no such backend");
  } catch (const kerf::Error& error) {
    caught += error.kind() == kerf::ErrorKind::usage ? 1 : 0;
  }
  try {
    kerf::comm::run_local(2, {}, [](kerf::comm::Group& group) {
      if (group.rank() == 0) throw kerf::Error(kerf::ErrorKind::probe, "thrown by a rank");
      try {
        group.barrier("waiting");
      } catch (const kerf::comm::GroupFailed&) {  // a type that crosses the library's boundary twice
        throw;
      }
    });
  } catch (const std::runtime_error& error) {
    caught += std::string(error.what()).find("thrown by a rank") != std::string::npos ? 2 : 0;
  }
  std::printf(R"({"headers": "%s", "library": "%s", "layout": "%s", "caught": %d})"
              "\n",
              std::string(kerf::headers_version).c_str(), std::string(kerf::version()).c_str(),
              std::string(kerf::checkpoint::export_layout).c_str(), caught);
  return caught == 3 ? 0 : 1;
}
