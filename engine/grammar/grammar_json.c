/* grammar_json.c - the parts of JSON that stand in every schema, and numbers between bounds.
 *
 * Bounded where a model could go on for ever without saying anything: white space between tokens is at most one space,
 * or a line break and up to 16 spaces; numbers have at most 16 digits before the point, 16 after it, and an exponent of
 * two digits. Escapes never name half a surrogate pair, so every string is valid Unicode.
 */
#include "grammar_ir.h"

#include <stdlib.h>
#include <string.h>

enum { INT_DIGITS = 16, FRAC_DIGITS = 16, INDENT = 16 };

static uint32_t json_digit(struct ir *ir) { return ir_char(ir, '0', '9'); }

static uint32_t json_hex(struct ir *ir, uint32_t min, uint32_t max) {
    static const struct ir_range set[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    return ir_rep(ir, ir_set(ir, set, 3), min, max);
}

uint32_t ir_json_char(struct ir *ir) {
    if (!ir->json_char) {
        static const struct ir_range plain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};
        static const struct ir_range letters[] = {{'"', '"'}, {'/', '/'}, {'\\', '\\'}, {'b', 'b'},
                                                  {'f', 'f'}, {'n', 'n'}, {'r', 'r'},   {'t', 't'}};
        static const struct ir_range not_d[] = {{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}};
        static const struct ir_range d[] = {{'D', 'D'}, {'d', 'd'}};
        uint32_t low_d = ir_cat(ir, ir_cat(ir, ir_set(ir, d, 2), ir_char(ir, '0', '7')), json_hex(ir, 2, 2));
        uint32_t four = ir_alt(ir, ir_cat(ir, ir_set(ir, not_d, 5), json_hex(ir, 3, 3)), low_d);
        uint32_t escaped = ir_alt(ir, ir_set(ir, letters, 8), ir_cat(ir, ir_text(ir, "u"), four));
        uint32_t rule = ir_rule(ir);
        if (ir->rc) return IR_NOTHING;
        ir->rules[rule] = ir_alt(ir, ir_set(ir, plain, 3), ir_cat(ir, ir_text(ir, "\\"), escaped));
        ir->json_char = rule;
    }
    return ir_ref(ir, ir->json_char);
}

uint32_t ir_json_string(struct ir *ir, uint32_t min, uint32_t max) {
    uint32_t quote = ir_text(ir, "\"");
    return ir_cat(ir, ir_cat(ir, quote, ir_rep(ir, ir_json_char(ir), min, max)), quote);
}

uint32_t ir_json_ws(struct ir *ir) {
    if (!ir->json_ws) {
        uint32_t rule = ir_rule(ir), space = ir_text(ir, " ");
        if (ir->rc) return IR_NOTHING;
        uint32_t line = ir_cat(ir, ir_text(ir, "\n"), ir_rep(ir, space, 0, INDENT));
        ir->rules[rule] = ir_opt(ir, ir_alt(ir, space, line));
        ir->json_ws = rule;
    }
    return ir_ref(ir, ir->json_ws);
}

uint32_t ir_json_number(struct ir *ir, bool integer) {
    uint32_t from_one = ir_cat(ir, ir_char(ir, '1', '9'), ir_rep(ir, json_digit(ir), 0, INT_DIGITS - 1));
    if (integer) { /* -0 is no integer's usual name */
        uint32_t number = ir_cat(ir, ir_opt(ir, ir_text(ir, "-")), from_one);
        return ir_alt(ir, ir_text(ir, "0"), number);
    }
    if (!ir->json_number) {
        static const struct ir_range e[] = {{'E', 'E'}, {'e', 'e'}}, sign[] = {{'+', '+'}, {'-', '-'}};
        uint32_t rule = ir_rule(ir);
        if (ir->rc) return IR_NOTHING;
        uint32_t number = ir_cat(ir, ir_opt(ir, ir_text(ir, "-")), ir_alt(ir, ir_text(ir, "0"), from_one));
        uint32_t frac = ir_cat(ir, ir_text(ir, "."), ir_rep(ir, json_digit(ir), 1, FRAC_DIGITS));
        uint32_t exp = ir_cat(ir, ir_set(ir, e, 2), ir_opt(ir, ir_set(ir, sign, 2)));
        exp = ir_cat(ir, exp, ir_rep(ir, json_digit(ir), 1, 2));
        ir->rules[rule] = ir_cat(ir, ir_cat(ir, number, ir_opt(ir, frac)), ir_opt(ir, exp));
        ir->json_number = rule;
    }
    return ir_ref(ir, ir->json_number);
}

/* A digit leads from the remainder so far to the next. Each digit has remainders of its own, so that their number is
 * bounded: up to INT_DIGITS, less where a grammar would become too large, 6 for 1000. */
enum { MULTIPLE_RULES = 4000 };

uint32_t ir_json_multiple(struct ir *ir, uint32_t m, bool all) {
    const uint32_t first = ir->n_rules;
    const uint32_t last = (MULTIPLE_RULES / m < INT_DIGITS - 1) ? MULTIPLE_RULES / m + 1 : INT_DIGITS - 1;
    bool *met = calloc((last + 1) * m, sizeof *met); /* a remainder that so many digits can have */
    if (!met) return ir_no_memory(ir);
    for (uint32_t i = 0; i < (last + 1) * m; i++) ir_rule(ir);
    for (uint32_t d = 1; d < 10; d++) met[d % m] = true;
    uint32_t start = IR_NOTHING, digits_of[10];
    for (uint32_t d = 0; d < 10; d++) digits_of[d] = ir_char(ir, '0' + d, '0' + d);
    for (uint32_t d = 1; d < 10; d++) start = ir_alt(ir, start, ir_cat(ir, digits_of[d], ir_ref(ir, first + d % m)));
    for (uint32_t i = 0; i < (last + 1) * m && !ir->rc; i++) {
        const uint32_t digits = i / m, r = i % m;
        if (!met[i]) continue;
        uint32_t out = r == 0 ? IR_EMPTY_NODE : IR_NOTHING;
        for (uint32_t d = 0; d < 10 && digits < last; d++) {
            const uint32_t to = (digits + 1) * m + (10 * r + d) % m;
            if (digits + 1 == last && to % m) continue; /* the last digit makes it a multiple */
            met[to] = true;
            out = ir_alt(ir, out, ir_cat(ir, digits_of[d], ir_ref(ir, first + to)));
        }
        if (!ir->rc) ir->rules[first + i] = out;
    }
    free(met);
    if (!all) return start;
    return ir_alt(ir, ir_text(ir, "0"), ir_cat(ir, ir_opt(ir, ir_text(ir, "-")), start));
}

uint32_t ir_json_array(struct ir *ir, uint32_t item, uint32_t min, uint32_t max) {
    uint32_t ws = ir_json_ws(ir), open = ir_cat(ir, ir_text(ir, "["), ws), close = ir_cat(ir, ws, ir_text(ir, "]"));
    uint32_t empty = min == 0 ? ir_text(ir, "[]") : IR_NOTHING;
    if (max == 0) return empty;
    uint32_t comma = ir_cat(ir, ir_cat(ir, ws, ir_text(ir, ",")), ws);
    uint32_t rest = ir_rep(ir, ir_cat(ir, comma, item), min ? min - 1 : 0, max == IR_NO_LIMIT ? max : max - 1);
    return ir_alt(ir, empty, ir_cat(ir, ir_cat(ir, ir_cat(ir, open, item), rest), close));
}

uint32_t ir_json_object(struct ir *ir) {
    uint32_t ws = ir_json_ws(ir), comma = ir_cat(ir, ir_cat(ir, ws, ir_text(ir, ",")), ws);
    uint32_t colon = ir_cat(ir, ir_cat(ir, ws, ir_text(ir, ":")), ws);
    uint32_t member = ir_cat(ir, ir_cat(ir, ir_json_string(ir, 0, IR_NO_LIMIT), colon), ir_json_value(ir));
    uint32_t members = ir_cat(ir, member, ir_rep(ir, ir_cat(ir, comma, member), 0, IR_NO_LIMIT));
    uint32_t full = ir_cat(ir, ir_cat(ir, ir_text(ir, "{"), ws), members);
    return ir_alt(ir, ir_text(ir, "{}"), ir_cat(ir, ir_cat(ir, full, ws), ir_text(ir, "}")));
}

uint32_t ir_json_value(struct ir *ir) {
    if (!ir->json_value) {
        const uint32_t rule = ir_rule(ir);
        if (ir->rc) return IR_NOTHING; /* without a rule the object below would ask for it for ever */
        ir->json_value = rule;
        uint32_t v = ir_alt(ir, ir_text(ir, "null"), ir_alt(ir, ir_text(ir, "true"), ir_text(ir, "false")));
        v = ir_alt(ir, v, ir_json_number(ir, false));
        v = ir_alt(ir, v, ir_json_string(ir, 0, IR_NO_LIMIT));
        v = ir_alt(ir, v, ir_json_array(ir, ir_ref(ir, rule), 0, IR_NO_LIMIT));
        v = ir_alt(ir, v, ir_json_object(ir));
        if (ir->rc) return IR_NOTHING;
        ir->rules[rule] = v;
    }
    return ir_ref(ir, ir->json_value);
}

/* ---- numbers between bounds ---- */

enum { DIGITS = 20 + FRAC_DIGITS }; /* 64 bits before the point */

/* Magnitudes with n digits before the point. lo, hi: n + FRAC_DIGITS digits, NULL where all such numbers are above, or
 * below. A walk from the first digit: while the digits so far are those of lo (tight), the next may not be below its.
 */
struct between {
    struct ir *ir;
    const char *lo, *hi;
    bool lo_strict, hi_strict, integer;
    int n, end; /* end: n, or n + FRAC_DIGITS */
};

static bool digits_are_zero(const char *digits, int n) {
    for (int i = 0; i < n; i++)
        if (digits[i] != '0') return false;
    return true;
}

/* May the number end before digit `at`? The digits not said are zeros. */
static bool between_may_end(const struct between *b, int at, bool tight_lo, bool tight_hi) {
    int rest = b->n + FRAC_DIGITS - at;
    if (at < b->n) return false;
    if (tight_lo) {
        bool same = digits_are_zero(b->lo + at, rest);
        if (!same || b->lo_strict) return false;
    }
    return !(tight_hi && b->hi_strict && digits_are_zero(b->hi + at, rest));
}

/* What may follow once no bound matters any more. */
static uint32_t between_free_digits(const struct between *b, int at) {
    struct ir *ir = b->ir;
    if (at > b->n) return ir_rep(ir, json_digit(ir), 0, (uint32_t)(b->end - at));
    uint32_t digits = ir_rep(ir, json_digit(ir), (uint32_t)(b->n - at), (uint32_t)(b->n - at));
    if (b->integer) return digits;
    uint32_t frac = ir_cat(ir, ir_text(ir, "."), ir_rep(ir, json_digit(ir), 1, FRAC_DIGITS));
    return ir_cat(ir, digits, ir_opt(ir, frac));
}

static uint32_t between_digits_from(const struct between *b, int at, bool tight_lo, bool tight_hi) {
    struct ir *ir = b->ir;
    if (!tight_lo && !tight_hi) return between_free_digits(b, at);
    uint32_t out = between_may_end(b, at, tight_lo, tight_hi) ? IR_EMPTY_NODE : IR_NOTHING;
    if (at == b->end) return out;
    int low = tight_lo ? b->lo[at] - '0' : at == 0 && b->n > 1 ? 1 : 0, high = tight_hi ? b->hi[at] - '0' : 9;
    if (at == 0 && b->n > 1 && low == 0) low = 1;
    uint32_t next = IR_NOTHING;
    for (int d = low; d <= high; d++) {
        bool lo_on = tight_lo && d == b->lo[at] - '0', hi_on = tight_hi && d == b->hi[at] - '0';
        int last = d; /* a run of digits with the same rest */
        while (!lo_on && !hi_on && last + 1 <= high && !(tight_hi && last + 1 == b->hi[at] - '0')) last++;
        uint32_t chosen = ir_char(ir, (uint32_t)('0' + d), (uint32_t)('0' + last));
        next = ir_alt(ir, next, ir_cat(ir, chosen, between_digits_from(b, at + 1, lo_on, hi_on)));
        d = last;
    }
    if (at == b->n) next = ir_cat(ir, ir_text(ir, "."), next);
    return ir_alt(ir, out, next);
}

struct decimal { /* a magnitude: digits before the point without leading zeros (at least one), and after it */
    char digits[DIGITS], frac[FRAC_DIGITS + 1];
    int n_digits;
};

static bool decimal_read(struct ir *ir, const char *text, struct decimal *out) {
    if (*text == '-') text++;
    while (*text == '0' && text[1] && text[1] != '.') text++;
    size_t n = strcspn(text, "."), n_frac = text[n] ? strlen(text + n + 1) : 0;
    while (n_frac > FRAC_DIGITS && text[n + n_frac] == '0') n_frac--;
    if (n >= 20 || n_frac > FRAC_DIGITS) {
        ir_fail(ir, ROD_EINVALID, "has a bound, %.40s, with more than 19 digits before or 16 after the point", text);
        return false;
    }
    memcpy(out->digits, text, n);
    out->digits[n] = 0;
    out->n_digits = (int)n;
    memset(out->frac, '0', FRAC_DIGITS);
    if (n_frac) memcpy(out->frac, text + n + 1, n_frac);
    out->frac[FRAC_DIGITS] = 0;
    return true;
}

/* Magnitudes from lo to hi; hi NULL: of up to INT_DIGITS digits, or as many as lo has. */
static uint32_t between_magnitudes(struct ir *ir, bool integer, const char *lo, bool lo_strict, const char *hi,
                                   bool hi_strict) {
    struct decimal low, high;
    char low_digits[DIGITS + FRAC_DIGITS], high_digits[DIGITS + FRAC_DIGITS];
    if (!decimal_read(ir, lo, &low) || (hi && !decimal_read(ir, hi, &high))) return IR_NOTHING;
    int last = hi ? high.n_digits : low.n_digits > INT_DIGITS ? low.n_digits : INT_DIGITS;
    uint32_t out = IR_NOTHING;
    for (int n = low.n_digits; n <= last; n++) {
        struct between b = {.ir = ir, .lo_strict = lo_strict, .hi_strict = hi_strict, .integer = integer, .n = n};
        b.end = integer ? n : n + FRAC_DIGITS;
        if (n == low.n_digits) {
            memcpy(low_digits, low.digits, (size_t)n);
            memcpy(low_digits + n, low.frac, FRAC_DIGITS);
            b.lo = low_digits;
        }
        if (hi && n == high.n_digits) {
            memcpy(high_digits, high.digits, (size_t)n);
            memcpy(high_digits + n, high.frac, FRAC_DIGITS);
            b.hi = high_digits;
        }
        uint32_t some;
        if (b.lo || b.hi) {
            some = b.lo && b.hi && memcmp(b.lo, b.hi, (size_t)n + FRAC_DIGITS) > 0
                       ? (uint32_t)IR_NOTHING
                       : between_digits_from(&b, 0, b.lo != NULL, b.hi != NULL);
        } else {
            some = ir_cat(ir, ir_char(ir, '1', '9'), between_free_digits(&b, 1)); /* n > 1: low has fewer digits */
        }
        out = ir_alt(ir, out, some);
    }
    return out;
}

uint32_t ir_json_between(struct ir *ir, bool integer, const char *low, bool low_strict, const char *high,
                         bool high_strict) {
    uint32_t plus = IR_NOTHING, minus = IR_NOTHING;
    if (!high || *high != '-') {
        bool from_low = low && *low != '-';
        plus = between_magnitudes(ir, integer, from_low ? low : "0", from_low && low_strict, high, high_strict);
    }
    if (!low || *low == '-') {
        bool from_high = high && *high == '-';
        minus =
            between_magnitudes(ir, integer, from_high ? high : "0", from_high ? high_strict : true, low, low_strict);
    }
    return ir_alt(ir, plus, ir_cat(ir, ir_text(ir, "-"), minus));
}
