"""Writes the case files of this folder: small tokenizers of several families with what the PyPI package `tokenizers`
makes of chosen and of random texts. Needs that package; the tests do not, they read the files.

    python3 generate.py TRAINING_TEXT OUT_DIR [n_random] [n_vocab]
"""
import json
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
PUBLISHED = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)"
             r"|\s+")
ODD = r"\w+'\w+|[\w\-]+|\d|\s+|[^\S\n]|\x{2014}|[\u4e00-\u9fff]|\p{Han}|\p{Greek}+|[^\s\w]"
SEEDS = ["", " ", "a", "Hello, world!", "I'll say it's the king's; WE'RE DONE. i'D'VE don'\u017f", "tabs\tand\nnew\r\nlines\n\n\n  in",
         "    four spaces", "trailing spaces   ", " leading", "12345 3.14159 1,000,000", "na\u00efve caf\u00e9 \u2014 \u201cquotes\u201d \u2026",
         "cafe\u0301 e\u0316\u0301\u0323 \u1e69\u0323 \uac00 \u1100\u1161\u11a8 \u212b \u0958", "\u4f60\u597d\uff01\u3042\u30a2\ud55c\uad6d\uc5b4",
         "\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f", "a\u00a0b\u2003c\u3000d\u1680e\u180ef\u200bg\u0085h\u2028i",
         "\u0661\u0662\u0663 \u00bd \u2167 \u24b6", "<s>x</s> <s></s><mask>a <mask> b<pad> c", "word<w>word <w> <w>. <lw>", "x  <l>  y  <r>  z  <lr>  ",
         "\u0000\u0001\u007f\u0080\u00ad\ufeff\uffff\U0010ffff", "\u03b1\u03b2\u03b3\u0430\u0431\u0432 \u05d0\u05d1 \u0627\u0644 \u0e44\u0e17\u0e22 \u0915\u094d\u0937",
         "caf\u00e9<caf\u00e9><cafe\u0301>", "HTTPServer isURL2camelCase XMLHttp'S", "//comment/path\n/x == y && !z; {[()]}\n\n", "\n\n \n  \n\t\n x",
         "a" * 70 + " " * 40 + "!" * 50]


def random_text(rng):
    ranges = [(32, 126), (32, 126), (9, 13), (32, 32), (0xa0, 0x24f), (0x300, 0x36f), (0x370, 0x52f), (0x590, 0x6ff),
              (0x900, 0xdff), (0xe00, 0xe7f), (0x1100, 0x11ff), (0x1e00, 0x1fff), (0x2000, 0x206f), (0x2070, 0x2bff),
              (0x3000, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xf900, 0xfaff), (0xff00, 0xffef),
              (0x10000, 0x103ff), (0x1d400, 0x1d7ff), (0x1f300, 0x1faff)]
    words = ["<s>", "</s>", "<mask>", "<w>", "<l>", "<r>", "<lr>", "<pad>", "'ll", "'S", "  ", "\n", "\r\n", " the", "ing",
             "<caf\u00e9>", "123", "<role>", "</role>"]
    out = []
    for _ in range(rng.randrange(1, 30)):
        if rng.random() < 0.25:
            out.append(rng.choice(words))
            continue
        low, high = rng.choice(ranges)
        for _ in range(rng.randrange(1, 6)):
            c = rng.randint(low, high)
            if chr(c).isprintable() or chr(c).isspace():
                out.append(chr(c))
    return "".join(out)


def train(text, n_vocab, pre, normalizer=None, ignore_merges=False):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tok.pre_tokenizer = pre
    if normalizer:
        tok.normalizer = normalizer
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(text.split("\n\n"), trainers.BpeTrainer(
        vocab_size=n_vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tok


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def families(text, n):
    level = pre_tokenizers.ByteLevel
    bare = level(add_prefix_space=False, use_regex=False)
    sequence = pre_tokenizers.Sequence
    eos = [AddedToken("<s>", special=True, normalized=True), AddedToken("</s>", special=True, normalized=False)]

    tok = train(text, n, level(add_prefix_space=True, use_regex=True))
    tok.add_special_tokens(eos)
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    yield "gpt2-prefix-space", tok, "strings"

    tok = train(text, n, level(add_prefix_space=False, use_regex=True), normalizers.NFC())
    tok.add_special_tokens(eos + [AddedToken("<caf\u00e9>", special=True, normalized=True)])
    tok.add_tokens([AddedToken(" " * k, normalized=True) for k in range(8, 1, -1)] + [AddedToken("<pad>", normalized=True)])
    yield "neox-nfc-spaces", tok, "strings"

    tok = json.loads(train(text, n, sequence([split(CL100K), bare]), ignore_merges=True).to_str())
    for word in (" upon the king", " upon", "Hello", " 123", "\u00e9\u00e8"):  # no merges make these: only ignore_merges finds them
        tok["model"]["vocab"].setdefault(bare.pre_tokenize_str(word)[0][0], len(tok["model"]["vocab"]))
    tok = Tokenizer.from_str(json.dumps(tok))
    tok.add_special_tokens(eos)
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", tok.token_to_id("<s>"))])])
    yield "llama3-ignore-merges", tok, "pairs"

    tok = train(text, n, sequence([pre_tokenizers.Digits(individual_digits=True), level(add_prefix_space=False, use_regex=True)]))
    tok.add_special_tokens(eos)
    yield "starcoder-digits", tok, "pairs"

    tok = train(text, n, sequence([split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"), bare]))
    tok.add_special_tokens(eos)
    yield "deepseek-stages", tok, "pairs"

    tok = train(text, n, sequence([split(O200K, "removed", True), bare]), normalizers.Sequence([normalizers.NFC()]))
    tok.add_special_tokens(eos)
    yield "o200k-removed-invert", tok, "pairs"

    tok = train(text, n, sequence([split(PUBLISHED), bare]))
    tok.add_special_tokens(eos + [AddedToken("<l>", lstrip=True, special=True), AddedToken("<r>", rstrip=True, special=True),
                                  AddedToken("<lr>", lstrip=True, rstrip=True, normalized=True)])
    tok.add_tokens([AddedToken("<w>", single_word=True, normalized=False), AddedToken("<lw>", single_word=True, lstrip=True),
                    AddedToken("the", single_word=True), AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("<m")])
    yield "published-added-flags", tok, "pairs"

    tok = train(text, n, sequence([pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.Split(Regex(ODD), "isolated"), split("-", "removed"), bare]))
    tok.add_special_tokens(eos)
    yield "odd-patterns", tok, "strings"


def main():
    text = open(sys.argv[1], encoding="utf-8").read()
    n_random = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    n_vocab = int(sys.argv[4]) if len(sys.argv) > 4 else 700
    for seed, (name, tok, merges) in enumerate(families(text, n_vocab)):
        rng = random.Random(seed)
        texts = SEEDS + [text[i:i + 200] for i in (0, 5000, 20000)] + [random_text(rng) for _ in range(n_random)]
        cases = []
        added = {i: token.content for i, token in tok.get_added_tokens_decoder().items()}
        for t in texts:
            ids = tok.encode(t).ids
            # The package decodes the content of an added token as if its letters stood for bytes. We return the content.
            quirk = any(ord(c) > 126 for i in ids if i in added for c in added[i])
            cases.append({"text": t, "ids": ids, "decoded": None if quirk else tok.decode(ids, skip_special_tokens=False),
                          "skipped": tok.decode(ids, skip_special_tokens=True)})
        model = json.loads(tok.to_str())
        if merges == "strings":
            model["model"]["merges"] = [" ".join(m) for m in model["model"]["merges"]]
        with open(f"{sys.argv[2]}/{name}.json", "w") as f:
            json.dump({"tokenizer": model, "cases": cases}, f, separators=(",", ":"))
            f.write("\n")


main()
