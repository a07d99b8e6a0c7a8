"""A Qwen3-MoE model of transformers with kerf in the place of its experts.

A small model of random weights is made; its experts are quantised to NVFP4 by kerf and converted; every expert block is
replaced by kerf, on one rank or on several (expert TP out of whole experts). Logits are compared with the same model
whose experts have the dequantised weights and run in torch, in float32: W4A16 as it is, W4A4 with rows and intermediates
that torch quantises by the definition of the formats. With --device cuda model, experts and steps are on the GPU.
Needs torch and transformers.

    python qwen3_moe.py [--ranks 2] [--tokens 64] [--seed 1] [--device cuda]
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import kerf

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def fake_quantise(x: torch.Tensor, global_scale: float) -> torch.Tensor:
    """NVFP4 values of float32 x [T, K], in torch alone: blocks of 16, e4m3 scales, e2m1 codes, ties to even codes."""
    gs = 1 / torch.tensor(global_scale, dtype=torch.float32, device=x.device)
    blocks = x.float().reshape(-1, 16)
    scale = (gs * (blocks.abs().amax(1, keepdim=True) * (1 / 6))).to(torch.float8_e4m3fn).float()
    scaled = torch.where(scale > 0, blocks * (1 / (scale * (1 / gs))), 0.0).clamp(-6, 6)
    values = E2M1.to(x.device)
    away = (scaled.abs().unsqueeze(-1) - values).abs()
    even = torch.arange(8, device=x.device) % 2 * 1e-7  # of two codes that are as near, the even one
    code = (away + even).argmin(-1)
    return (torch.sign(scaled) * values[code] * scale * global_scale).reshape(x.shape)


class QuantisedExperts:
    """One layer's experts: kerf's tensors, and the values that they stand for."""

    def __init__(self, experts: torch.nn.Module) -> None:
        self.device = experts.down_proj.device
        gate, up = experts.gate_up_proj.detach().float().cpu().chunk(2, dim=1)
        down = experts.down_proj.detach().float().cpu()
        self.codes: dict[str, torch.Tensor] = {}
        self.block_scales: dict[str, torch.Tensor] = {}
        self.global_scales: dict[str, torch.Tensor] = {}
        self.values: dict[str, torch.Tensor] = {}
        for name, matrices in (("gate", gate), ("up", up), ("down", down)):
            made = [kerf.quantize_nvfp4(matrix.contiguous()) for matrix in matrices]
            self.codes[name] = torch.stack([torch.from_dlpack(m.codes) for m in made])
            self.block_scales[name] = torch.stack([torch.from_dlpack(m.scales).view(torch.uint8) for m in made])
            self.global_scales[name] = torch.tensor([m.global_scale for m in made])
            self.values[name] = torch.stack(
                [torch.from_dlpack(kerf.dequantize_nvfp4(m.codes, m.scales, m.global_scale)) for m in made]
            ).to(self.device)
        self.input_scale = self.intermediate_scale = 0.0  # of a calibration

    def calibrate(self, rows: torch.Tensor) -> None:
        """Scales at which the largest value seen is the largest that can be written, 6 * 448."""
        self.input_scale = max(self.input_scale, rows.float().abs().max().item() / 2688)
        gate, up = (torch.einsum("th,eih->eti", rows.float(), self.values[n]) for n in ("gate", "up"))
        most = (torch.nn.functional.silu(gate) * up).abs().max().item()
        self.intermediate_scale = max(self.intermediate_scale, most / 2688)

    def converted(self, first: int, count: int, act: str) -> kerf.Nvfp4Experts:
        """Experts [first, first + count) in the converted layout, matrices and block scales on the model's device."""
        part = slice(first, first + count)
        made = kerf.convert(
            *(self.codes[name][part] for name in ("gate", "up", "down")),
            **{f"{name}_sf": self.block_scales[name][part] for name in ("gate", "up", "down")},
            **{f"{name}_scale": self.global_scales[name][part] for name in ("gate", "up", "down")},
            input_scale=self.input_scale,
            intermediate_scale=self.intermediate_scale,
            first_expert=first,
            act=act,
        )
        if self.device.type == "cpu":
            return made
        names = ("w13", "w13_sf", "w2", "w2_sf")
        return made._replace(**{name: torch.from_dlpack(getattr(made, name)).to(self.device) for name in names})

    def reference(self, rows: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, act: str) -> torch.Tensor:
        """The same experts in torch, float32."""
        x = rows.float()
        if act == "nvfp4":
            x = fake_quantise(x, self.input_scale)
        out = torch.zeros_like(x)
        for k in range(ids.shape[1]):
            for expert in ids[:, k].unique().tolist():
                here = ids[:, k] == expert
                gate, up, down = (self.values[n][expert] for n in ("gate", "up", "down"))
                h = torch.nn.functional.silu(x[here] @ gate.T) * (x[here] @ up.T)
                if act == "nvfp4":
                    h = fake_quantise(h, self.intermediate_scale)
                out[here] += weights[here, k, None].float() * (h @ down.T)
        return out.to(rows.dtype)


class KerfExperts:
    """All layers' experts on `ranks` ranks: a runtime and a thread each, over tensors that stay where they are."""

    def __init__(self, layers: list[QuantisedExperts], *, experts: int, top_k: int, ranks: int, act: str) -> None:
        backend = "cpu" if layers[0].device.type == "cpu" else "cuda"
        self.groups = kerf.Group.local(ranks)
        self.threads = ThreadPoolExecutor(ranks)
        each = experts // ranks

        def build(group: kerf.Group) -> kerf.Runtime:
            stock = [
                kerf.StockLayer(index, layer.converted(group.rank * each, each, act), top_k, act=act)
                for index, layer in enumerate(layers)
            ]
            runtime = kerf.Runtime.adopt(
                stock, group, experts=experts, top_k=top_k, expert_tp=ranks > 1, max_tokens=64, backend=backend
            )
            runtime.warm_up()
            return runtime

        self.runtimes = list(self.threads.map(build, self.groups))

    def step(self, layer: int, rows: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """[T, H] bfloat16: every rank has the same, rank 0's is returned."""
        inputs = dict(x=rows.contiguous(), ids=ids.int().contiguous(), weights=weights.float().contiguous())
        return list(self.threads.map(lambda runtime: runtime.execute(layer, **inputs), self.runtimes))[0]

    def close(self) -> None:
        self.threads.shutdown()
        for group in self.groups:
            group.close()


Experts = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@contextlib.contextmanager
def experts_of(model: Qwen3MoeForCausalLM, run: Experts):
    """The model with run(layer, rows, ids, weights) in the place of its expert blocks."""
    blocks = [layer.mlp.experts for layer in model.model.layers]
    before = [block.forward for block in blocks]
    for index, block in enumerate(blocks):
        block.forward = lambda rows, ids, weights, index=index: run(index, rows, ids, weights)
    try:
        yield
    finally:
        for block, forward in zip(blocks, before):
            block.forward = forward


def distance(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """rel L2."""
    return (torch.linalg.norm(got.double() - wanted.double()) / torch.linalg.norm(wanted.double())).item()


def same_choice(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The part of positions with the same most likely token."""
    return (got.argmax(-1) == wanted.argmax(-1)).double().mean().item()


def run(ranks: int, tokens: int, seed: int, device: str = "cpu") -> dict[str, tuple[float, ...]]:
    """{"W4A16": (rel L2, top-1, largest rel L2 of one layer's rows on the same input), "W4A4": ..., "quantisation": ...};
    the last is torch W4A4 against the model's own."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=256,
        moe_intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=16,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        tie_word_embeddings=False,
    )
    model = Qwen3MoeForCausalLM(config).to(torch.bfloat16).eval()
    # Weights as of a model that has learnt something: unit rows, experts that add to them, a router that is sure of its
    # first choices. (Of flat random logits the last choice is a toss-up, which any rounding decides.)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=1.0)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.mlp.experts.gate_up_proj, std=config.hidden_size**-0.5)
        torch.nn.init.normal_(layer.mlp.experts.down_proj, std=0.5 * config.moe_intermediate_size**-0.5)
        torch.nn.init.normal_(layer.mlp.gate.weight, std=4 * config.hidden_size**-0.5)
    prompt = torch.randint(0, config.vocab_size, (1, tokens)).to(device)
    other = torch.randint(0, config.vocab_size, (1, tokens)).to(device)
    model.to(device)
    results: dict[str, tuple[float, ...]] = {}
    with torch.no_grad():
        own = model(prompt).logits
        layers = [QuantisedExperts(layer.mlp.experts) for layer in model.model.layers]
        plain = [layer.mlp.experts.forward for layer in model.model.layers]

        def calibrating(index, rows, ids, weights):
            layers[index].calibrate(rows)
            return plain[index](rows, ids, weights)

        with experts_of(model, calibrating):
            model(other)
            model(prompt)
        for name, act in (("W4A16", "bf16"), ("W4A4", "nvfp4")):
            mine = KerfExperts(layers, experts=config.num_experts, top_k=config.num_experts_per_tok, ranks=ranks, act=act)
            apart: list[float] = []

            def both(index, rows, ids, weights, act=act, mine=mine, apart=apart):
                wanted = layers[index].reference(rows, ids, weights, act)
                apart.append(distance(mine.step(index, rows, ids, weights), wanted))
                return wanted

            with experts_of(model, both):
                wanted = model(prompt).logits
            with experts_of(model, mine.step):
                got = model(prompt).logits
            mine.close()
            results[name] = (distance(got, wanted), same_choice(got, wanted), max(apart))
        results["quantisation"] = (distance(wanted, own), same_choice(wanted, own))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1, help="ranks; more than one: expert TP")
    parser.add_argument("--tokens", type=int, default=64, help="of the prompt, at most 64")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the model and its experts")
    options = parser.parse_args()
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{options.ranks} rank(s), {options.tokens} tokens, seed {options.seed}, torch {torch.__version__}, {where}")
    results = run(options.ranks, options.tokens, options.seed, options.device)
    for name in ("W4A16", "W4A4"):
        rel, same, layer = results[name]
        print(
            f"{name:<6} kerf against torch on dequantised weights: a layer's rows rel L2 at most {layer:.5f}, "
            f"logits rel L2 {rel:.5f}, top-1 {100 * same:.1f} %"
        )
    rel, same = results["quantisation"]
    print(f"(torch, W4A4 against the unquantised model: logits rel L2 {rel:.5f}, top-1 {100 * same:.1f} %)")


if __name__ == "__main__":
    main()
