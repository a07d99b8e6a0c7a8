// kerf plan stage by stage, for host and device; and starts that cannot fit, refused before anything is
// allocated.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kerf/checkpoint/safetensors.h"
#include "tests/cli/program.h"

namespace kerf::test {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

constexpr std::int64_t experts = 256;
constexpr std::int64_t width = 8192;
constexpr std::int64_t layers = 128;

void write_config(const fs::path& directory) {
  fs::create_directories(directory);
  std::ofstream(directory / "config.json")
      << R"({"architectures": ["M"], "model_type": "m", "num_hidden_layers": )" << layers
      << R"(, "num_experts": )" << experts << R"(, "num_experts_per_tok": 8, "hidden_size": )" << width
      << R"(, "moe_intermediate_size": )" << width
      << R"(, "hidden_act": "silu", "quantization_config": {"quant_algo": "NVFP4", "group_size": 16}})";
}

// 128 layers of 256 experts of 8192 x 8192 in fused tensors: 3.5 TiB, of which headers alone are on the disk.
void write_sparse(const fs::path& directory) {
  write_config(directory);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    std::string header = "{";
    std::int64_t at = 0;
    const auto tensor = [&](const std::string& name, const std::string& dtype,
                            const std::vector<std::int64_t>& dims, std::int64_t bytes) {
      std::string shape;
      for (const std::int64_t d : dims) {
        shape += (shape.empty() ? "" : ", ") + std::to_string(d);
        bytes *= d;
      }
      header += (header.size() > 1 ? ", \"" : "\"") + ("model.layers." + std::to_string(layer)) +
                ".mlp.experts." + name + R"(": {"dtype": ")" + dtype + R"(", "shape": [)" + shape +
                R"(], "data_offsets": [)" + std::to_string(at) + ", " + std::to_string(at + bytes) + "]}";
      at += bytes;
    };
    tensor("gate_up_proj", "U8", {experts, 2 * width, width / 2}, 1);
    tensor("gate_up_proj_weight_scale", "F8_E4M3", {experts, 2 * width, width / 16}, 1);
    tensor("gate_up_proj_weight_scale_2", "F32", {experts, 2}, 4);
    tensor("gate_up_proj_input_scale", "F32", {experts, 2}, 4);
    tensor("down_proj", "U8", {experts, width, width / 2}, 1);
    tensor("down_proj_weight_scale", "F8_E4M3", {experts, width, width / 16}, 1);
    tensor("down_proj_weight_scale_2", "F32", {experts}, 4);
    tensor("down_proj_input_scale", "F32", {experts}, 4);
    header += "}";
    const std::string number = std::to_string(100'001 + layer).substr(1);
    const fs::path file = directory / ("model-" + number + "-of-00128.safetensors");
    const auto length = static_cast<std::uint64_t>(header.size());
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << header;
    out.close();
    fs::resize_file(file, 8 + header.size() + static_cast<std::uint64_t>(at));
  }
}

class TooLarge : public testing::Test {
 protected:
  static const std::string& model() {
    static const TempDir dir;
    static const std::string path = [] {
      write_sparse(dir.path());
      return dir.path().string();
    }();
    return path;
  }
};

TEST_F(TooLarge, DecodeRefusesWithTheSum) {
  expect_refusal(run_program({"decode", model(), "--ranks", "8"}), 7,
                 {"wanted, and this machine", "8 ranks x (stock experts 432.00 GiB",
                  "+ sliced experts 432.00 GiB", "at the stage reshard"});
  expect_refusal(run_program({"decode", model(), "--ranks", "8", "--mode", "ep"}), 7,
                 {"8 ranks x (stock experts 432.00 GiB", "buffers of steps", "at the stage"});
}

TEST_F(TooLarge, FewLayersAreAsked) {
  // One layer of one rank: 27 GiB and more.
  const Ran ran = run_program({"decode", model(), "--ranks", "1", "--layers", "3", "--batch", "1"});
  if (ran.code == 7) {
    EXPECT_TRUE(contains(ran.err, "1 rank x (stock experts 27.00 GiB"));
  } else {
    EXPECT_EQ(ran.code, 3) << ran.err;  // a machine with so much room goes on, and finds scales of zero
  }
}

TEST_F(TooLarge, RunAndExportAskToo) {
  const TempDir dir;
  const std::vector<float> x(width, 0.5F);
  const std::vector<float> logits(experts, 0.0F);
  using View = tensor::TensorView;
  const std::vector<std::pair<std::string, View>> tensors = {
      {"x", View{tensor::Dtype::f32, {1, width}, std::as_bytes(std::span(x))}},
      {"router_logits", View{tensor::Dtype::f32, {1, experts}, std::as_bytes(std::span(logits))}}};
  checkpoint::write_safetensors(dir.path() / "in", tensors);
  const auto refused = [](const Ran& ran) {
    EXPECT_TRUE(ran.code == 7 || ran.code == 3) << ran.err;  // as above
    if (ran.code == 7) {
      EXPECT_TRUE(contains(ran.err, "rank x (stock experts 27.00 GiB"));
    }
  };
  refused(run_program({"run", model(), "--layer", "0", "--in", (dir.path() / "in").string(), "--out",
                       (dir.path() / "out").string()}));
  refused(run_program({"export", model(), (dir.path() / "to").string()}));
  EXPECT_FALSE(fs::exists(dir.path() / "to"));
}

// From config.json alone, without weights and without a device.
TEST(PlanStages, OfAConfigAlone) {
  const TempDir dir;
  write_config(dir.path());
  for (const std::string& path : {dir.path().string(), (dir.path() / "config.json").string()}) {
    const Ran ran = run_program({"plan", path, "--ranks", "8", "--json"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    const auto json = json_of(ran);
    const std::int64_t ep = json["bytes_per_rank"]["ep"]["total"];
    // 32 experts a rank and layer: half a byte a weight, a byte each 16 of them; scalars.
    EXPECT_EQ(ep, layers * (32 * 3 * width * width / 16 * 9 + 32 * 3 * 4 + 8));
    EXPECT_EQ(json["stages"]["host"]["load"], ep);
    EXPECT_EQ(json["stages"]["host"]["convert"], ep);
    EXPECT_EQ(json["stages"]["host"]["reshard"], json["peak_per_rank"]["reshard"]);
    EXPECT_EQ(json["stages"]["host"]["warm_up"], json["peak_per_rank"]["steady"]);
    EXPECT_EQ(json["stages"]["host"]["steps"], json["peak_per_rank"]["steady"]);
    EXPECT_TRUE(json["stages"]["device"].is_null());
    EXPECT_EQ(json["legal_tp"].back(), 128);
    EXPECT_EQ(json["ranks_by_slice"].size(), 1U);
  }
}

TEST(PlanStages, OnADeviceThatIsNotThere) {
  const TempDir dir;
  write_config(dir.path());
  const Ran ran = run_program({"plan", dir.path().string(), "--ranks", "8", "--device", "cuda", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto json = json_of(ran);
  const std::int64_t weights = layers * 32 * 3 * width * width / 16 * 9;
  const std::int64_t scalars = layers * (32 * 3 * 4 + 8);
  EXPECT_EQ(json["backend"], "cuda");
  EXPECT_EQ(json["device"], "cuda");
  EXPECT_EQ(json["stages"]["device"]["load"], weights);
  EXPECT_EQ(json["stages"]["device"]["steps"], 2 * weights + json["device_step_buffers"].get<std::int64_t>());
  EXPECT_EQ(json["stages"]["host"]["load"], scalars);
  // Experts of 108 MiB go one at a time, in two slots.
  EXPECT_EQ(json["host_staging"], 2 * (3 * width * width / 16 * 9 + 3 * 4 + 8));
  EXPECT_GT(json["device_run"], 0);
  const Ran text = run_program({"plan", dir.path().string(), "--ranks", "8", "--device", "cuda"});
  EXPECT_TRUE(contains(text.out, "peak by stage"));
  EXPECT_TRUE(contains(text.out, "page-locked staging 216."));
}

TEST(PlanStages, EveryWidthOfUnevenSlices) {
  const Ran ran = run_program({"plan", "--experts", "8", "--hidden", "256", "--intermediate", "192",
                               "--top-k", "2", "--tp", "2", "--uneven", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto ranks = json_of(ran)["ranks_by_slice"];
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[0]["slice"], 128);
  EXPECT_EQ(ranks[1]["slice"], 64);
  EXPECT_EQ(ranks[0]["bytes"]["tp"]["w13"], 2 * ranks[1]["bytes"]["tp"]["w13"].get<std::int64_t>());
}

}  // namespace
}  // namespace kerf::test
