"""Writes unicode_table.h: what the tokenizer's patterns ask of Unicode, as the reference implementation
has it: compared with what the package `tokenizers` (its Oniguruma) matches.

    pip install tokenizers==0.23.3 unicodedata2==16.0.0 fonttools && python3 engine/text/unicode_table.py
"""
import os
import textwrap

import unicodedata2
from fontTools import unicodedata as newest
from tokenizers import Regex, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
VERSION = unicodedata2.unidata_version
HERE = os.path.dirname(os.path.abspath(__file__))
ALL = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]  # what a text may have
CATEGORY = {c: unicodedata2.category(chr(c)) for c in ALL}


def matched(pattern, text):
    """The characters of a text that match; ValueError where Oniguruma does not know the property."""
    try:
        split = pre_tokenizers.Split(Regex(pattern), "removed")
    except Exception as unknown:
        raise ValueError(pattern) from unknown
    out, at = "", 0
    for _, (first, past) in split.pre_tokenize_str(text):
        out += text[at:first]
        at = past
    return out + text[at:]


def categories():
    """Each character's, compared one by one: a long text takes the package longer than many short ones."""
    for major in "LMNPSZC":
        split = pre_tokenizers.Split(Regex(r"\p{%s}" % major), "removed")
        for c in ALL:
            assert (not split.pre_tokenize_str(chr(c))) == (CATEGORY[c][0] == major), hex(c)
    for one in CATEGORIES:
        text = "".join(chr(c) for c in ALL if CATEGORY[c] == one and one not in ("Co", "Cn"))
        assert matched(r"\p{%s}" % one, text) == text, one
    return CATEGORY


def scripts():
    """Each character's script and their names. fontTools has the newest version, from which what is not assigned yet is left out."""
    of, first = {}, ""
    for c in ALL:
        of[c] = newest.script(chr(c)) if CATEGORY[c] != "Cn" else "Zzzz"
        if not c or of[c] != of.get(c - 1):
            first += chr(c)
    codes = sorted(set(of.values()) - {"Zzzz"})
    for code in codes:
        name = newest.script_name(code)
        text = "".join(chr(c) for c in ALL if of[c] == code)
        missed = set(text) - set(matched(r"\p{%s}" % name, text[:20000]) + text[20000:])
        more = [c for c in matched(r"\p{%s}" % name, first) if of[ord(c)] != code]
        assert not missed and not more, (name, [hex(ord(c)) for c in (*missed, *more)])
    return of, codes


def runs(of, none):
    """How long each run of one name is, unless it is 1, and the name. Surrogates count with what stands before them."""
    out, first = "", 0
    for c in range(1, 0x110001):
        name, before = (of.get(x, of.get(x - x % 0x800 - 1, none) if 0xd800 <= x < 0xe000 else none) for x in (c, first))
        if c < 0x110000 and name == before:
            continue
        out += (str(c - first) if c - first > 1 else "") + before
        first = c
    return out


def folds():
    """Characters that are one when case is ignored, and the longer foldings: those characters, and how their texts begin."""
    cased = [c for c in ALL if len({chr(c), *(f(chr(c)) for f in (str.lower, str.upper, str.title, str.casefold))}) > 1
             or CATEGORY[c] in ("Lu", "Ll", "Lt")]
    text = "\n".join(map(chr, cased))  # apart, as some are one with two others
    classes = {tuple(sorted(map(ord, matched(r"(?i:\x{%x})" % c, text)))) for c in cased}
    classes = sorted(c for c in classes if len(c) > 1)
    members = [c for one in classes for c in one]
    assert len(members) == len(set(members)) and max(map(len, classes)) <= 4
    long = [c for c in cased if len(chr(c).casefold()) > 1]
    return classes, long, sorted({tuple(map(ord, chr(c).casefold()[:2])) for c in long})


def spelled(text):
    """As a C string has it: marks that would combine with their neighbours as escapes."""
    return "".join(f"\\u{ord(c):04x}" if CATEGORY[ord(c)][0] == "M" else c for c in text)


def text(name, lines):
    return f"static const char {name}[] =\n" + "\n".join(f'    "{line}"' for line in lines) + ";\n"


def cut(runs):
    return [runs[i:i + 112] for i in range(0, len(runs), 112)]


def main():
    of_script, codes = scripts()
    classes, long, begin = folds()
    words = [" ".join(spelled(map(chr, one)) for one in classes), " ".join(spelled(map(chr, pair)) for pair in begin),
             spelled(map(chr, long))]
    names = "".join(f"{newest.script_name(code).replace(' ', '_')} {code} " for code in codes)
    with open(f"{HERE}/unicode_table.h", "w", encoding="utf-8") as f:
        f.write(f"""/* unicode_table.h - categories, scripts and case of Unicode {VERSION}. Written by unicode_table.py. */
#ifndef UNICODE_TABLE_H
#define UNICODE_TABLE_H

/* clang-format off */
#pragma GCC diagnostic ignored "-Woverlength-strings" /* of C99's least limit; GCC and Clang have none */
/* Runs of characters from U+0000 on: how many they are, unless it is one, and the category or script of all. */
{text("category_runs", cut(runs(categories(), "Cn")))}
{text("script_runs", cut(runs(of_script, "Zzzz")))}
{text("script_names", textwrap.wrap(names, 112, drop_whitespace=False))}
/* Letters that are one when case is ignored; the first two of several that are one letter; those letters. */
{text("fold_classes", textwrap.wrap(words[0], 112, drop_whitespace=False, break_on_hyphens=False))}
{text("fold_pairs", textwrap.wrap(words[1], 112, drop_whitespace=False, break_on_hyphens=False))}
{text("fold_long", cut(words[2]))}
#endif
""")


main()
