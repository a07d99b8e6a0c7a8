#include "kerf/deploy/machine.h"

#include "kerf/base/machine.h"
#include "kerf/base/threads.h"

namespace kerf::deploy {

Machine this_machine() { return {available_memory(), available_cores()}; }

}  // namespace kerf::deploy
