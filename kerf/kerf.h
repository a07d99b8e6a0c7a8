// kerf's public face: everything that a user of the library needs, floor by floor. docs/architecture.md shows
// how the parts fit; each header opens with what it owns.
#pragma once

// IWYU pragma: begin_exports
#include "kerf/base/build_info.h"
#include "kerf/base/env.h"
#include "kerf/base/error.h"
#include "kerf/base/log.h"
#include "kerf/base/threads.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/config.h"
#include "kerf/checkpoint/faults.h"
#include "kerf/checkpoint/safetensors.h"
#include "kerf/comm/agree.h"
#include "kerf/comm/group.h"
#include "kerf/comm/local.h"
#include "kerf/expert_tp/expert_tp.h"
#include "kerf/layout/convert.h"
#include "kerf/layout/experts.h"
#include "kerf/layout/geometry.h"
#include "kerf/layout/rows.h"
#include "kerf/layout/slice.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/op/op.h"
#include "kerf/routing/metadata.h"
#include "kerf/routing/router.h"
#include "kerf/tactics/tactics.h"
#include "kerf/tail/tail.h"
#include "kerf/tensor/dtype.h"
#include "kerf/tensor/storage.h"
#include "kerf/tensor/view.h"
// IWYU pragma: end_exports
