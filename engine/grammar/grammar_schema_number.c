/* grammar_schema_number.c - numbers of a schema: bounds, and multiples. */
#include "grammar_schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MULTIPLE = 1000, MAX_LISTED = 4096, MAX_DIGITS = 4 };

/* Integers beyond 64 bits arrive here as doubles, which may have lost their last digits; whoever validates the text
 * reads all of them. So a whole double counts where every integer is one. */
bool value_is_exact(const json_t *value) {
    const char *name;
    json_t *one;
    size_t i;
    if (json_is_real(value)) {
        double x = json_real_value(value);
        return trunc(x) != x || fabs(x) < 0x1p53;
    }
    json_array_foreach(value, i, one) if (!value_is_exact(one)) return false;
    json_object_foreach((json_t *)value, name, one) if (!value_is_exact(one)) return false;
    return true;
}

uint32_t schema_refuse_inexact(struct schema *s, const char *keyword) {
    return schema_refuse(s, keyword, ", with a number beyond 64-bit integers, or from 2^53 on in another form");
}

/* A number in plain digits, which read back give the same number. */
static bool bound_write_decimal(struct schema *s, const char *keyword, const json_t *value, char out[64]) {
    if (json_is_integer(value)) {
        snprintf(out, 64, "%lld", (long long)json_integer_value(value));
        return true;
    }
    double x = json_real_value(value);
    char text[40];
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, fabs(x));
        if (strtod(text, NULL) == fabs(x)) break;
    }
    const char *e = strchr(text, 'e');
    long exponent = strtol(e + 1, NULL, 10);
    if (x != 0 && (exponent < -16 || exponent > 18)) {
        schema_refuse(s, keyword, ", a bound with more than 19 digits before or 16 after the point");
        return false;
    }
    char digits[40];
    int n_digits = 0, n = 0;
    for (const char *p = text; p < e; p++)
        if (*p >= '0' && *p <= '9') digits[n_digits++] = *p;
    if (x < 0) out[n++] = '-';
    if (exponent < 0) {
        out[n++] = '0';
        out[n++] = '.';
        for (long i = exponent + 1; i < 0; i++) out[n++] = '0';
        for (int i = 0; i < n_digits; i++) out[n++] = digits[i];
    } else {
        for (int i = 0; i < n_digits || i <= exponent; i++) {
            if (i == exponent + 1) out[n++] = '.';
            out[n++] = i < n_digits ? digits[i] : '0';
        }
    }
    out[n] = 0;
    if (x == 0) snprintf(out, 64, "0");
    return true;
}

/* The tighter of an inclusive and an exclusive bound; *has false: there is none. */
static bool bound_read(struct schema *s, const json_t *schema, const char *keyword, const char *exclusive, double sign,
                       char out[64], bool *strict, bool *has) {
    const json_t *a = json_object_get(schema, keyword), *b = json_object_get(schema, exclusive);
    if ((a && !json_is_number(a)) || (b && !json_is_number(b))) {
        schema_refuse(s, a && !json_is_number(a) ? keyword : exclusive, ", which must be a number");
        return false;
    }
    if ((a && !value_is_exact(a)) || (b && !value_is_exact(b))) {
        schema_refuse_inexact(s, a && !value_is_exact(a) ? keyword : exclusive);
        return false;
    }
    *has = a || b;
    *strict = b && (!a || sign * json_number_value(b) >= sign * json_number_value(a));
    if (json_is_integer(a) && json_is_integer(b)) {
        const json_int_t x = json_integer_value(a), y = json_integer_value(b);
        *strict = sign > 0 ? y >= x : y <= x;
    }
    return !*has || bound_write_decimal(s, *strict ? exclusive : keyword, *strict ? b : a, out);
}

struct multiples { /* in a range, as decimal digits */
    char (*texts)[24];
    size_t n;
};

static int multiples_compare(const void *a, const void *b) { return strcmp(a, b); }

/* Texts [from, to), which agree up to `at`, as a tree of their characters: so few of them are looked at together. */
static uint32_t multiples_tree(struct ir *ir, const struct multiples *m, size_t from, size_t to, size_t at) {
    uint32_t out = IR_NOTHING;
    for (size_t i = from, next; i < to && !ir->rc; i = next) {
        const char c = m->texts[i][at];
        for (next = i; next < to && m->texts[next][at] == c; next++) {}
        out = ir_alt(ir, out,
                     !c ? IR_EMPTY_NODE : ir_cat(ir, ir_bytes(ir, &c, 1), multiples_tree(ir, m, i, next, at + 1)));
    }
    return out;
}

/* 1, or what is below it: a half, a quarter and so on, which floats hold to the bit, or a tenth, a hundredth and so on,
 * with so many digits behind the point. */
struct unit {
    double size;
    int digits;
};

static bool unit_of(double m, struct unit *out) {
    if (m >= 1 && m <= MAX_MULTIPLE && trunc(m) == m) return *out = (struct unit){1, 0}, true;
    double half = 1, tenth = 1;
    for (int digits = 1; digits <= MAX_DIGITS; digits++) {
        half /= 2;
        tenth *= 10;
        if (m == half || m == 1 / tenth) return *out = (struct unit){m, digits}, true;
    }
    return false;
}

/* Without zeros behind the last digit. */
static void unit_write(const struct unit *unit, long long count, char out[24]) {
    snprintf(out, 24, "%.*f", unit->digits, (double)count * unit->size);
    if (!unit->digits) return;
    char *end = out + strlen(out);
    while (end[-1] == '0') *--end = 0;
    if (end[-1] == '.') end[-1] = 0;
}

/* Each multiple of m units from low to high, in units. */
static uint32_t multiples_listed(struct schema *s, const struct unit *unit, long long m, long long low,
                                 long long high) {
    const long long first = low / m + (low % m > 0), last = high / m - (high % m < 0);
    if (last < first) return schema_empty(s, "multipleOf", NULL, " without a multiple between the bounds");
    if (last - first >= MAX_LISTED)
        return schema_refuse(s, "multipleOf", ", with more than 4096 multiples between the bounds");
    struct multiples all = {calloc((size_t)(last - first + 1), sizeof *all.texts), 0};
    if (!all.texts) return ir_no_memory(s->ir);
    for (long long k = first; k <= last; k++) unit_write(unit, k * m, all.texts[all.n++]);
    qsort(all.texts, all.n, sizeof *all.texts, multiples_compare);
    const uint32_t out = multiples_tree(s->ir, &all, 0, all.n, 0);
    free(all.texts);
    return out;
}

/* All multiples of a unit below 1. */
static uint32_t multiples_of_a_part(struct ir *ir, const struct unit *unit) {
    uint32_t some = IR_NOTHING;
    const uint32_t zero = ir_text(ir, ".0");
    if (ldexp(1, -unit->digits) != unit->size) {
        some = ir_cat(ir, ir_text(ir, "."), ir_rep(ir, ir_char(ir, '0', '9'), 1, (uint32_t)unit->digits));
        return ir_alt(ir, ir_cat(ir, ir_json_number(ir, true), ir_opt(ir, some)), ir_cat(ir, ir_text(ir, "-0"), some));
    }
    for (int i = 1; i < 1 << unit->digits; i++) {
        char text[24];
        unit_write(unit, i, text);
        some = ir_alt(ir, some, ir_text(ir, text + 1)); /* without the 0 before the point */
    }
    return ir_alt(ir, ir_cat(ir, ir_json_number(ir, true), ir_opt(ir, ir_alt(ir, zero, some))),
                  ir_cat(ir, ir_text(ir, "-0"), some));
}

/* The least or the largest count of units within the bounds; *has false: there is none on this side. */
static bool multiples_read_bound(struct schema *s, const json_t *schema, bool low, const struct unit *unit,
                                 long long *out, bool *has) {
    const char *keyword = low ? "minimum" : "maximum", *exclusive = low ? "exclusiveMinimum" : "exclusiveMaximum";
    const double sign = low ? 1 : -1;
    *has = false;
    for (int i = 0; i < 2; i++) {
        const char *name = i ? exclusive : keyword;
        const json_t *value = json_object_get(schema, name);
        if (!value) continue;
        const double x = json_number_value(value) / unit->size;
        if (!json_is_number(value) || fabs(x) > 1e15) {
            schema_refuse(s, name, ", which beside multipleOf must be a number up to 1e15");
            return false;
        }
        double whole = low ? ceil(x) : floor(x);
        if (i && whole == x) whole += sign;
        if (!*has || sign * whole > sign * (double)*out) *out = (long long)whole;
        *has = true;
    }
    return true;
}

static uint32_t schema_multiples(struct schema *s, const json_t *schema) {
    const double m = json_number_value(json_object_get(schema, "multipleOf"));
    long long low = 0, high = 0;
    bool has_low, has_high;
    struct unit unit;
    if (!unit_of(m, &unit))
        return schema_refuse(s, "multipleOf",
                             ", which is supported for whole numbers from 1 to 1000, and for 0.5, 0.25 ... and 0.1, "
                             "0.01 ... to 4 digits");
    const long long count = (long long)(m / unit.size);
    if (!multiples_read_bound(s, schema, true, &unit, &low, &has_low) ||
        !multiples_read_bound(s, schema, false, &unit, &high, &has_high))
        return IR_NOTHING;
    if (has_low && has_high) return multiples_listed(s, &unit, count, low, high);
    if (!has_low && !has_high)
        return unit.digits ? multiples_of_a_part(s->ir, &unit) : ir_json_multiple(s->ir, (uint32_t)m, true);
    if (unit.digits || !has_low || low < 0 || low > m)
        return schema_refuse(s, "multipleOf",
                             " beside one bound, unless it is a minimum from 0 to the multiple itself");
    const uint32_t all = ir_json_multiple(s->ir, (uint32_t)m, false);
    return low == 0 ? ir_alt(s->ir, ir_text(s->ir, "0"), all) : all;
}

uint32_t schema_number(struct schema *s, const json_t *schema, bool integer) {
    char low[64], high[64];
    bool low_strict, high_strict, has_low, has_high;
    const json_t *multiple = json_object_get(schema, "multipleOf");
    const double m = json_number_value(multiple);
    const bool each = integer && m > 0 && m <= 1 && trunc(1 / m) == 1 / m; /* is a multiple */
    if (multiple && !each) return schema_multiples(s, schema);
    if (!bound_read(s, schema, "minimum", "exclusiveMinimum", 1, low, &low_strict, &has_low) ||
        !bound_read(s, schema, "maximum", "exclusiveMaximum", -1, high, &high_strict, &has_high))
        return IR_NOTHING;
    if (!has_low && !has_high) return ir_json_number(s->ir, integer);
    const uint32_t out =
        ir_json_between(s->ir, integer, has_low ? low : NULL, low_strict, has_high ? high : NULL, high_strict);
    const char *lower = low_strict ? "exclusiveMinimum" : "minimum",
               *upper = high_strict ? "exclusiveMaximum" : "maximum";
    if (s->ir->rc) return schema_refuse_part(s, has_low ? lower : upper);
    if (out != IR_NOTHING) return out;
    return schema_empty(s, has_low ? lower : upper, has_low && has_high ? upper : NULL, ", which leaves no number");
}
