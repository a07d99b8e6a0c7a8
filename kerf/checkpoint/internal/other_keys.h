// Keys of config.json that say nothing of routed experts: attention, embeddings, norms, other modalities,
// generation, training, tools.
#pragma once

#include <string_view>

namespace kerf::checkpoint::internal {

// Whether kerf knows the key as one of those: from the configuration classes of transformers 5.17 and from
// files that are published.
bool of_other_parts(std::string_view key);

// Whether its name begins or ends as theirs do ("attn_", "_token_id").
bool sounds_of_other_parts(std::string_view key);

}  // namespace kerf::checkpoint::internal
