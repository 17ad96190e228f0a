/* json_real.c - the shortest spelling of a double; see json_real.h. */
#include "json_real.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIGITS = 17, PLAIN_FROM = -4, PLAIN_BELOW = 16 }; /* exponents that Python writes without e */

void json_real_text(double value, char out[JSON_REAL_BYTES]) {
    char text[JSON_REAL_BYTES], digits[MAX_DIGITS + 1];
    int n_digits = 0, n = 0;
    assert(isfinite(value));
    for (int precision = 0; precision < MAX_DIGITS; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, fabs(value));
        if (strtod(text, NULL) == fabs(value)) break;
    }
    const char *e = strchr(text, 'e');
    const long exponent = strtol(e + 1, NULL, 10);
    for (const char *p = text; p < e; p++)
        if (*p >= '0' && *p <= '9') digits[n_digits++] = *p;
    if (signbit(value)) out[n++] = '-';
    if (exponent < PLAIN_FROM || exponent >= PLAIN_BELOW) {
        const int more = n_digits - 1;
        snprintf(out + n, JSON_REAL_BYTES - (size_t)n, "%c%s%.*se%+03ld", digits[0], more ? "." : "", more, digits + 1,
                 exponent);
        return;
    }
    for (long at = exponent; at < 0; at++) { /* zeros left of the first digit */
        out[n++] = '0';
        if (at == exponent) out[n++] = '.';
    }
    for (int i = 0; i < n_digits || i <= exponent; i++) {
        out[n++] = i < n_digits ? digits[i] : '0';
        if (i == exponent) out[n++] = '.';
    }
    if (out[n - 1] == '.') out[n++] = '0';
    out[n] = 0;
}
