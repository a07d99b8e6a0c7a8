#include "kerf/base/error.h"

#include <new>

namespace kerf {

const char* name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return "usage";
    case ErrorKind::checkpoint:
      return "checkpoint";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::peer:
      return "peer";
    case ErrorKind::probe:
      return "probe";
    case ErrorKind::memory:
      return "memory";
    case ErrorKind::device:
      return "device";
    case ErrorKind::bug:
      return "bug";
  }
  return "bug";
}

void require(const Verdict& verdict) {
  if (verdict) throw Error(verdict->kind, verdict->text);
}

Verdict attempt(const std::function<void()>& step) {
  try {
    step();
  } catch (const Error& e) {
    return Reason{e.kind(), e.what()};
  } catch (const std::bad_alloc&) {
    return Reason{ErrorKind::memory, "out of memory"};
  } catch (const std::exception& e) {
    return Reason{ErrorKind::bug, e.what()};
  }
  return std::nullopt;
}

}  // namespace kerf
