// The questions about an engine: what each answers for every value that counts.
#include "kerf/deploy/engine.h"

#include <gtest/gtest.h>

#include "kerf/base/error.h"

namespace kerf::test {
namespace {

using deploy::Reasons;

deploy::EngineConfig good(std::int64_t tp = 8) {
  deploy::EngineConfig engine;
  engine.attention_backend = "FLASHINFER";
  engine.trtllm_attention = true;
  engine.tensor_parallel = tp;
  engine.flashinfer_all_reduce = true;
  engine.all_reduce_backend = "mnnvl";
  return engine;
}

TEST(Engine, WhatIsSetUpRightOrLeftToTheEngineHasNoReason) {
  EXPECT_EQ(deploy::unsupported(good(), {}), Reasons{});
  deploy::EngineConfig engine = good();
  engine.attention_backend.reset();
  engine.trtllm_attention.reset();
  engine.all_reduce_backend = "auto";
  EXPECT_EQ(deploy::unsupported(engine, {}), Reasons{});
}

TEST(Engine, EachSettingHasItsReason) {
  deploy::EngineConfig engine = good();
  engine.attention_backend = "FLASH_ATTN";
  EXPECT_EQ(deploy::unsupported(engine, {}),
            Reasons{"attention_backend is 'FLASH_ATTN', wanted 'FLASHINFER'"});
  engine = good();
  engine.trtllm_attention = false;
  ASSERT_EQ(deploy::unsupported(engine, {}).size(), 1U);
  EXPECT_TRUE(deploy::unsupported(engine, {})[0].starts_with("trtllm_attention is false"));
  engine = good(4);
  engine.flashinfer_all_reduce = false;
  EXPECT_EQ(deploy::unsupported(engine, {}), Reasons{"flashinfer_all_reduce is off at TP 4, wanted on"});
}

// The all-reduce's backend counts at the TP sizes that need MNNVL, and there alone.
TEST(Engine, TheAllReduceBackendCountsAtItsTpSizes) {
  for (const std::int64_t tp : {1, 2, 4, 8, 12, 16, 32}) {
    deploy::EngineConfig engine = good(tp);
    engine.all_reduce_backend = "trtllm";
    const Reasons reasons = deploy::unsupported(engine, {});
    if (tp != 8 && tp != 16) {
      EXPECT_EQ(reasons, Reasons{}) << tp;
      continue;
    }
    ASSERT_EQ(reasons.size(), 1U) << tp;
    EXPECT_EQ(reasons[0], "all_reduce_backend is 'trtllm' at TP " + std::to_string(tp) +
                              ", wanted one that can go over MNNVL: auto, mnnvl");
  }
  // Sizes and names are data.
  deploy::Requirements other;
  other.mnnvl_tp = {2};
  other.mnnvl_backends = {"trtllm"};
  deploy::EngineConfig engine = good(2);
  EXPECT_EQ(deploy::unsupported(engine, other).size(), 1U);
  engine.all_reduce_backend = "trtllm";
  EXPECT_EQ(deploy::unsupported(engine, other), Reasons{});
  EXPECT_EQ(deploy::unsupported(good(8), other), Reasons{});
}

TEST(Engine, EveryReasonIsGivenNotTheFirst) {
  deploy::EngineConfig engine;
  engine.attention_backend = "TRITON";
  engine.trtllm_attention = false;
  engine.tensor_parallel = 16;
  engine.all_reduce_backend = "nccl";
  const Reasons reasons = deploy::unsupported(engine, {});
  ASSERT_EQ(reasons.size(), 4U);
  for (const auto& [at, word] : {std::pair{0, "TRITON"}, {1, "trtllm_attention"}, {2, "off"}, {3, "nccl"}})
    EXPECT_NE(reasons[static_cast<std::size_t>(at)].find(word), std::string::npos) << word;
}

TEST(CheckAttention, NamesTheLayerAndBothBackends) {
  EXPECT_NO_THROW(deploy::check_attention("layers.3", "FLASHINFER", {}));
  const Verdict v = attempt([] { deploy::check_attention("layers.3", "FLASHINFER_MLA", {}); });
  ASSERT_TRUE(v);
  EXPECT_EQ(v->kind, ErrorKind::unsupported);
  EXPECT_EQ(v->text, "layers.3 runs the 'FLASHINFER_MLA' attention backend, wanted 'FLASHINFER'");
}

TEST(TrtllmDecode, IsABlockTableAndSequenceLengths) {
  EXPECT_EQ(deploy::trtllm_decode(deploy::TrtllmMetadata{{8, 256}, {8}}), Reasons{});
  EXPECT_EQ(deploy::trtllm_decode(deploy::WrapperMetadata{"BatchDecodeWrapper"}),
            Reasons{"decode metadata are kept by 'BatchDecodeWrapper', wanted a block table and sequence "
                    "lengths"});
  EXPECT_EQ(deploy::trtllm_decode(deploy::TrtllmMetadata{{8, 256}, {4}}),
            Reasons{"block_table is [8, 256] and seq_lens is [4], wanted both of the same B"});
  EXPECT_EQ(deploy::trtllm_decode(deploy::TrtllmMetadata{{8}, {8, 1}}),
            (Reasons{"block_table is [8], wanted [B, blocks]", "seq_lens is [8, 1], wanted [B]"}));
}

TEST(LibraryRope, IsTheLibrarysOrTheStockOne) {
  EXPECT_TRUE(deploy::library_rope(deploy::Rope::library));
  EXPECT_FALSE(deploy::library_rope(deploy::Rope::stock));
}

// One change each to a cache that takes plain bf16: which of them make it another.
TEST(Bf16KvInsert, EachConditionCounts) {
  deploy::Requirements wanted;
  wanted.kv_heads = 8;
  wanted.head_size = 128;
  deploy::KvCache plain;
  plain.heads = 8;
  plain.head_size = 128;
  EXPECT_EQ(deploy::bf16_kv_insert(plain, wanted), Reasons{});
  plain.dtype = "bfloat16";
  EXPECT_EQ(deploy::bf16_kv_insert(plain, wanted), Reasons{});

  const auto reason = [&](auto change) {
    deploy::KvCache cache = plain;
    change(cache);
    const Reasons reasons = deploy::bf16_kv_insert(cache, wanted);
    EXPECT_EQ(reasons.size(), 1U);
    return reasons.empty() ? std::string() : reasons[0];
  };
  EXPECT_EQ(reason([](auto& c) { c.backend = "FLASH_ATTN"; }),
            "keys and values are stored by 'FLASH_ATTN', wanted 'FLASHINFER'");
  EXPECT_EQ(reason([](auto& c) { c.own_update = true; }),
            "the layer stores keys and values in its own way (own_update)");
  EXPECT_EQ(reason([](auto& c) { c.shared_with = "layers.0"; }),
            "the layer shares the cache of 'layers.0', wanted one of its own");
  EXPECT_EQ(reason([](auto& c) { c.nvfp4 = true; }), "the cache holds NVFP4, wanted bf16");
  EXPECT_EQ(reason([](auto& c) { c.nvfp4_fa2 = true; }), "the cache is read as NVFP4 by FA2, wanted bf16");
  EXPECT_EQ(reason([](auto& c) { c.dtype = "fp8_e4m3"; }),
            "the cache's dtype is 'fp8_e4m3', wanted auto or bfloat16");
  EXPECT_EQ(reason([](auto& c) { c.layout = "NHD"; }), "the cache's layout is 'NHD', wanted HND");
  EXPECT_EQ(reason([](auto& c) { c.heads = 4; }), "heads is 4, wanted 8");
  EXPECT_EQ(reason([](auto& c) { c.head_size = 64; }), "head_size is 64, wanted 128");
  // Heads that nobody asked for are not judged.
  plain.heads = 3;
  EXPECT_EQ(deploy::bf16_kv_insert(plain, {}), Reasons{});
}

}  // namespace
}  // namespace kerf::test
