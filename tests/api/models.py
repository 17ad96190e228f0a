"""Models for tests: the weights of tales beside other files, in a folder of the test's own."""
import json
import os

from server import MODEL


def variant(folder, rename=None, **files):
    """A model directory in `folder`: rename gives added tokens of the tokenizer of tales other names ({"[CLS]": "<|fim_end|>"});
    files are written as they are ("name.json" -> text or what JSON can hold)."""
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(MODEL):
        if name.endswith((".safetensors", ".json")) and "cases" not in name and name not in files:
            os.symlink(os.path.join(MODEL, name), os.path.join(folder, name))
    if rename:
        with open(os.path.join(MODEL, "tokenizer.json"), encoding="utf-8") as f:
            tokenizer = json.load(f)
        for token in tokenizer["added_tokens"]:
            token["content"] = rename.get(token["content"], token["content"])
        tokenizer["model"]["vocab"] = {rename.get(k, k): v for k, v in tokenizer["model"]["vocab"].items()}
        files["tokenizer.json"] = tokenizer
    for name, content in files.items():
        path = os.path.join(folder, name)
        if os.path.islink(path):
            os.unlink(path)
        with open(path, "w", encoding="utf-8") as f:
            f.write(content if isinstance(content, str) else json.dumps(content))
    return folder
