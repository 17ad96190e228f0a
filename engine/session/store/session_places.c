/* session_places.c - see session_places.h. */
#include "session_places.h"

#include <assert.h>

/* Turn 0 is the beginning, which every power divides. */
static double places_age(const struct session_metadata *m, size_t at) {
    const uint64_t turn = m->kept[at].turn;
    assert(at < m->n_kept && turn < m->turn);
    return turn ? (double)(m->turn - turn) / (double)(turn & (~turn + 1)) : 0;
}

/* Of the first n. */
static size_t places_victim(const struct session_metadata *m, size_t n) {
    size_t victim = 0;
    assert(n && n <= m->n_kept);
    for (size_t i = 1; i < n; i++)
        if (places_age(m, i) > places_age(m, victim)) victim = i;
    return victim;
}

size_t session_places_victim(const struct session_metadata *m) {
    return places_victim(m, m->n_kept > 1 ? m->n_kept - 1 : m->n_kept);
}

void session_places_drop(struct session_metadata *m, size_t at) {
    assert(at < m->n_kept);
    m->n_kept--;
    memmove(&m->kept[at], &m->kept[at + 1], (m->n_kept - at) * sizeof *m->kept);
    m->kept[m->n_kept] = (struct session_place){0};
}

void session_places_keep(struct session_metadata *m, uint32_t most) {
    assert(most <= SESSION_MAX_KEPT);
    m->keep = most;
    while (m->n_kept > most) session_places_drop(m, session_places_victim(m));
    if (!most) m->turn = 0;
}

void session_places_end_turn(struct session_metadata *m, bool kept) {
    const struct session_place here = {m->version++, m->turn};
    if (!m->keep) return;
    m->turn++;
    while (kept && m->n_kept >= m->keep) session_places_drop(m, places_victim(m, m->n_kept));
    if (kept) m->kept[m->n_kept++] = here;
    assert(session_places_ok(m));
}

size_t session_places_find(const struct session_metadata *m, uint64_t version) {
    size_t at = 0;
    while (at < m->n_kept && m->kept[at].version != version) at++;
    return at;
}

static uint64_t places_distance(const struct session_metadata *m, size_t at, bool by_turn, uint64_t value) {
    const uint64_t x = by_turn ? m->kept[at].turn : m->kept[at].version;
    return x > value ? x - value : value - x;
}

size_t session_places_nearest(const struct session_metadata *m, bool by_turn, uint64_t value) {
    size_t nearest = 0;
    for (size_t i = 1; i < m->n_kept; i++)
        if (places_distance(m, i, by_turn, value) < places_distance(m, nearest, by_turn, value)) nearest = i;
    return nearest;
}

void session_places_go_back(struct session_metadata *m, size_t at) {
    m->version++;
    m->turn = m->kept[at].turn;
    while (m->n_kept > at) session_places_drop(m, m->n_kept - 1);
}

void session_places_forget(struct session_metadata *m) {
    while (m->n_kept) session_places_drop(m, m->n_kept - 1);
}

bool session_places_ok(const struct session_metadata *m) {
    if (m->keep > SESSION_MAX_KEPT || m->n_kept > m->keep || (!m->keep && m->turn)) return false;
    for (size_t i = 0; i < m->n_kept; i++) {
        const struct session_place *p = &m->kept[i];
        if (p->version >= m->version || p->turn >= m->turn) return false;
        if (i && (p->version <= p[-1].version || p->turn <= p[-1].turn)) return false;
    }
    return true;
}
