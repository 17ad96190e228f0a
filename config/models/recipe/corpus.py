#!/usr/bin/env python3
"""corpus.py OUT HELDOUT BOOK.txt...: Project Gutenberg books as one text of tales, without licence, front matter and line wrapping.

Tales are separated by a line <|endoftext|>. What stands in the tales of the file HELDOUT, in whatever book, is left out.
corpus.py --fetch FOLDER downloads the books of books.tsv from their public repositories first (git, a few hundred MB)."""
import os
import re
import subprocess
import sys

SEPARATOR = "\n<|endoftext|>\n"
SHINGLE = 8  # words
SKIP = re.compile(r"Gutenberg|Transcriber|Produced by|[Cc]opyright|https?:|\bpp?\. ?\d|\bVol\.|Edited by|LONGMANS|E-text|\bISBN\b|All rights reserved")
PLAIN = str.maketrans({"_": "", "“": '"', "”": '"', "‘": "'", "’": "'", "`": "'", "\u00a0": " ", "—": "--", "–": "-", "\ufeff": ""})


def read_book(path):
    with open(path, "rb") as f:
        raw = f.read()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    start = re.search(r"\*\*\*\s*START OF.*?\*\*\*|\*END\*? ?THE SMALL PRINT.*?\n", text, re.S)
    end = re.search(r"\*\*\*\s*END OF|End of (the |this )?Project Gutenberg", text)
    return text[start.end() if start else 0:end.start() if end else len(text)]


def tales_of(text):
    """Paragraphs of running text, in tales: a heading in capitals begins one."""
    text = re.sub(r"\[(Illustration|Footnote|Picture|Image)[^\]]*\]", "", text, flags=re.I)
    text = re.sub(r"\[\d+\]|\{\d+\}|\[[A-Za-z]\]", "", text).translate(PLAIN)
    tale, tales = [], []
    for paragraph in re.split(r"\n\s*\n", text):
        p = re.sub(r"\s+", " ", paragraph).strip()
        if len(p) < 90 and p.upper() == p and re.search("[A-Z]{3}", p):
            tales.append(tale)
            tale = []
        elif len(p) >= 3 and not SKIP.search(p) and sum(c.isalpha() or c.isspace() for c in p) >= 0.85 * len(p):
            tale.append(p)
    return [t for t in tales + [tale] if sum(map(len, t)) > 1200]


def shingles(text):
    words = re.findall(r"[a-z]+", text.lower())
    return {" ".join(words[i:i + SHINGLE]) for i in range(len(words) - SHINGLE + 1)}


def without(tale, held):
    """The tale without the stretches that the held-out text has too: common paragraphs, and up to eight between two of them."""
    drop = set()
    common = [i for i, p in enumerate(tale) if len(shingles(p) & held) >= 2]
    for one, next_one in zip(common, common[1:] + common[-1:]):
        drop.update(range(one, (next_one if next_one - one <= 9 else one) + 1))
    return [p for i, p in enumerate(tale) if i not in drop]


def build(out, heldout, books):
    with open(heldout, encoding="utf-8") as f:
        held = shingles(f.read().translate(PLAIN))
    kept, seen, n_held = [], set(), 0
    for book in books:
        n = 0
        for tale in tales_of(read_book(book)):
            whole = sum(map(len, tale))
            tale = without(tale, held)
            text = "\n".join(tale)
            n_held += whole - sum(map(len, tale))
            key = re.sub(r"\W", "", text[:160]).lower()  # the same tale stands in several books
            if len(text) > 1200 and key not in seen:
                seen.add(key)
                kept.append(text)
                n += len(text)
        print(f"{os.path.basename(book)}: {n} characters")
    # the same paragraph in two books (another edition of the same translation) is kept once
    once, texts = set(), []
    for text in kept:
        new = [p for p in text.split("\n") if len(p) < 200 or hash(p[:200]) not in once]
        once.update(hash(p[:200]) for p in new if len(p) >= 200)
        if sum(map(len, new)) > 1200:
            texts.append("\n".join(new))
    with open(out, "w", encoding="utf-8") as f:
        f.write(SEPARATOR.join(texts))
    print(f"{len(texts)} tales, {sum(map(len, texts))} characters; {n_held} characters left out for the held-out tales")


def fetch(folder):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "books.tsv"), encoding="utf-8") as f:
        rows = [line.rstrip("\n").split("\t") for line in f][1:]
    os.makedirs(folder, exist_ok=True)
    for number, _, repository, path in rows:
        to = os.path.join(folder, f"{number}.txt")
        if not os.path.exists(to):
            clone = os.path.join(folder, "clone-" + number)
            subprocess.run(["git", "clone", "-q", "--depth", "1", f"https://github.com/{repository}", clone], check=True)
            os.replace(os.path.join(clone, path), to)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fetch"]:
        fetch(sys.argv[2])
    else:
        build(sys.argv[1], sys.argv[2], sys.argv[3:])
