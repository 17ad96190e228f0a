"""Random tokenizers against the reference implementation, the package `tokenizers`: added tokens with every flag and of
overlapping contents, patterns, NFC; which characters a class has. `make soak` draws 2,000 of them, and all characters."""
import json
import os
import random
import subprocess
import unicodedata

import pytest
from server import BUILD
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

N = int(os.environ.get("RODIMUS_TEST_TOKENIZERS", 60))
SEED = int(os.environ.get("RODIMUS_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
N_TEXTS = 100

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PATTERNS = [
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
    r"\w+'\w+|[\w\-]+|\d|\s+|[^\S\n]|\p{Han}|\p{Greek}+|[^\s\w]",
]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n", "\u00a0", "\u3000", "\u2028"]
LETTERS = ["a", "b", "ab", "abc", "bc", "A", "_", "0", "12", "-", ".", "'s", "\u00e9", "e\u0301", "\u0301", "\u4f60", "\U0001f600", "\U00010d4a",
           "\u200d", "\u24b6", "<user>", "<s>", "</s>", "<", ">"]


def content(rng):
    return "".join(rng.choice(rng.choice([SPACES, LETTERS, LETTERS])) for _ in range(rng.choice([1, 1, 2, 3])))


def tokenizer(rng):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(alphabet)}
    merges = []
    for _ in range(rng.randrange(8)):
        left, right = rng.choice(list(vocab)), rng.choice(["a", "b", "c", "\u0120", "\u010a"])
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            merges.append((left, right))
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tok.decoder = decoders.ByteLevel()
    level = pre_tokenizers.ByteLevel(add_prefix_space=rng.random() < 0.2, use_regex=rng.random() < 0.6)
    before = [pre_tokenizers.Split(Regex(rng.choice(PATTERNS)), "isolated")] if rng.random() < 0.4 else []
    tok.pre_tokenizer = pre_tokenizers.Sequence([*before, level]) if before else level
    if rng.random() < 0.4:
        tok.normalizer = normalizers.NFC()
    contents = {}
    for _ in range(rng.randrange(1, 9)):
        one = content(rng)
        contents[unicodedata.normalize("NFC", one)] = one  # of two that look the same one counts, and which is chance
    for one in contents.values():
        flag = lambda: rng.random() < 0.4  # noqa: E731
        tok.add_tokens([AddedToken(one, lstrip=flag(), rstrip=flag(), single_word=flag(), normalized=flag(), special=flag())])
    return tok, list(contents.values())


def text(rng, contents):
    return "".join(rng.choice(rng.choice([contents, contents, SPACES, LETTERS])) for _ in range(rng.randrange(1, 14)))


@pytest.fixture(scope="module")
def ids_of():
    program = os.path.join(BUILD, "tests/api/protocol/tokenizer_ids")
    assert os.path.exists(program), f"{program} is missing: run make test-programs"
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        def ask(model, texts):
            process.stdin.write(json.dumps({"tokenizer": model, "texts": texts}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


def reference(tok, one):
    """The ids; None where the reference panics: lstrip that begins behind the end of its token."""
    try:
        return tok.encode(one).ids
    except BaseException as panic:  # pyo3's PanicException is no Exception
        if "bad split" not in str(panic):
            raise
        return None


@pytest.mark.timeout(1800)
def test_random_added_tokens_give_the_reference_ids(ids_of):
    compared = panics = 0
    for seed in range(SEED, SEED + N):
        rng = random.Random(seed)
        tok, contents = tokenizer(rng)
        model, texts = json.loads(tok.to_str()), [text(rng, contents) for _ in range(N_TEXTS)]
        answer = ids_of(model, texts)
        assert "ids" in answer, (seed, answer)
        for one, got in zip(texts, answer["ids"], strict=True):
            want = reference(tok, one)
            panics += want is None
            compared += want is not None
            known = isinstance(got, list) and all(0 <= i < tok.get_vocab_size() for i in got)
            assert known and want in (None, got), ascii((f"RODIMUS_TEST_SEED={seed}", one, got, want, model))
    print(f"RODIMUS_TEST_SEED={SEED}: {N} tokenizers, {compared} texts compared, {panics} where the reference panics")
    assert compared > 50 * N


# Of each character whether a pattern matches it: ids of what is left when all that matches is removed.
CLASSES = [r"\p{%s}" % name for name in "L N M P S Z C Lu Ll Lt Lm Lo Nd Sc Cf Cn Any Latin Latn Greek Han Hiragana Thai Old_Italic Garay Kawi Common".split()]
CLASSES += [r"\P{L}", r"\p{^Nd}", r"\s", r"\S", r"\w", r"\W", r"\d", r"\D", ".", r"[^\s\p{L}\p{N}]", r"[\W\d]", r"[^\S\n]", "[\u4e00-\u9fff\u3040-\u30ff]",
            r"(?i:[a-z])", r"(?i:[^a-z])", r"(?i:\p{Lu})", r"(?i:[\u0391-\u03a9\x{e9}])", r"(?i:[^\p{Lu}])", r"(?i:k|\x{3c3}|\x{1c4}|\u212b)"]


def removing(split):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tok.decoder = decoders.ByteLevel()
    tok.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return tok


def check_texts(ids_of, tok, texts, what):
    answer = ids_of(json.loads(tok.to_str()), texts)
    assert "ids" in answer, (what, answer)
    for one, got, want in zip(texts, answer["ids"], tok.encode_batch(texts), strict=True):
        assert got == want.ids, ascii((what, one, got, want.ids))


@pytest.mark.timeout(1800)
def test_classes_have_the_reference_characters(ids_of):
    rng = random.Random(SEED)
    characters = [chr(c) for c in range(0x110000) if not 0xd800 <= c < 0xe000]
    texts = ["".join(characters[i:i + 200]) for i in range(0, len(characters), 200)]
    for pattern in CLASSES:  # the first 0x3400 characters always, as most kinds are there
        some = texts if N >= 2000 else texts[:67] + rng.sample(texts[67:900], N)
        check_texts(ids_of, removing(pre_tokenizers.Split(Regex(pattern), "removed")), some, f"RODIMUS_TEST_SEED={SEED} {pattern}")


@pytest.mark.timeout(1800)
def test_random_patterns_give_the_reference_ids(ids_of):
    members = ["a-f", "A", "s", "k", r"\p{L}", r"\p{Lu}", r"\P{M}", r"\d", r"\s", r"\S", r"\w", r"\W", r"\x{e9}", "\u00df", "\u0130", "\u4e00-\u4eff", r"\-", "-", "+--", "0-9"]
    atoms = [".", "a", "s", "'", "\u00c9", "\u01c5", r"\p{Han}", r"\p{Ll}", r"\n", r"\x{17f}", "ll", "ff", "(?:a|b)", "st"]
    characters = "aAbBfFsSkKlLtT'- \n09+.\u00e9\u00c9\u00df\u1e9e\u017f\u212a\u0130\u0131\u01c4\u01c5\u01c6\u4e00\u4eff\u0301\u0660\ufb00\ufb06\U00010d4a\U0001f600"
    refused = 0
    for seed in range(SEED, SEED + N * 5):
        rng = random.Random(seed)
        pattern = ""
        for _ in range(rng.randrange(1, 5)):
            one = rng.choice(atoms)
            if rng.random() < 0.5:
                one = rng.choice(["[", "[^"]) + "".join(rng.sample(members, rng.randrange(1, 4))) + "]"
            if rng.random() < 0.3:
                one = f"(?i:{one})"
            pattern += one + rng.choice(["", "", "+", "?", "*", "{1,2}", "|"])
        behavior = rng.choice(["removed", "isolated"])
        try:
            tok = removing(pre_tokenizers.Split(Regex(pattern), behavior))
        except Exception:  # noqa: BLE001 - not a pattern to Oniguruma
            continue
        texts = ["".join(rng.choice(characters) for _ in range(rng.randrange(1, 20))) for _ in range(20)]
        answer = ids_of(json.loads(tok.to_str()), texts[:1])
        if "fault" in answer:
            assert "is not supported" in answer["fault"] and ("ignored" in answer["fault"] or "range" in answer["fault"]), ascii((pattern, answer))
            refused += 1
            continue
        check_texts(ids_of, tok, texts, f"RODIMUS_TEST_SEED={seed} {ascii(pattern)} {behavior}")
    print(f"RODIMUS_TEST_SEED={SEED}: {N * 5} patterns, {refused} refused by name")
    assert refused < N
