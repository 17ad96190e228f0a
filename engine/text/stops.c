/* stops.c - Knuth, Morris and Pratt's search, one automaton a stop string. */
#include "stops.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static size_t stops_advance(const struct stops_string *s, size_t at, char byte) {
    assert(at < s->len);
    while (at > 0 && s->text[at] != byte) at = s->fail[at - 1];
    return s->text[at] == byte ? at + 1 : 0;
}

int stops_init(struct stops *stops, char *const *strings, size_t n, struct rod_error *err) {
    *stops = (struct stops){0};
    if (n == 0) return 0;
    stops->strings = calloc(n, sizeof *stops->strings);
    if (!stops->strings) return rod_fail_no_memory(err);
    stops->n = n;
    for (size_t i = 0; i < n; i++) {
        struct stops_string *s = &stops->strings[i];
        s->text = strings[i];
        s->len = strlen(strings[i]);
        assert(s->len > 0);
        s->fail = calloc(s->len, sizeof *s->fail);
        if (!s->fail) {
            stops_fini(stops);
            return rod_fail_no_memory(err);
        }
        for (size_t j = 1; j < s->len; j++) s->fail[j] = (uint32_t)stops_advance(s, s->fail[j - 1], s->text[j]);
    }
    return 0;
}

void stops_fini(struct stops *stops) {
    for (size_t i = 0; i < stops->n; i++) free(stops->strings[i].fail);
    free(stops->strings);
    *stops = (struct stops){0};
}

size_t stops_max_len(const struct stops *stops) {
    size_t max = 0;
    for (size_t i = 0; i < stops->n; i++)
        if (stops->strings[i].len > max) max = stops->strings[i].len;
    return max;
}

void stops_reset(struct stops *stops) {
    for (size_t i = 0; i < stops->n; i++) stops->strings[i].at = 0;
}

int stops_scan(struct stops *stops, const char *text, size_t len, size_t *n_read, size_t *n_held) {
    for (size_t b = 0; b < len; b++) {
        int found = -1;
        for (size_t i = 0; i < stops->n; i++) {
            struct stops_string *s = &stops->strings[i];
            s->at = stops_advance(s, s->at, text[b]);
            if (s->at == s->len && (found < 0 || s->len > stops->strings[found].len)) found = (int)i;
        }
        if (found >= 0) {
            stops_reset(stops);
            *n_read = b + 1;
            *n_held = 0;
            return found;
        }
    }
    *n_read = len;
    *n_held = 0;
    for (size_t i = 0; i < stops->n; i++)
        if (stops->strings[i].at > *n_held) *n_held = stops->strings[i].at;
    return -1;
}
