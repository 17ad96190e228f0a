/* object_call.c - see object_call.h. */
#include "object_call.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { RENEW_BEFORE_S = 300, NOT_A_CLOCK_S = 300 };
#define RENEW_EVERY_NS ((uint64_t)10000000000)

void object_store_say(struct object_store *store, int level, const char *format, ...) {
    char line[640];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (store->log) store->log(store->log_arg, level, line);
}

/* ---- credentials ---- */

/* true: they are others than before. */
static bool credentials_renew(struct object_store *store) {
    struct object_credentials *fresh, *old;
    struct rod_error err;
    if (object_credentials_load(store->credentials_file, &fresh, &err)) {
        object_store_say(store, 2, "object store: the credentials could not be read again: %s", err.message);
        return false;
    }
    pthread_mutex_lock(&store->lock);
    old = store->credentials;
    store->credentials = fresh;
    const bool changed = strcmp(old->key_id, fresh->key_id) != 0 || strcmp(old->secret, fresh->secret) != 0 ||
                         strcmp(old->token, fresh->token) != 0;
    pthread_mutex_unlock(&store->lock);
    object_credentials_unref(old);
    if (changed) object_store_say(store, 1, "object store: the credentials were read again");
    return changed;
}

/* forced: the store has refused them. At most every RENEW_EVERY_NS. */
static bool credentials_renew_if_due(struct object_store *store, bool forced) {
    const uint64_t now_ns = clock_now_ns();
    pthread_mutex_lock(&store->lock);
    const int64_t expires_s = store->credentials->expires_s;
    const bool asked =
        store->credentials->from_file && (forced || (expires_s && expires_s - RENEW_BEFORE_S < clock_unix_s()));
    const bool due = asked && (!store->renewed_ns || now_ns - store->renewed_ns > RENEW_EVERY_NS);
    if (due) store->renewed_ns = now_ns;
    pthread_mutex_unlock(&store->lock);
    return due && credentials_renew(store);
}

static struct object_credentials *credentials_now(struct object_store *store) {
    credentials_renew_if_due(store, false);
    pthread_mutex_lock(&store->lock);
    struct object_credentials *who = object_credentials_ref(store->credentials);
    pthread_mutex_unlock(&store->lock);
    return who;
}

/* ---- begin and end ---- */

uint64_t object_call_until(const struct object_store *store) { return (uintptr_t)pthread_getspecific(store->until); }

/* Of so much time, what the thread has. */
static uint64_t time_within(const struct object_store *store, uint64_t now_ns, uint64_t time_ns) {
    const uint64_t until_ns = object_call_until(store), left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    return until_ns && left_ns < time_ns ? left_ns : time_ns;
}

static int call_take(struct object_call *call, struct rod_error *err) {
    struct object_pool *pool = call->store->pool;
    if (!call->channel) call->channel = object_pool_take(pool, call->pace.end_ns, err);
    if (!call->channel) return err->code;
    uint64_t n = 0;
    for (size_t i = 0; i < call->body.n_parts; i++) n += call->body.parts[i].n;
    return n ? object_pool_take_bytes(pool, n, call->pace.end_ns, &call->n_bytes, err) : 0;
}

int object_call_begin(struct object_call *call, struct object_store *store, const struct object_ask *ask,
                      const struct object_body *body, uint64_t time_ns, struct object_channel *channel,
                      struct rod_error *err) {
    *call = (struct object_call){.store = store, .ask = *ask, .channel = channel, .is_lent = channel != NULL};
    call->is_stream = ask->kind == OBJECT_GET;
    call->ask.encryption = store->encryption;
    if (body) call->body = *body;
    call->began_ns = clock_now_ns();
    time_ns = time_within(store, call->began_ns, time_ns);
    object_pace_begin(&call->pace, call->began_ns, time_ns);
    const int rc =
        time_ns ? call_take(call, err) : rod_fail(err, ROD_EIO, "There is no time left for the object store.");
    if (rc) object_call_end(call);
    return rc;
}

void object_call_end(struct object_call *call) {
    if (call->began_ns) object_seconds_add(call->store->seconds, call->ask.kind, clock_now_ns() - call->began_ns);
    call->began_ns = 0;
    if (!call->channel) return;
    struct object_exchange *x = &call->channel->exchange;
    atomic_fetch_add(&call->store->counters[OBJECT_IN], x->n_in);
    object_exchange_end(x);
    if (call->n_bytes) object_pool_give_bytes(call->store->pool, call->n_bytes);
    if (!call->is_lent) object_pool_give(call->store->pool, call->channel);
    call->channel = NULL;
    call->n_bytes = 0;
}

/* ---- one attempt ---- */

static int say_answer(const struct object_call *call, const char *what, struct rod_error *err) {
    const struct object_answer *a = object_call_answer(call);
    const int64_t ahead_s = a->date_s ? clock_unix_s() - a->date_s : 0;
    if (!strcmp(a->code, "RequestTimeTooSkewed") || (a->status == 403 && llabs(ahead_s) > NOT_A_CLOCK_S))
        return rod_fail(err, ROD_EIO,
                        "The object store refuses %s: the clock of this machine is %lld s %s its own (%d %s).", what,
                        llabs(ahead_s), ahead_s < 0 ? "behind" : "ahead of", a->status, a->code);
    if (a->status >= 300 && a->status < 400)
        return rod_fail(err, ROD_EIO,
                        "The object store answers %s with %d%s%s: the bucket has another endpoint or region.", what,
                        a->status, *a->code ? " " : "", a->code);
    return rod_fail(err, ROD_EIO, "The object store answers %s with %d%s%s%s%s", what, a->status, *a->code ? " " : "",
                    a->code, *a->message ? ": " : ".", a->message);
}

/* What stands in an answer may hold what was asked with. */
static void hide(struct object_answer *a, const struct object_credentials *who) {
    if (strstr(a->message, who->key_id) || strstr(a->message, who->secret) ||
        (*who->token && strstr(a->message, who->token)))
        a->message[0] = 0;
}

static int judge(struct object_call *call, const struct object_credentials *who, const char *what,
                 struct rod_error *err) {
    struct object_exchange *x = &call->channel->exchange;
    struct object_answer *a = &x->answer;
    bool again;
    if (object_exchange_failed(x) || !a->is_complete) {
        const int rc = object_exchange_say(x, what, &again, err);
        call->maybe_done |= x->was_sent;
        call->is_silent |= x->was_sent;
        call->verdict = again ? OBJECT_AGAIN : OBJECT_REFUSED;
        return rc;
    }
    if (a->status >= 300 || call->ask.kind == OBJECT_COPY) object_answer_error(a, x->kept, x->n_kept);
    hide(a, who);
    call->verdict = object_answer_verdict(a);
    call->maybe_done |= object_answer_unsure(a) || x->is_repeated;
    call->is_silent |= object_answer_gateway(a) || x->is_repeated;
    if (call->verdict == OBJECT_DONE || call->verdict == OBJECT_MISSING || call->verdict == OBJECT_LOST) return 0;
    if (call->verdict == OBJECT_RENEW) {
        call->verdict =
            !call->was_renewed && credentials_renew_if_due(call->store, true) ? OBJECT_AGAIN : OBJECT_REFUSED;
        call->was_renewed = true;
    }
    return say_answer(call, what, err);
}

int object_call_attempt(struct object_call *call, struct rod_error *err) {
    struct object_store *store = call->store;
    struct object_channel *channel = call->channel;
    struct object_exchange *x = &channel->exchange;
    struct object_credentials *who = credentials_now(store);
    char what[sizeof "DELETE " + 120];
    snprintf(what, sizeof what, "%s %.110s", object_kind_name(call->ask.kind), call->ask.key);
    call->verdict = OBJECT_REFUSED;
    int rc = object_request_make(&store->url, &call->ask, who->token, &channel->request, err);
    if (!rc) {
        const size_t max_kept = call->ask.kind == OBJECT_LIST ? OBJECT_MAX_LIST : OBJECT_MAX_ERROR;
        atomic_fetch_add(&store->counters[OBJECT_IN], x->n_in);
        object_exchange_end(x);
        object_pace_attempt(&call->pace, clock_now_ns());
        atomic_fetch_add(&store->n_requests[call->ask.kind], 1);
        object_exchange_begin(x, &store->line, &channel->request, who, &call->body, call->is_stream, max_kept,
                              &call->pace);
        object_exchange_answer(x);
        atomic_fetch_add(&store->counters[OBJECT_OUT], x->n_sent);
        rc = judge(call, who, what, err);
    }
    object_request_wipe(&channel->request);
    object_credentials_unref(who);
    return rc;
}

static void sleep_ns(uint64_t ns) {
    struct timespec left = clock_timespec(ns);
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

bool object_call_again(struct object_call *call) {
    uint32_t random = 0;
    uint64_t wait_ns;
    const uint64_t asked_ns = object_call_answer(call)->retry_after_s * (uint64_t)1000000000;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random) random = (uint32_t)clock_now_ns();
    if (!object_pace_wait(&call->pace, clock_now_ns(), asked_ns, random, &wait_ns)) return false;
    atomic_fetch_add(&call->store->counters[OBJECT_RETRIES], 1);
    sleep_ns(wait_ns);
    return true;
}

int object_call_run(struct object_call *call, struct rod_error *err) {
    for (;;) {
        const int rc = object_call_attempt(call, err);
        if (!rc || call->verdict != OBJECT_AGAIN || !object_call_again(call)) return rc;
    }
}

/* ---- health ---- */

static bool is_failure(int rc) { return rc == ROD_EIO || rc == ROD_EUNSURE; }

/* One line when it begins, one a minute while it goes on, however often it comes and goes, one when it is over. */
static void say_failing(struct object_store *store, const struct rod_error *err, uint64_t n_left_out) {
    if (n_left_out)
        object_store_say(store, 2, "object store: %s (and %llu calls that failed since the last such line)",
                         err->message, (unsigned long long)n_left_out);
    else
        object_store_say(store, 2, "object store: %s", err->message);
}

int object_call_note(struct object_store *store, int rc, const struct rod_error *err) {
    uint64_t n_left_out = 0;
    pthread_mutex_lock(&store->lock);
    const uint32_t before = store->n_failed;
    store->n_failed = !is_failure(rc) ? 0 : before < UINT32_MAX ? before + 1 : before;
    const uint32_t now = store->n_failed;
    if (now) store->why = *err;
    const bool says = now && log_limit_due(&store->failing, clock_now_ns(), &n_left_out);
    const bool ends = !now && store->told;
    store->told = (store->told || says) && now;
    pthread_mutex_unlock(&store->lock);
    if (now) atomic_fetch_add(&store->counters[OBJECT_FAILURES], 1);
    if (rc == ROD_ECONFLICT) atomic_fetch_add(&store->counters[OBJECT_CONFLICTS], 1);
    if (says) say_failing(store, err, n_left_out);
    if (ends) object_store_say(store, 1, "object store: it answers again, after %u calls that failed", before);
    return rc;
}
