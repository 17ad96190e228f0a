"""Writes peft/: a LoRA adapter of tests/vectors/rodimus-small that PEFT itself saved, and expected.safetensors: x, and for each
matrix W that PEFT has merged the product W x in float64. PEFT 0.21.2, torch 2.15.0. The tests read the files.

    python3 generate.py
"""
import os

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = os.path.join(HERE, "../vectors/rodimus-small/model.safetensors")


def module_tree(tensors):
    """Modules with the names of the checkpoint; those of matrices are linear layers."""
    root = torch.nn.Module()
    for name, w in tensors.items():
        if not name.endswith(".weight") or w.dim() != 2:
            continue
        at = root
        *path, last = name[:-len(".weight")].split(".")
        for part in path:
            if part not in at._modules:
                at.add_module(part, torch.nn.Module())
            at = at._modules[part]
        linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
        linear.weight.data = w.clone()
        at.add_module(last, linear)
    return root


def main():
    torch.manual_seed(1)
    config = LoraConfig(r=4, lora_alpha=12, use_rslora=True, target_modules=["fc", "in_proj", "out_proj"],
                        rank_pattern={"mixer.out_proj": 2}, alpha_pattern={"mixer.out_proj": 5})
    model = get_peft_model(module_tree(load_file(BASE)), config)
    for name, p in model.named_parameters():
        if "lora_" in name:
            p.data = torch.randn_like(p) * 0.1
    model.save_pretrained(os.path.join(HERE, "peft"), safe_serialization=True)
    os.remove(os.path.join(HERE, "peft/README.md"))
    expected = {"x": torch.randn(256, dtype=torch.float64)}
    merged = model.merge_and_unload()
    for name, module in merged.named_modules():
        if name.split(".")[-1] in config.target_modules:
            w = module.weight.data.double()
            expected[name] = w @ expected["x"][:w.shape[1]]
    save_file(expected, os.path.join(HERE, "peft/expected.safetensors"))


main()
