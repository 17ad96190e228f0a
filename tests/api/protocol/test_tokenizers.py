"""Random tokenizers against the reference implementation, the package `tokenizers`: added tokens with every flag and of
overlapping contents, patterns, NFC. `make soak` draws 2,000 of them."""
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
LETTERS = ["a", "b", "ab", "abc", "bc", "A", "_", "0", "12", "-", ".", "'s", "\u00e9", "e\u0301", "\u0301", "\u4f60", "\U0001f600",
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
