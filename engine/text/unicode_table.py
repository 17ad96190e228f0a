"""Writes unicode_table.h and unicode_folds.h: what the tokenizer's patterns ask of Unicode, as the reference implementation
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
    return {c: CATEGORIES.index(CATEGORY[c]) for c in ALL}


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
    return {c: codes.index(code) for c, code in of.items() if code in codes}, codes


def starts(of, none):
    """Where a run of one property begins, and which it is. Surrogates count with what stands before them."""
    at, out = None, []
    for c in ALL:
        if of.get(c, none) != at:
            at = of.get(c, none)
            out.append(c << 8 | at)
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


def array(kind, name, values):
    return f"static const {kind} {name}[] = {{\n{textwrap.fill(', '.join(values), 118, break_on_hyphens=False)}\n}};\n"


def write(name, what, text):
    guard = name.upper().replace(".", "_")
    with open(f"{HERE}/{name}", "w") as f:
        f.write(f"/* {name} - {what} of Unicode {VERSION}. Written by unicode_table.py. */\n"
                f"#ifndef {guard}\n#define {guard}\n\n#include <stdint.h>\n\n/* clang-format off */\n{text}\n#endif\n")


def main():
    of_script, codes = scripts()
    write("unicode_table.h", "categories and scripts",
          "/* From a character on, << 8: which. Of scripts both names. */\n"
          + array("uint32_t", "category_from", map(hex, starts(categories(), len(CATEGORIES) - 1))) + "\n"
          + array("char", "script_names", (f'"{newest.script_name(code).replace(" ", "_")}\\0{code}\\0"' for code in codes)).replace(",", "") + "\n"
          + array("uint32_t", "script_from", map(hex, starts(of_script, 255))))
    classes, long, begin = folds()
    write("unicode_folds.h", "letters that are one when case is ignored",
          array("uint32_t", "fold_classes", (", ".join(map(hex, (*one, 0))) for one in classes)) + "\n"
          + "/* Letters that are one with several letters, and the first two of these. */\n"
          + array("uint16_t", "fold_long", map(hex, long)) + "\n"
          + array("uint16_t", "fold_pairs", (f"{a:#x}, {b:#x}" for a, b in begin)))


main()
