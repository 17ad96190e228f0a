"""Writes the folders beside it: random checkpoints of small shapes whose large matrices were quantised and packed by the
programs that others use, each with expected.safetensors: x, and for each of these matrices W the product W x in float64, as
that program unpacks it. Versions: README.md. The tests read the files and need none of this.

    python3 generate.py AUTOGPTQ_WHEEL_UNPACKED AUTOAWQ_WHEEL_UNPACKED GPTQMODEL_SOURCE_UNPACKED [FOLDER...]
"""
import importlib.util
import json
import os
import sys
import types

import torch
from compressed_tensors.compressors.naive_quantized import FloatQuantizationCompressor, IntQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
PLUS = {"model_type": "rodimus", "torch_dtype": "bfloat16", "block_type": "rodimus_plus", "d_model": 64, "n_layer": 1,
        "vocab_size": 40, "norm_epsilon": 1e-05, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": True,
        "mixer_cfg": {"mem_size": 8}, "attn_cfg": {"num_heads": 2, "num_heads_k": 1, "num_heads_v": 2, "window_size": 16,
                                                   "ffn_expand_ratio": 2.1}}
PLAIN = {"model_type": "rodimus", "torch_dtype": "float16", "block_type": "rodimus", "d_model": 128, "n_layer": 1,
         "vocab_size": 40, "norm_epsilon": 1e-05, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False,
         "mixer_cfg": {"mem_size": 8}}
FLA = {"model_type": "rodimus", "torch_dtype": "bfloat16", "block_type": "rodimus_plus", "hidden_size": 64,
       "num_hidden_layers": 1, "expand_ratio": 8, "conv_size": 4, "input_gate_low_rank": "auto", "norm_eps": 1e-05,
       "vocab_size": 40, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": True, "intermediate_size": 136,
       "ska_attn": {"num_heads": 2, "window_size": 16, "qk_norm": False, "qkv_bias": False}}


def shapes(config):
    """name -> shape of every tensor, and the names of the products."""
    fla, plus = "hidden_size" in config, config["block_type"] == "rodimus_plus"
    D = config["hidden_size"] if fla else config["d_model"]
    V, E, M, R, F, P, H = config["vocab_size"], 2 * D, 8, 16, config.get("intermediate_size", 136), D // 2, 2
    wide, products, layer = {}, {}, "model.layers.0."
    wide["model.embeddings.weight"] = [V, D]
    wide["model.norm.weight" if fla else "model.norm_f.weight"] = [D]
    if not config["tie_word_embeddings"]:
        wide["lm_head.weight"] = [V, D]
    inner = "mixer." if fla else "mixer.inner_mixer."
    conv = inner + ("short_conv." if fla else "short_conv.conv1d.")
    gate = inner + ("i_gate_proj." if fla else "ch_gate_proj.")
    for name, shape in {"mixer_norm.weight": [D], conv + "weight": [E, 1, 4], conv + "bias": [E], inner + "residual_weight": [E],
                        gate + "0.weight": [R, E], gate + "1.weight": [E, R], gate + "1.bias": [E],
                        "mixer.activation_norm.weight" if fla else "mixer.act_norm.weight": [E]}.items():
        wide[layer + name] = shape
    if fla:
        for name in ("q_proj.weight", "k_proj.weight", "g_gate_proj.weight", "tau_gate_proj.weight"):
            wide[layer + inner + name] = [M, E]
        for name in ("g_gate_proj.bias", "tau_gate_proj.bias"):
            wide[layer + inner + name] = [M]
        products.update({"mixer.up_proj": [E, D], "mixer.gate_proj": [E, D], "mixer.down_proj": [D, E]})
    else:
        wide.update({layer + inner + "in_proj.weight": [2 * M, E], layer + inner + "mem_gate_proj.weight": [2 * M, E],
                     layer + inner + "mem_gate_proj.bias": [2 * M]})
        products.update({"mixer.fc": [2 * E, D], "mixer.out_proj": [D, E]})
    if plus:
        attn = "ska_attn." if fla else "attn."
        wide[layer + ("ska_attn_norm.weight" if fla else "attn_norm.weight")] = [D]
        wide[layer + ("mlp_norm.weight" if fla else "ffn_norm.weight")] = [D]
        products.update({attn + "q_proj": [H * P, D], attn + "k_proj": [P, D], attn + "v_proj": [H * P, D],
                         attn + ("o_proj" if fla else "out_proj"): [D, H * P]})
        products.update({"mlp.up_proj": [F, D], "mlp.gate_proj": [F, D], "mlp.down_proj": [D, F]} if fla
                        else {"ffn.fc": [2 * F, D], "ffn.out_proj": [D, F]})
    return wide, {layer + name: shape for name, shape in products.items()}


def compressed(compressor, args):
    """With compressed-tensors: the scales as its observers have them, then its compressor."""
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    weights, bits = scheme.weights, args["num_bits"]

    def pack(w):
        r, c = w.shape
        w32 = w.float()
        if weights.strategy == "tensor":
            low, high = w32.min().reshape(1), w32.max().reshape(1)
        elif weights.strategy == "channel":
            low, high = w32.amin(1, keepdim=True), w32.amax(1, keepdim=True)
        elif weights.strategy == "group":
            parts = w32.split(weights.group_size, 1)
            low = torch.stack([p.amin(1) for p in parts], 1)
            high = torch.stack([p.amax(1) for p in parts], 1)
        else:
            parts = [[b for b in rows.split(128, 1)] for rows in w32.split(128, 0)]
            low = torch.tensor([[b.min().item() for b in row] for row in parts])
            high = torch.tensor([[b.max().item() for b in row] for row in parts])
        scale, zero = calculate_qparams(low, high, weights)
        scale = scale.to(torch.float32 if weights.strategy == "block" else w.dtype)
        state = {"weight": w, "weight_scale": scale}
        if not weights.symmetric:
            state["weight_zero_point"] = zero
        packed = compressor.compress(state, scheme)
        again = dict(packed)
        again["weight_scale"] = packed["weight_scale"].float()
        return packed, compressor.decompress(again, scheme)["weight"].double()
    kind = {4: "pack-quantized", 8: "float-quantized" if args["type"] == "float" else "int-quantized"}[bits]
    config = QuantizationConfig(config_groups={"group_0": scheme}, quantization_status="compressed", ignore=["lm_head"],
                                format="pack-quantized" if compressor is PackedQuantizationCompressor else kind)
    return pack, json.loads(config.model_dump_json())


def fp8_blocks():
    pack, _ = compressed(FloatQuantizationCompressor, {"num_bits": 8, "type": "float", "strategy": "block",
                                                      "block_structure": [128, 128]})

    def renamed(w):
        packed, wide = pack(w)
        packed["weight_scale_inv"] = packed.pop("weight_scale")
        return packed, wide
    return renamed, {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128],
                     "modules_to_not_convert": ["lm_head"]}


def load(name, path, package=None):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def ranges(w, symmetric):
    """Scales and zero points of groups of 128 columns, [rows, groups], of 4 bits."""
    parts = w.float().split(128, 1)
    low = torch.stack([p.amin(1) for p in parts], 1).clamp(max=0)
    high = torch.stack([p.amax(1) for p in parts], 1).clamp(min=0)
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    scale = ((high - low) / 15).half().float()
    return scale, torch.full_like(scale, 8) if symmetric else torch.round(-low / scale).clamp(0, 15)


def linear_of(w, scale, zero):
    """As these programs leave a layer before they pack it: on the codes, within their range."""
    scale, zero = (t.repeat_interleave(128, 1)[:, :w.shape[1]] for t in (scale, zero))
    linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    linear.weight.data = scale * ((w.float() / scale).round() + zero).clamp(0, 15).sub(zero)
    return linear


def unpacked(q, g_idx, less):
    """W of these programs' words without the rounding to 16 bits that they do; less: what was taken off the zero points."""
    shifts = torch.arange(0, 32, 4)
    codes = (q.qweight[:, None, :] >> shifts[None, :, None] & 15).reshape(q.qweight.shape[0] * 8, -1)
    zeros = (q.qzeros[:, :, None] >> shifts & 15).reshape(q.qzeros.shape[0], -1) + less
    return ((codes - zeros[g_idx.long()]).double() * q.scales.double()[g_idx.long()]).T


def gptq(folder, symmetric):
    module = load("qlinear_cuda_old", folder + "/auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py")

    def pack(w):
        scale, zero = ranges(w, symmetric)
        q = module.QuantLinear(4, 128, w.shape[1], w.shape[0], False, weight_dtype=torch.float16)
        q.pack(linear_of(w, scale, zero).half(), scale.clone(), zero.clone(), None)
        g_idx = torch.arange(w.shape[1], dtype=torch.int32) // 128
        out = {"qweight": q.qweight, "qzeros": q.qzeros, "scales": q.scales, "g_idx": g_idx}
        return out, unpacked(q, g_idx, 1)
    return pack, {"quant_method": "gptq", "bits": 4, "group_size": 128, "damp_percent": 0.01, "desc_act": False,
                  "static_groups": False, "sym": symmetric, "true_sequential": True, "model_name_or_path": None,
                  "model_file_base_name": "model", "checkpoint_format": "gptq"}


def gptqmodel(folder, symmetric, version):
    sys.path.insert(0, folder)
    from gptqmodel.quantization import QuantizeConfig
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
    from gptqmodel.version import __version__
    settings = QuantizeConfig(bits=4, group_size=128, desc_act=False, sym=symmetric, format=version)

    def pack(w):
        scale, zero = ranges(w, symmetric)
        q = TorchLinear(4, 128, symmetric, False, w.shape[1], w.shape[0])
        q.pack(linear_of(w, scale, zero), scale.clone(), zero.clone(), torch.arange(w.shape[1], dtype=torch.int32) // 128)
        q.post_init()
        wide = unpacked(q, q.g_idx, 0)
        assert (wide - q.dequantize_weight().T).abs().max() < 1e-3 * wide.abs().max()
        if version == "gptq":
            convert_gptq_v2_to_v1_format_module(q, settings)
        return {name: getattr(q, name) for name in ("qweight", "qzeros", "scales", "g_idx")}, wide
    config = json.loads(json.dumps(settings.to_dict(), default=lambda x: x.value))
    del config["meta"]["offload_to_disk_path"]
    config["meta"]["quantizer"] = ["gptqmodel:" + __version__]  # as its writer adds it
    return pack, config


def awq(folder):
    for name in ("awq", "awq.modules", "awq.modules.linear", "awq.utils"):
        package = types.ModuleType(name)
        package.__path__ = [folder + "/" + name.replace(".", "/")]
        sys.modules[name] = package
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    def pack(w):
        scale, zero = ranges(w, False)
        q = WQLinear_GEMM.from_linear(linear_of(w, scale, zero), 4, 128, False, scale.T.contiguous(), zero.T.contiguous())
        wide = dequantize_gemm(q.qweight, q.qzeros, q.scales.float(), 4, 128)
        return {"qweight": q.qweight, "qzeros": q.qzeros, "scales": q.scales}, wide.T.double()
    return pack, {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
                  "modules_to_not_convert": None}


def write(name, config, pack, quantization, positive=slice(0)):
    """positive: rows whose weights are made so; without symmetry their zero point is 0."""
    if only and name not in only:
        return
    torch.manual_seed(len(name))
    dtype = getattr(torch, config["torch_dtype"])
    wide, products = shapes(config)
    tensors = {n: (torch.randn(s) * (s[-1] ** -0.5 if len(s) == 2 else 0.2) + (0 if len(s) == 2 else 0.5)).to(dtype)
               for n, s in wide.items()}
    expected = {"x": torch.randn(4096, dtype=torch.float64)}
    for module, shape in products.items():
        w = (torch.randn(shape) * shape[1] ** -0.5).to(dtype)
        w[positive] = w[positive].abs()
        packed, again = pack(w)
        assert (again.float() - w.float()).abs().max() < 0.2 * w.float().abs().max(), module
        tensors.update({module + "." + kind: t.contiguous() for kind, t in packed.items()})
        expected[module] = again @ expected["x"][:shape[1]]
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    with open(folder + "/config.json", "w", encoding="utf-8") as f:
        json.dump(dict(config, quantization_config=quantization), f, indent=1)
        f.write("\n")
    expected["x"] = expected["x"][:256].contiguous()
    save_file(tensors, folder + "/model.safetensors", {"format": "pt"})
    save_file(expected, folder + "/expected.safetensors")


def main(autogptq, autoawq, newer):
    float8 = {"num_bits": 8, "type": "float"}
    int4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    write("ct-fp8-tensor", PLUS, *compressed(FloatQuantizationCompressor, dict(float8, strategy="tensor")))
    write("ct-fp8-channel", FLA, *compressed(FloatQuantizationCompressor, dict(float8, strategy="channel")))
    write("hf-fp8-block", dict(PLAIN, torch_dtype="bfloat16"), *fp8_blocks())
    write("ct-int8", PLUS, *compressed(IntQuantizationCompressor, {"num_bits": 8, "type": "int", "strategy": "channel"}))
    write("ct-int8-packed", PLUS, *compressed(PackedQuantizationCompressor, {"num_bits": 8, "type": "int", "strategy": "channel"}))
    write("ct-int4", dict(FLA, hidden_size=128, intermediate_size=256), *compressed(PackedQuantizationCompressor, int4))
    write("ct-int4-zeros", PLAIN, *compressed(PackedQuantizationCompressor, dict(int4, symmetric=False)))
    write("gptq", PLAIN, *gptq(autogptq, True))
    write("gptq-zeros", PLAIN, *gptq(autogptq, False))
    write("awq", PLAIN, *awq(autoawq))
    write("gptqmodel", PLAIN, *gptqmodel(newer, True, "gptq"))
    write("gptqmodel-zeros", PLAIN, *gptqmodel(newer, False, "gptq"), positive=slice(None, None, 3))
    write("gptqmodel-v2", PLAIN, *gptqmodel(newer, False, "gptq_v2"), positive=slice(None, None, 3))


only = sys.argv[4:]
main(*sys.argv[1:4])
