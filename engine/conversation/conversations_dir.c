/* conversations_dir.c - see conversations_internal.h: names of conversations' folders, and lists of
 * them as the table takes them. */
#include "conversations_internal.h"
#include "engine/base/array.h"
#include "engine/base/clock.h"
#include "engine/session/store/session_names.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HALF = SIPHASH_BYTES / 2 };

char *conversations_whose(const char *tenant, const char *name, size_t *n) {
    const size_t n_tenant = strlen(tenant) + 1, n_name = strlen(name) + 1;
    char *whose = malloc(n_tenant + n_name);
    if (!whose) return NULL;
    memcpy(whose, tenant, n_tenant);
    memcpy(whose + n_tenant, name, n_name);
    *n = n_tenant + n_name;
    return whose;
}

static void put_hexadecimal(const uint8_t *bytes, size_t n, char *text) {
    for (size_t i = 0; i < n; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

void conversations_tenant_dir(const struct conversations *c, const char *tenant, char dir[CONVERSATION_DIR_BYTES]) {
    uint8_t hash[SIPHASH_BYTES];
    siphash(c->key, tenant, strlen(tenant), hash);
    put_hexadecimal(hash, HALF, dir); /* as sessions' names begin in a store (session_names.h) */
    memcpy(dir + 2 * HALF, "/", 2);
}

/* Servers that read prompts with other bits, or write other formats, have other objects. */
static const uint32_t formats[] = {CONVERSATION_ARITHMETIC, STATE_FILE_FORMAT, CONVERSATION_NOTES_FORMAT};

void conversations_dir(const struct conversations *c, const char *tenant, const char *name,
                       char dir[CONVERSATION_DIR_BYTES]) {
    const struct state_form *form = &c->config.form;
    uint8_t hash[SIPHASH_BYTES];
    struct {
        uint8_t fingerprint[MODEL_FINGERPRINT_BYTES], layout[SIPHASH_BYTES], tenant[SIPHASH_BYTES], name[SIPHASH_BYTES],
            formats[sizeof formats];
    } all;
    memcpy(all.fingerprint, form->fingerprint, sizeof all.fingerprint);
    siphash(c->key, form->layout, strlen(form->layout), all.layout);
    siphash(c->key, tenant, strlen(tenant), all.tenant);
    siphash(c->key, name, strlen(name), all.name);
    memcpy(all.formats, formats, sizeof formats);
    siphash(c->key, &all, c->stored ? sizeof all : sizeof all - sizeof formats, hash);
    if (!c->stored) {
        put_hexadecimal(hash, sizeof hash, dir);
        return;
    }
    conversations_tenant_dir(c, tenant, dir);
    put_hexadecimal(hash, HALF, dir + strlen(dir));
}

const char *conversations_whose_dir(const struct conversations *c, const char *dir, const char *first, size_t n,
                                    const char **name) {
    char own[CONVERSATION_DIR_BYTES];
    const size_t n_tenant = n ? strnlen(first, n) + 1 : 0;
    if (!n || n_tenant >= n || first[n - 1] || strlen(first + n_tenant) + 1 != n - n_tenant) return NULL;
    *name = first + n_tenant;
    conversations_dir(c, first, *name, own);
    return strcmp(own, dir) ? NULL : first;
}

int conversations_read_key(struct conversations *c, const struct state_home *home, struct rod_error *err) {
    struct session_names names;
    session_names_init(&names);
    pthread_mutex_lock(&names.lock);
    int rc = session_names_read_key_locked(&names, home, err);
    if (rc == ROD_ENOTFOUND) rc = session_names_make_key_locked(&names, home, err);
    memcpy(c->key, names.key, sizeof c->key);
    pthread_mutex_unlock(&names.lock);
    session_names_fini(&names);
    return rc;
}

/* ---- lists ---- */

bool conversations_scan_add(struct conversation_scans *scans, const char *file, uint64_t bytes) {
    struct conversation_scan one = {.bytes = bytes};
    const bool is_state = conversation_file_parse(file, &one.place);
    if (!is_state && strcmp(file, CONVERSATION_NOTES_FILE) != 0) return false;
    scans->made = true;
    if (!is_state)
        scans->notes_bytes = bytes;
    else if (ARRAY_RESERVE(scans->all, scans->cap, scans->n, 1))
        scans->all[scans->n++] = one;
    return true;
}

static int by_tokens(const void *a, const void *b) {
    const struct conversation_scan *x = a, *y = b;
    return (x->place.n_tok > y->place.n_tok) - (x->place.n_tok < y->place.n_tok);
}

/* It is there and nobody removes it. */
static bool scan_stays_locked(const struct conversations *c, const char *dir, const struct conversation_scan *one) {
    char file[CONVERSATION_NAME_BYTES];
    if (!c->stored) return true;
    conversation_file_name(&one->place, file);
    return !conversations_removes_locked(c, dir, file);
}

/* States that the home has and the table has not, and the reverse: another server wrote or removed them. */
static void merge_states_locked(struct conversations *c, struct conversation *of,
                                const struct conversation_scans *scans) {
    for (struct list_link *l = list_first(&of->states), *next; l; l = next) {
        struct conversation_state *s = LIST_OF(l, struct conversation_state, link);
        bool there = !s->ready;
        next = list_next(&of->states, l);
        for (size_t i = 0; i < scans->n && !there; i++)
            there = !memcmp(&scans->all[i].place.tokens, &s->place.tokens, sizeof s->place.tokens);
        if (!there) conversation_state_filed(c->table, s, 0, false);
    }
    for (size_t i = 0; i < scans->n; i++) {
        const struct conversation_scan *one = &scans->all[i];
        struct conversation_state *s = conversation_state_find(c->table, of, &one->place);
        if ((s && s->file_bytes) || !scan_stays_locked(c, of->dir, one)) continue;
        if (!s) s = conversation_state_add(c->table, of, &one->place);
        if (s) conversation_state_filed(c->table, s, one->bytes, true);
    }
}

/* It had files, none is being written, and its folder is not there: another server has removed it. */
static bool is_gone_locked(const struct conversation *of) {
    bool had = of->notes_bytes > 0;
    for (struct list_link *l = list_first(&of->states); l; l = list_next(&of->states, l)) {
        const struct conversation_state *s = LIST_OF(l, struct conversation_state, link);
        if (s->file_bytes && !s->ready) return false;
        had |= s->ready;
    }
    return had;
}

void conversations_gone_locked(struct conversations *c, struct conversation *of) {
    if (!is_gone_locked(of)) return;
    /* In a store it may be begun anew by now: nothing is removed there. */
    (c->stored ? conversation_forget : conversation_remove)(c->table, of);
}

static bool changed_locked(const struct conversations *c, const struct conversation *of, const char *dir,
                           const struct conversation_scans *scans) {
    return scans->since_ns && (conversations_busy_locked(c, dir) || (of && of->changed_ns >= scans->since_ns));
}

void conversations_merge(struct conversations *c, const char *dir, const char *tenant, const char *name, int64_t used_s,
                         struct conversation_scans *scans) {
    if (scans->n) qsort(scans->all, scans->n, sizeof *scans->all, by_tokens); /* the longest counts as the latest */
    pthread_mutex_lock(&c->lock);
    struct conversation *of = conversation_find(c->table, dir);
    const bool goes = c->stored && (conversations_removes_locked(c, dir, "") || changed_locked(c, of, dir, scans));
    if (!of && scans->made && !goes && (of = conversation_get(c->table, dir, tenant, name, used_s))) of->made = true;
    if (of && scans->made && !goes) {
        of->made = true;
        merge_states_locked(c, of, scans);
        conversation_set_notes(c->table, of, scans->notes_bytes);
    } else if (of && !goes) {
        conversations_gone_locked(c, of);
    }
    if (of && !goes && c->stored && conversation_find(c->table, dir)) of->listed_ns = clock_now_ns();
    pthread_mutex_unlock(&c->lock);
    free(scans->all);
    scans->all = NULL;
}
