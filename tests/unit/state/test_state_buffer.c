/* test_state_buffer.c - host memory of states: shared and counted, within its budget, joined again when released; hooks
 * of a full pool; many threads. */
#include "engine/base/philox.h"
#include "engine/state/state_buffer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct state_pool *pool_of(size_t bytes) {
    struct state_pool *p;
    struct rod_error err;
    if (state_pool_new(&(struct state_pool_config){.bytes = bytes}, &p, &err)) fail_msg("%s", err.message);
    return p;
}

static struct state_pool_counts counts_of(struct state_pool *p) {
    struct state_pool_counts c;
    state_pool_count(p, &c);
    return c;
}

static void an_image_lives_as_long_as_its_last_owner(void **state) {
    (void)state;
    struct state_pool *p = pool_of(1 << 20);
    struct state_buffer *a = state_buffer_new(p, 100000);
    assert_int_equal((uintptr_t)a->bytes % 4096, 0);
    memset(a->bytes, 7, a->n_bytes);
    struct state_buffer *b = state_buffer_ref(a);
    assert_ptr_equal(a, b);
    state_buffer_release(a);
    assert_int_equal(((unsigned char *)b->bytes)[99999], 7);
    assert_int_equal(counts_of(p).n_buffers, 1);
    assert_int_equal(counts_of(p).used_bytes, state_pool_bytes(1, 100000));
    state_pool_close(p); /* before its last buffer */
    assert_int_equal(((unsigned char *)b->bytes)[0], 7);
    state_buffer_release(b);
    state_buffer_release(NULL);
    assert_null(state_buffer_ref(NULL));
    a = state_buffer_new(NULL, 10); /* of no pool */
    memset(a->bytes, 1, 10);
    state_buffer_release(a);
}

static void the_budget_is_never_passed(void **state) {
    (void)state;
    enum { N = 5 };
    struct state_pool *p = pool_of(state_pool_bytes(N, 50000));
    struct state_buffer *buffers[N];
    for (int i = 0; i < N; i++) assert_non_null(buffers[i] = state_buffer_new(p, 50000));
    assert_null(state_buffer_new(p, 1));
    assert_int_equal(counts_of(p).used_bytes, counts_of(p).bytes);
    assert_int_equal(counts_of(p).n_failed, 1);
    state_buffer_release(buffers[2]);
    assert_null(state_buffer_new(p, 60000));
    assert_non_null(buffers[2] = state_buffer_new(p, 50000));
    for (int i = 0; i < N; i++) state_buffer_release(buffers[i]);
    assert_int_equal(counts_of(p).used_bytes, 0);
    struct state_buffer *all = state_buffer_new(p, counts_of(p).bytes - 4096); /* the pieces are one again */
    assert_non_null(all);
    assert_null(state_buffer_new(p, SIZE_MAX));
    assert_null(state_buffer_new(p, SIZE_MAX - 5000));
    state_buffer_release(all);
    state_pool_close(p);
    struct rod_error err;
    assert_int_equal(state_pool_new(&(struct state_pool_config){.bytes = 4096}, &p, &err), ROD_EINVALID);
}

/* Against a list of what should be there: no two overlap, contents stay, the pool comes back whole. */
static void random_images_do_not_touch_each_other(void **state) {
    (void)state;
    enum { N = 24, ROUNDS = 20000 };
    const uint64_t seed = 11;
    struct state_pool *p = pool_of(3 << 20);
    struct state_buffer *buffers[N] = {NULL};
    unsigned char tag[N];
    uint64_t used = 0;
    for (uint64_t k = 0; k < ROUNDS; k++) {
        const size_t i = (size_t)(philox_uniform(seed, k, 0) * N), n = (size_t)(philox_uniform(seed, k, 1) * 400000);
        if (buffers[i]) {
            const unsigned char *bytes = buffers[i]->bytes;
            const size_t len = buffers[i]->n_bytes;
            if (len && (bytes[0] != tag[i] || bytes[len / 2] != tag[i] || bytes[len - 1] != tag[i]))
                fail_msg("seed %llu, round %llu: buffer %zu was changed", (unsigned long long)seed,
                         (unsigned long long)k, i);
            used -= state_pool_bytes(1, len);
            state_buffer_release(buffers[i]);
            buffers[i] = NULL;
        } else if ((buffers[i] = state_buffer_new(p, n))) {
            tag[i] = (unsigned char)k;
            if (n) memset(buffers[i]->bytes, tag[i], 1), memset((char *)buffers[i]->bytes + n / 2, tag[i], 1);
            if (n) memset((char *)buffers[i]->bytes + n - 1, tag[i], 1);
            used += state_pool_bytes(1, n);
        }
        assert_int_equal(counts_of(p).used_bytes, used);
    }
    assert_true(counts_of(p).n_failed > 0 && counts_of(p).most_bytes <= counts_of(p).bytes);
    for (size_t i = 0; i < N; i++) state_buffer_release(buffers[i]);
    struct state_buffer *all = state_buffer_new(p, counts_of(p).bytes - 4096);
    assert_non_null(all);
    state_buffer_release(all);
    state_pool_close(p);
}

struct shelf { /* of somebody who can do without its buffers */
    struct state_buffer *buffers[4];
    int n, n_asked;
};
static bool give_up_one(void *arg, size_t n_bytes) {
    struct shelf *s = arg;
    assert_int_equal(n_bytes, 50000);
    s->n_asked++;
    if (s->n == 0) return false;
    state_buffer_release(s->buffers[--s->n]);
    return true;
}

static void a_full_pool_asks_for_what_is_worth_less(void **state) {
    (void)state;
    struct state_pool *p = pool_of(state_pool_bytes(4, 50000));
    struct shelf first = {.n = 0}, second = {.n = 0};
    state_pool_on_full(p, give_up_one, &first);
    state_pool_on_full(p, give_up_one, &second);
    for (int i = 0; i < 2; i++) first.buffers[first.n++] = state_buffer_new(p, 50000);
    for (int i = 0; i < 2; i++) second.buffers[second.n++] = state_buffer_new(p, 50000);
    struct state_buffer *mine[4];
    for (int i = 0; i < 4; i++) {
        assert_non_null(mine[i] = state_buffer_new(p, 50000));
        assert_int_equal(first.n, i < 2 ? 1 - i : 0); /* the first one's go first */
        assert_int_equal(second.n, i < 2 ? 2 : 3 - i);
    }
    assert_int_equal(counts_of(p).n_failed, 0);
    assert_null(state_buffer_new(p, 50000));
    assert_int_equal(counts_of(p).n_failed, 1);
    for (int i = 0; i < 4; i++) state_buffer_release(mine[i]);
    const int asked = first.n_asked;
    assert_null(state_buffer_new(p, 1 << 30)); /* what no release can help is not asked for */
    assert_int_equal(first.n_asked, asked);
    state_pool_close(p);
}

static void *make_and_release(void *arg) {
    struct state_pool *p = arg;
    for (uint64_t k = 0; k < 3000; k++) {
        struct state_buffer *buffer = state_buffer_new(p, (size_t)(philox_uniform((uintptr_t)&k, k, 0) * 30000) + 1);
        if (!buffer) continue;
        memset(buffer->bytes, (int)k, buffer->n_bytes);
        struct state_buffer *share = state_buffer_ref(buffer);
        state_buffer_release(buffer);
        assert_int_equal(((unsigned char *)share->bytes)[share->n_bytes - 1], (unsigned char)k);
        state_buffer_release(share);
    }
    return NULL;
}

/* Memory that is no buffer takes from buffers, never all. */
static void other_memory_counts_in_the_budget(void **state) {
    (void)state;
    enum { IMAGE = 4096, N = 20 };
    const size_t each = state_pool_bytes(1, IMAGE);
    struct state_pool_config config = {.bytes = N * each, .least = 2 * each};
    struct state_pool *p;
    struct state_buffer *buffers[N + 1] = {NULL};
    int n = 0;
    assert_int_equal(state_pool_new(&config, &p, NULL), 0);
    assert_int_equal(state_pool_place(p, 5 * each), STATE_POOL_FITS);
    assert_int_equal(state_pool_place(p, 5 * each + 1), STATE_POOL_MOST); /* a quarter */
    state_pool_add(p, (int64_t)(2 * each), (int64_t)each);
    while ((buffers[n] = state_buffer_new(p, IMAGE))) n++;
    assert_int_equal(n, N - 3);
    assert_false(state_pool_over(p));
    assert_int_equal(state_pool_place(p, 1), STATE_POOL_FULL);
    state_pool_add(p, 0, (int64_t)(10 * each)); /* beside buffers that are there */
    assert_true(state_pool_over(p));
    while (state_pool_over(p)) state_buffer_release(buffers[--n]);
    assert_int_equal(n, N - 13);
    while ((buffers[n] = state_buffer_new(p, IMAGE))) n++;
    assert_int_equal(n, N * 3 / 4); /* whatever is beside them */
    state_pool_add(p, -(int64_t)(2 * each), -(int64_t)(11 * each));
    assert_int_equal(state_pool_place(p, 5 * each), STATE_POOL_FITS);
    while ((buffers[n] = state_buffer_new(p, IMAGE))) n++;
    assert_int_equal(n, N);
    while (n) state_buffer_release(buffers[--n]);
    state_pool_close(p);
}

static void many_threads_share_a_pool(void **state) {
    (void)state;
    struct state_pool *p = pool_of(100000);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, make_and_release, p), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(counts_of(p).used_bytes, 0);
    assert_int_equal(counts_of(p).n_buffers, 0);
    state_pool_close(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_image_lives_as_long_as_its_last_owner),
        cmocka_unit_test(the_budget_is_never_passed),
        cmocka_unit_test(random_images_do_not_touch_each_other),
        cmocka_unit_test(a_full_pool_asks_for_what_is_worth_less),
        cmocka_unit_test(other_memory_counts_in_the_budget),
        cmocka_unit_test(many_threads_share_a_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
