// A model directory as named tensors: which layers have routed experts, of what kind, and where each expert's
// tensors lie in the files. Knows file dialects and nothing of layouts. Files are read when a tensor is asked
// for, never mapped; views keep the bytes that were read for them.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/checkpoint/carried.h"
#include "kerf/checkpoint/config.h"
#include "kerf/checkpoint/faults.h"
#include "kerf/checkpoint/fingerprint.h"
#include "kerf/checkpoint/reading.h"
#include "kerf/tensor/source.h"

#pragma GCC visibility push(default)
namespace kerf::checkpoint {

// What the experts of a layer are.
enum class ExpertKind : std::uint8_t { nvfp4, bf16 };

// One expert's matrices, [out, in], row-major. NVFP4: gate, up U8 [I, H/2], *_sf F8_E4M3 [I, H/16]; down U8
// [H, I/2], down_sf [H, I/16]. BF16: gate, up [I, H], down [H, I]; no scales. Where the file has them in
// another order, they are turned when they are read.
template <typename Tensor>
struct ExpertTensors {
  Tensor gate, gate_sf, up, up_sf, down, down_sf;
};
using ExpertViews = ExpertTensors<tensor::TensorView>;    // read
using ExpertFiles = ExpertTensors<tensor::StoredTensor>;  // not read yet

// What stands around the experts of a layer, at the model's width D: the router, and for models that have it
// the way to the experts' width H and back. None of it has been read yet.
struct BlockFiles {
  tensor::StoredTensor gate;                 // F32 or BF16 [E, D]
  std::optional<tensor::StoredTensor> bias;  // F32 or BF16 [E]
  // Models with a pool only, BF16:
  tensor::StoredTensor pre_proj;   // [H, D]
  tensor::StoredTensor pre_norm;   // [H]
  tensor::StoredTensor post_proj;  // [D, H]
};

// The global scales of an NVFP4 layer, all E experts, as what a value is multiplied by: where a dialect
// stores divisors, 1 / stored, one IEEE division in f32. Gate and up are kept apart. NaN: a scale that cannot
// be used, and with it the largest and smallest that it would take part in.
struct LayerScales {
  std::vector<float> ws2_gate, ws2_up, ws2_down;  // weight_scale_2, [E]
  float in13 = 0;                                 // largest input scale of gate and up over ALL experts
  float in2 = 0;                                  // largest input scale of down over ALL experts
  float least13 = 0;  // smallest input scale of gate and up over ALL experts, beside in13
  float least2 = 0;   // the same of down, beside in2
  std::vector<float> in_gate, in_up, in_down;  // input scales, [E]; empty where there are none
  // W4A16 by the config: in13, in2, least13 and least2 are NaN, and input scales are not used.
  bool weight_only = false;
  std::int64_t gate_up_differ = 0;   // experts whose gate and up weight_scale_2 differ
  double largest_gate_up_ratio = 1;  // of those, larger over smaller
};

// What a layer's scales are worth saying about, in this order (that gate and up differ and are kept apart,
// that the layer is weight-only), a line each.
std::vector<std::string> notes_of(const LayerScales& scales);

// Input scales s that no calibration arrives at, of usable ones, a line each: blocks whose values stay within
// 6 s / 1024 become zeros (16 and more is told of), and values are clipped at 448 * 6 * s (0.001 and less).
std::vector<std::string> warnings_of(const LayerScales& scales);

// One layer's routed experts. Any thread may call any of it, several at once. Whatever reads tensors:
// Error{checkpoint} where a file has become shorter or cannot be read. An expert outside [0, E):
// Error{usage}.
class MoeLayer {
 public:
  virtual ~MoeLayer() = default;
  // The layer's number in the model.
  [[nodiscard]] virtual std::int64_t index() const = 0;
  [[nodiscard]] virtual const std::string& prefix() const = 0;  // of its tensors' names: "model.layers.0."
  // What its experts are.
  [[nodiscard]] virtual ExpertKind kind() const = 0;
  [[nodiscard]] virtual const std::string& root() const = 0;  // of its experts' below that: "mlp.experts."
  // "per-expert", "fused", ...: docs/formats.md; "exported"
  [[nodiscard]] virtual std::string_view dialect() const = 0;
  // Expert e in [0, E): where its tensors lie; dtype and shape have been checked against the config. Of an
  // export there are none: Error{unsupported}, and so for the scans of blocks and values below.
  [[nodiscard]] virtual ExpertFiles expert_files(std::int64_t e) const = 0;
  // The same, read: expert_bytes() of memory, until the last of the views is gone (more on the way where
  // copies()).
  [[nodiscard]] virtual ExpertViews expert(std::int64_t e) const = 0;
  // Whether experts are turned in memory when they are read, all of a matrix at once.
  [[nodiscard]] virtual bool copies() const = 0;
  // From headers and configuration alone: whether these NVFP4 experts have no input scales, and need none.
  [[nodiscard]] virtual bool weight_only() const = 0;
  // All global scales, read; faults (missing, zero, negative, not finite, with a reciprocal or a product with
  // 448 x 6 that is not finite; no input scale in a layer that the config does not call weight-only) are
  // added to `faults` with layer, tensor, expert, "n of E" and value. Error{bug} for BF16 layers.
  virtual LayerScales scales(Faults& faults) const = 0;
  // Scans every block-scale byte of expert e: NaN (0x7F, 0xFF) and negative values are faults with expert,
  // row, block and byte; 0x80 (-0) is accepted. The number of bytes that were looked at. Error{bug} for BF16
  // layers.
  virtual std::int64_t scan_block_scales(std::int64_t e, Faults& faults) const = 0;
  // Those bytes, as they lie in the files, not read yet. Error{bug} for BF16 layers.
  [[nodiscard]] virtual std::vector<tensor::Source> stored_block_scales(std::int64_t e) const = 0;
  // Scans every weight of expert e: values that are not finite are faults with expert, tensor, row, column
  // and bits. Error{bug} for NVFP4 layers.
  virtual void scan_values(std::int64_t e, Faults& faults) const = 0;
  // Scans what stands beside the experts and takes part in the result: the norm's weight after the experts
  // and the router's selection bias, where the layer has them. Values that are not finite are faults. Both
  // kinds.
  virtual void scan_extras(Faults& faults) const = 0;
  // Why kerf computes no block around these experts: the tensor that says so, as messages name it. Empty
  // where nothing does. Router biases and shared experts, which need no key in any configuration.
  [[nodiscard]] virtual const std::string& no_block() const = 0;
  // The block's tensors, with those of a pool where one is asked for; Error{checkpoint} with layer, tensor,
  // file, got and wanted where one is missing or something else, Error{unsupported} for a pool's where none
  // is asked for. Values are not looked at, and neither is no_block().
  [[nodiscard]] virtual BlockFiles block(bool pool) const = 0;
  // From headers alone: of the block's tensors that are there, those that cannot be used are faults.
  virtual void check_block(Faults& faults) const = 0;
  // Scans the values of the block's tensors that can be used: those that are not finite are faults. The bias
  // is scan_extras()'s.
  virtual void scan_block(Faults& faults) const = 0;
  // A tensor of this layer by its name below the layer's prefix ("mlp.experts.post_expert_norm.weight"),
  // read. Nothing where it is not there. The names of config.h stand for what models call the same tensor;
  // Error{checkpoint} where it is there under two of them.
  [[nodiscard]] virtual std::optional<tensor::TensorView> find(std::string_view suffix) const = 0;
  // The name in the file of a tensor of this layer: the prefix, then `suffix` or, where the file has the
  // tensor under another of its spellings, that one. Error{checkpoint} where it has it under two.
  [[nodiscard]] virtual std::string full_name(std::string_view suffix) const = 0;
  // The same, not read yet.
  [[nodiscard]] virtual std::optional<tensor::StoredTensor> stored(std::string_view suffix) const = 0;
  // Bytes of one expert in the file, without its global scales: BF16 3 * H * I * 2, NVFP4 3 * H * I / 2 + 3 *
  // H * I / 16.
  [[nodiscard]] virtual std::int64_t expert_bytes() const = 0;
};

// A fault where the model's router has a selection bias and this layer does not. Routes that come with the
// input do without.
void check_selection_bias(const ModelConfig& config, const MoeLayer& layer, Faults& faults);

class ExportFile;

// An opened checkpoint, or one rank's file of an export of it (export_facts.h). Opening reads configs, index
// and headers, checks sizes of all shards before a tensor of any is read, and keeps them open. Copies share
// all of it; what is given by reference lives as long as one of them. Any thread may ask.
class Checkpoint {
 public:
  // `path`: a directory (or one of its files). Of an export, rank 0's file. Error{checkpoint} for files that
  // are missing, damaged, incomplete or contradict each other, Error{unsupported} for what kerf does not
  // implement: with file, tensor, got and wanted.
  static Checkpoint open(const std::filesystem::path& path);
  // A rank's file of an export for `ranks` ranks. The same errors.
  static Checkpoint open_exported(const std::filesystem::path& directory, std::int64_t rank,
                                  std::int64_t ranks);
  // One whose files are elsewhere: by what opening them read there (carried()), with a reader a file, in that
  // order. `name`: for messages. The same errors, and Error{bug} for another number of readers.
  static Checkpoint open_carried(const std::filesystem::path& name, const CarriedFiles& carried,
                                 std::span<const std::shared_ptr<const tensor::Reader>> readers);
  // What open_carried() takes, read from the files once more, which must be here; and the readers of all
  // files, in the order of shards(). carried(): Error{unsupported} for an export, Error{checkpoint} for a
  // file that cannot be read.
  [[nodiscard]] CarriedFiles carried() const;
  [[nodiscard]] const std::vector<std::shared_ptr<const tensor::Reader>>& readers() const;

  // The same checkpoint, every byte of a tensor read by what `wrap` makes of its file's reader, once, here.
  // Headers and names are shared.
  [[nodiscard]] Checkpoint through(const WrapReader& wrap) const;
  // The same, with a count of its own of the bytes that are read; and that count, 0 for one that does not
  // count. A byte that is read twice counts twice; configs and headers, which opening reads, do not.
  [[nodiscard]] Checkpoint counted() const;
  [[nodiscard]] std::int64_t read_bytes() const;
  // The same, for a group of ranks of which some do not have the files; and who brings them: null where
  // everybody reads files.
  [[nodiscard]] Checkpoint carried_by(std::shared_ptr<Carrier> carrier) const;
  [[nodiscard]] Carrier* carrier() const;

  // The file, where this is one of an export's; else null.
  [[nodiscard]] const ExportFile* exported() const;

  // What the configuration files say of the model; whether it has a norm after the experts and a selection
  // bias by its tensors, too.
  [[nodiscard]] const ModelConfig& config() const;
  // Of what opening read; of an export's files each has its own (ExportFile::id() is what they share).
  [[nodiscard]] const Fingerprint& fingerprint() const;
  [[nodiscard]] const std::filesystem::path& directory() const;
  // Layers with routed experts, ascending. E, H, I come from the config and are checked against the tensors.
  [[nodiscard]] const std::vector<std::int64_t>& moe_layers() const;
  // Error{usage} that says which layers there are; Error{checkpoint} where the config says that this one has
  // experts.
  [[nodiscard]] const MoeLayer& layer(std::int64_t index) const;
  // Where tensors and config say different things about which layers have routed experts: layers whose
  // experts are not there, layers that have them and should not, layers that the model does not have. The
  // other layers are sound all the same. Of an export nothing.
  [[nodiscard]] const Faults& layer_faults() const;
  // Things worth saying that are no faults (a duplicate tensor, stray bytes, differing gate and up scales
  // ...).
  [[nodiscard]] const std::vector<std::string>& notes() const;
  // Error{checkpoint} where a shard has another size than when it was opened, or has been written to since:
  // for after what was read, so that nobody decodes with half an old file and half a new one. Says nothing of
  // files that are elsewhere.
  void require_unchanged() const;
  // Files with tensors: name below the directory, bytes of the file, number of tensors.
  struct Shard {
    std::string name;
    std::int64_t bytes = 0;
    std::int64_t tensors = 0;
  };
  [[nodiscard]] const std::vector<Shard>& shards() const;

 private:
  struct State;
  static Checkpoint make(const std::shared_ptr<State>& state);
  [[nodiscard]] Checkpoint through(const WrapReader& wrap,
                                   std::shared_ptr<std::atomic<std::int64_t>> read) const;
  std::shared_ptr<const State> state_;
  std::shared_ptr<Carrier> carrier_;
};

}  // namespace kerf::checkpoint
#pragma GCC visibility pop
