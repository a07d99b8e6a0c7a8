// Asks the system to fetch what will be read, in the order in which it lies in the files and some way ahead
// of its reader. Experts are looked at one kind of tensor after the other and by several threads; a disk that
// is asked for them like that seeks. Asked in the order of the file, it streams.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kerf/checkpoint/checkpoint.h"

namespace kerf::checkpoint {

class ReadAhead {
 public:
  // Of the experts [first, first + count) of these layers, layer after layer. The checkpoint must outlive it.
  // Errors of layer() and expert_files(), here and in advance().
  ReadAhead(const Checkpoint& from, std::span<const std::int64_t> layers, std::int64_t first,
            std::int64_t count);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ReadAhead(ReadAhead&&) = delete;
  ReadAhead& operator=(ReadAhead&&) = delete;

  // That many more bytes of them need not be waited for: asks for as many new ones. Any thread may call it;
  // it waits no longer than the system takes to queue them.
  void advance(std::int64_t bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kerf::checkpoint
