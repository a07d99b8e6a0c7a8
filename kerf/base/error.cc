#include "kerf/base/error.h"

#include <new>
#include <system_error>

namespace kerf {

void require(const Verdict& verdict) {
  if (verdict) throw Error(verdict->kind, verdict->text);
}

namespace {

// What the system says where it has no memory or no more threads for this process.
bool exhausted(const std::error_code& code) {
  return code == std::errc::resource_unavailable_try_again || code == std::errc::not_enough_memory;
}

}  // namespace

Verdict attempt(const std::function<void()>& step) {
  try {
    step();
  } catch (const Error& e) {
    return Reason{e.kind(), e.what()};
  } catch (const std::bad_alloc&) {
    return Reason{ErrorKind::memory, "out of memory"};
  } catch (const std::system_error& e) {
    const bool memory = exhausted(e.code());
    return Reason{memory ? ErrorKind::memory : ErrorKind::bug,
                  memory ? std::string("out of memory or threads: ") + e.what() : std::string(e.what())};
  } catch (const std::exception& e) {
    return Reason{ErrorKind::bug, e.what()};
  } catch (...) {
    return Reason{ErrorKind::bug, "an exception that is no std::exception"};
  }
  return std::nullopt;
}

}  // namespace kerf
